// Statistics of a device in PyTorch's form: gpupool's and those of PyTorch's own allocator, which still has what was
// allocated before gpupool took its place.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "table.h"

namespace gpupool_torch {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

// The arrays that both have.
struct StatPair {
  StatArray DeviceStats::*torch;
  gpupool_stat (gpupool_device_stats::*own)[3];
};
constexpr StatPair STAT_ARRAYS[] = {
    {&DeviceStats::allocation, &gpupool_device_stats::allocation},
    {&DeviceStats::segment, &gpupool_device_stats::segment},
    {&DeviceStats::active, &gpupool_device_stats::active},
    {&DeviceStats::inactive_split, &gpupool_device_stats::inactive_split},
    {&DeviceStats::allocated_bytes, &gpupool_device_stats::allocated_bytes},
    {&DeviceStats::reserved_bytes, &gpupool_device_stats::reserved_bytes},
    {&DeviceStats::active_bytes, &gpupool_device_stats::active_bytes},
    {&DeviceStats::inactive_split_bytes, &gpupool_device_stats::inactive_split_bytes},
    {&DeviceStats::requested_bytes, &gpupool_device_stats::requested_bytes},
};
struct CountPair {
  int64_t DeviceStats::*torch;
  int64_t gpupool_device_stats::*own;
};
constexpr CountPair STAT_COUNTS[] = {
    {&DeviceStats::num_alloc_retries, &gpupool_device_stats::alloc_retries},
    {&DeviceStats::num_ooms, &gpupool_device_stats::ooms},
    {&DeviceStats::num_device_alloc, &gpupool_device_stats::device_allocs},
    {&DeviceStats::num_device_free, &gpupool_device_stats::device_frees},
};

inline gpupool_device_stats own_stats(DeviceIndex device) {
  auto stats = sized<gpupool_device_stats>();
  check(api.device_stats(device, &stats));
  return stats;
}

// Adds gpupool's to those of PyTorch's own allocator. The peak is that of the sum: never less than what was. What the
// other had at the beginning bounds what it had since.
inline void add_stat(Stat &stat, const gpupool_stat &own, const gpupool_stat &reset, int64_t native_before) {
  int64_t most = std::max(native_before, stat.current);
  stat.peak = std::max(stat.peak, own.peak + std::min(stat.peak, most));
  stat.current += own.current;
  stat.allocated += own.allocated - reset.allocated;
  stat.freed += own.freed - reset.freed;
}

// The statistics of one kind of memory, which `Memory` says: gpupool's and those of PyTorch's own allocator.
template <typename Memory> class StatisticsOf {
 public:
  auto of(DeviceIndex device) {
    auto stats = Memory::native_stats(device);
    auto own = Memory::own_stats(device);
    std::lock_guard<std::mutex> lock(mutex_);
    auto &since = since_[device];
    Memory::add(stats, own, since.reset, since.native);
    return stats;
  }

  void reset_accumulated(DeviceIndex device) {
    Memory::reset_native_accumulated(device);
    auto own = Memory::own_stats(device);
    std::lock_guard<std::mutex> lock(mutex_);
    since_[device].reset = own;
  }

  void reset_peak(DeviceIndex device) {
    Memory::reset_peaks(device);
    note_native(device);
  }

  // Notes what PyTorch's own allocator has. It hands out nothing more, so that it never has more later.
  void note_native(DeviceIndex device) {
    auto stats = Memory::native_stats(device);
    std::lock_guard<std::mutex> lock(mutex_);
    since_[device].native = std::move(stats);
  }

 private:
  struct Since {
    decltype(Memory::own_stats(0)) reset{};   // when accumulated statistics were last reset
    decltype(Memory::native_stats(0)) native; // when peaks were last reset, or gpupool was installed
  };
  std::mutex mutex_;
  std::map<DeviceIndex, Since> since_;
};

// The memory of devices.
struct DeviceMemory {
  static DeviceStats native_stats(DeviceIndex device) { return native->getDeviceStats(device); }
  static gpupool_device_stats own_stats(DeviceIndex device) { return gpupool_torch::own_stats(device); }
  static void add(DeviceStats &stats, const gpupool_device_stats &own, const gpupool_device_stats &reset,
                  const DeviceStats &before) {
    for (auto [torch, ours] : STAT_ARRAYS)
      for (size_t kind = 0; kind < 3; kind++)
        add_stat((stats.*torch)[kind], (own.*ours)[kind], (reset.*ours)[kind], (before.*torch)[kind].current);
    for (auto [torch, ours] : STAT_COUNTS) stats.*torch += own.*ours - reset.*ours;
  }
  static void reset_native_accumulated(DeviceIndex device) { native->resetAccumulatedStats(device); }
  static void reset_peaks(DeviceIndex device) {
    native->resetPeakStats(device);
    check(api.reset_peak_stats(device));
  }
};
using Statistics = StatisticsOf<DeviceMemory>;

} // namespace gpupool_torch

// Snapshots in PyTorch's form, of gpupool's memory and of what PyTorch's own allocator still has.
#pragma once

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>
#include <vector>

#include "history.h"

namespace gpupool_torch {

using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::cuda::CUDACachingAllocator::SnapshotInfo;

class Snapshot {
 public:
  Snapshot(Pools &pools, History &history) : pools_(pools), history_(history) {}

  // Visits the memory of all devices or of one pool, and the events if they are wanted.
  void take(int device, const gpupool_pool_id *pool, bool with_events) {
    auto visitor = visitor_of(*this, with_events);
    check(api.snapshot(device, pool, &visitor));
    close();
  }

  void see(const gpupool_segment &segment) {
    close();
    auto &info = segments_.emplace_back();
    info.device = static_cast<DeviceIndex>(segment.device);
    // Who registers segments on several machines wants the same order on each, which addresses have. Pages that move must
    // not be registered, and without a number ProcessGroupNCCL::registerMemPool refuses them.
    info.registration_counter = segment.is_movable ? -1 : static_cast<int32_t>(segments_.size() - 1);
    info.address = reinterpret_cast<size_t>(segment.address);
    info.stream = segment.stream;
    info.is_large = !segment.is_small;
    info.is_expandable = segment.is_movable;
    info.owner_private_pool_id = pools_.shown(segment.pool);
    info.context_when_allocated = history_.context(segment.stack);
    end_ = info.address + segment.bytes;
  }
  void see(const gpupool_block &block) {
    fill(reinterpret_cast<size_t>(block.address));
    BlockInfo info;
    info.size = block.bytes;
    info.requested_size = block.requested;
    info.allocated = block.is_live;
    info.active = block.is_live || block.is_waiting;
    info.context_when_allocated = history_.context(block.stack);
    add(std::move(info));
  }
  void see(const gpupool_event &event) { history_.collect(collected_, event); }

  const std::vector<SegmentInfo> &segments() const { return segments_; }

  // Puts everything into what PyTorch's own allocator has.
  void merge_into(SnapshotInfo &info, bool with_events) {
    std::vector<SegmentInfo> all;
    auto before = [](const SegmentInfo &a, const SegmentInfo &b) {
      return std::pair(a.device, a.address) < std::pair(b.device, b.address);
    };
    std::sort(segments_.begin(), segments_.end(), before);
    std::merge(std::make_move_iterator(info.segments.begin()), std::make_move_iterator(info.segments.end()),
               std::make_move_iterator(segments_.begin()), std::make_move_iterator(segments_.end()),
               std::back_inserter(all), before);
    info.segments = std::move(all);
    if (!with_events) return;
    for (auto &entry : history_.finish(std::move(collected_))) {
      auto device = static_cast<size_t>(entry.device_);
      if (device >= info.device_traces.size()) info.device_traces.resize(device + 1);
      info.device_traces[device].push_back(std::move(entry));
    }
    for (auto &trace : info.device_traces)
      std::stable_sort(trace.begin(), trace.end(),
                       [](const TraceEntry &a, const TraceEntry &b) { return a.time_.t_ < b.time_.t_; });
  }

 private:
  Pools &pools_;
  History &history_;
  History::Entries collected_;
  std::vector<SegmentInfo> segments_;
  size_t end_ = 0; // of the segment that is being visited

  void add(BlockInfo info) {
    auto &segment = segments_.back();
    segment.total_size += info.size;
    if (info.allocated) segment.allocated_size += info.size;
    if (info.active) {
      segment.active_size += info.size;
      segment.requested_size += info.requested_size;
    }
    segment.blocks.push_back(std::move(info));
  }

  // Readers add up the sizes of blocks to know their addresses, so that they must leave no gap.
  void fill(size_t address) {
    auto &segment = segments_.back();
    size_t reached = segment.address + segment.total_size;
    if (reached >= address) return;
    BlockInfo gap;
    gap.size = address - reached;
    add(std::move(gap));
  }

  void close() {
    if (!segments_.empty()) fill(end_);
  }
};

} // namespace gpupool_torch

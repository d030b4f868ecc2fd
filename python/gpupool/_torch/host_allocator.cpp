// gpupool in the place of PyTorch's allocator of pinned memory: its whole interface, over the functions of gpupool.h.
//
// A DataPtr carries a block and a function that frees it by its address alone. What PyTorch's own allocator had handed
// out before goes back to it. Once gpupool was uninstalled, what is new comes from there too; but this object stays in
// the place, since the blocks of gpupool's that are left are recorded on streams through it.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "host_snapshot.h"
#include "statistics.h"

namespace gpupool_torch {
namespace {

using at::HostStats;
using c10::DataPtr;
using c10::CachingAllocator::DurationStat;
using c10::cuda::CUDAStream;
using Filter = std::function<bool(c10::Stream)>;

// The allocator whose place was taken. What it has handed out goes back to it.
at::HostAllocator *native_host = nullptr;

[[noreturn]] void fail_pinned(int status) {
  thrown = {}; // by what another library did
  fail(status);
}

void check_pinned(int status) {
  if (C10_UNLIKELY(status != GPUPOOL_SUCCESS)) fail_pinned(status);
}

// The deleter of every DataPtr. Tensors die in destructors, out of which nothing may be thrown.
void deallocate_pinned(void *pointer) {
  int status = api.deallocate(pointer);
  // Workers that were forked drop what they inherited.
  if (C10_LIKELY(status == GPUPOOL_SUCCESS || status == GPUPOOL_ERROR_FORKED)) return;
  warned([] { TORCH_WARN("gpupool could not free pinned memory: ", api.last_error()); });
}

// 0 is the default stream's id; asking for any other's handle changes the device and changes it back.
cudaStream_t handle_of(const CUDAStream &stream) { return stream.id() == 0 ? nullptr : lasting(stream); }

int record_pinned(void *block, const CUDAStream &stream) {
  return api.record_stream(block, stream.device_index(), handle_of(stream));
}

// Which streams are captured, as PyTorch's graphs say when they begin and end.
class Captures {
 public:
  void begin(MempoolId_t id, Filter filter) {
    change([&](auto &captures) { captures.push_back({id, std::move(filter)}); });
  }
  void end(MempoolId_t id) {
    change([&](auto &captures) { std::erase_if(captures, [&](auto &capture) { return capture.id == id; }); });
  }

  bool are_any() const { return are_any_.load(std::memory_order_relaxed); }

  // Returns the calling thread's stream if it is captured.
  std::optional<CUDAStream> captured_stream() {
    if (C10_LIKELY(!are_any())) return std::nullopt;
    auto captures = captures_.get();
    // Of a device that was used already, so that this does not begin to use one.
    auto stream = c10::cuda::getCurrentCUDAStream(c10::cuda::getDeviceIndexWithPrimaryContext().value_or(-1));
    for (auto &capture : *captures)
      if (capture.filter(stream)) return stream;
    return std::nullopt;
  }

 private:
  struct Capture {
    MempoolId_t id;
    Filter filter; // whether a stream is one of its own
  };
  std::atomic<bool> are_any_{false};
  Replaced<std::vector<Capture>> captures_;

  template <typename Function> void change(Function function) {
    captures_.change([&](auto &captures) {
      function(captures);
      are_any_.store(!captures.empty(), std::memory_order_relaxed);
    });
  }
};

// Pinned memory, of which there is one for all devices.
struct PinnedMemory {
  struct Own {
    gpupool_device_stats stats{};
    gpupool_durations made{}, given_back{};
  };
  struct Pair {
    Stat HostStats::*torch;
    gpupool_stat (gpupool_device_stats::*own)[3];
  };
  static constexpr Pair PAIRS[] = {
      {&HostStats::active_requests, &gpupool_device_stats::active},
      {&HostStats::active_bytes, &gpupool_device_stats::active_bytes},
      {&HostStats::allocations, &gpupool_device_stats::segment},
      {&HostStats::allocated_bytes, &gpupool_device_stats::reserved_bytes},
  };

  static HostStats native_stats(DeviceIndex) { return native_host->get_stats(); }
  static Own own_stats(DeviceIndex) {
    Own own{sized<gpupool_device_stats>(), sized<gpupool_durations>(), sized<gpupool_durations>()};
    check_pinned(api.pinned_stats(-1, &own.stats));
    check_pinned(api.pinned_times(&own.made, &own.given_back));
    return own;
  }
  static void add(HostStats &stats, const Own &own, const Own &reset, const HostStats &before) {
    for (auto [torch, ours] : PAIRS)
      add_stat(stats.*torch, (own.stats.*ours)[GPUPOOL_ALL], (reset.stats.*ours)[GPUPOOL_ALL], (before.*torch).current);
    add_times(stats.host_alloc_time, own.made, reset.made);
    add_times(stats.host_free_time, own.given_back, reset.given_back);
    stats.num_host_alloc += own.stats.device_allocs - reset.stats.device_allocs;
    stats.num_host_free += own.stats.device_frees - reset.stats.device_frees;
  }
  static void add_times(DurationStat &stat, const gpupool_durations &own, const gpupool_durations &reset) {
    stat.total += own.total - reset.total;
    stat.count += own.count - reset.count;
    stat.max = std::max(stat.max, own.max);
    // 0 stands for none.
    if (own.min && (!stat.min || own.min < stat.min)) stat.min = own.min;
  }
  static void reset_native_accumulated(DeviceIndex) { native_host->reset_accumulated_stats(); }
  static void reset_peaks(DeviceIndex) {
    native_host->reset_peak_stats();
    check_pinned(api.reset_peak_pinned_stats(-1));
  }
};

class HostAllocator final : public at::HostAllocator {
 public:
  DataPtr allocate(size_t bytes) override {
    if (C10_UNLIKELY(is_passing())) return native_host->allocate(bytes);
    void *pointer = nullptr;
    if (bytes) {
      auto captured = captures_.captured_stream();
      if (int status = api.allocate_pinned(bytes, -1, &pointer); C10_UNLIKELY(status)) {
        if (status == GPUPOOL_ERROR_OUT_OF_MEMORY && has_native_given())
          status = api.allocate_pinned(bytes, -1, &pointer);
        check_pinned(status);
      }
      // What a graph uses is its own until it is gone.
      if (captured && record_pinned(pointer, *captured)) {
        std::string why = api.last_error();
        deallocate_pinned(pointer);
        TORCH_CHECK(false, why);
      }
    }
    return {pointer, pointer, &deallocate_pinned, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return is_passing() ? native_host->raw_deleter() : &deallocate_pinned;
  }

  void copy_data(void *target, const void *source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  // A tensor's context is the block, unless other code made the tensor of memory that it has from here.
  bool record_event(void *pointer, void *context, c10::Stream stream) override {
    for (void *block : {context, pointer}) {
      if (!is_ours(block)) continue;
      int status = record_pinned(block, CUDAStream(stream));
      if (status == GPUPOOL_SUCCESS) return true;
      if (status != GPUPOOL_ERROR_INVALID_VALUE) fail_pinned(status);
    }
    return native_host->record_event(pointer, context, stream);
  }

  void empty_cache() override {
    native_host->empty_cache();
    check_pinned(api.empty_pinned_cache(nullptr));
  }

  HostStats get_stats() override { return statistics_.of(0); }
  void reset_accumulated_stats() override { statistics_.reset_accumulated(0); }
  void reset_peak_stats() override { statistics_.reset_peak(0); }

  // PyTorch's own allocator is told too, for it may serve before the capture ends.
  void begin_allocate_to_pool(MempoolId_t id, Filter filter) override {
    native_host->begin_allocate_to_pool(id, filter);
    captures_.begin(id, std::move(filter));
  }
  void end_allocate_to_pool(MempoolId_t id) override {
    captures_.end(id);
    native_host->end_allocate_to_pool(id);
  }
  void release_pool(MempoolId_t id) override { native_host->release_pool(id); }

#if PYTORCH_AT_LEAST(2, 14)
  void record_history(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear) override {
    native_host->record_history(enabled, recorder, most, when, clear);
    // gpupool has one recording, which is begun with stacks where it is the allocator of devices' memory too.
    if (native) return;
    auto recording = sized<gpupool_recording>();
    recording.most_events = std::max(size_t{1}, most);
    recording.forget = clear;
    check_pinned(api.record(enabled ? &recording : nullptr));
  }
  bool is_history_enabled() const override { return native_host->is_history_enabled(); }
  std::vector<at::HostSegmentInfo> get_segments() override {
    HostSnapshot snapshot{native_host->get_segments(), {}};
    snapshot.take(false);
    return std::move(snapshot.segments);
  }
  std::vector<TraceEntry> get_traces() override {
    HostSnapshot snapshot{{}, native_host->get_traces()};
    snapshot.take(true);
    std::stable_sort(snapshot.entries.begin(), snapshot.entries.end(),
                     [](auto &a, auto &b) { return a.time_.t_ < b.time_.t_; });
    return std::move(snapshot.entries);
  }
  void record_external_register(void *pointer, size_t bytes) override {
    native_host->record_external_register(pointer, bytes);
  }
  void record_external_unregister(void *pointer) override { native_host->record_external_unregister(pointer); }
#endif

  void serve() {
    statistics_.note_native(0);
    is_passing_.store(false);
  }
  void pass() { is_passing_.store(true); }

 private:
  std::atomic<bool> is_passing_{false}; // gpupool was uninstalled
  Captures captures_;
  StatisticsOf<PinnedMemory> statistics_;

  bool is_passing() const { return is_passing_.load(std::memory_order_relaxed); }

  // Returns whether PyTorch's own allocator gave memory back. That would spoil a capture.
  bool has_native_given() {
    if (captures_.are_any() || has_detour(ROUTED)) return false;
    auto reserved = [] { return native_host->get_stats().allocated_bytes.current; };
    auto before = reserved();
    if (before > 0) native_host->empty_cache();
    return reserved() < before;
  }
};

HostAllocator *installed = nullptr;

using Get = at::HostAllocator *(c10::DeviceType);
using Set = void(c10::DeviceType, at::HostAllocator *, uint8_t);

void install(const gpupool_api &table, Get *get, Set *set) {
  std::lock_guard<std::mutex> lock(installing);
  auto *present = get(c10::kCUDA);
  if (!installed) {
    check_table(table);
    TORCH_CHECK(present, "PyTorch has no allocator of pinned memory: it was built without CUDA");
    take_table(table);
    native_host = present;
    installed = new HostAllocator; // for the whole process: tensors may be freed at its very end
  }
  if (present != installed) {
    TORCH_CHECK(present == native_host, "PyTorch's allocator of pinned memory was changed since gpupool was installed: "
                "leave out what calls at::setHostAllocator");
    std::atomic_thread_fence(std::memory_order_release);
    set(c10::kCUDA, installed, 0);
    TORCH_CHECK(get(c10::kCUDA) == installed, "PyTorch's allocator of pinned memory was set with a priority, against "
                "which gpupool does not set itself: leave out what calls at::setHostAllocator");
  }
  installed->serve();
}

} // namespace
} // namespace gpupool_torch

// Takes the place of PyTorch's allocator of pinned memory, by PyTorch's own functions, at::getHostAllocator and
// at::setHostAllocator. Returns null, or why it could not.
EXPORTED const char *gpupool_torch_install_pinned(const gpupool_api *table, void *get, void *set) {
  using namespace gpupool_torch;
  return attempt([&] { install(*table, reinterpret_cast<Get *>(get), reinterpret_cast<Set *>(set)); });
}

// Lets PyTorch's own allocator serve what is new. Returns null, or why it could not.
EXPORTED const char *gpupool_torch_uninstall_pinned() {
  if (gpupool_torch::installed) gpupool_torch::installed->pass();
  return nullptr;
}

// gpupool in the place of PyTorch's CUDA caching allocator: its whole interface, over the functions of gpupool.h.
//
// An allocation asks PyTorch for the device and the stream, and gpupool for a block; a DataPtr carries the block and a
// function that frees it. No lock, map or state of this file's is on that way. What PyTorch's own allocator had handed
// out before goes back to it, and so it does after gpupool was uninstalled: this object then stays in the place and
// only tells apart whose a pointer or a pool is.
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/env.h>

#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
// The compiler's shared_ptr reads it where the C library of the machine that compiles has it. Others have not, so that
// this library brings its own, which says that there are threads.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
#endif

#include "snapshot.h"
#include "statistics.h"

// Of the CUDA runtime that PyTorch has loaded, whichever version that is; null if it keeps its own to itself. The
// second is named in PyTorch's headers alone.
extern "C" cudaError_t cudaMemcpyPeerAsync(void *, int, const void *, int, size_t, cudaStream_t) __attribute__((weak));
extern "C" cudaError_t cudaMemGetInfo(size_t *, size_t *) __attribute__((weak));

namespace gpupool_torch {
namespace {

namespace CA = c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::Device;
using c10::cuda::CUDAStream;

constexpr uint64_t EXABYTE = uint64_t{1} << 60;

std::vector<CA::OutOfMemoryObserver> oom_observers;
std::mutex oom_observers_mutex;

DeviceIndex current_device() {
  // CUDA's answer takes as long as an allocation and its free together, and with one device there is one answer.
  static const bool is_only_one = c10::cuda::device_count() == 1;
  DeviceIndex device = 0;
  if (!is_only_one) C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

cudaStream_t current_stream(DeviceIndex device) {
  auto stream = c10::cuda::getCurrentCUDAStream(device);
  // 0 is the default stream's id; asking for any other's handle changes the device and changes it back.
  return stream.id() == 0 ? nullptr : lasting(stream);
}

void trace_allocation(void *pointer) {
  if (auto *interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter))
    (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
}

// PyTorch's own allocator tells of its blocks itself.
void trace_deallocation(void *pointer) {
  if (auto *interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter) && is_ours(pointer))
    (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
}

// Tells the profiler of bytes that came, or went.
void report_to_profiler(void *pointer, int64_t bytes, DeviceIndex device) {
  auto stats = own_stats(device);
  c10::reportMemoryUsageToProfiler(pointer, bytes, stats.allocated_bytes[GPUPOOL_ALL].current,
                                   stats.reserved_bytes[GPUPOOL_ALL].current, Device(c10::kCUDA, device));
}

// What is freed before the first of these is not reported: a thread's profiler cannot be seen from elsewhere, and to
// ask for it at every free would cost as much as the free.
C10_NOINLINE void report_allocation(void *pointer, DeviceIndex device) {
  set_detour(PROFILED, true);
  if (gpupool_block block; find_block(pointer, block))
    report_to_profiler(pointer, static_cast<int64_t>(block.bytes), device);
}

[[noreturn]] C10_NOINLINE void fail_allocation(int status, uint64_t bytes, DeviceIndex device) {
  std::string why = api.last_error();
  rethrow();
  TORCH_CHECK(status == GPUPOOL_ERROR_OUT_OF_MEMORY, why);
  auto stats = own_stats(device);
  Device cuda(c10::kCUDA, device);
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), stats.allocated_bytes[GPUPOOL_ALL].current,
                                   stats.reserved_bytes[GPUPOOL_ALL].current, cuda);
  std::vector<CA::OutOfMemoryObserver> observers;
  {
    std::lock_guard<std::mutex> lock(oom_observers_mutex);
    observers = oom_observers;
  }
  auto [free, total] = native->getMemoryInfo(device);
  if (!observers.empty()) {
    double fraction = 1;
    check(api.get_per_process_memory_fraction(device, &fraction));
    auto allowed = fraction < 1 ? static_cast<size_t>(fraction * static_cast<double>(total)) : total;
    for (auto &observer : observers) observer(device, bytes, allowed, free);
  }
  // The first sentences are PyTorch's own, which programs look for.
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                   c10::CachingAllocator::format_size(bytes), ". GPU ", static_cast<int>(device),
                   " has a total capacity of ", c10::CachingAllocator::format_size(total), " of which ",
                   c10::CachingAllocator::format_size(free), " is free. gpupool: ", why);
}

// What a free does where gpupool could not free its own.
enum class OnFailure { THROW, WARN };

// Gives a block of PyTorch's own allocator back to that. The text is of the failed call, and asking whose the pointer is
// does not change it.
C10_NOINLINE void deallocate_other(void *pointer, int status, OnFailure on_failure) {
  if (!is_ours(pointer)) return native->raw_delete(pointer);
  if (on_failure == OnFailure::THROW) fail(status);
  // Workers that were forked drop what they inherited.
  if (status == GPUPOOL_ERROR_FORKED) return;
  warned([] { TORCH_WARN("gpupool could not free memory: ", api.last_error()); });
}

// Frees, and tells trackers and profilers.
C10_NOINLINE void deallocate_observed(void *pointer, OnFailure on_failure) {
  gpupool_block block{};
  thrown = {}; // by what another library did
  bool is_reported = c10::memoryProfilingEnabled() && find_block(pointer, block);
  if (int status = api.deallocate(pointer)) return deallocate_other(pointer, status, on_failure);
  auto bytes = static_cast<int64_t>(block.bytes);
  if (is_reported) report_to_profiler(pointer, -bytes, static_cast<DeviceIndex>(block.device));
  rethrow();
}

template <OnFailure on_failure> void free_block(void *pointer) {
  if (!pointer) return;
  trace_deallocation(pointer);
  if (C10_UNLIKELY(has_detour(OF_FREES))) return deallocate_observed(pointer, on_failure);
  if (int status = api.deallocate(pointer); C10_UNLIKELY(status)) deallocate_other(pointer, status, on_failure);
}

// The deleter of every DataPtr. Tensors die in destructors, out of which nothing may be thrown.
void deallocate(void *pointer) { free_block<OnFailure::WARN>(pointer); }

// Whether a handle of shareable memory is a token of gpupool's. PyTorch's own begin with the number of their version.
bool is_token(const std::string &handle) { return handle.size() != sizeof(cudaIpcMemHandle_t) && !handle.rfind("gpsh", 0); }

// Gives another process's memory up, where PyTorch's last storage of it dies: on any thread, also at the process's end,
// when the thread has no current stream any more.
void detach(gpupool_attached *attached, DeviceIndex device) {
  // Work of any stream may use the memory, which its owner uses again then, so the device is waited for, as by PyTorch's own. That
  // would spoil a capture; then the current stream's work is, and the receiving stream's, by no call of the host's.
  bool is_captured = has_detour(ROUTED);
  if (!is_captured) try {
      auto before = c10::cuda::ExchangeDevice(device);
      c10::cuda::device_synchronize();
      c10::cuda::MaybeExchangeDevice(before);
    } catch (...) { // a device that has failed does no more work
    }
  warned([&] {
    int status = is_captured ? api.detach(attached, device, current_stream(device)) : api.detach(attached, -1, nullptr);
    // Workers that were forked drop what they inherited.
    if (status != GPUPOOL_ERROR_FORKED) check(status);
  });
}

// What getCheckpointState gives.
struct Checkpoint final : CA::AllocatorState {
  MempoolId_t id;
  gpupool_checkpoint *handle;

  Checkpoint(MempoolId_t id, gpupool_checkpoint *handle) : id(id), handle(handle) {}
  Checkpoint(const Checkpoint &) = delete;
  Checkpoint &operator=(const Checkpoint &) = delete;
  ~Checkpoint() override { api.checkpoint_release(handle); }
};

class Allocator final : public CUDAAllocator {
 public:
  DataPtr allocate(size_t bytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes < EXABYTE, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    auto device = current_device();
    auto stream = current_stream(device);
    void *pointer = nullptr;
    if (C10_UNLIKELY(has_detour(OF_REQUESTS))) {
      if (is_for_native(bytes, device, stream, pointer)) return native->allocate(bytes);
    } else if (bytes) {
      take(bytes, device, stream, &pointer);
    }
    return {pointer, pointer, &deallocate, Device(c10::kCUDA, device)};
  }

  void *raw_alloc(size_t bytes) override {
    if (!bytes) return nullptr;
    auto device = current_device();
    return raw_alloc_on(bytes, device, current_stream(device));
  }

  void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return bytes ? raw_alloc_on(bytes, current_device(), stream) : nullptr;
  }

  void raw_delete(void *pointer) override { free_block<OnFailure::THROW>(pointer); }

  // PyTorch compares this with the deleters of what it was given last.
  c10::DeleterFnPtr raw_deleter() const override {
    return has_detour(PASSING | UNCACHED) ? native->raw_deleter() : &deallocate;
  }

  void copy_data(void *target, const void *source, size_t bytes) const override {
    native->copy_data(target, source, bytes);
  }

  void init(int device_count) override {
    native->init(device_count);
    for (int device = 0; device < device_count; device++) follow(static_cast<DeviceIndex>(device));
  }
  bool initialized() override { return native->initialized(); }

  // What PyTorch knows of the environment's settings is for gpupool too.
  void follow(DeviceIndex device) {
    if (double fraction = native->getMemoryFraction(device); fraction < 1)
      check(api.set_per_process_memory_fraction(device, fraction));
    statistics_.note_native(device);
  }

  double getMemoryFraction(DeviceIndex device) override {
    check_initialized(device);
    double fraction = 1;
    check(api.get_per_process_memory_fraction(device, &fraction));
    return fraction;
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    check_initialized(device);
    native->setMemoryFraction(fraction, device);
    check(api.set_per_process_memory_fraction(device, fraction));
  }

  std::vector<CA::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    auto sizes = native->getExpandableSegmentSizes(device);
    Snapshot snapshot(pools_, history_);
    snapshot.take(device, nullptr, false);
    for (auto &segment : snapshot.segments()) {
      if (!segment.is_expandable) continue;
      auto stream = static_cast<cudaStream_t>(segment.stream);
      auto same = [&](auto &size) { return size.stream == stream && size.is_small_pool == !segment.is_large; };
      auto place = std::find_if(sizes.begin(), sizes.end(), same);
      if (place == sizes.end()) place = sizes.emplace(sizes.end(), stream, !segment.is_large, 0);
      place->total_size += segment.total_size;
    }
    return sizes;
  }

  void enable(bool value) override {
    native->enable(value);
    set_detour(UNCACHED, !value || is_uncached());
  }
  bool isEnabled() const override { return native->isEnabled(); }

  void emptyCache(MempoolId_t id) override {
    if (is_none(id)) {
      // As PyTorch's own does, not while requests are led into pools, which captures begin with.
      if (!has_detour(ROUTED)) check(api.empty_cache(-1, nullptr));
      native->emptyCache(id);
    } else if (auto pools = pools_.find_all(id); !pools.empty()) {
      for (auto &pool : pools) check(api.pool_trim(pool->handle, nullptr));
    } else if (Pools::is_foreign(id)) {
      pools_.with_foreign(id, [](const Pool &pool) { check(api.pool_trim(pool.handle, nullptr)); });
    } else {
      native->emptyCache(id);
    }
  }

  void cacheInfo(DeviceIndex device, size_t *largest) override {
    uint64_t bytes = 0;
    if (*largest == 0) {
      check(api.largest_block(device, &bytes));
    } else {
      Snapshot snapshot(pools_, history_);
      snapshot.take(device, nullptr, false);
      for (auto &segment : snapshot.segments())
        for (auto &block : segment.blocks)
          if (!block.active) bytes = std::max(bytes, uint64_t{block.size});
    }
    *largest = std::max(*largest, size_t{bytes});
    native->cacheInfo(device, largest);
  }

  void *getBaseAllocation(void *pointer, size_t *bytes) override {
    if (!is_ours(pointer)) return native->getBaseAllocation(pointer, bytes);
    gpupool_block block;
    TORCH_CHECK(find_block(pointer, block), "invalid device pointer: ", pointer);
    if (bytes) *bytes = block.segment_bytes;
    return block.segment;
  }

  using CUDAAllocator::recordStream;
  void recordStream(const DataPtr &data, CUDAStream stream) override {
    if (!data.get()) return;
    // Memory of another process, say, is kept by other means.
    if (data.get_deleter() != &deallocate) return native->recordStream(data, stream);
    check(api.record_stream(data.get(), stream.device_index(), lasting(stream)));
  }

  CA::SnapshotInfo snapshot(MempoolId_t id, bool include_traces) override {
    // Also has the settings, and what is of the whole process.
    auto info = native->snapshot(id, include_traces);
    if (include_traces)
      for (auto &trace : info.device_traces)
        std::erase_if(trace, [](auto &entry) { return entry.action_ == TraceEntry::SNAPSHOT; });
    Snapshot snapshot(pools_, history_);
    if (is_none(id)) {
      snapshot.take(-1, nullptr, include_traces);
    } else if (auto pools = pools_.find_all(id); !pools.empty()) {
      bool with_events = include_traces;
      for (auto &pool : pools) {
        snapshot.take(pool->device, &pool->own_id, with_events);
        with_events = false;
      }
    } else if (Pools::is_foreign(id)) {
      auto own_id = Pools::own_number(id);
      snapshot.take(-1, &own_id, include_traces);
    }
    snapshot.merge_into(info, include_traces);
    return info;
  }

  CA::DeviceStats getDeviceStats(DeviceIndex device) override {
    check_device(device);
    auto stats = statistics_.of(device);
#if PYTORCH_AT_LEAST(2, 13)
    if (auto pools = pools_.of_device(device); !pools.empty()) {
      auto &by_pool = stats.reserved_bytes_by_private_pools;
      for (auto &pool : pools) by_pool[pool->id];
      Snapshot snapshot(pools_, history_);
      snapshot.take(device, nullptr, false);
      for (auto &segment : snapshot.segments())
        if (auto reserved = by_pool.find(segment.owner_private_pool_id); reserved != by_pool.end())
          for (auto kind : {size_t{GPUPOOL_ALL}, size_t{segment.is_large ? GPUPOOL_LARGE : GPUPOOL_SMALL}})
            reserved->second[kind].increase(segment.total_size);
    }
#endif
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    check_device(device);
    statistics_.reset_accumulated(device);
  }
  void resetPeakStats(DeviceIndex device) override {
    check_device(device);
    statistics_.reset_peak(device);
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override { return native->getMemoryInfo(device); }

  void adopt(DeviceIndex device, MempoolId_t id, gpupool_pool_id own) { pools_.adopt(device, id, own); }
  void end_expectations() { pools_.end_expectations(); }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> allocator) override {
    check_device(device);
    if (!pools_.create_or_use(device, id, allocator, Pools::USER))
      native->createOrIncrefPool(device, id, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool use_on_oom) override {
    check_device(device);
    if (auto pool = pools_.look_up(device, id))
      check(api.pool_set_use_on_oom(pool->handle, use_on_oom));
    else
      native->setUseOnOOM(device, id, use_on_oom);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t id) override {
    check_device(device);
    if (auto pool = pools_.look_up(device, id))
      check(api.pool_set_no_split(pool->handle));
    else
      native->setNoSplit(device, id);
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override {
    check_device(device);
    pools_.begin(device, id, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override {
    check_device(device);
    pools_.end(device, id);
  }
  void releasePool(DeviceIndex device, MempoolId_t id) override {
    check_device(device);
    if (!pools_.release(device, id)) native->releasePool(device, id);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t id) override {
    check_device(device);
    auto pool = pools_.look_up(device, id);
    return pool ? pools_.uses(pool) : native->getPoolUseCount(device, id);
  }

  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id,
                                const std::unordered_set<void *> &expected) override {
    auto pool = pools_.look_up(device, id);
    if (!pool) return native->checkPoolLiveAllocations(device, id, expected);
    struct Live {
      const std::unordered_set<void *> &expected;
      size_t count = 0;
      bool is_expected = true;

      void see(const gpupool_segment &) {}
      void see(const gpupool_block &block) {
        if (!block.is_live) return;
        count++;
        is_expected = is_expected && expected.count(block.address);
      }
    } live{expected};
    auto visitor = visitor_of(live);
    check(api.snapshot(device, &pool->own_id, &visitor));
    return live.is_expected && live.count == expected.size();
  }

  std::shared_ptr<CA::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override {
    auto pool = pools_.look_up(device, id);
    if (!pool) return native->getCheckpointState(device, id);
    gpupool_checkpoint *handle = nullptr;
    check(api.pool_checkpoint(pool->handle, &handle));
    return std::make_shared<Checkpoint>(id, handle);
  }

  CA::CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<CA::AllocatorState> state) override {
    auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
    if (!checkpoint) return native->setCheckpointPoolState(device, std::move(state));
    auto pool = pools_.look_up(device, checkpoint->id);
    TORCH_CHECK(pool, "Could not find private pool id");
    struct Restored {
      CA::CheckpointDelta delta;
      Device device;
    } restored{{}, Device(c10::kCUDA, device)};
    check(api.pool_restore(
        pool->handle, checkpoint->handle, &restored,
        [](void *context, void *pointer) {
          guarded([&] { static_cast<Restored *>(context)->delta.ptrs_freed.push_back(pointer); });
        },
        [](void *context, void *pointer, uint64_t) {
          auto &restored = *static_cast<Restored *>(context);
          guarded([&] { restored.delta.dataptrs_allocd.emplace_back(pointer, pointer, &deallocate, restored.device); });
        }));
    return std::move(restored.delta);
  }

  // PyTorch asks at each send, keeps the block until the receiver has let go of it, and sends an event of its own.
  CA::ShareableHandle shareIpcHandle(void *pointer) override {
    if (!is_ours(pointer)) return native->shareIpcHandle(pointer);
    char token[GPUPOOL_TOKEN_BYTES];
    uint64_t bytes = sizeof token, offset = 0;
    // PyTorch sends an event along, or has waited for the stream, and has the receiver's stream wait for that.
    check(api.share(pointer, -1, nullptr, false, token, &bytes, &offset));
    return {static_cast<ptrdiff_t>(offset), std::string(token, bytes)};
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    if (!is_token(handle)) return native->getIpcDevPtr(std::move(handle));
    auto device = current_device();
    gpupool_attached *attached = nullptr;
    void *pointer = nullptr;
    check(api.attach(handle.data(), handle.size(), device, current_stream(device), &attached, &pointer));
    return {pointer, [attached, device](void *) { detach(attached, device); }};
  }

  bool isHistoryEnabled() override { return history_.is_recording(); }
  void recordHistory(bool enabled, CreateContextFn recorder, size_t most_events, RecordContext when, bool clear,
                     const std::vector<std::string> &skipped) override {
    history_.record(enabled, recorder, most_events, when, clear, skipped);
    // For what it still has, and for annotations, which are of no allocator.
    native->recordHistory(enabled, recorder, most_events, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &metadata) override {
    native->recordAnnotation(metadata);
  }
  void pushCompileContext(std::string &context) override {
    native->pushCompileContext(context);
    if (history_.is_recording()) compile_contexts.push_back(context);
  }
  void popCompileContext() override {
    native->popCompileContext();
    if (history_.is_recording() && !compile_contexts.empty()) compile_contexts.pop_back();
  }
  void setUserMetadata(const std::string &metadata) override {
    native->setUserMetadata(metadata);
    user_metadata = metadata;
  }
  std::string getUserMetadata() override { return user_metadata; }

  void attachOutOfMemoryObserver(CA::OutOfMemoryObserver observer) override {
    native->attachOutOfMemoryObserver(observer);
    std::lock_guard<std::mutex> lock(oom_observers_mutex);
    oom_observers.push_back(std::move(observer));
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    native->attachAllocatorTraceTracker(tracker);
    history_.attach(std::move(tracker));
  }

  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
    native->enablePeerAccess(device, peer);
    check(api.enable_peer_access(device, peer));
  }

  cudaError_t memcpyAsync(void *target, int target_device, const void *source, int source_device, size_t bytes,
                          cudaStream_t stream, bool p2p_enabled) override {
    // Without peer access only this copies mapped memory between devices.
    bool needs_peer_copy = !p2p_enabled && target_device != source_device && (is_ours(target) || is_ours(source));
    if (needs_peer_copy && cudaMemcpyPeerAsync)
      return cudaMemcpyPeerAsync(target, target_device, source, source_device, bytes, stream);
    return native->memcpyAsync(target, target_device, source, source_device, bytes, stream, p2p_enabled);
  }

  // PyTorch compares this with its settings (PYTORCH_CUDA_ALLOC_CONF=backend:native), and its graphs in segments ask
  // for it: what they mean by it is that the whole interface is there.
  std::string name() override { return "native"; }

#if PYTORCH_AT_LEAST(2, 12)
  std::shared_ptr<GatheredContext> getContextForPointer(const void *pointer) override {
    if (gpupool_block block; find_block(pointer, block)) return history_.context(block.stack);
    return native->getContextForPointer(pointer);
  }
  // Of a policy that PyTorch's own allocator has, which gpupool has not: it asks the driver before it says no.
  void attachOomRejectionObserver(CA::OomRejectionObserver observer) override {
    native->attachOomRejectionObserver(std::move(observer));
  }
#endif
#if PYTORCH_AT_LEAST(2, 13)
  // gpupool knows of captures by their routes, which begin before them.
  void markCaptureBegin(DeviceIndex device) override { native->markCaptureBegin(device); }
  void markCaptureEnd(DeviceIndex device) override { native->markCaptureEnd(device); }
  // Of memory that was a tensor's, as one that a graph uses, and is free now: in whichever pool it is.
  DataPtr allocateWithAddress(size_t bytes, void *address) override {
    if (!is_ours(address)) return native->allocateWithAddress(bytes, address);
    auto device = current_device();
    int status = api.allocate_at(address, bytes, device, current_stream(device));
    TORCH_CHECK(!status, "Could not allocate CUDA storage at exact address ", address, ": ", api.last_error());
    trace_allocation(address);
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) report_allocation(address, device);
    return {address, address, &deallocate, Device(c10::kCUDA, device)};
  }
#endif
#if PYTORCH_AT_LEAST(2, 14)
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void *pointer, const std::string &metadata) override {
    gpupool_block block;
    if (!find_block(pointer, block)) return native->annotateMemory(pointer, metadata);
    if (!history_.is_recording()) return;
    TraceEntry entry(TraceEntry::ANNOTATE, static_cast<DeviceIndex>(block.device), reinterpret_cast<size_t>(pointer),
                     block.requested, block.stream, pools_.shown(block.pool), 0, nullptr, compile_context(), metadata);
    entry.time_.t_ = c10::getTimeSinceEpoch() / 1000;
    history_.add(std::move(entry));
  }
#endif

  static bool is_uncached() {
    return c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") == true;
  }

  // Asked by gpupool before a request fails: PyTorch's callbacks, and what its own allocator has free.
  static int give_memory(void *, int device, uint64_t) {
    bool is_freed = false;
    guarded([&] {
      for (auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
        is_freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
      // Giving memory back to the driver would spoil a capture.
      if (!native->initialized() || has_detour(ROUTED)) return;
      auto reserved = [&] {
        return native->getDeviceStats(static_cast<DeviceIndex>(device)).reserved_bytes[0].current;
      };
      if (auto before = reserved(); before > 0) {
        native->emptyCache({0, 0});
        is_freed |= reserved() < before;
      }
    });
    return is_freed;
  }

 private:
  Pools pools_;
  History history_{pools_};
  Statistics statistics_;

  C10_ALWAYS_INLINE void take(size_t bytes, DeviceIndex device, cudaStream_t stream, void **pointer) {
    int status = api.allocate(bytes, device, stream, pointer);
    if (C10_UNLIKELY(status != GPUPOOL_SUCCESS)) fail_allocation(status, bytes, device);
    trace_allocation(*pointer);
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) report_allocation(*pointer, device);
  }

  // Takes a block from where the request is led to; returns true, and takes none, if that is PyTorch's own allocator.
  C10_NOINLINE bool is_for_native(size_t bytes, DeviceIndex device, cudaStream_t stream, void *&pointer) {
    auto state = detours.load();
    if (state & UNCACHED) return true;
    if (!bytes) return state & PASSING;
    thrown = {}; // by what another library did
    auto route = state & ROUTED ? pools_.route(device, stream) : std::nullopt;
    if (route ? !route->pool : (state & PASSING) != 0) return true;
    if (route) {
      int status = api.pool_allocate(route->pool->handle, route->ticket, bytes, stream, &pointer);
      if (status) fail_allocation(status, bytes, device);
      trace_allocation(pointer);
      if (c10::memoryProfilingEnabled()) report_allocation(pointer, device);
    } else {
      take(bytes, device, stream, &pointer);
    }
    if (thrown.is_set) {
      api.deallocate(pointer);
      rethrow();
    }
    return false;
  }

  void *raw_alloc_on(size_t bytes, DeviceIndex device, cudaStream_t stream) {
    void *pointer = nullptr;
    if (C10_LIKELY(!has_detour(OF_REQUESTS)))
      take(bytes, device, stream, &pointer);
    else if (is_for_native(bytes, device, stream, pointer))
      return native->raw_alloc_with_stream(bytes, stream);
    return pointer;
  }

  bool is_device(DeviceIndex device) const {
    return 0 <= device && native->initialized() && device < c10::cuda::device_count();
  }
  void check_device(DeviceIndex device) const {
    TORCH_CHECK(is_device(device), "Invalid device argument ", device, ": did you call init?");
  }
  void check_initialized(DeviceIndex device) const {
    TORCH_CHECK(is_device(device), "Allocator not initialized for device ", device, ": did you call init?");
  }
};

Allocator *installed = nullptr;

void install(const gpupool_api *table) {
  std::lock_guard<std::mutex> lock(installing);
  if (!installed) {
    auto *present = CA::allocator.load();
    check_table(*table);
    TORCH_CHECK(present, "PyTorch has no CUDA allocator: it was built without CUDA");
    TORCH_CHECK(present->name() == "native", "PyTorch uses the allocator ", present->name(),
                ": gpupool takes the place of the native one alone. Unset backend in PYTORCH_CUDA_ALLOC_CONF, and do "
                "not call torch.cuda.memory.change_current_allocator");
    // PyTorch parses its settings while the allocator that they were written for is there.
    present->snapshot({0, 0}, false);
    take_table(*table);
    native = present;
    auto *allocator = new Allocator; // for the whole process: tensors may be freed at its very end
    set_detour(UNCACHED, Allocator::is_uncached() || !native->isEnabled());
    if (native->initialized())
      for (int device = 0; device < c10::cuda::device_count(); device++)
        allocator->follow(static_cast<DeviceIndex>(device));
    check(api.on_oom(Allocator::give_memory, nullptr));
    installed = allocator;
  }
  TORCH_CHECK(CA::allocator.load() == installed || CA::allocator.load() == native,
              "PyTorch's allocator was changed since gpupool was installed, to ", CA::allocator.load()->name());
  set_detour(PASSING, false);
  c10::SetAllocator(c10::kCUDA, installed, 10);
  CA::allocator.store(installed);
}

} // namespace
} // namespace gpupool_torch

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

// Returns the version of PyTorch that this was compiled for.
EXPORTED const char *gpupool_torch_version() { return TEXT(TORCH_VERSION_MAJOR) "." TEXT(TORCH_VERSION_MINOR); }

// Takes the place of PyTorch's allocator. Returns null, or why it could not.
EXPORTED const char *gpupool_torch_install(const gpupool_api *table) {
  return gpupool_torch::attempt([&] { gpupool_torch::install(table); });
}

// Makes a pool that PyTorch has just made one of gpupool's, which stays the same pool. Returns null, or why it could
// not.
EXPORTED const char *gpupool_torch_adopt(int device, uint64_t first, uint64_t second, gpupool_pool_id own) {
  using namespace gpupool_torch;
  return attempt([&] {
    TORCH_CHECK(installed, "gpupool is not PyTorch's allocator");
    installed->adopt(static_cast<DeviceIndex>(device), {first, second}, own);
  });
}

// Lets PyTorch's own allocator serve what is new. Returns null, or why it could not.
EXPORTED const char *gpupool_torch_uninstall() {
  using namespace gpupool_torch;
  return attempt([] {
    set_detour(PASSING, native != nullptr);
    if (installed) installed->end_expectations();
  });
}

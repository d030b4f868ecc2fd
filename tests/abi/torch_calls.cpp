// Calls CUDA allocators through PyTorch's own interface, for tests: the one that PyTorch came with and the one in its
// place, by the same functions. Each function returns JSON, {"is": value} or {"error": kind, "text": why}, which is
// valid until the thread's next call. Streams are told by their number: 0 is the default stream, n the nth of PyTorch's
// pool.
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/headeronly/version.h>

#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "torch_heap.h"
#include "torch_json.h"

// What the rest of PyTorch tells libc10_cuda.so.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has_primary_context)(DeviceIndex));
}

using CA::CUDAAllocator;
using c10::CachingDeviceAllocator::TraceEntry;
using Id = c10::MempoolId_t;

static CUDAAllocator *const first = CA::allocator.load();
static std::map<int, c10::DataPtr> blocks;
static std::map<int, std::shared_ptr<CA::AllocatorState>> checkpoints;
static int last_number;
static std::vector<std::string> noted; // by observers and trackers

// 0 is the allocator that PyTorch came with, 1 the one that is in its place now.
static CUDAAllocator *allocator(int which) { return which ? CA::allocator.load() : first; }

#define EXPORTED extern "C" __attribute__((visibility("default")))
#define CALL(name, ...) EXPORTED const char *name(__VA_ARGS__)
// One expression of an allocator.
#define ASK(name, expression, ...)                                                                                     \
  CALL(name, int which __VA_OPT__(, ) __VA_ARGS__) {                                                                   \
    return answer([=] { return allocator(which)->expression; });                                                       \
  }

// Streams, and their numbers.
static std::map<int, std::vector<c10::cuda::CUDAStream>> pools_of_streams;
static c10::cuda::CUDAStream stream(int number, int device = -1) {
  if (device < 0) device = c10::cuda::current_device();
  auto &pool = pools_of_streams[device];
  if (!number) return c10::cuda::getDefaultCUDAStream(device);
  while (static_cast<int>(pool.size()) < number)
    pool.push_back(c10::cuda::getStreamFromPool(false, device));
  return pool[number - 1];
}
static int number_of(void *handle) {
  for (auto &[device, pool] : pools_of_streams)
    for (size_t index = 0; index < pool.size(); index++)
      if (pool[index].stream() == handle) return static_cast<int>(index) + 1;
  return handle ? -1 : 0;
}

CALL(version) {
  return answer([] { return std::string(TORCH_VERSION); });
}
CALL(set_up, int which) {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  return answer([=] { allocator(which)->init(c10::cuda::device_count()); });
}
ASK(initialized, initialized())
ASK(name, name())
CALL(in_place) {
  return answer([] { return CA::allocator.load() != first && c10::GetAllocator(c10::kCUDA) == CA::allocator.load(); });
}
CALL(set_device, c10::DeviceIndex device) {
  return answer([=] { c10::cuda::set_device(device); });
}
CALL(set_stream, int number) {
  return answer([=] { c10::cuda::setCurrentCUDAStream(stream(number)); });
}
// Of a stream that is not PyTorch's own.
CALL(set_external_stream, void *handle) {
  return answer([=] {
    auto device = static_cast<c10::DeviceIndex>(c10::cuda::current_device());
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(handle), device));
  });
}
// The handle of a stream, for the driver's double.
CALL(stream_handle, int number) {
  return answer([=] { return static_cast<void *>(stream(number).stream()); });
}

// Blocks.
CALL(allocate, int which, size_t bytes) {
  return answer([=] {
    auto data = allocator(which)->allocate(bytes);
    int number = ++last_number;
    auto described = Object()
                         .add("block", number)
                         .add("address", data.get())
                         .add("device", static_cast<int>(data.device().index()))
                         .add("is_simple", data.get() == data.get_context())
                         .add("has_raw_deleter", data.get_deleter() == allocator(which)->raw_deleter())
                         .end();
    blocks.emplace(number, std::move(data));
    return described;
  });
}
CALL(drop, int block) {
  return answer([=] { blocks.erase(block); });
}
CALL(drop_all) {
  return answer([] { blocks.clear(); });
}
ASK(raw_alloc, raw_alloc(bytes), size_t bytes)
ASK(raw_alloc_with_stream, raw_alloc_with_stream(bytes, stream(number).stream()), size_t bytes, int number)
ASK(raw_delete, raw_delete(address), void *address)
ASK(record_stream, recordStream(blocks.at(block), stream(number)), int block, int number)
// Of a stream of another device than the block's.
ASK(record_stream_of, recordStream(blocks.at(block), stream(number, device)),
    int block, int number, c10::DeviceIndex device)
CALL(base_allocation, int which, void *address) {
  return answer([=] {
    size_t bytes = 0;
    auto *base = allocator(which)->getBaseAllocation(address, &bytes);
    return Object().add("base", base).add("bytes", bytes).end();
  });
}
ASK(copy_data, copy_data(target, source, bytes), void *target, void *source, size_t bytes)
CALL(memcpy_async, int which, void *target, int target_device, void *source, int source_device, size_t bytes,
     int p2p_enabled) {
  return answer([=] {
    return static_cast<int>(allocator(which)->memcpyAsync(target, target_device, source, source_device, bytes, nullptr,
                                                          p2p_enabled));
  });
}
ASK(enable_peer_access, enablePeerAccess(device, peer), c10::DeviceIndex device, c10::DeviceIndex peer)
CALL(get_ipc_dev_ptr, int which, void *shared, int sharer) {
  return answer([=] {
    auto handle = allocator(sharer)->shareIpcHandle(shared);
    return allocator(which)->getIpcDevPtr(handle.handle).get();
  });
}
// As another process gets it: the handle in hexadecimal digits.
CALL(share, int which, void *address) {
  return answer([=] {
    auto shared = allocator(which)->shareIpcHandle(address);
    std::ostringstream digits;
    for (unsigned char byte : shared.handle) digits << std::hex << std::setw(2) << std::setfill('0') << int{byte};
    return Object().add("handle", digits.str()).add("offset", static_cast<int64_t>(shared.offset)).end();
  });
}
static std::map<int, std::shared_ptr<void>> received;
CALL(receive, int which, const char *digits) {
  return answer([=] {
    std::string handle;
    for (auto *digit = digits; *digit; digit += 2)
      handle += static_cast<char>(std::stoi(std::string(digit, 2), nullptr, 16));
    auto pointer = allocator(which)->getIpcDevPtr(handle);
    int number = ++last_number;
    received[number] = pointer;
    return Object().add("number", number).add("address", pointer.get()).end();
  });
}
CALL(let_received_go, int number) {
  return answer([=] { received.erase(number); });
}
// By a thread that ends with it, which Python does not know.
CALL(let_received_go_on_thread, int number) {
  return answer([=] {
    std::thread([pointer = std::exchange(received[number], nullptr)]() mutable {
      static thread_local std::shared_ptr<void> last;
      last = std::move(pointer);
    }).join();
  });
}
// From many threads at once.
CALL(turn_over, int which, int threads, int steps) {
  return answer([=] {
    std::vector<std::thread> all;
    std::atomic<int> failures{0};
    for (int index = 0; index < threads; index++)
      all.emplace_back([=, &failures] {
        std::vector<c10::DataPtr> held(16);
        for (int step = 0; step < steps; step++) try {
            held[(step * 7) % held.size()] = allocator(which)->allocate(512 << (step * 5 % 12));
          } catch (const std::exception &) {
            failures++;
          }
      });
    for (auto &thread : all) thread.join();
    return failures.load();
  });
}

// Settings and what is there.
ASK(get_per_process_memory_fraction, getMemoryFraction(device), c10::DeviceIndex device)
ASK(set_per_process_memory_fraction, setMemoryFraction(fraction, device), double fraction, c10::DeviceIndex device)
ASK(enable, enable(value), int value)
ASK(is_enabled, isEnabled())
ASK(empty_cache, emptyCache(pool), Id pool)
CALL(cache_info, int which, c10::DeviceIndex device, size_t largest) {
  return answer([=]() mutable {
    allocator(which)->cacheInfo(device, &largest);
    return largest;
  });
}
CALL(memory_info, int which, c10::DeviceIndex device) {
  return answer([=] {
    auto [free, total] = allocator(which)->getMemoryInfo(device);
    return std::vector<size_t>{free, total};
  });
}
CALL(expandable_segment_sizes, int which, c10::DeviceIndex device) {
  return answer([=] {
    std::vector<Json> sizes;
    for (auto &size : allocator(which)->getExpandableSegmentSizes(device))
      sizes.push_back(Object()
                          .add("stream", number_of(size.stream))
                          .add("is_small", size.is_small_pool)
                          .add("bytes", size.total_size)
                          .end());
    return sizes;
  });
}

// Statistics.
static Json json_of(const c10::CachingAllocator::Stat &stat) {
  return Object()
      .add("current", stat.current)
      .add("peak", stat.peak)
      .add("allocated", stat.allocated)
      .add("freed", stat.freed)
      .end();
}
static Json json_of(const c10::CachingAllocator::StatArray &array) {
  return Object().add("all", json_of(array[0])).add("small", json_of(array[1])).add("large", json_of(array[2])).end();
}
CALL(device_stats, int which, c10::DeviceIndex device) {
  return answer([=] {
    auto stats = allocator(which)->getDeviceStats(device);
    Object object;
#define ARRAY(name) object.add(#name, json_of(stats.name))
    ARRAY(allocation), ARRAY(segment), ARRAY(active), ARRAY(inactive_split), ARRAY(allocated_bytes);
    ARRAY(reserved_bytes), ARRAY(active_bytes), ARRAY(inactive_split_bytes), ARRAY(requested_bytes);
    ARRAY(oversize_allocations), ARRAY(oversize_segments);
#define COUNT(name) object.add(#name, stats.name)
    COUNT(num_alloc_retries), COUNT(num_ooms), COUNT(num_sync_all_streams), COUNT(num_device_alloc);
    COUNT(num_device_free), COUNT(max_split_size);
#if AT_LEAST(12)
    COUNT(num_oom_rejections);
#endif
#if AT_LEAST(13)
    Object pools;
    for (auto &[id, reserved] : stats.reserved_bytes_by_private_pools)
      pools.add(std::to_string(id.first) + "," + std::to_string(id.second), json_of(reserved));
    object.add("reserved_bytes_by_private_pools", pools.end());
#endif
    return object.end();
  });
}
ASK(reset_peak_stats, resetPeakStats(device), c10::DeviceIndex device)
ASK(reset_accumulated_stats, resetAccumulatedStats(device), c10::DeviceIndex device)

// History. A context of the test's says what the thread was doing.
struct Context final : c10::GatheredContext {
  std::string what;
  explicit Context(std::string what) : what(std::move(what)) {}
};
static thread_local std::string doing;
static std::atomic<int> contexts_taken;
static std::string json(const std::shared_ptr<c10::GatheredContext> &context) {
  return context ? text(std::static_pointer_cast<Context>(context)->what) : "null";
}
static std::shared_ptr<c10::GatheredContext> take_context() {
  contexts_taken++;
  return std::make_shared<Context>(doing);
}
CALL(set_doing, const char *what) {
  doing = what;
  return answer([] {});
}
CALL(number_of_contexts_taken) {
  return answer([] { return contexts_taken.exchange(0); });
}
static const char *NAMES[] = {"alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
                              "segment_map", "segment_unmap",  "snapshot",       "oom",           "annotate"};
static std::vector<uint64_t> json_of(const Id &id) { return {id.first, id.second}; }
static Json json_of(const TraceEntry &entry) {
  return Object()
      .add("action", std::string(NAMES[entry.action_]))
      .add("device", static_cast<int>(entry.device_))
      .add("address", entry.addr_)
      .add("bytes", entry.size_)
      .add("stream", number_of(entry.stream_))
      .add("pool", json_of(entry.mempool_))
      .add("time", static_cast<int64_t>(entry.time_.t_))
      .add("context", entry.context_)
      .add("compile_context", entry.compile_context_)
      .add("metadata", entry.user_metadata_)
      .end();
}
CALL(record_history, int which, int enabled, int with_recorder, size_t most, int when, int clear, const char *skipped) {
  return answer([=] {
    std::vector<std::string> actions;
    std::istringstream words(skipped);
    for (std::string word; words >> word;) actions.push_back(word);
    allocator(which)->recordHistory(enabled, with_recorder ? take_context : nullptr, most,
                                    static_cast<CA::RecordContext>(when), clear, actions);
  });
}
ASK(is_history_enabled, isHistoryEnabled())
ASK(record_annotation, recordAnnotation({{key, value}}), const char *key, const char *value)
CALL(push_compile_context, int which, const char *context) {
  return answer([=] {
    std::string said = context;
    allocator(which)->pushCompileContext(said);
  });
}
ASK(pop_compile_context, popCompileContext())
ASK(set_user_metadata, setUserMetadata(metadata), const char *metadata)
ASK(get_user_metadata, getUserMetadata())
CALL(snapshot, int which, Id pool, int with_traces) {
  return answer([=] {
    auto info = allocator(which)->snapshot(pool, with_traces);
    std::vector<Json> segments, annotations;
    std::vector<std::vector<Json>> traces;
    for (auto &segment : info.segments) {
      std::vector<Json> cut;
      for (auto &block : segment.blocks)
        cut.push_back(Object()
                          .add("bytes", block.size)
                          .add("requested", block.requested_size)
                          .add("allocated", block.allocated)
                          .add("active", block.active)
                          .add("context", block.context_when_allocated)
                          .end());
      segments.push_back(Object()
                             .add("device", static_cast<int>(segment.device))
                             .add("registration_counter", segment.registration_counter)
                             .add("address", segment.address)
                             .add("bytes", segment.total_size)
                             .add("requested", segment.requested_size)
                             .add("allocated", segment.allocated_size)
                             .add("active", segment.active_size)
                             .add("stream", number_of(segment.stream))
                             .add("is_large", segment.is_large)
                             .add("is_expandable", segment.is_expandable)
                             .add("pool", json_of(segment.owner_private_pool_id))
                             .add("context", segment.context_when_allocated)
                             .add("blocks", cut)
                             .end());
    }
    for (auto &trace : info.device_traces) {
      auto &entries = traces.emplace_back();
      for (auto &entry : trace) entries.push_back(json_of(entry));
    }
    for (auto &annotation : info.external_annotations) {
      Object metadata;
      for (auto &[key, value] : annotation.metadata_) metadata.add(key, value);
      annotations.push_back(metadata.end());
    }
    auto &config = info.config_metadata;
    auto settings = Object()
                        .add("garbage_collection_threshold", config.garbage_collection_threshold)
                        .add("max_split_size", config.max_split_size)
                        .add("expandable_segments", config.expandable_segments)
                        .add("last_allocator_settings", config.last_allocator_settings)
                        .add("roundup_power2_divisions", config.roundup_power2_divisions)
                        .end();
    return Object()
        .add("segments", segments)
        .add("traces", traces)
        .add("annotations", annotations)
        .add("settings", settings)
        .end();
  });
}
#if AT_LEAST(12)
ASK(context_for_pointer, getContextForPointer(address), void *address)
ASK(attach_oom_rejection_observer, attachOomRejectionObserver([](int64_t, size_t, size_t, size_t) {}))
#endif
#if AT_LEAST(13)
CALL(mark_capture, int which, c10::DeviceIndex device, int begins) {
  return answer([=] {
    begins ? allocator(which)->markCaptureBegin(device) : allocator(which)->markCaptureEnd(device);
  });
}
ASK(allocate_with_address, allocateWithAddress(bytes, address).get() == address, size_t bytes, void *address)
#endif
#if AT_LEAST(14)
ASK(annotate_memory, annotateMemory(address, metadata), void *address, const char *metadata)
ASK(supports_user_metadata, supportsUserMetadata())
#endif

// Who watches.
CALL(attach_oom_observer, int which) {
  return answer([=] {
    allocator(which)->attachOutOfMemoryObserver([](int64_t device, size_t bytes, size_t total, size_t free) {
      noted.push_back(Object()
                          .add("saw", std::string("oom"))
                          .add("device", device)
                          .add("bytes", bytes)
                          .add("total", total)
                          .add("free", free)
                          .end()
                          .written);
    });
  });
}
static bool trackers_throw;
CALL(attach_tracker, int which) {
  return answer([=] {
    allocator(which)->attachAllocatorTraceTracker([](const TraceEntry &entry) {
      TORCH_CHECK(!trackers_throw, "a tracker that fails");
      noted.push_back(json_of(entry).written);
    });
  });
}
CALL(let_trackers_throw, int value) {
  trackers_throw = value;
  return answer([] {});
}
CALL(take_noted) {
  return answer([] {
    std::vector<Json> all;
    for (auto &one : noted) all.push_back({one});
    noted.clear();
    return all;
  });
}

// A callback that frees a block when memory is short.
static int block_to_give = 0, asked_for_memory = 0;
struct GiveBlock final : c10::FreeMemoryCallback {
  bool Execute() override {
    asked_for_memory++;
    return blocks.erase(std::exchange(block_to_give, 0)) > 0;
  }
};
namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK("gpupool_test", GiveBlock)
}
CALL(give_when_short, int block) {
  block_to_give = block;
  return answer([] { return std::exchange(asked_for_memory, 0); });
}

// A profiler of memory on this thread.
struct Profiler final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void *pointer, int64_t bytes, size_t allocated, size_t, c10::Device device) override {
    noted.push_back(Object()
                        .add("saw", std::string("memory"))
                        .add("address", pointer)
                        .add("bytes", bytes)
                        .add("total", allocated)
                        .add("device", static_cast<int>(device.index()))
                        .end()
                        .written);
  }
  void reportOutOfMemory(int64_t bytes, size_t, size_t, c10::Device) override {
    noted.push_back(Object().add("saw", std::string("oom in profiler")).add("bytes", bytes).end().written);
  }
  bool memoryProfilingEnabled() const override { return true; }
};
CALL(profile, int is_on) {
  return answer([=] {
    if (is_on)
      c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Profiler>());
    else
      c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
  });
}

// Pools.
ASK(create_pool, createOrIncrefPool(device, pool, nullptr), c10::DeviceIndex device, Id pool)
ASK(set_use_on_oom, setUseOnOOM(device, pool, value), c10::DeviceIndex device, Id pool, int value)
ASK(set_no_split, setNoSplit(device, pool), c10::DeviceIndex device, Id pool)
// Leads the calling thread's requests into a pool, or those on a stream if one is given.
CALL(begin_allocate_to_pool, int which, c10::DeviceIndex device, Id pool, int number) {
  return answer([=] {
    std::function<bool(cudaStream_t)> filter;
    if (number >= 0)
      filter = [wanted = stream(number).stream()](cudaStream_t asked) { return asked == wanted; };
    else
      filter = [thread = std::this_thread::get_id()](cudaStream_t) { return std::this_thread::get_id() == thread; };
    allocator(which)->beginAllocateToPool(device, pool, filter);
  });
}
// As a graph does before its capture of the current stream, which it cannot tell from others yet.
CALL(begin_capture_to_pool, int which, c10::DeviceIndex device, Id pool) {
  return answer([=] {
    auto filter = [](cudaStream_t asked) {
      cudaStreamCaptureStatus status{};
      C10_CUDA_CHECK(cudaStreamIsCapturing(asked, &status));
      return status == cudaStreamCaptureStatusActive;
    };
    allocator(which)->beginAllocateToPool(device, pool, filter);
  });
}
ASK(end_allocate_to_pool, endAllocateToPool(device, pool), c10::DeviceIndex device, Id pool)
ASK(release_pool, releasePool(device, pool), c10::DeviceIndex device, Id pool)
ASK(pool_use_count, getPoolUseCount(device, pool), c10::DeviceIndex device, Id pool)
CALL(check_pool_live, int which, c10::DeviceIndex device, Id pool, const char *addresses) {
  return answer([=] {
    std::unordered_set<void *> expected;
    std::istringstream words(addresses);
    for (uintptr_t address; words >> address;) expected.insert(reinterpret_cast<void *>(address));
    return allocator(which)->checkPoolLiveAllocations(device, pool, expected);
  });
}
CALL(take_checkpoint, int which, c10::DeviceIndex device, Id pool) {
  return answer([=] {
    checkpoints[++last_number] = allocator(which)->getCheckpointState(device, pool);
    return last_number;
  });
}
CALL(set_checkpoint, int which, c10::DeviceIndex device, int checkpoint) {
  return answer([=] {
    auto state = checkpoint ? checkpoints.at(checkpoint) : std::make_shared<CA::AllocatorState>();
    auto delta = allocator(which)->setCheckpointPoolState(device, state);
    std::vector<Json> allocated;
    for (auto &data : delta.dataptrs_allocd) {
      int number = ++last_number;
      allocated.push_back(Object()
                              .add("block", number)
                              .add("address", data.get())
                              .add("device", static_cast<int>(data.device().index()))
                              .add("has_raw_deleter", data.get_deleter() == allocator(which)->raw_deleter())
                              .end());
      blocks.emplace(number, std::move(data));
    }
    return Object().add("freed", delta.ptrs_freed).add("allocated", allocated).end();
  });
}
CALL(drop_checkpoint, int checkpoint) {
  return answer([=] { checkpoints.erase(checkpoint); });
}
// Lets go of a block without freeing it, as PyTorch does of storages that a checkpoint frees.
CALL(let_go, int block) {
  return answer([=] {
    blocks.at(block).release_context();
    blocks.erase(block);
  });
}

ASK(create_pool_of_heap, createOrIncrefPool(device, pool, std::make_shared<Heap>()), c10::DeviceIndex device, Id pool)
CALL(source_calls) {
  return answer([] {
    return std::vector<int>{std::exchange(calls_of_source, 0), std::exchange(frees_of_source, 0)};
  });
}

// Changes PyTorch's allocator behind gpupool's back, and back again.
CALL(replace, int is_replaced) {
  return answer([=] {
    static CUDAAllocator *before;
    static Heap heap;
    if (is_replaced)
      before = CA::allocator.exchange(&heap);
    else
      CA::allocator.store(before);
  });
}

#include "torch_pinned.h"

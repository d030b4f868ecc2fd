// gpupool_onnxruntime.hpp: ONNX Runtime's device memory from a pool. Header only, over gpupool.hpp and ONNX Runtime's C
// interface, onnxruntime_c_api.h of 1.23 or later.
//
//   gpupool::onnxruntime_allocator allocator(std::make_shared<gpupool::pool>(0)); // it must outlive sessions and values
//   env.RegisterAllocator(&allocator);
//   session_options.AddConfigEntry("session.use_env_allocators", "1");
//
// Where ONNX Runtime names a stream, memory is allocated and freed in its order. Where it names none, no work uses the memory
// that it gets, and freed memory is reused once all work so far on the device is done.
//
// Where there is no memory, a function throws out_of_memory, which the call of ONNX Runtime that needed it returns as its
// status: ONNX Runtime asks its own allocators for an exception, and uses a null pointer as if it were memory.
// https://onnxruntime.ai/docs/api/c/struct_ort_allocator.html
//
// What ONNX Runtime does with an allocator, by its public source:
//
// - It calls Reserve of an OrtAllocator whose version is 18 or later, AllocOnStream and GetStats from 23 on, and Shrink from
//   25 on. AllocOnStream gets the operator's stream, whose cudaStream_t SyncStream_GetHandle gives. Free is never told one,
//   and some operators ask without one.
// - RegisterAllocator takes memory of a GPU since 1.23, and replaces what is registered for that device.
//   session.use_env_allocators replaces the allocators of the session's providers, arenas too. CreateAndRegisterAllocatorV2
//   makes an allocator of ONNX Runtime's own, and is no way for another's.
// - The CUDA provider's gpu_external_alloc, gpu_external_free and gpu_external_empty_cache, which Python passes, are addresses
//   as decimal texts of functions without stream or device. The last is called after a weight was freed. The provider runs on
//   the legacy default stream, and as a plug-in on non-blocking streams of its own, so no order of streams can be relied on.
//   user_compute_stream is refused together with them.
// - With enable_cuda_graph the provider captures its stream during a run, and expects its arena to allocate nothing by then.
//   gpupool refuses memory on a captured stream outside of a capture's block.
#ifndef GPUPOOL_ONNXRUNTIME_HPP
#define GPUPOOL_ONNXRUNTIME_HPP

#include <onnxruntime_c_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "gpupool.hpp"

#if !defined(ORT_API_VERSION) || ORT_API_VERSION < 23
#error "gpupool_onnxruntime.hpp needs ONNX Runtime 1.23 or later: before, an OrtAllocator is told no stream"
#endif

namespace gpupool {

// An OrtAllocator of one pool, which it keeps alive; scopes do not matter, for ONNX Runtime has threads of its own. Any thread
// may call it.
class onnxruntime_allocator : public OrtAllocator {
 public:
  // For the provider whose device memory has this name, "Cuda" that of CUDA. Without `ort` the program links ONNX Runtime.
  // Throws an error if the ONNX Runtime that runs is older than its header, or has no memory of the name.
  explicit onnxruntime_allocator(std::shared_ptr<pool> pool, const char *name = "Cuda",
                                 const OrtApi *ort = OrtGetApiBase()->GetApi(ORT_API_VERSION))
      : OrtAllocator{}, pool_(std::move(pool)), ort_(ort) {
    if (!ort_)
      throw error(GPUPOOL_ERROR_INVALID_VALUE,
                  "the ONNX Runtime that runs is older than the header that this program was compiled with: install the same "
                  "version, or a newer one");
    check_status(ort_->CreateMemoryInfo(name, OrtDeviceAllocator, pool_->device(), OrtMemTypeDefault, &info_));
    version = ORT_API_VERSION;
    Alloc = [](OrtAllocator *own, std::size_t bytes) { return of(own).allocate(bytes, of(own).allocations_); };
    Reserve = [](OrtAllocator *own, std::size_t bytes) { return of(own).allocate(bytes, of(own).reserves_); };
    AllocOnStream = [](OrtAllocator *own, std::size_t bytes, OrtSyncStream *stream) {
      return of(own).allocate_on(bytes, stream);
    };
    Free = [](OrtAllocator *own, void *memory) { of(own).deallocate(memory); };
    Info = [](const OrtAllocator *own) -> const OrtMemoryInfo * { return of(own).info_; };
    GetStats = get_stats;
#if ORT_API_VERSION >= 25
    Shrink = shrink;
#endif
  }
  onnxruntime_allocator(const onnxruntime_allocator &) = delete;
  onnxruntime_allocator &operator=(const onnxruntime_allocator &) = delete;
  ~onnxruntime_allocator() { ort_->ReleaseMemoryInfo(info_); }

  // What it is registered as, for UnregisterAllocator.
  const OrtMemoryInfo *memory_info() const noexcept { return info_; }

  // Why the last free that failed did, on whichever thread; empty if none has failed.
  std::string last_error() const { return failure_.text(); }

 private:
  std::shared_ptr<pool> pool_;
  const OrtApi *ort_;
  OrtMemoryInfo *info_ = nullptr;
  std::atomic<std::uint64_t> allocations_{0}, reserves_{0}, largest_{0};
  detail::last_failure failure_;
  // Blocks that were allocated for no stream, and of each a bit, which stays: a block without its bit is none of them, so that
  // most frees take no lock.
  std::mutex mutex_;
  std::unordered_set<void *> streamless_;
  std::atomic<std::uint64_t> bits_[64] = {};

  static onnxruntime_allocator &of(OrtAllocator *own) noexcept { return *static_cast<onnxruntime_allocator *>(own); }
  static const onnxruntime_allocator &of(const OrtAllocator *own) noexcept {
    return *static_cast<const onnxruntime_allocator *>(own);
  }

  void check_status(OrtStatus *status) const {
    if (!status) return;
    std::string why = ort_->GetErrorMessage(status);
    ort_->ReleaseStatus(status);
    throw error(GPUPOOL_ERROR_OTHER, why);
  }

  void count(std::size_t bytes, std::atomic<std::uint64_t> &counter) noexcept {
    counter.fetch_add(1, std::memory_order_relaxed);
    auto largest = largest_.load(std::memory_order_relaxed);
    while (largest < bytes && !largest_.compare_exchange_weak(largest, bytes, std::memory_order_relaxed)) continue;
  }

  // For any stream. The block is noted before anybody can free it.
  void *allocate(std::size_t bytes, std::atomic<std::uint64_t> &counter) {
    auto *memory = detail::allocate(
        [&](void **place) { return api().feed_allocate(pool_->handle(), pool_->device(), bytes, place); });
    if (!memory) return nullptr;
    try {
      std::lock_guard<std::mutex> lock(mutex_);
      streamless_.insert(memory);
      auto [word, bit] = place_of(memory);
      word->fetch_or(bit, std::memory_order_relaxed);
    } catch (...) {
      api().feed_deallocate(memory);
      throw;
    }
    count(bytes, counter);
    return memory;
  }

  void *allocate_on(std::size_t bytes, OrtSyncStream *stream) {
    if (!stream) return allocate(bytes, allocations_);
    auto *on = ort_->SyncStream_GetHandle(stream);
    auto *memory = detail::allocate(
        [&](void **place) { return api().pool_allocate(pool_->handle(), UINT64_MAX, bytes, on, place); });
    if (memory) count(bytes, allocations_);
    return memory;
  }

  void deallocate(void *memory) noexcept {
    failure_.attempt([&] {
      if (!memory) return;
      check(detail::call([&] {
        return is_streamless(memory) ? api().feed_deallocate(memory) : api().deallocate(memory);
      }));
    });
  }

  // Blocks begin at multiples of 512 bytes.
  std::pair<std::atomic<std::uint64_t> *, std::uint64_t> place_of(void *memory) noexcept {
    auto number = (reinterpret_cast<std::uintptr_t>(memory) >> 9) * UINT64_C(0x9e3779b97f4a7c15) >> 52;
    return {&bits_[number / 64], UINT64_C(1) << number % 64};
  }

  // Forgets it, too.
  bool is_streamless(void *memory) {
    auto [word, bit] = place_of(memory);
    // The bit was set before the block was handed out, so the thread that frees it sees the bit.
    if (!(word->load(std::memory_order_relaxed) & bit)) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    return streamless_.erase(memory) != 0;
  }

  // The keys that onnxruntime_c_api.h names, as far as a pool has them.
  static OrtStatus *ORT_API_CALL get_stats(const OrtAllocator *allocator, OrtKeyValuePairs **out) noexcept {
    auto &own = of(allocator);
    return own.status_of([&] {
      struct bytes {
        std::uint64_t live = 0, reserved = 0;
      } sums;
      auto visitor = detail::sized<gpupool_snapshot_visitor>();
      visitor.context = &sums;
      visitor.segment = [](void *sums, const gpupool_segment *part) {
        static_cast<bytes *>(sums)->reserved += part->bytes;
      };
      visitor.block = [](void *sums, const gpupool_block *block) {
        if (block->is_live) static_cast<bytes *>(sums)->live += block->requested;
      };
      auto id = own.pool_->id();
      check(api().snapshot(own.pool_->device(), &id, &visitor));
      const std::pair<const char *, std::uint64_t> pairs[] = {
          {"InUse", sums.live},
          {"TotalAllocated", sums.reserved},
          {"NumAllocs", own.allocations_.load(std::memory_order_relaxed)},
          {"NumReserves", own.reserves_.load(std::memory_order_relaxed)},
          {"MaxAllocSize", own.largest_.load(std::memory_order_relaxed)},
      };
      std::string texts[std::size(pairs)];
      for (std::size_t place = 0; place < std::size(pairs); ++place) texts[place] = std::to_string(pairs[place].second);
      own.ort_->CreateKeyValuePairs(out);
      for (std::size_t place = 0; place < std::size(pairs); ++place)
        own.ort_->AddKeyValuePair(*out, pairs[place].first, texts[place].c_str());
    });
  }

#if ORT_API_VERSION >= 25
  // Releases the pool's free memory to the driver, and waits for the GPU work that may still use it.
  static OrtStatus *ORT_API_CALL shrink(OrtAllocator *allocator) noexcept {
    return of(allocator).status_of([&] { of(allocator).pool_->trim(); });
  }
#endif

  template <class Function> OrtStatus *status_of(Function function) const noexcept {
    try {
      function();
      return nullptr;
    } catch (const std::exception &failure) {
      return ort_->CreateStatus(ORT_FAIL, failure.what());
    } catch (...) {
      return ort_->CreateStatus(ORT_FAIL, "a callback threw what is no std::exception");
    }
  }
};

} // namespace gpupool

#endif

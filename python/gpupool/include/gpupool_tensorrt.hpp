// gpupool_tensorrt.hpp: TensorRT's device memory from gpupool. Header only, over gpupool.hpp and TensorRT's NvInferRuntime.h.
//
//   gpupool::tensorrt_allocator allocator(0);      // device 0; or of one pool, a std::shared_ptr<gpupool::pool>
//   runtime->setGpuAllocator(&allocator);          // IRuntime and IBuilder; it must outlive what they make
//   context->setTemporaryStorageAllocator(&allocator);
//
// TensorRT 10.0 or later. No function throws: where there is no memory TensorRT gets a null pointer, as it asks for, and
// last_error() says why.
// https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/c-api/classnvinfer1_1_1_i_gpu_async_allocator.html
#ifndef GPUPOOL_TENSORRT_HPP
#define GPUPOOL_TENSORRT_HPP

#include <NvInferRuntime.h>

#include <memory>
#include <string>
#include <utility>

#include "gpupool.hpp"

#if !defined(NV_TENSORRT_MAJOR) || NV_TENSORRT_MAJOR < 10
#error "gpupool_tensorrt.hpp needs TensorRT 10 or later: before, there is no IGpuAsyncAllocator"
#endif

namespace gpupool {

// Memory of a device: from the pool of the calling thread's scope, or from one pool, which is kept alive. Any thread may call
// it. A null stream is the legacy default stream, however this code was compiled, because TensorRT passes it on.
class tensorrt_allocator : public nvinfer1::IGpuAsyncAllocator {
 public:
  explicit tensorrt_allocator(int device = 0) noexcept : device_(device) {}
  explicit tensorrt_allocator(std::shared_ptr<const pool> pool) noexcept
      : device_(pool->device()), pool_(std::move(pool)) {}
  tensorrt_allocator(const tensorrt_allocator &) = delete;
  tensorrt_allocator &operator=(const tensorrt_allocator &) = delete;

  int device() const noexcept { return device_; }

  // Why the last call that failed did, on whichever thread; empty if none has failed.
  std::string last_error() const { return failure_.text(); }

  // Allocates in the order of the stream. Null for 0 bytes, and if there is not enough memory or the alignment is no power of
  // two up to 512; 0 is any.
  void *allocateAsync(std::uint64_t const size, std::uint64_t const alignment, nvinfer1::AllocatorFlags const,
                      cudaStream_t stream) noexcept override {
    void *pointer = nullptr;
    failure_.attempt([&] { pointer = allocate_on(size, alignment, stream); });
    return pointer;
  }

  // Frees in the order of the stream, which may differ from that of the allocation: the memory is reused, on any stream, once
  // the stream's work so far is done, or all work of the device if that stream cannot be named any more. If neither is
  // possible, returns false and frees nothing.
  bool deallocateAsync(void *const memory, cudaStream_t stream) noexcept override {
    return failure_.attempt([&] {
      if (!memory) return;
      check(detail::call([&] { return detail::deallocate_behind(memory, device_, stream); }));
    });
  }

  // The deprecated function without a stream: the memory may be used on any stream immediately.
  void *allocate(std::uint64_t const size, std::uint64_t const alignment,
                 nvinfer1::AllocatorFlags const) noexcept override {
    void *pointer = nullptr;
    failure_.attempt([&] {
      void *allocated = allocate_on(size, alignment, nullptr);
      detail::wait_for_use(allocated, device_);
      pointer = allocated;
    });
    return pointer;
  }

 private:
  int device_;
  std::shared_ptr<const pool> pool_;
  detail::last_failure failure_;

  void *allocate_on(std::uint64_t size, std::uint64_t alignment, void *stream) const {
    detail::check_alignment(alignment);
    void *pointer = nullptr;
    check(detail::allocate(pointer, [&](void **place) {
      return pool_ ? api().pool_allocate(pool_->handle(), UINT64_MAX, size, stream, place)
                   : api().allocate(size, device_, stream, place);
    }));
    return pointer;
  }
};

} // namespace gpupool

#endif

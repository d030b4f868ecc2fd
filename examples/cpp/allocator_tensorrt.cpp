//! TensorRT's device memory from gpupool: an `IGpuAsyncAllocator`. Compiled with the headers of TensorRT 11.1; untried on a
//! GPU. With gpupool's library:
//! `c++ -std=c++17 -c examples/cpp/allocator_tensorrt.cpp $(pkg-config --cflags gpupool)`, with TensorRT's and CUDA's headers.
#include <NvInferRuntime.h>
#include <gpupool.hpp>

#include <cstdio>
#include <memory>
#include <utility>

// Memory of one pool, in the order of the streams that TensorRT names: of a null one, in that of the legacy default stream. It must
// outlive what is made with it. TensorRT gets a null pointer where there is no memory, as it asks for.
class allocator : public nvinfer1::IGpuAsyncAllocator {
 public:
  explicit allocator(std::shared_ptr<const gpupool::pool> pool) : pool_(std::move(pool)) {}

  void *allocateAsync(std::uint64_t const size, std::uint64_t const alignment, nvinfer1::AllocatorFlags const,
                      cudaStream_t stream) noexcept override {
    // Blocks begin at multiples of 512 bytes.
    if (alignment > 512) return nullptr;
    void *pointer = nullptr;
    try {
      succeeded(gpupool::api().pool_allocate(pool_->handle(), UINT64_MAX, size, stream, &pointer));
    } catch (const std::exception &failure) { // of a callback, or of a library that is too old
      std::fprintf(stderr, "%s\n", failure.what());
    }
    return pointer;
  }

  // On another stream than it was allocated on: no stream gets it before this one's work so far is done.
  bool deallocateAsync(void *const memory, cudaStream_t stream) noexcept override {
    return !memory || succeeded(gpupool::api().deallocate_on(memory, pool_->device(), stream));
  }

  // The deprecated function that names no stream: the memory may be used on any.
  void *allocate(std::uint64_t const size, std::uint64_t const alignment,
                 nvinfer1::AllocatorFlags const flags) noexcept override {
    void *pointer = allocateAsync(size, alignment, flags, nullptr);
    if (pointer && !succeeded(gpupool::api().synchronize(pool_->device(), nullptr))) {
      gpupool::api().deallocate(std::exchange(pointer, nullptr));
    }
    return pointer;
  }

 private:
  std::shared_ptr<const gpupool::pool> pool_;

  static bool succeeded(int status) {
    if (status) std::fprintf(stderr, "%s\n", gpupool::api().last_error());
    return !status;
  }
};

int main() {
  allocator own(std::make_shared<gpupool::pool>(0));
  // In a program: runtime->setGpuAllocator(&own); context->setTemporaryStorageAllocator(&own). This is what TensorRT then does.
  nvinfer1::IGpuAllocator &as_tensorrt_does = own;
  void *memory = as_tensorrt_does.allocateAsync(1 << 20, 256, 0, nullptr);
  return memory && as_tensorrt_does.deallocateAsync(memory, nullptr) ? 0 : 1;
}

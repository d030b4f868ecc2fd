// gpupool_opencv.hpp: the memory of OpenCV's cv::cuda::GpuMat from gpupool. Header only, over gpupool.hpp and OpenCV's core.
//
//   static gpupool::opencv_allocator allocator;            // it must outlive the matrices
//   cv::cuda::GpuMat::setDefaultAllocator(&allocator);     // all that are made from here on; or one: GpuMat(&allocator)
//
// OpenCV tells an allocator no stream. So memory is ready for every stream when a matrix gets it, for which the host waits,
// and is freed behind all work so far on blocking streams; or, after set_stream, both are in the order of that one stream.
// https://docs.opencv.org/4.x/d5/d5d/classcv_1_1cuda_1_1GpuMat_1_1Allocator.html
#ifndef GPUPOOL_OPENCV_HPP
#define GPUPOOL_OPENCV_HPP

#include <opencv2/core.hpp>
#include <opencv2/core/cuda.hpp>

#include <atomic>
#include <memory>
#include <utility>

#include "gpupool.hpp"

namespace gpupool {

// Device memory for matrices: from the pool of the calling thread's scope, or from one pool, which is kept alive. Any thread
// may call it. Where there is no memory it throws a cv::Exception, as OpenCV's own allocator does, with gpupool's message.
class opencv_allocator : public cv::cuda::GpuMat::Allocator {
 public:
  // On this device, or for -1 on the thread's current one (cv::cuda::setDevice).
  explicit opencv_allocator(int device = -1) noexcept : device_(device) {}
  explicit opencv_allocator(std::shared_ptr<const pool> pool) noexcept
      : device_(pool->device()), pool_(std::move(pool)) {}
  opencv_allocator(const opencv_allocator &) = delete;
  opencv_allocator &operator=(const opencv_allocator &) = delete;

  // From here on memory is allocated and freed in the order of this stream, for matrices that no other stream uses: no call
  // waits. Null is the legacy default stream, with the wait, however this code was compiled.
  void set_stream(void *stream) noexcept { stream_.store(stream, std::memory_order_release); }

  // Rows and columns as OpenCV's own allocator lays them out: a matrix of one row or column has no gaps, and rows of any
  // other begin at multiples of 512 bytes.
  bool allocate(cv::cuda::GpuMat *matrix, int rows, int cols, std::size_t element_size) override {
    std::size_t step = element_size * static_cast<std::size_t>(cols);
    if (rows > 1 && cols > 1) step = (step + PITCH - 1) / PITCH * PITCH;
    auto uses = std::make_unique<int>(0);
    matrix->data = static_cast<unsigned char *>(allocate_bytes(step * static_cast<std::size_t>(rows)));
    matrix->step = step;
    matrix->refcount = uses.release();
    return true;
  }

  // In the order of the stream that the memory was allocated on.
  void free(cv::cuda::GpuMat *matrix) noexcept override {
    api().deallocate(matrix->datastart);
    delete matrix->refcount;
  }

 private:
  // What cudaMallocPitch aligns rows to is cudaDeviceProp::textureAlignment, 512 bytes on the GPUs of CUDA 12 and 13. It is not
  // read, so that this needs no header and no library of CUDA.
  static constexpr std::size_t PITCH = 512;

  int device_;
  std::shared_ptr<const pool> pool_;
  std::atomic<void *> stream_{nullptr};

  void *allocate_bytes(std::size_t bytes) const {
    try {
      void *pointer = nullptr, *stream = stream_.load(std::memory_order_acquire);
      int device = device_ < 0 ? cv::cuda::getDevice() : device_;
      check(detail::allocate(pointer, [&](void **place) {
        return pool_ ? api().pool_allocate(pool_->handle(), UINT64_MAX, bytes, stream, place)
                     : api().allocate(bytes, device, stream, place);
      }));
      if (!stream) detail::wait_for_use(pointer, device);
      return pointer;
    } catch (const out_of_memory &failure) {
      CV_Error(cv::Error::StsNoMem, failure.what());
    } catch (const error &failure) {
      CV_Error(cv::Error::GpuApiCallError, failure.what());
    }
  }
};

} // namespace gpupool

#endif

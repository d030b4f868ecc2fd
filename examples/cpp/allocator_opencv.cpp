//! The memory of OpenCV's `cv::cuda::GpuMat` from gpupool. Compiled with a double of OpenCV's headers; untried on a GPU.
//! `c++ -std=c++17 examples/cpp/allocator_opencv.cpp $(pkg-config --cflags --libs opencv4 gpupool)`
//!
//! OpenCV tells an allocator no stream, and uses a matrix on any. So this one waits until a new matrix may be used on every stream,
//! and frees behind all work so far on blocking streams. With a stream nothing waits, for matrices that no other stream uses.
#include <gpupool.hpp>
#include <opencv2/core.hpp>
#include <opencv2/core/cuda.hpp>

#include <memory>
#include <utility>

// It must outlive its matrices.
class allocator : public cv::cuda::GpuMat::Allocator {
 public:
  explicit allocator(std::shared_ptr<const gpupool::pool> pool, void *stream = nullptr)
      : pool_(std::move(pool)), stream_(stream) {}

  // As OpenCV's own allocator does it: a matrix of one row or column has no gaps, and rows of any other begin at multiples of 512
  // bytes, as cudaMallocPitch has them on the GPUs of CUDA 12 and 13. Without memory OpenCV's exception is thrown.
  bool allocate(cv::cuda::GpuMat *matrix, int rows, int cols, std::size_t element_size) override {
    std::size_t step = element_size * static_cast<std::size_t>(cols);
    if (rows > 1 && cols > 1) step = (step + 511) / 512 * 512;
    auto uses = std::make_unique<int>(0);
    matrix->data = static_cast<unsigned char *>(take(step * static_cast<std::size_t>(rows)));
    matrix->step = step;
    matrix->refcount = uses.release();
    return true;
  }

  void free(cv::cuda::GpuMat *matrix) noexcept override {
    gpupool::api().deallocate(matrix->datastart);
    delete matrix->refcount;
  }

 private:
  std::shared_ptr<const gpupool::pool> pool_;
  void *stream_;

  void *take(std::size_t bytes) const {
    void *pointer = nullptr;
    try {
      gpupool::check(gpupool::api().pool_allocate(pool_->handle(), UINT64_MAX, bytes, stream_, &pointer));
      if (!stream_) gpupool::check(gpupool::api().synchronize(pool_->device(), nullptr));
      return pointer;
    } catch (const std::exception &failure) {
      gpupool::api().deallocate(pointer);
      CV_Error(cv::Error::StsNoMem, failure.what());
    }
  }
};

int main() {
  auto pool = std::make_shared<gpupool::pool>(0);
  static allocator all(pool);
  cv::cuda::GpuMat::setDefaultAllocator(&all);
  cv::cuda::GpuMat image(1080, 1920, CV_8UC3); // from the pool, as every matrix from here on
  return image.data ? 0 : 1;
}

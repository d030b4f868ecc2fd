//! Matrices of OpenCV in memory from a pool with a name, frame after frame: uploaded, filled, converted and downloaded, in
//! the order of one stream, so that no frame waits for another's memory. The result is checked on the host.
//!
//! Build it with an OpenCV that was built with CUDA, and with gpupool's library ([how](c-and-cpp.md#build)):
//!
//! ```
//! c++ -std=c++17 examples/matrices_opencv.cpp $(pkg-config --cflags --libs opencv4 gpupool) -o matrices
//! ```
//!
//! It says so if OpenCV has no CUDA, or finds no GPU.

#if !__has_include(<opencv2/core/cuda.hpp>)
#error "OpenCV's headers are not here: install OpenCV with its headers, and name their folder: pkg-config --cflags opencv4"
#endif

#include <gpupool_opencv.hpp>

#include <opencv2/core/cuda_stream_accessor.hpp>

#include <cstdio>
#include <memory>

namespace {

constexpr int ROWS = 1080, COLS = 1920, FRAMES = 100;

int run() {
  gpupool::pool_options options;
  options.name = "frames";
  auto pool = std::make_shared<gpupool::pool>(0, options);
  gpupool::opencv_allocator allocator(pool);
  cv::cuda::Stream stream;
  allocator.set_stream(cv::cuda::StreamAccessor::getStream(stream));

  cv::Mat frame(ROWS, COLS, CV_8UC3, cv::Scalar::all(7)), result;
  for (int number = 0; number < FRAMES; ++number) {
    // New matrices for each frame, whose memory is that of the last one's.
    cv::cuda::GpuMat image(&allocator), wide(&allocator);
    image.upload(frame, stream);
    image.convertTo(wide, CV_32FC3, 2.0, stream);
    wide.download(result, stream);
  }
  stream.waitForCompletion();

  double least = 0, most = 0;
  cv::minMaxLoc(result.reshape(1), &least, &most);
  auto stats = gpupool::device_stats();
  std::printf("frames            %d\n", FRAMES);
  std::printf("calls of driver   %lld that allocate\n", static_cast<long long>(stats.device_allocs));
  std::printf("reserved          %lld MiB\n",
              static_cast<long long>(stats.reserved_bytes[GPUPOOL_ALL].current >> 20));
  std::printf("result            %s\n", least == 14 && most == 14 ? "right" : "wrong");
  return least == 14 && most == 14 ? 0 : 1;
}

} // namespace

int main() {
  int devices = cv::cuda::getCudaEnabledDeviceCount();
  if (devices <= 0) {
    std::puts(devices == 0 ? "This OpenCV was built without CUDA, or there is no GPU; build OpenCV with -D WITH_CUDA=ON"
                           : "CUDA's driver is missing, or too old for this OpenCV");
    return 0;
  }
  try {
    return run();
  } catch (const cv::Exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

// What gpupool_opencv.hpp's allocator does for matrices, over simulated devices. As a program it prints nothing and returns 0
// where all is right; as a library it is called by Python, which says when streams' work is done.

#include <gpupool_opencv.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define EXPECT(condition) \
  ((condition) ? void() : (std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), std::exit(1)))

extern "C" {

gpupool::opencv_allocator *make_allocator(std::uint64_t first, std::uint64_t second) {
  return new gpupool::opencv_allocator(std::make_shared<gpupool::pool>(0, gpupool_pool_id{first, second}));
}
void delete_allocator(gpupool::opencv_allocator *allocator) { delete allocator; }
void set_stream(gpupool::opencv_allocator *allocator, void *stream) { allocator->set_stream(stream); }

// A matrix of bytes, or null with what OpenCV throws.
cv::cuda::GpuMat *make_matrix(gpupool::opencv_allocator *allocator, int rows, int cols, char *why, std::size_t bytes) {
  try {
    return new cv::cuda::GpuMat(rows, cols, CV_8UC1, allocator);
  } catch (const cv::Exception &error) {
    std::snprintf(why, bytes, "%d: %s", int(error.code), error.what());
    return nullptr;
  }
}
void *data_of(cv::cuda::GpuMat *matrix) { return matrix->data; }
void delete_matrix(cv::cuda::GpuMat *matrix) { delete matrix; }
}

namespace {

constexpr std::size_t MIB = 1 << 20;

std::int64_t live(int device = 0) { return gpupool::device_stats(device).requested_bytes[GPUPOOL_ALL].current; }

gpupool_block block_of(const cv::cuda::GpuMat &matrix) {
  gpupool_block block{};
  block.size = sizeof block;
  gpupool::check(gpupool::api().find_block(matrix.data, &block));
  return block;
}

void rows_are_laid_out_as_opencvs() {
  gpupool::opencv_allocator allocator;
  struct {
    int rows, cols, type;
    std::size_t step;
    bool is_continuous;
  } cases[] = {
      {480, 640, CV_8UC3, 2048, false}, // 1920 bytes, and a gap
      {480, 512, CV_8UC1, 512, true},   {2, 513, CV_8UC1, 1024, false},
      {1, 1000, CV_32FC1, 4000, true}, // a row
      {1000, 1, CV_8UC3, 3, true},     // a column
      {1, 1, CV_8UC1, 1, true},
  };
  for (auto &each : cases) {
    cv::cuda::GpuMat matrix(each.rows, each.cols, each.type, &allocator);
    EXPECT(matrix.step == each.step && matrix.isContinuous() == each.is_continuous);
    EXPECT(reinterpret_cast<std::uintptr_t>(matrix.data) % 512 == 0 && *matrix.refcount == 1);
    EXPECT(live() == std::int64_t(each.step) * each.rows);
    std::memset(matrix.data, 7, each.step * std::size_t(each.rows));
    matrix.release();
    EXPECT(live() == 0 && !matrix.data);
  }
}

void a_default_allocator_serves_all() {
  gpupool::opencv_allocator allocator;
  auto *former = cv::cuda::GpuMat::defaultAllocator();
  cv::cuda::GpuMat::setDefaultAllocator(&allocator);
  {
    cv::cuda::GpuMat matrix(480, 640, CV_8UC3);
    auto *data = matrix.data;
    matrix.create(480, 640, CV_8UC3);
    EXPECT(matrix.data == data); // OpenCV keeps it
    matrix.create(960, 640, CV_8UC3);
    EXPECT(live() == 960 * 2048);
  }
  EXPECT(live() == 0);
  cv::cuda::GpuMat::setDefaultAllocator(former);
}

void the_device_is_the_threads_or_the_given_one() {
  gpupool::opencv_allocator current, second(1);
  cv::cuda::GpuMat first(10, 10, CV_8UC1, &current), given(10, 10, CV_8UC1, &second);
  cv::cuda::setDevice(1);
  cv::cuda::GpuMat other(10, 10, CV_8UC1, &current);
  first.release(); // of a device that is not current
  cv::cuda::setDevice(0);
  EXPECT(block_of(given).device == 1 && block_of(other).device == 1 && live() == 0);
  given.release();
  other.release();
  EXPECT(live(1) == 0);
}

void it_keeps_its_pool() {
  auto pool = std::make_shared<gpupool::pool>();
  auto id = pool->id();
  gpupool::opencv_allocator allocator(pool);
  pool.reset();
  cv::cuda::GpuMat matrix(10, 10, CV_8UC1, &allocator);
  auto found = block_of(matrix).pool;
  EXPECT(found.first == id.first && found.second == id.second);
}

void no_memory_is_opencvs_exception() {
  gpupool::opencv_allocator allocator;
  cv::cuda::GpuMat matrix(&allocator);
  try {
    matrix.create(1 << 30, 1 << 20, CV_8UC1);
    EXPECT(!"there is so much memory");
  } catch (const cv::Exception &error) {
    EXPECT(error.code == cv::Error::StsNoMem && std::strstr(error.what(), "tried to allocate"));
  }
  EXPECT(!matrix.data && !matrix.refcount && live() == 0);
  gpupool::opencv_allocator nowhere(7);
  cv::cuda::GpuMat lost(&nowhere);
  try {
    lost.create(10, 10, CV_8UC1);
    EXPECT(!"there is a device 7");
  } catch (const cv::Exception &error) {
    EXPECT(error.code == cv::Error::GpuApiCallError && std::strstr(error.what(), "device"));
  }
}

void threads_share_it() {
  gpupool::opencv_allocator allocator(0);
  std::vector<std::thread> threads;
  for (unsigned char number = 1; number <= 4; ++number)
    threads.emplace_back([&, number] {
      for (int round = 0; round < 200; ++round) {
        cv::cuda::GpuMat matrix(2 + round, 3 + 101 * round, CV_8UC1, &allocator);
        std::size_t bytes = matrix.step * std::size_t(matrix.rows);
        std::memset(matrix.data, number, bytes);
        EXPECT(matrix.data[0] == number && matrix.data[bytes - 1] == number);
      }
    });
  for (auto &thread : threads) thread.join();
  EXPECT(live() == 0);
}

} // namespace

int main() {
  rows_are_laid_out_as_opencvs();
  a_default_allocator_serves_all();
  the_device_is_the_threads_or_the_given_one();
  it_keeps_its_pool();
  no_memory_is_opencvs_exception();
  threads_share_it();
}

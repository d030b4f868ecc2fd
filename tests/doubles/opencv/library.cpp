// A double of OpenCV's library, for its own headers or their double: what GpuMat asks an allocator for and in which order, as
// in OpenCV's modules/core/src/cuda/gpu_mat.cu, and exceptions. There is no allocator of OpenCV's own in it.
#include <opencv2/core.hpp>
#include <opencv2/core/cuda.hpp>

namespace {

cv::cuda::GpuMat::Allocator *set = nullptr;
thread_local int current = 0;

constexpr int MAGIC = 0x42FF0000, CONTINUOUS = 1 << 14;

} // namespace

namespace cv {

#if CV_VERSION_MAJOR >= 5
using code_type = Error::Code;
#else
using code_type = int;
#endif

Exception::Exception(code_type its_code, const std::string &text, const std::string &function, const std::string &its_file,
                     int its_line)
    : msg(text), code(its_code), err(text), func(function), file(its_file), line(its_line) {}
Exception::~Exception() noexcept {}
const char *Exception::what() const noexcept { return msg.c_str(); }

void error(code_type code, const std::string &text, const char *function, const char *file, int line) {
  throw Exception(code, text, function, file, line);
}

namespace cuda {

int getDevice() { return current; }
void setDevice(int device) { current = device; }

GpuMat::Allocator *GpuMat::defaultAllocator() { return set; }
void GpuMat::setDefaultAllocator(Allocator *allocator) { set = allocator; }

void GpuMat::create(int new_rows, int new_cols, int type) {
  if (data && rows == new_rows && cols == new_cols && (flags & 0xFFF) == type) return;
  release();
  flags = MAGIC + type;
  rows = new_rows;
  cols = new_cols;
  if (!allocator->allocate(this, rows, cols, elemSize())) error(Error::StsNoMem, "allocSuccess", __func__, __FILE__, __LINE__);
  if (elemSize() * cols == step) flags |= CONTINUOUS;
  datastart = data;
  dataend = data + step * (rows - 1) + cols * elemSize();
  if (refcount) *refcount = 1;
}

void GpuMat::release() {
  if (refcount && --*refcount == 0) allocator->free(this);
  data = datastart = nullptr;
  dataend = nullptr;
  step = 0;
  rows = cols = 0;
  refcount = nullptr;
}

} // namespace cuda
} // namespace cv

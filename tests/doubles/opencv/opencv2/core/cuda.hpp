// A double of OpenCV's core/cuda.hpp: of GpuMat what an allocator fills in, and what creates and releases it.
#ifndef OPENCV_CORE_CUDA_HPP
#define OPENCV_CORE_CUDA_HPP

#include <cstddef>

#include "../core.hpp"

#define CV_8UC1 0
#define CV_8UC3 16
#define CV_32FC1 5

namespace cv {
namespace cuda {

int getDevice();
void setDevice(int device);

class GpuMat {
 public:
  class Allocator {
   public:
    virtual ~Allocator() {}
    virtual bool allocate(GpuMat *matrix, int rows, int cols, std::size_t element_size) = 0;
    virtual void free(GpuMat *matrix) = 0;
  };

  static Allocator *defaultAllocator();
  static void setDefaultAllocator(Allocator *allocator);

  explicit GpuMat(Allocator *own = defaultAllocator())
      : flags(0), rows(0), cols(0), step(0), data(nullptr), refcount(nullptr), datastart(nullptr), dataend(nullptr),
        allocator(own) {}
  GpuMat(int rows, int cols, int type, Allocator *allocator = defaultAllocator()) : GpuMat(allocator) {
    create(rows, cols, type);
  }
  GpuMat(const GpuMat &other) = delete;
  GpuMat &operator=(const GpuMat &other) = delete;
  ~GpuMat() { release(); }

  void create(int rows, int cols, int type);
  void release();
  std::size_t elemSize() const { return std::size_t(((flags >> 3) & 511) + 1) * ((flags & 7) == 5 ? 4 : 1); }
  bool isContinuous() const { return (flags & 1 << 14) != 0; }

  int flags, rows, cols;
  std::size_t step;
  unsigned char *data;
  int *refcount;
  unsigned char *datastart;
  const unsigned char *dataend;
  Allocator *allocator;
};

} // namespace cuda
} // namespace cv

#endif

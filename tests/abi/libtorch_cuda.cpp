// An ABI double of the class of PyTorch's pluggable allocators, with its real name and the functions that gpupool calls.
// It takes back only what it gave, and tells the user's function what it was asked for.

#include <cstddef>
#include <functional>
#include <map>
#include <utility>

using stream_t = struct CUstream_st *;
using Malloc = void *(size_t, int, stream_t);
using Free = void(void *, size_t, int, stream_t);

namespace torch::cuda::CUDAPluggableAllocator {

class CUDAPluggableAllocator {
  struct Given {
    size_t size;
    int device;
    stream_t stream;
  };
  std::function<Malloc> malloc_;
  std::function<Free> free_;
  std::map<void *, Given> given_;

 public:
  CUDAPluggableAllocator(Malloc *malloc, Free *free) : malloc_(malloc), free_(free) {}
  virtual ~CUDAPluggableAllocator() = default;
  void *malloc(size_t size, signed char device, stream_t stream);
  virtual void raw_delete(void *pointer);
};

void *CUDAPluggableAllocator::malloc(size_t size, signed char device, stream_t stream) {
  void *pointer = malloc_(size, device, stream);
  given_[pointer] = {size, device, stream};
  return pointer;
}

void CUDAPluggableAllocator::raw_delete(void *pointer) {
  Given given = given_.at(pointer);
  given_.erase(pointer);
  free_(pointer, given.size, given.device, given.stream);
}

}  // namespace torch::cuda::CUDAPluggableAllocator

using torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

extern "C" {
CUDAPluggableAllocator *make(Malloc *malloc, Free *free) { return new CUDAPluggableAllocator(malloc, free); }
void end(CUDAPluggableAllocator *allocator) { delete allocator; }
}

// A double of TensorRT's NvInferRuntime.h: of what IGpuAsyncAllocator is made of, the same names, signatures and order of
// virtual functions as in TensorRT 10.0 to 11.1. The tests compile against TensorRT's own headers instead where
// GPUPOOL_TENSORRT_INCLUDE names them.
#ifndef NV_INFER_RUNTIME_H
#define NV_INFER_RUNTIME_H

#include <cstdint>

#define NV_TENSORRT_MAJOR 11
#define TRT_DEPRECATED [[deprecated]]

using cudaStream_t = struct CUstream_st *;

namespace nvinfer1 {

using AllocatorFlags = std::uint32_t;

enum class APILanguage : std::int32_t { kCPP = 0, kPYTHON = 1 };

struct InterfaceInfo {
  char const *kind;
  std::int32_t major;
  std::int32_t minor;
};

class IVersionedInterface {
 public:
  virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
  virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
  virtual ~IVersionedInterface() noexcept = default;
};

class IGpuAllocator : public IVersionedInterface {
 public:
  TRT_DEPRECATED virtual void *allocate(std::uint64_t const size, std::uint64_t const alignment,
                                        AllocatorFlags const flags) noexcept = 0;
  virtual void *reallocate(void *const, std::uint64_t, std::uint64_t) noexcept { return nullptr; }
  TRT_DEPRECATED virtual bool deallocate(void *const memory) noexcept = 0;
  virtual void *allocateAsync(std::uint64_t const, std::uint64_t const, AllocatorFlags const, cudaStream_t) noexcept {
    return nullptr;
  }
  virtual bool deallocateAsync(void *const, cudaStream_t) noexcept { return false; }
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"IGpuAllocator", 1, 0}; }
};

class IGpuAsyncAllocator : public IGpuAllocator {
 public:
  void *allocateAsync(std::uint64_t const size, std::uint64_t const alignment, AllocatorFlags const flags,
                      cudaStream_t stream) noexcept override = 0;
  bool deallocateAsync(void *const memory, cudaStream_t stream) noexcept override = 0;
  TRT_DEPRECATED void *allocate(std::uint64_t const size, std::uint64_t const alignment,
                                AllocatorFlags const flags) noexcept override {
    return allocateAsync(size, alignment, flags, nullptr);
  }
  TRT_DEPRECATED bool deallocate(void *const memory) noexcept override { return deallocateAsync(memory, nullptr); }
};

} // namespace nvinfer1

#endif

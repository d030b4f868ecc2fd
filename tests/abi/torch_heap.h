// An allocator of the user's, for pools of torch_calls.cpp: over the C library's heap, and of no more than 512 MiB at
// once.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <cstdlib>

#define AT_LEAST(minor) (TORCH_VERSION_MINOR >= (minor))

namespace CA = c10::cuda::CUDACachingAllocator;

static int calls_of_source, frees_of_source;
struct Heap final : c10::cuda::CUDACachingAllocator::CUDAAllocator {
  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void *, const void *, size_t) const override {}
  void *raw_alloc(size_t bytes) override {
    calls_of_source++;
    void *pointer = nullptr;
    TORCH_CHECK(bytes < (size_t{512} << 20), "a source that fails");
    return posix_memalign(&pointer, 1 << 21, bytes) ? nullptr : pointer;
  }
  void *raw_alloc_with_stream(size_t bytes, cudaStream_t) override { return raw_alloc(bytes); }
  void raw_delete(void *pointer) override {
    frees_of_source++;
    free(pointer);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  CA::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  void init(int) override {}
  double getMemoryFraction(c10::DeviceIndex) override { return 1; }
  void setMemoryFraction(double, c10::DeviceIndex) override {}
  std::vector<CA::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override { return {}; }
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void cacheInfo(c10::DeviceIndex, size_t *) override {}
  void *getBaseAllocation(void *pointer, size_t *) override { return pointer; }
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr &, c10::cuda::CUDAStream) override {}
  CA::SnapshotInfo snapshot(c10::MempoolId_t, bool) override { return {}; }
  void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t, std::function<bool(cudaStream_t)>) override {}
  void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override {}
  void releasePool(c10::DeviceIndex, c10::MempoolId_t) override {}
  CA::ShareableHandle shareIpcHandle(void *) override { return {}; }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { return nullptr; }
  void recordHistory(bool, CA::CreateContextFn, size_t, CA::RecordContext, bool,
                     const std::vector<std::string> &) override {}
  void attachOutOfMemoryObserver(CA::OutOfMemoryObserver) override {}
  void attachAllocatorTraceTracker(CA::AllocatorTraceTracker) override {}
  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override {}
  cudaError_t memcpyAsync(void *, int, const void *, int, size_t, cudaStream_t, bool) override { return cudaSuccess; }
  std::shared_ptr<CA::AllocatorState> getCheckpointState(c10::DeviceIndex, c10::MempoolId_t) override { return {}; }
  CA::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex, std::shared_ptr<CA::AllocatorState>) override {
    return {};
  }
  std::string name() override { return "heap"; }
#if AT_LEAST(12)
  void attachOomRejectionObserver(CA::OomRejectionObserver) override {}
#endif
};

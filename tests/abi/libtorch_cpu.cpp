// An ABI double of what gpupool needs of PyTorch's libtorch_cpu.so: the two functions that tell and set the allocator of
// pinned memory, with their real names. There PyTorch's own is set, which its header has but for what asks the driver:
// here that is the C library's heap.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <utility>

namespace at {

static HostAllocator *allocators[COMPILE_TIME_MAX_DEVICE_TYPES];
static uint8_t priorities[COMPILE_TIME_MAX_DEVICE_TYPES];

void setHostAllocator(DeviceType type, HostAllocator *allocator, uint8_t priority) {
  auto place = static_cast<int>(type);
  if (priority < priorities[place]) return;
  allocators[place] = allocator;
  priorities[place] = priority;
}

HostAllocator *getHostAllocator(DeviceType type) { return allocators[static_cast<int>(type)]; }

namespace {

using c10::cuda::CUDAStream;

class Event {
  cudaEvent_t event_ = nullptr;

 public:
  explicit Event(CUDAStream stream) {
    c10::cuda::CUDAGuard guard(stream.device_index());
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    C10_CUDA_CHECK(cudaEventRecord(event_, stream));
  }
  Event(Event &&other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event &operator=(Event &&other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  bool is_done() const { return cudaEventQuery(event_) == cudaSuccess; }
};

struct Own : CachingHostAllocatorImpl<CUDAStream, Event> {
  using Block = HostBlock<CUDAStream>;

  void allocate_host_memory(size_t bytes, void **pointer) override {
    TORCH_CHECK(posix_memalign(pointer, 4096, bytes) == 0, "no memory");
    std::lock_guard<std::mutex> lock(stats_.timing_mutex_);
    stats_.host_alloc_time.increase(7);
  }
  void free_block(Block *block) override {
    ::free(block->ptr_);
    std::lock_guard<std::mutex> lock(stats_.timing_mutex_);
    stats_.host_free_time.increase(3);
  }
  void record_stream(std::optional<std::vector<Event>> &events, CUDAStream stream) override {
    events->emplace_back(stream);
  }
  bool query_event(Event &event) override { return event.is_done(); }
  CUDAStream get_current_stream() const override { return c10::cuda::getCurrentCUDAStream(); }
  bool stream_is_capturing(CUDAStream stream) const override {
    cudaStreamCaptureStatus status{};
    C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    return status != cudaStreamCaptureStatusNone;
  }
};


DECLARE_HOST_ALLOCATOR(Allocator, Own, deallocate, allocator)

HostAllocatorRegistry<kCUDA> registered(&allocator);

} // namespace
} // namespace at

// What gpupool_tensorrt.hpp's allocator does when it is called as TensorRT calls one, over simulated devices. As a program it
// prints nothing and returns 0 where all is right; as a library it is called by Python, which says when streams' work is done.

#include <gpupool_tensorrt.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

// TensorRT's own headers deprecate the functions without a stream, which it may call nevertheless.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define EXPECT(condition) \
  ((condition) ? void() : (std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), std::exit(1)))

extern "C" {

gpupool::tensorrt_allocator *make_allocator() { return new gpupool::tensorrt_allocator(0); }
gpupool::tensorrt_allocator *make_allocator_of(std::uint64_t first, std::uint64_t second) {
  return new gpupool::tensorrt_allocator(std::make_shared<gpupool::pool>(0, gpupool_pool_id{first, second}));
}
void delete_allocator(gpupool::tensorrt_allocator *allocator) { delete allocator; }

void *allocate(nvinfer1::IGpuAllocator *allocator, std::uint64_t size, std::uint64_t alignment, void *stream) {
  return allocator->allocateAsync(size, alignment, 0, static_cast<cudaStream_t>(stream));
}
bool deallocate(nvinfer1::IGpuAllocator *allocator, void *memory, void *stream) {
  return allocator->deallocateAsync(memory, static_cast<cudaStream_t>(stream));
}
void *allocate_at_once(nvinfer1::IGpuAllocator *allocator, std::uint64_t size) { return allocator->allocate(size, 256, 0); }
bool deallocate_at_once(nvinfer1::IGpuAllocator *allocator, void *memory) { return allocator->deallocate(memory); }
bool last_error_has(const gpupool::tensorrt_allocator *allocator, const char *text) {
  return allocator->last_error().find(text) != std::string::npos;
}
}

namespace {

constexpr std::size_t MIB = 1 << 20;

std::int64_t live() { return gpupool::device_stats().requested_bytes[GPUPOOL_ALL].current; }

void memory_has_its_size_and_alignment() {
  gpupool::tensorrt_allocator allocator;
  EXPECT(allocator.device() == 0 && allocator.last_error().empty());
  EXPECT(std::strcmp(allocator.getInterfaceInfo().kind, "IGpuAllocator") == 0);
  for (std::uint64_t alignment : {0, 1, 16, 256, 512}) {
    for (std::uint64_t size : {std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{3 * MIB}}) {
      void *memory = allocate(&allocator, size, alignment, nullptr);
      EXPECT(memory && reinterpret_cast<std::uintptr_t>(memory) % (alignment ? alignment : 1) == 0);
      std::memset(memory, 7, size);
      EXPECT(live() == std::int64_t(size));
      EXPECT(deallocate(&allocator, memory, nullptr) && live() == 0);
    }
  }
  void *memory = allocate_at_once(&allocator, MIB);
  EXPECT(memory && !allocator.reallocate(memory, 256, 2 * MIB));
  EXPECT(deallocate_at_once(&allocator, memory) && live() == 0);
}

void what_cannot_be_is_null_with_a_reason() {
  gpupool::tensorrt_allocator allocator;
  EXPECT(!allocate(&allocator, 0, 256, nullptr) && !allocate_at_once(&allocator, 0) && allocator.last_error().empty());
  EXPECT(deallocate(&allocator, nullptr, nullptr) && deallocate_at_once(&allocator, nullptr));
  for (std::uint64_t alignment : {3, 1024}) {
    EXPECT(!allocate(&allocator, MIB, alignment, nullptr));
    EXPECT(last_error_has(&allocator, "alignment must be a power of two up to 512"));
  }
  EXPECT(!allocate(&allocator, std::uint64_t{1} << 50, 256, nullptr));
  EXPECT(last_error_has(&allocator, "tried to allocate"));
  static int others;
  EXPECT(!deallocate(&allocator, &others, nullptr));
  EXPECT(last_error_has(&allocator, "not memory that gpupool handed out"));
  EXPECT(!allocate_at_once(&allocator, std::uint64_t{1} << 50) && last_error_has(&allocator, "tried to allocate"));
}

void another_device_serves_its_own() {
  gpupool::tensorrt_allocator allocator(1);
  void *memory = allocate(&allocator, MIB, 256, nullptr);
  gpupool_block block{};
  block.size = sizeof block;
  gpupool::check(gpupool::api().find_block(memory, &block));
  EXPECT(block.device == 1 && deallocate(&allocator, memory, nullptr));
}

void it_keeps_its_pool() {
  auto pool = std::make_shared<gpupool::pool>();
  auto id = pool->id();
  gpupool::tensorrt_allocator allocator(pool);
  pool.reset();
  void *memory = allocate(&allocator, MIB, 256, nullptr);
  gpupool_block block{};
  block.size = sizeof block;
  gpupool::check(gpupool::api().find_block(memory, &block));
  EXPECT(block.pool.first == id.first && block.pool.second == id.second);
  EXPECT(deallocate(&allocator, memory, nullptr));
}

void threads_share_it() {
  gpupool::tensorrt_allocator allocator;
  std::vector<std::thread> threads;
  for (unsigned char number = 1; number <= 4; ++number)
    threads.emplace_back([&, number] {
      for (std::size_t round = 0; round < 200; ++round) {
        std::size_t size = 100 + 7919 * round;
        auto *memory = static_cast<unsigned char *>(allocate(&allocator, size, 256, nullptr));
        EXPECT(memory);
        std::memset(memory, number, size);
        EXPECT(!allocate(&allocator, size, 3, nullptr) && last_error_has(&allocator, "power of two"));
        EXPECT(memory[0] == number && memory[size - 1] == number);
        EXPECT(deallocate(&allocator, memory, nullptr));
      }
    });
  for (auto &thread : threads) thread.join();
  EXPECT(live() == 0);
}

} // namespace

int main() {
  memory_has_its_size_and_alignment();
  what_cannot_be_is_null_with_a_reason();
  another_device_serves_its_own();
  it_keeps_its_pool();
  threads_share_it();
}

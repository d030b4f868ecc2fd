// Drives PyTorch's allocator, which may be gpupool, as benches/memory.rs drives gpupool's: called by torch_calls.py.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

namespace allocator = c10::cuda::CUDACachingAllocator;
using Clock = std::chrono::steady_clock;

static double nanoseconds(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

static double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

#define EXPORT extern "C" __attribute__((visibility("default")))

// Returns the nanoseconds that a call takes, in the median of nine rounds.
template <class Call>
static double timed(Call call) {
  std::vector<double> rounds;
  for (int round = 0; round < 9; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < 20000; ++i) call();
    rounds.push_back(nanoseconds(start) / 20000);
  }
  return median(rounds);
}

// An allocation and a free by address.
EXPORT double torch_pair(int64_t size) {
  auto* torch = allocator::get();
  return timed([=] { torch->raw_delete(torch->raw_alloc_with_stream(size, nullptr)); });
}

// An allocation and a free as tensors have it.
EXPORT double torch_storage(int64_t size) {
  auto* torch = allocator::get();
  return timed([=] { c10::DataPtr storage = torch->allocate(size); });
}

// Returns the wall nanoseconds that one step takes the slowest thread, in the median of nine rounds. Each thread keeps
// 100 to 200 live blocks of log-uniform size 512 B to 8 MiB, all on one stream.
EXPORT double torch_mix(int threads) {
  const int steps = 5000;
  const int rounds = 9;
  auto* torch = allocator::get();
  std::barrier together(threads);
  std::vector<std::vector<double>> times(rounds, std::vector<double>(threads));
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      // As a thread has it that has launched work; without a context every question for the device is a long one.
      c10::cuda::SetDevice(0, true);
      std::mt19937_64 random(42 + thread);
      std::uniform_real_distribution<double> power(9, 23);
      std::vector<void*> live;
      auto step = [&] {
        if (live.size() < 100 || (live.size() < 200 && (random() & 1))) {
          live.push_back(torch->raw_alloc_with_stream(static_cast<size_t>(std::exp2(power(random))), nullptr));
        } else {
          const size_t place = random() % live.size();
          torch->raw_delete(live[place]);
          live[place] = live.back();
          live.pop_back();
        }
      };
      for (int i = 0; i < 5000; ++i) step();
      for (int round = 0; round < rounds; ++round) {
        together.arrive_and_wait();
        const auto start = Clock::now();
        for (int i = 0; i < steps; ++i) step();
        times[round][thread] = nanoseconds(start) / steps;
      }
      for (void* pointer : live) torch->raw_delete(pointer);
    });
  }
  for (auto& thread : running) thread.join();
  std::vector<double> slowest;
  for (const auto& round : times) slowest.push_back(*std::max_element(round.begin(), round.end()));
  return median(slowest);
}

// What a replay took: nanoseconds an event in the first pass and in the median of the others, the most bytes reserved, and
// the calls of the driver that brought or gave back memory.
struct Replayed {
  double cold_ns;
  double warm_ns;
  double peak_reserved;
  double segments_made_or_freed;
};

// Replays a log: slots, sizes (0 frees the slot) and stream numbers. Stream 0 is the default one.
EXPORT void torch_replay(size_t count, const int64_t* slots, const int64_t* sizes, const int64_t* numbers, Replayed* result) {
  auto* torch = allocator::get();
  std::vector<cudaStream_t> streams{nullptr};
  const auto most = *std::max_element(numbers, numbers + count);
  while (static_cast<int64_t>(streams.size()) <= most) {
    streams.push_back(c10::cuda::getStreamFromPool(false, 0).stream());
  }
  std::vector<void*> live(*std::max_element(slots, slots + count) + 1);
  torch->emptyCache({0, 0});
  torch->resetPeakStats(0);
  const auto before = torch->getDeviceStats(0);
  std::vector<double> warm;
  for (int pass = 0; pass < 4; ++pass) {
    const auto start = Clock::now();
    for (size_t i = 0; i < count; ++i) {
      void*& pointer = live[slots[i]];
      if (sizes[i] > 0) {
        pointer = torch->raw_alloc_with_stream(sizes[i], streams[numbers[i]]);
      } else {
        torch->raw_delete(pointer);
        pointer = nullptr;
      }
    }
    const double time = nanoseconds(start) / static_cast<double>(count);
    if (pass > 0) {
      warm.push_back(time);
    } else {
      const auto after = torch->getDeviceStats(0);
      result->cold_ns = time;
      result->peak_reserved = static_cast<double>(after.reserved_bytes[0].peak);
      const auto calls = after.num_device_alloc + after.num_device_free;
      result->segments_made_or_freed = static_cast<double>(calls - before.num_device_alloc - before.num_device_free);
    }
    for (void*& pointer : live) {
      if (pointer != nullptr) torch->raw_delete(pointer);
      pointer = nullptr;
    }
  }
  result->warm_ns = median(warm);
  torch->emptyCache({0, 0});
}

// gpupool's resource against RMM's own, in C++, by what RMM's benchmarks random_allocations and multi_stream_allocations
// do, https://github.com/rapidsai/rmm/tree/main/cpp/benchmarks: the same sizes, probabilities and streams, written anew.
//
//     rmm_peers [all|random|streams] [ROUNDS] [ALLOCATIONS...]
//
// RMM's random_allocations makes 1000, 10000 and 100000 allocations; by default this makes 1000.
// Prints one JSON object a line. Each resource is made, used and ended by itself, for RMM's pool takes half of the device
// and its arena all; the resources take turns for so many rounds, 3 by default, and each figure is the median of them.
// RMM's benchmarks have one thread. With more, each has a stream of its own, and they share what may be in use at once.
// benches/rmm_peers.sh builds it.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <rmm/cuda_device.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <gpupool_rmm.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Resource = cuda::mr::any_resource<cuda::mr::device_accessible>;
using Clock = std::chrono::steady_clock;

constexpr std::size_t MIB = 1 << 20;
constexpr std::size_t ALIGNMENT = 256;
constexpr int THREADS[] = {1, 16};

void check(int status, const char *what) {
  if (status == 0) return;
  std::fprintf(stderr, "rmm_peers: %s failed with %d\n", what, status);
  std::exit(1);
}

// The resources, as RMM's benchmarks make theirs.
const std::vector<std::pair<std::string, std::function<Resource()>>> RESOURCES = {
    {"gpupool", [] { return Resource{gpupool::rmm_resource(0)}; }},
    {"pool",
     [] {
       return Resource{
           rmm::mr::pool_memory_resource{rmm::mr::cuda_memory_resource{}, rmm::percent_of_free_device_memory(50)}};
     }},
    {"arena",
     [] {
       auto free = rmm::available_device_memory().first;
       return Resource{rmm::mr::arena_memory_resource{rmm::mr::cuda_memory_resource{}, free - 64 * MIB}};
     }},
    {"cuda_async", [] { return Resource{rmm::mr::cuda_async_memory_resource{}}; }},
    {"binning",
     [] {
       Resource pool{
           rmm::mr::pool_memory_resource{rmm::mr::cuda_memory_resource{}, rmm::percent_of_free_device_memory(50)}};
       return Resource{rmm::mr::binning_memory_resource{pool, 18, 22}};
     }},
};

// A stream for each thread, which no other waits for.
class Streams {
 public:
  explicit Streams(std::size_t count) : streams_(count) {
    for (auto &stream : streams_)
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  Streams(const Streams &) = delete;
  ~Streams() {
    for (auto stream : streams_) cudaStreamDestroy(stream);
  }
  cuda::stream_ref operator[](std::size_t index) const { return cuda::stream_ref{streams_[index % streams_.size()]}; }

 private:
  std::vector<cudaStream_t> streams_;
};

// Runs the same on so many threads at once, one alone on the calling one, as RMM's benchmarks do; returns the milliseconds
// until the last is done.
double in_threads(int threads, const std::function<void(int)> &work) {
  if (threads == 1) {
    auto start = Clock::now();
    work(0);
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }
  std::atomic<int> waiting{threads};
  std::vector<Clock::time_point> began(threads), ended(threads);
  std::vector<std::thread> running;
  for (int index = 0; index < threads; index++)
    running.emplace_back([&, index] {
      check(cudaSetDevice(0), "cudaSetDevice");
      waiting--;
      while (waiting) std::this_thread::yield();
      began[index] = Clock::now();
      work(index);
      ended[index] = Clock::now();
    });
  for (auto &thread : running) thread.join();
  auto first = *std::min_element(began.begin(), began.end()), last = *std::max_element(ended.begin(), ended.end());
  return std::chrono::duration<double, std::milli>(last - first).count();
}

// Allocates so often, of 1 byte to max_size, with a chance of 73 % while there is room, else frees one at random.
void random_allocations(Resource &resource, cuda::stream_ref stream, std::size_t count, std::size_t max_size,
                        std::size_t max_usage) {
  struct Block {
    void *pointer;
    std::size_t size;
  };
  std::default_random_engine generator;
  std::uniform_int_distribution<std::size_t> sizes(1, max_size), places(0, count - 1);
  std::uniform_int_distribution<int> chances(0, 99);
  std::vector<Block> live;
  std::size_t allocated = 0, in_use = 0;
  for (std::size_t step = 0; step < 2 * count; step++) {
    auto size = sizes(generator);
    bool allocates = live.empty() || (chances(generator) < 73 && allocated < count && in_use + size < max_usage);
    if (allocates) {
      try {
        live.push_back({resource.allocate(stream, size, ALIGNMENT), size});
        allocated++;
        in_use += size;
        continue;
      } catch (const rmm::bad_alloc &) {
      }
    }
    if (live.empty()) continue;
    auto &place = live[places(generator) % live.size()];
    auto [pointer, freed] = place;
    place = live.back();
    live.pop_back();
    resource.deallocate(stream, pointer, freed, ALIGNMENT);
    in_use -= freed;
  }
  for (auto [pointer, size] : live) resource.deallocate(stream, pointer, size, ALIGNMENT);
}

// A kernel that computes for a million cycles and stores one number; the driver compiles it.
constexpr char KERNEL[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry compute(.param .u64 out)
{
  .reg .pred %p;
  .reg .b64 %address, %first, %now, %passed;
  ld.param.u64 %address, [out];
  cvta.to.global.u64 %address, %address;
  mov.u64 %first, %clock64;
again:
  mov.u64 %now, %clock64;
  sub.s64 %passed, %now, %first;
  setp.lt.s64 %p, %passed, 1000000;
  @%p bra again;
  st.global.u64 [%address], %now;
  ret;
}
)";

// The driver's functions that launch it.
class Kernel {
 public:
  Kernel() {
    auto *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) check(1, dlerror());
    auto find = [&](auto *&function, const char *name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(driver, name));
      if (!function) check(1, name);
    };
    decltype(&cuModuleLoadData) load;
    decltype(&cuModuleGetFunction) get;
    find(load, "cuModuleLoadData");
    find(get, "cuModuleGetFunction");
    find(launch_, "cuLaunchKernel");
    CUmodule module;
    check(cudaFree(nullptr), "cudaFree");
    check(load(&module, KERNEL), "cuModuleLoadData");
    check(get(&function_, module, "compute"), "cuModuleGetFunction");
  }
  void operator()(void *out, cuda::stream_ref stream) const {
    void *arguments[] = {&out};
    check(launch_(function_, 1, 1, 1, 1, 1, 1, 0, stream.get(), arguments, nullptr), "cuLaunchKernel");
  }

 private:
  decltype(&cuLaunchKernel) launch_;
  CUfunction function_;
};

// A buffer of 8 bytes for each kernel, freed as soon as the kernel was launched, on streams in turn.
void multi_stream_allocations(Resource &resource, const Streams &streams, std::size_t kernels, const Kernel &kernel) {
  for (std::size_t index = 0; index < kernels; index++) {
    rmm::device_buffer buffer(8, streams[index], resource);
    kernel(buffer.data(), streams[index]);
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Lets the resources take turns at a work, which returns its milliseconds, and prints what each took.
void compare(const std::string &work, int rounds, const std::function<double(Resource &)> &run) {
  std::map<std::string, std::vector<double>> times;
  for (int round = 0; round < rounds; round++)
    for (std::size_t turn = 0; turn < RESOURCES.size(); turn++) {
      auto &[name, make] = RESOURCES[(round + turn) % RESOURCES.size()];
      try {
        auto resource = make();
        run(resource); // what memory it needs, it has now
        std::vector<double> again;
        for (int time = 0; time < 5; time++) again.push_back(run(resource));
        times[name].push_back(median(again));
      } catch (const std::exception &error) {
        std::printf("{%s, \"resource\": \"%s\", \"error\": \"%.60s\"}\n", work.c_str(), name.c_str(), error.what());
      }
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      gpupool::empty_cache();
    }
  std::pair<std::string, double> quickest;
  for (auto &[name, of_rounds] : times) {
    auto time = median(of_rounds);
    std::printf("{%s, \"resource\": \"%s\", \"ms\": %.5f}\n", work.c_str(), name.c_str(), time);
    if (name != "gpupool" && (quickest.first.empty() || time < quickest.second)) quickest = {name, time};
  }
  if (times.count("gpupool") && !quickest.first.empty())
    std::printf("{%s, \"quickest_peer\": \"%s\", \"ratio\": %.3f}\n", work.c_str(), quickest.first.c_str(),
                median(times["gpupool"]) / quickest.second);
  std::fflush(stdout);
}

void compare_random(int rounds, const std::vector<std::size_t> &counts) {
  constexpr std::size_t MOST_IN_USE = 16000 * MIB;
  for (int threads : THREADS)
    for (auto count : counts)
      for (std::size_t max_mib : {1, 4, 64, 256, 1024, 4096}) {
        Streams streams(threads);
        auto work = "\"work\": \"random_allocations\", \"threads\": " + std::to_string(threads) +
                    ", \"allocations\": " + std::to_string(count) + ", \"max_mib\": " + std::to_string(max_mib);
        compare(work, rounds, [&](Resource &resource) {
          return in_threads(threads, [&](int index) {
            random_allocations(resource, streams[index], count, max_mib * MIB, MOST_IN_USE / threads);
          });
        });
      }
}

void compare_streams(int rounds) {
  constexpr std::size_t KERNELS = 4;
  Kernel kernel;
  for (int threads : THREADS)
    for (std::size_t count : {1, 2, 4})
      for (bool is_warm : {false, true}) {
        std::vector<std::unique_ptr<Streams>> streams;
        for (int index = 0; index < threads; index++) streams.push_back(std::make_unique<Streams>(count));
        auto work = "\"work\": \"multi_stream_allocations\", \"threads\": " + std::to_string(threads) +
                    ", \"streams\": " + std::to_string(count) + ", \"is_warm\": " + (is_warm ? "true" : "false");
        compare(work, rounds, [&](Resource &resource) {
          if (is_warm)
            for (auto &own : streams) {
              std::vector<rmm::device_buffer> held;
              for (std::size_t index = 0; index < count; index++) held.emplace_back(8, (*own)[index], resource);
            }
          return in_threads(threads, [&](int index) {
            multi_stream_allocations(resource, *streams[index], KERNELS, kernel);
            for (std::size_t stream = 0; stream < count; stream++)
              check(cudaStreamSynchronize((*streams[index])[stream].get()), "cudaStreamSynchronize");
          });
        });
      }
}

} // namespace

int main(int count, char **words) {
  std::string which = count > 1 ? words[1] : "all";
  int rounds = count > 2 ? std::max(1, std::atoi(words[2])) : 3;
  std::vector<std::size_t> counts;
  for (int index = 3; index < count; index++) counts.push_back(std::strtoull(words[index], nullptr, 10));
  if (counts.empty()) counts = {1000};
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("{\"device\": \"%s\", \"rmm\": \"%d.%02d\", \"rounds\": %d}\n", device.name, RMM_VERSION_MAJOR,
              RMM_VERSION_MINOR, rounds);
  if (which != "streams") compare_random(rounds, counts);
  if (which != "random") compare_streams(rounds);
}

// The allocator for ONNX Runtime in C++, called as ONNX Runtime calls one, against what it uses without, if it is told to use no
// arena of its own: cudaMallocAsync or cudaMalloc.
//
//     cpp_peers [ROUNDS] [PAIRS]
//
// Prints one JSON object a line: what memory of a size takes that is allocated and freed at once on one stream, in
// nanoseconds, the median of so many rounds, 15 by default, of so many pairs, 2000 by default. The ways take turns.
// ONNX Runtime is the tests' double, which calls nothing else. benches/cpp_peers.sh builds it.
#include <cuda_runtime_api.h>

#include <gpupool_onnxruntime.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void check(bool is_right, const char *what) {
  if (is_right) return;
  std::fprintf(stderr, "cpp_peers: %s failed\n", what);
  std::exit(1);
}
void check(cudaError_t status, const char *what) { check(status == cudaSuccess, what); }

// What the allocator for ONNX Runtime calls of it here.
OrtApi ort() {
  OrtApi api{};
  api.CreateMemoryInfo = [](const char *, OrtAllocatorType, int, OrtMemType, OrtMemoryInfo **) noexcept -> OrtStatus * {
    return nullptr;
  };
  api.ReleaseMemoryInfo = [](OrtMemoryInfo *) {};
  api.SyncStream_GetHandle = [](OrtSyncStream *stream) noexcept -> void * { return stream; };
  return api;
}

struct Way {
  const char *door, *peer;
  std::function<void(std::size_t bytes)> pair;
};

} // namespace

int main(int count, char **arguments) {
  int rounds = count > 1 ? std::atoi(arguments[1]) : 15;
  int pairs = count > 2 ? std::atoi(arguments[2]) : 2000;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  OrtApi api = ort();
  gpupool::onnxruntime_allocator onnxruntime(std::make_shared<gpupool::pool>(0), "Cuda", &api);
  OrtAllocator *as_onnxruntime_does = &onnxruntime;

  std::vector<Way> ways = {
      {"onnxruntime", "gpupool",
       [&](std::size_t bytes) {
         void *memory = as_onnxruntime_does->AllocOnStream(as_onnxruntime_does, bytes, reinterpret_cast<OrtSyncStream *>(stream));
         as_onnxruntime_does->Free(as_onnxruntime_does, memory);
       }},
      {"onnxruntime", "gpupool without a stream",
       [&](std::size_t bytes) {
         as_onnxruntime_does->Free(as_onnxruntime_does, as_onnxruntime_does->Alloc(as_onnxruntime_does, bytes));
       }},
      {"onnxruntime", "cudaMallocAsync",
       [&](std::size_t bytes) {
         void *memory = nullptr;
         check(cudaMallocAsync(&memory, bytes, stream), "cudaMallocAsync");
         check(cudaFreeAsync(memory, stream), "cudaFreeAsync");
       }},
      {"onnxruntime", "cudaMalloc",
       [&](std::size_t bytes) {
         void *memory = nullptr;
         check(cudaMalloc(&memory, bytes), "cudaMalloc");
         check(cudaFree(memory), "cudaFree");
       }},
  };
  for (std::size_t bytes : {std::size_t{1} << 10, std::size_t{1} << 20, std::size_t{64} << 20}) {
    std::map<const Way *, std::vector<double>> figures;
    // The first round is for memory that nobody has yet.
    for (int round = -1; round < rounds; ++round)
      for (auto &way : ways) {
        auto begin = Clock::now();
        for (int pair = 0; pair < pairs; ++pair) way.pair(bytes);
        std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        if (round >= 0) figures[&way].push_back(taken.count() / pairs);
      }
    for (auto &way : ways) {
      auto &all = figures[&way];
      std::nth_element(all.begin(), all.begin() + rounds / 2, all.end());
      std::printf("{\"door\": \"%s\", \"peer\": \"%s\", \"work\": \"pair\", \"bytes\": %zu, \"ns_per_pair\": %.1f}\n", way.door,
                  way.peer, bytes, all[std::size_t(rounds / 2)]);
    }
  }
}

// Times PyTorch's own C++ getters of a thread's handles, for benches/peers.py. cuSOLVER's is not exported.

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cudnn/Handle.h>
#include <torch/extension.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using Clock = std::chrono::steady_clock;

static double nanoseconds(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

template <class Getter>
static void use(Getter& get) {
  auto handle = get();
  asm volatile("" : : "r"(handle) : "memory");
}

// Returns the nanoseconds a call takes.
template <class Getter>
static double call(int64_t calls, Getter get) {
  use(get);
  const auto start = Clock::now();
  for (int64_t i = 0; i < calls; ++i) use(get);
  return nanoseconds(start) / static_cast<double>(calls);
}

// Times the end of a thread: from when Begin is destroyed, before all thread-locals that were first used earlier, until
// End is, after all that were first used later. The rest of a thread's end takes longer.
struct End {
  Clock::time_point start;
  std::atomic<int64_t>* inside = nullptr;
  ~End() { *inside += static_cast<int64_t>(nanoseconds(start)); }
};
struct Begin {
  End* end = nullptr;
  ~Begin() { end->start = Clock::now(); }
};

// Runs threads that each ask once and end, in lanes of one after another, as in benches/handle.rs. Returns nanoseconds
// for each: its whole life, in the slowest lane, and the part that asking and the end of its thread-locals take.
template <class Getter>
static std::pair<double, double> churn(int lanes, int64_t count, Getter get) {
  std::atomic<int64_t> inside{0};
  std::atomic<bool> failed{false};
  auto live = [&] {
    thread_local End end;
    end.inside = &inside;
    const auto start = Clock::now();
    try {
      use(get);
    } catch (const std::exception&) {
      failed = true;
    }
    inside += static_cast<int64_t>(nanoseconds(start));
    thread_local Begin begin;
    begin.end = &end;
  };
  auto lane = [&](double& time) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) std::thread(live).join();
    time = nanoseconds(start) / static_cast<double>(count);
  };
  std::vector<double> times(lanes);
  std::vector<std::thread> running;
  for (double& time : times) running.emplace_back(lane, std::ref(time));
  for (auto& thread : running) thread.join();
  if (failed) throw std::runtime_error("a thread got no handle");
  const double slowest = *std::max_element(times.begin(), times.end());
  return {slowest, static_cast<double>(inside) / static_cast<double>(lanes * count)};
}

template <class Getter>
static void add(pybind11::module_& module, const std::string& name, Getter get) {
  const pybind11::call_guard<pybind11::gil_scoped_release> no_gil;
  module.def(name.c_str(), [get](int64_t calls) { return call(calls, get); }, no_gil);
  module.def((name + "_churn").c_str(), [get](int lanes, int64_t count) { return churn(lanes, count, get); }, no_gil);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  add(module, "nothing", [] { return nullptr; });
  add(module, "cublas", [] { return at::cuda::getCurrentCUDABlasHandle(); });
  add(module, "cusparse", [] { return at::cuda::getCurrentCUDASparseHandle(); });
  add(module, "cudnn", [] { return at::native::getCudnnHandle(); });
}

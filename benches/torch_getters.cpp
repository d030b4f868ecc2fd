// Times PyTorch's own C++ getters of a thread's handles, for benches/peers.py. cuSOLVER's is not exported.

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cudnn/Handle.h>
#include <torch/extension.h>

#include <chrono>
#include <string>

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

template <class Getter>
static void add(pybind11::module_& module, const std::string& name, Getter get) {
  const pybind11::call_guard<pybind11::gil_scoped_release> no_gil;
  module.def(name.c_str(), [get](int64_t calls) { return call(calls, get); }, no_gil);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  add(module, "cublas", [] { return at::cuda::getCurrentCUDABlasHandle(); });
  add(module, "cusparse", [] { return at::cuda::getCurrentCUDASparseHandle(); });
  add(module, "cudnn", [] { return at::native::getCudnnHandle(); });
}

// Times PyTorch's own C++ getters of a thread's handles, for benches/peers.py: nanoseconds a call. cuSOLVER's is not exported.

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cudnn/Handle.h>
#include <torch/extension.h>

#include <chrono>

template <class Getter>
double nanoseconds(int64_t calls, Getter get) {
  get();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) {
    auto handle = get();
    asm volatile("" : : "r"(handle) : "memory");
  }
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / static_cast<double>(calls);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("cublas", [](int64_t calls) { return nanoseconds(calls, [] { return at::cuda::getCurrentCUDABlasHandle(); }); });
  module.def("cusparse", [](int64_t calls) { return nanoseconds(calls, [] { return at::cuda::getCurrentCUDASparseHandle(); }); });
  module.def("cudnn", [](int64_t calls) { return nanoseconds(calls, [] { return at::native::getCudnnHandle(); }); });
}

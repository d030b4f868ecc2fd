// cuBLAS's own handles from gpupool_handles.hpp, on a GPU or on doubles of its driver and library: cuBLAS says which
// stream each has. Usage: cublas_handles LIBCUBLAS, with GPUPOOL_CUBLAS_PATH the same file. It prints nothing and
// returns 0 where all is right. CUDA's headers are not needed: what is called is declared here, as they do.

#include <gpupool_handles.hpp>

#include <thread>

#include <dlfcn.h>

typedef struct cublasContext *cublasHandle_t;
typedef struct CUstream_st *cudaStream_t;

#include "memory.hpp"

namespace {

void *open(const char *path) {
  void *library = dlopen(path, RTLD_NOW);
  if (!library) std::fprintf(stderr, "%s\n", dlerror());
  EXPECT(library);
  return library;
}

template <class Function> Function *find(void *library, const char *name) {
  auto *found = reinterpret_cast<Function *>(dlsym(library, name));
  if (!found) std::fprintf(stderr, "no %s\n", name);
  EXPECT(found);
  return found;
}

int (*get_stream)(cublasHandle_t, cudaStream_t *);

cudaStream_t stream_of(cublasHandle_t handle) {
  cudaStream_t stream = nullptr;
  EXPECT(get_stream(handle, &stream) == 0);
  return stream;
}

cudaStream_t make_stream(void *driver) {
  cudaStream_t stream = nullptr;
  EXPECT(find<int(cudaStream_t *, unsigned)>(driver, "cuStreamCreate")(&stream, 1) == 0); // CU_STREAM_NON_BLOCKING
  return stream;
}

} // namespace

int main(int count, char **arguments) {
  EXPECT(count == 2);
  void *driver = open("libcuda.so.1"), *context = nullptr;
  EXPECT(find<int(unsigned)>(driver, "cuInit")(0) == 0);
  EXPECT(find<int(void **, int)>(driver, "cuDevicePrimaryCtxRetain")(&context, 0) == 0);
  EXPECT(find<int(void *)>(driver, "cuCtxSetCurrent")(context) == 0);
  get_stream = find<int(cublasHandle_t, cudaStream_t *)>(open(arguments[1]), "cublasGetStream_v2");
  auto first = make_stream(driver), second = make_stream(driver);

  gpupool::handle_pool<cublasHandle_t> pool;
  EXPECT(pool.is_available());
  cublasHandle_t handle = gpupool::handle<cublasHandle_t>(first);
  EXPECT(stream_of(handle) == first);
  EXPECT(gpupool::handle<cublasHandle_t>(second) == handle && stream_of(handle) == second);
  EXPECT(gpupool::handle<gpupool::libraries::cublas>(first, -1) == handle && stream_of(handle) == first);
  EXPECT(gpupool::handle<cublasHandle_t>() == handle && stream_of(handle) == nullptr);
  {
    gpupool::lease<cublasHandle_t> lease(second), other(first);
    EXPECT(lease.get() != handle && other.get() != lease.get());
    EXPECT(stream_of(lease.get()) == second && stream_of(other.get()) == first);
    EXPECT(pool.stats().leased == 2 && pool.stats().held == 1);
  }
  // A thread gets what the last one had, with its own stream.
  cublasHandle_t others[2] = {};
  for (auto &own : others)
    std::thread([&] {
      own = gpupool::handle<cublasHandle_t>(second);
      EXPECT(own != handle && stream_of(own) == second);
    }).join();
  EXPECT(others[0] == others[1]);
  auto stats = pool.stats(0);
  EXPECT(stats.created == 3 && stats.held == 1 && stats.idle == 2 && stats.failures == 0);
  EXPECT(pool.warm(3) == 1 && pool.trim() == 3 && pool.stats().idle == 0);
  EXPECT(gpupool::handle<cublasHandle_t>(first) == handle && stream_of(handle) == first);
  throws(GPUPOOL_ERROR_INVALID_VALUE, "no device 99", [&] { (void)gpupool::handle<cublasHandle_t>(first, 99); });
}

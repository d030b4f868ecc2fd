// What gpupool_handles.hpp gives, over simulated devices. Prints nothing and returns 0 where all is right.

#ifdef WITH_LIBRARIES
// The libraries' own headers, before and after which this one may be included.
#include <cublas_v2.h>
#include <cublasLt.h>
#include <cusolverDn.h>
#include <cusparse.h>
#else
struct cublasContext;
typedef struct cublasContext *cublasHandle_t; // as in their headers
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cusolverDnContext *cusolverDnHandle_t;
typedef struct cusparseContext *cusparseHandle_t;
#endif

#include <gpupool_handles.hpp>

#include <chrono>
#include <future>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

// As in MIOpen's header, here after gpupool's.
struct miopenHandle {};
typedef struct miopenHandle *miopenHandle_t;
typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudssContext *cudssHandle_t;
typedef struct custatevecContext *custatevecHandle_t;
typedef struct cutensorHandle *cutensorHandle_t;

#include "memory.hpp"

namespace {

namespace libraries = gpupool::libraries;
using libraries::simulated;

const gpupool::handle_pool<simulated> pool;

void a_thread_keeps_its_handle() {
  auto handle = gpupool::handle<simulated>();
  EXPECT(handle && gpupool::handle<simulated>(nullptr) == handle && gpupool::handle<simulated>(nullptr, 0) == handle);
  EXPECT(gpupool::handle<simulated>(nullptr, 1) != handle);
  void *others = nullptr;
  std::thread([&] { others = gpupool::handle<simulated>(); }).join();
  EXPECT(others && others != handle);
  std::thread([&] { EXPECT(gpupool::handle<simulated>() == others); }).join();
  auto stats = pool.stats();
  EXPECT(stats.created == 3 && stats.held == 2 && stats.idle == 1 && pool.stats(1).created == 1);
}

void a_lease_ends_with_its_scope() {
  void *handle = nullptr;
  {
    gpupool::lease<simulated> lease;
    handle = lease.get();
    EXPECT(lease && handle && handle != gpupool::handle<simulated>() && lease.device() == 0);
    gpupool::lease<simulated> other(nullptr, 0, std::chrono::milliseconds(1)), there(nullptr, 1);
    EXPECT(other.get() != handle && there.device() == 1 && pool.stats().leased == 3);
    auto moved = std::move(lease);
    EXPECT(!lease && lease.get() == nullptr && moved.get() == handle);
    lease.release();
    lease.discard();
    other = std::move(moved);
    EXPECT(other.get() == handle && moved);
  }
  EXPECT(pool.stats().leased == 0);
  gpupool::lease<simulated> again;
  EXPECT(again.get() == handle);
  again.release();
  EXPECT(!again && pool.stats().leased == 0);
  // It may end on another thread.
  gpupool::lease<simulated> sent;
  std::thread([sent = std::move(sent)] { EXPECT(sent); }).join();
  EXPECT(!sent && pool.stats().leased == 0);
  gpupool::lease<simulated> changed;
  auto discarded = changed.get();
  changed.discard();
  EXPECT(!changed && pool.stats().discarded == 1);
  EXPECT(gpupool::lease<simulated>() && pool.stats().discarded == 1);
  gpupool::lease<simulated> next;
  EXPECT(next.get() != discarded);
}

void pools_are_warmed_counted_and_trimmed() {
  pool.trim();
  auto before = pool.stats(0);
  EXPECT(before.idle == 0 && before.discarded == 0);
  EXPECT(pool.warm(3) == 3 && pool.warm(3) == 0 && pool.stats(0).idle == 3);
  pool.warm_in_background(2, 1);
  while (pool.stats(1).idle < 2) std::this_thread::yield();
  EXPECT(pool.trim(0) == 3 && pool.trim() == 2 && pool.stats().destroyed >= 5);
  EXPECT(pool.stats(0).peak_device_bytes > pool.stats(0).device_bytes);
  pool.reset_peak_stats();
  EXPECT(pool.stats(0).peak_device_bytes == pool.stats(0).device_bytes);
}

void a_limit_is_kept() {
  auto held = pool.stats(0).held;
  pool.set_limit(held + 1);
  {
    gpupool::lease<simulated> lease;
    throws(GPUPOOL_ERROR_EXHAUSTED, "no simulated handle on device 0", [] {
      gpupool::lease<simulated>(nullptr, 0, std::chrono::milliseconds(-1));
    });
    auto next = std::async(std::launch::async, [] { return gpupool::lease<simulated>().operator bool(); });
    while (pool.stats(0).waits < 2) std::this_thread::yield();
    lease.release();
    EXPECT(next.get());
  }
  pool.set_limit(std::nullopt);
  gpupool::lease<simulated> first, second;
  EXPECT(first.get() != second.get());
}

void what_fails_throws() {
  throws(GPUPOOL_ERROR_INVALID_VALUE, "no device 99", [] { (void)gpupool::handle<simulated>(nullptr, 99); });
  throws(GPUPOOL_ERROR_INVALID_VALUE, "no device 99", [] { gpupool::lease<simulated>(nullptr, 99); });
  throws(GPUPOOL_ERROR_INVALID_VALUE, "no device -2", [] { pool.trim(-2); });
  throws(GPUPOOL_ERROR_INVALID_VALUE, "no device -1", [] { pool.warm(1, -1); });
  throws(GPUPOOL_ERROR_INVALID_VALUE, "at most 0", [] { pool.set_limit(0); });
  throws(GPUPOOL_ERROR_UNAVAILABLE, "cuda", [] { (void)gpupool::handle<cublasHandle_t>(); });
  throws(GPUPOOL_ERROR_UNAVAILABLE, "cuda", [] { gpupool::lease<cudnnHandle_t>(); });
  throws(GPUPOOL_ERROR_UNAVAILABLE, "hip", [] { (void)gpupool::handle<miopenHandle_t>(); });
  EXPECT(pool.is_available() && !gpupool::handle_pool<cublasHandle_t>().is_available());
  EXPECT(gpupool::handle_pool<cudssHandle_t>().stats().created == 0);
  throws<std::bad_alloc>("simulated", [] { pool.warm(std::size_t{1} << 20); });
  pool.trim();
}

void a_forked_child_is_refused() {
  gpupool::lease<simulated> lease;
  auto child = fork();
  if (child == 0) {
    throws(GPUPOOL_ERROR_FORKED, "fork", [] { (void)gpupool::handle<simulated>(); });
    throws(GPUPOOL_ERROR_FORKED, "fork", [] { gpupool::lease<simulated>(); });
    throws(GPUPOOL_ERROR_FORKED, "fork", [&] { lease.release(); });
    throws(GPUPOOL_ERROR_FORKED, "fork", [] { pool.stats(); });
    {
      auto ends = std::move(lease);
    }
    _exit(0);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

template <class Library, class Handle> constexpr bool has_handle = std::is_same_v<gpupool::handle_t<Library>, Handle>;
template <class Handle, class Tag> constexpr bool is_of = has_handle<Handle, Handle> && has_handle<Tag, Handle>;

static_assert(is_of<cudnnHandle_t, libraries::cudnn> && is_of<cusparseHandle_t, libraries::cusparse>);
static_assert(is_of<cudssHandle_t, libraries::cudss> && is_of<cublasHandle_t, libraries::cublas>);
static_assert(is_of<cublasLtHandle_t, libraries::cublaslt> && is_of<cusolverDnHandle_t, libraries::cusolver>);
static_assert(is_of<custatevecHandle_t, libraries::custatevec> && is_of<cutensorHandle_t, libraries::cutensor>);
static_assert(has_handle<libraries::cutensornet, void *> && has_handle<libraries::cusparselt, void *>);
static_assert(is_of<miopenHandle_t, libraries::miopen> && has_handle<libraries::hipblas, void *>);
static_assert(has_handle<libraries::hipblaslt, void *> && has_handle<libraries::hipsolver, void *>);
static_assert(has_handle<libraries::hipsparse, void *> && has_handle<libraries::simulated, void *>);
static_assert(libraries::hipsparse::number == GPUPOOL_HIPSPARSE && libraries::cublaslt::number == GPUPOOL_CUBLASLT);
static_assert(libraries::custatevec::number == GPUPOOL_CUSTATEVEC && libraries::cusparselt::number == GPUPOOL_CUSPARSELT);

using lease_of_cublas = gpupool::lease<cublasHandle_t>;
static_assert(std::is_nothrow_move_constructible_v<lease_of_cublas>);
static_assert(std::is_nothrow_move_assignable_v<lease_of_cublas>);
static_assert(!std::is_copy_constructible_v<lease_of_cublas> && !std::is_copy_assignable_v<lease_of_cublas>);
// It is no handle by itself, no stream makes one, and it is a condition alone.
static_assert(!std::is_convertible_v<lease_of_cublas, cublasHandle_t>);
static_assert(!std::is_convertible_v<void *, lease_of_cublas>);
static_assert(!std::is_convertible_v<lease_of_cublas, bool> && !std::is_convertible_v<lease_of_cublas, void *>);
static_assert(std::is_same_v<decltype(gpupool::handle<cublasHandle_t>()), cublasHandle_t>);

} // namespace

int main() {
  a_thread_keeps_its_handle();
  a_lease_ends_with_its_scope();
  pools_are_warmed_counted_and_trimmed();
  a_limit_is_kept();
  what_fails_throws();
  a_forked_child_is_refused();
}

// gpupool_mr.hpp: memory resources of CCCL, cuda::mr::resource, over gpupool. Header only, over gpupool.hpp.
//
//   gpupool::memory_resource resource(0);   // device 0
//   cuda::mr::any_resource<cuda::mr::device_accessible> any = resource;
//
// CCCL 3.1 or later, in which a resource has allocate(stream, bytes, alignment) and allocate_sync(bytes, alignment), and
// CUDA's headers. Resources are cheap to copy, and equal ones may free each other's memory. The resources of
// gpupool_rmm.hpp throw RMM's exceptions. Requests throw again what callbacks threw, as in gpupool.hpp.
#ifndef GPUPOOL_MR_HPP
#define GPUPOOL_MR_HPP

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <memory>

#include "gpupool.hpp"

#if CCCL_VERSION < 3001000
#error "gpupool_mr.hpp needs CCCL 3.1 or later: before, resources have other functions"
#endif

namespace gpupool {

// Throws gpupool's own exceptions.
struct own_errors {
  [[noreturn]] static void out_of_memory(const char *why) { throw gpupool::out_of_memory(why); }
};

namespace detail {

template <class Errors> void check_resource(int status) {
  if (status == GPUPOOL_SUCCESS) return;
  if (status == GPUPOOL_ERROR_OUT_OF_MEMORY) Errors::out_of_memory(api().last_error());
  check(status);
}

} // namespace detail

// Memory of a device: from the pool of the calling thread's scope, or from one pool, which is kept alive. As for
// stream_argument, code that is compiled for per-thread default streams has classes of its own.
template <class Errors, bool IsPerThread = GPUPOOL_PER_THREAD> class basic_memory_resource {
 public:
  explicit basic_memory_resource(int device) : device_(device) {}
  explicit basic_memory_resource(std::shared_ptr<const pool> pool) : device_(pool->device()), pool_(std::move(pool)) {}

  int device() const noexcept { return device_; }

  void *allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = detail::ALIGNMENT) {
    detail::check_alignment(alignment);
    return allocate_on(detail::table_stream<IsPerThread>(stream.get()), bytes);
  }
  void deallocate(cuda::stream_ref stream, void *pointer, std::size_t, std::size_t = detail::ALIGNMENT) noexcept {
    deallocate_on(detail::table_stream<IsPerThread>(stream.get()), pointer);
  }

  // The memory may be used on any stream immediately; it is freed once the work so far on the legacy default stream is done.
  void *allocate_sync(std::size_t bytes, std::size_t alignment = detail::ALIGNMENT) {
    detail::check_alignment(alignment);
    auto *pointer = allocate_on(nullptr, bytes);
    detail::wait_for_use(pointer, device_);
    return pointer;
  }
  void deallocate_sync(void *pointer, std::size_t, std::size_t = detail::ALIGNMENT) noexcept {
    deallocate_on(nullptr, pointer);
  }

  friend bool operator==(const basic_memory_resource &one, const basic_memory_resource &other) noexcept {
    return one.device_ == other.device_ && one.pool_ == other.pool_;
  }
  friend bool operator!=(const basic_memory_resource &one, const basic_memory_resource &other) noexcept {
    return !(one == other);
  }
  friend void get_property(const basic_memory_resource &, cuda::mr::device_accessible) noexcept {}

 private:
  int device_;
  std::shared_ptr<const pool> pool_;

  void *allocate_on(void *stream, std::size_t bytes) {
    auto function = [&](void **place) {
      return pool_ ? api().pool_allocate(pool_->handle(), UINT64_MAX, bytes, stream, place)
                   : api().allocate(bytes, device_, stream, place);
    };
    return detail::allocate(function, detail::check_resource<Errors>);
  }
  void deallocate_on(void *stream, void *pointer) noexcept { detail::deallocate_behind(pointer, device_, stream); }
};

// Pinned host memory, for the host and the device.
template <class Errors, bool IsPerThread = GPUPOOL_PER_THREAD> class basic_pinned_memory_resource {
 public:
  // The device whose streams are named; the memory is on the NUMA node nearest to the thread's current device.
  explicit basic_pinned_memory_resource(int device) : device_(device) {}

  int device() const noexcept { return device_; }

  void *allocate_sync(std::size_t bytes, std::size_t alignment = detail::ALIGNMENT) {
    detail::check_alignment(alignment);
    return detail::allocate([&](void **place) { return api().allocate_pinned(bytes, -1, place); },
                            detail::check_resource<Errors>);
  }
  // Without a stream all work with it must be done.
  void deallocate_sync(void *pointer, std::size_t, std::size_t = detail::ALIGNMENT) noexcept {
    api().deallocate(pointer);
  }
  // No work is left with what it gives, on any stream. It is used again once the streams are done with it that it was
  // allocated and deallocated on.
  void *allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = detail::ALIGNMENT) {
    auto *pointer = allocate_sync(bytes, alignment);
    auto *own = detail::table_stream<IsPerThread>(stream.get());
    if (int status = pointer ? api().record_stream(pointer, device_, own) : GPUPOOL_SUCCESS) {
      std::string why = api().last_error(); // before what comes next fails too
      api().deallocate(pointer);
      throw error(status, why);
    }
    return pointer;
  }
  void deallocate(cuda::stream_ref stream, void *pointer, std::size_t, std::size_t = detail::ALIGNMENT) noexcept {
    detail::deallocate_behind(pointer, device_, detail::table_stream<IsPerThread>(stream.get()));
  }

  friend bool operator==(const basic_pinned_memory_resource &one, const basic_pinned_memory_resource &other) noexcept {
    return one.device_ == other.device_;
  }
  friend bool operator!=(const basic_pinned_memory_resource &one, const basic_pinned_memory_resource &other) noexcept {
    return !(one == other);
  }
  friend void get_property(const basic_pinned_memory_resource &, cuda::mr::device_accessible) noexcept {}
  friend void get_property(const basic_pinned_memory_resource &, cuda::mr::host_accessible) noexcept {}

 private:
  int device_;
};

using memory_resource = basic_memory_resource<own_errors>;
using pinned_memory_resource = basic_pinned_memory_resource<own_errors>;

static_assert(cuda::mr::resource_with<memory_resource, cuda::mr::device_accessible>);
static_assert(
    cuda::mr::resource_with<pinned_memory_resource, cuda::mr::device_accessible, cuda::mr::host_accessible>);

} // namespace gpupool

#endif

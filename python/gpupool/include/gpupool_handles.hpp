// gpupool_handles.hpp: handles of GPU libraries for C++17. Header only, over gpupool.hpp; it includes no header of a
// library.
//
//   cublasHandle_t handle = gpupool::handle<cublasHandle_t>(stream); // this thread's until it ends, its stream set
//   gpupool::lease<cudnnHandle_t> lease(stream);                     // this scope's: lease.get()
//   gpupool::handle_pool<cublasHandle_t> pool;                       // what all of them come from
//   pool.warm(4);
//
// A library is named by the type of its handles. Those of ROCm's hipBLAS, hipBLASLt, hipSOLVER and hipSPARSE, and of
// the simulated library, are all void *: name these, or any other, by a tag, as in
// gpupool::handle<gpupool::libraries::hipblas>(stream).
//
// Streams are of device 0 unless another device is given; with -1 the driver is asked which one a stream belongs to.
//
// No request here leads to a callback of a program that may throw.
#ifndef GPUPOOL_HANDLES_HPP
#define GPUPOOL_HANDLES_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "gpupool.hpp"

// What the libraries' own headers declare: a cublasHandle_t is a cublasContext *, and so on.
struct cudnnContext;
struct cusparseContext;
struct cudssContext;
struct cublasContext;
struct cublasLtContext;
struct cusolverDnContext;
struct custatevecContext;
struct cutensorHandle;
struct miopenHandle;

namespace gpupool {

// The libraries, by tags that have the type of the handles and the number in gpupool.h.
namespace libraries {

template <class Handle, gpupool_library Number> struct library {
  using handle_type = Handle;
  static constexpr gpupool_library number = Number;
};

struct cudnn : library<::cudnnContext *, GPUPOOL_CUDNN> {};
struct cusparse : library<::cusparseContext *, GPUPOOL_CUSPARSE> {};
struct cudss : library<::cudssContext *, GPUPOOL_CUDSS> {};
struct cublas : library<::cublasContext *, GPUPOOL_CUBLAS> {};
struct cublaslt : library<::cublasLtContext *, GPUPOOL_CUBLASLT> {};
struct cusolver : library<::cusolverDnContext *, GPUPOOL_CUSOLVER> {};
struct miopen : library<::miopenHandle *, GPUPOOL_MIOPEN> {};
struct hipblas : library<void *, GPUPOOL_HIPBLAS> {};
struct hipblaslt : library<void *, GPUPOOL_HIPBLASLT> {};
struct hipsolver : library<void *, GPUPOOL_HIPSOLVER> {};
struct hipsparse : library<void *, GPUPOOL_HIPSPARSE> {};
struct custatevec : library<::custatevecContext *, GPUPOOL_CUSTATEVEC> {};
struct cutensornet : library<void *, GPUPOOL_CUTENSORNET> {};
struct cutensor : library<::cutensorHandle *, GPUPOOL_CUTENSOR> {};
struct cusparselt : library<void *, GPUPOOL_CUSPARSELT> {}; // a cusparseLtHandle_t *
struct simulated : library<void *, GPUPOOL_SIMULATED> {}; // the simulated library

} // namespace libraries

namespace detail {

// The tag of a type: of a handle's, or of a tag itself.
template <class Type, class = void> struct tag_of {
  static_assert(!std::is_same_v<Type, Type>,
                "not the handle of one library that gpupool pools: name the library by its handle's type, as "
                "cublasHandle_t, or by a tag, as gpupool::libraries::hipblas, where several have handles of this type");
};
template <class Tag> using base_of = libraries::library<typename Tag::handle_type, Tag::number>;
template <class Tag> struct tag_of<Tag, std::enable_if_t<std::is_base_of_v<base_of<Tag>, Tag>>> { using type = Tag; };
template <> struct tag_of<::cudnnContext *> { using type = libraries::cudnn; };
template <> struct tag_of<::cusparseContext *> { using type = libraries::cusparse; };
template <> struct tag_of<::cudssContext *> { using type = libraries::cudss; };
template <> struct tag_of<::cublasContext *> { using type = libraries::cublas; };
template <> struct tag_of<::cublasLtContext *> { using type = libraries::cublaslt; };
template <> struct tag_of<::cusolverDnContext *> { using type = libraries::cusolver; };
template <> struct tag_of<::custatevecContext *> { using type = libraries::custatevec; };
template <> struct tag_of<::cutensorHandle *> { using type = libraries::cutensor; };
template <> struct tag_of<::miopenHandle *> { using type = libraries::miopen; };

template <class Library> using tag_t = typename tag_of<Library>::type;

} // namespace detail

// The type of a library's handles.
template <class Library> using handle_t = typename detail::tag_t<Library>::handle_type;

// Returns the calling thread's handle of a library on the device, with the stream set. The thread keeps it until it
// ends: do not destroy it, nor use it on another thread. Call this each time, for it sets the stream; inside a capture,
// not before it.
template <class Library> [[nodiscard]] handle_t<Library> handle(stream_argument stream = nullptr, int device = 0) {
  void *pointer = nullptr;
  check(api().handle(detail::tag_t<Library>::number, device, stream, &pointer));
  return static_cast<handle_t<Library>>(pointer);
}

// A handle that only its holder uses, on any thread, until this is destroyed.
template <class Library> class [[nodiscard]] lease {
 public:
  using handle_type = handle_t<Library>;

  // Waits for a handle where the pool's limit makes it, and throws a GPUPOOL_ERROR_EXHAUSTED after the timeout.
  explicit lease(stream_argument stream = nullptr, int device = 0,
                 std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    auto most = static_cast<std::uint64_t>(timeout.count() > 0 ? timeout.count() : 0);
    check(api().lease(detail::tag_t<Library>::number, device, stream, most, &own_));
  }
  lease(lease &&other) noexcept : own_(std::exchange(other.own_, {})) {}
  lease &operator=(lease &&other) noexcept {
    std::swap(own_, other.own_);
    return *this;
  }
  lease(const lease &) = delete;
  lease &operator=(const lease &) = delete;
  ~lease() {
    // Refused in a forked child.
    if (own_.pooled) api().lease_release(&own_);
  }

  // The handle, null once the lease has ended. Not of a temporary, whose lease ends before the handle is used.
  handle_type get() const & noexcept { return static_cast<handle_type>(own_.handle); }
  handle_type get() const && = delete;
  explicit operator bool() const noexcept { return own_.pooled; }
  int device() const noexcept { return own_.device; }

  // Returns the handle to the pool now. Does nothing once the lease has ended.
  void release() {
    if (own_.pooled) check(api().lease_release(&own_));
  }
  // Ends the lease of a handle that was changed in a way that the pool cannot reset: no request gets it again.
  void discard() {
    if (own_.pooled) check(api().lease_discard(&own_));
  }

 private:
  gpupool_lease own_{};
};

// The pool of a library's handles, of which a process has one.
template <class Library> class handle_pool {
 public:
  using handle_type = handle_t<Library>;

  // Whether handles can be requested: the library is found, and the GPU platform in use is its own.
  bool is_available() const {
    return detail::ask<int>([](auto *is_available) { return api().library_is_available(number, is_available); }) != 0;
  }
  // The counts on a device, or summed over all for -1.
  gpupool_handle_stats stats(int device = -1) const {
    return detail::ask([&](auto *stats) { return api().handle_stats(number, device, stats); },
                       detail::sized<gpupool_handle_stats>());
  }
  void reset_peak_stats(int device = -1) const { check(api().reset_peak_handle_stats(number, device)); }
  // Creates handles until so many are idle on the device, or as many as a limit allows; returns how many it created.
  std::uint64_t warm(std::size_t handles, int device = 0) const {
    return detail::ask<std::uint64_t>(
        [&](auto *created) { return api().warm_handles(number, device, handles, 0, created); });
  }
  // The same on a thread of gpupool, whose failure the counts tell.
  void warm_in_background(std::size_t handles, int device = 0) const {
    check(api().warm_handles(number, device, handles, 1, nullptr));
  }
  // Destroys the idle handles of a device, or of all for -1; returns how many.
  std::uint64_t trim(int device = -1) const {
    return detail::ask<std::uint64_t>([&](auto *destroyed) { return api().trim_handles(number, device, destroyed); });
  }
  // Limits the handles on each device, or no longer. Requests beyond it wait until a lease or a thread ends.
  void set_limit(std::optional<std::size_t> handles) const {
    check(api().set_handle_limit(number, handles ? std::uint64_t{*handles} : UINT64_MAX));
  }

 private:
  static constexpr gpupool_library number = detail::tag_t<Library>::number;
};

} // namespace gpupool

#endif

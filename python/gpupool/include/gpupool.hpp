// gpupool.hpp: gpupool's memory for C++17, as RAII classes. Header only, over gpupool.h.
//
//   gpupool::device_buffer buffer(1 << 20, stream);       // freed in stream order
//   gpupool::pool pool(0);
//   gpupool::scope scope(pool);                           // this thread's requests go to the pool
//
// Streams are cudaStream_t or hipStream_t; the default is the legacy default stream, or the thread's own in code that is
// compiled for per-thread default streams, where a null stream is that one too. A failed call throws: out_of_memory, a
// std::bad_alloc, if there is not enough memory, otherwise an error with its status. Destructors do not throw.
//
// A callback given to this header or to gpupool_callbacks.hpp may throw: no exception enters gpupool. The function of these
// headers that the thread was in throws it again once gpupool has returned, with nothing allocated. If there is none, or it
// is a destructor, the exception handler has it; see set_exception_handler.
//
// Link libgpupool.so.0. Code that takes the table from Python's gpupool.c_api.capsule instead defines GPUPOOL_NO_LIBRARY in
// all its files, before it includes this, calls gpupool::set_api first, and needs no library.
#ifndef GPUPOOL_HPP
#define GPUPOOL_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpupool.h"

// Whether this code's null stream is the thread's own default stream: nvcc's `--default-stream per-thread` and hipcc's
// `-fgpu-default-stream=per-thread` define these.
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(HIP_API_PER_THREAD_DEFAULT_STREAM)
#define GPUPOOL_PER_THREAD true
#else
#define GPUPOOL_PER_THREAD false
#endif

namespace gpupool {

namespace detail {

// What the table takes for a stream of code that was compiled with or without per-thread default streams.
template <bool IsPerThread> void *table_stream(void *handle) noexcept {
  return IsPerThread && !handle ? reinterpret_cast<void *>(std::uintptr_t{2}) : handle; // cudaStreamPerThread
}

} // namespace detail

// A stream that a function is given: a cudaStream_t, a hipStream_t, or an object that converts to one. Whether null is the
// thread's own default stream is a parameter of the constructors, so that files compiled in both ways may be linked together.
class stream_argument {
 public:
  template <bool IsPerThread = GPUPOOL_PER_THREAD>
  stream_argument(void *handle) noexcept : handle_(detail::table_stream<IsPerThread>(handle)) {}
  template <class Stream, bool IsPerThread = GPUPOOL_PER_THREAD,
            class = std::enable_if_t<std::is_class_v<Stream> && std::is_convertible_v<const Stream &, void *>>>
  stream_argument(const Stream &stream) noexcept : handle_(detail::table_stream<IsPerThread>(stream)) {}

  operator void *() const noexcept { return handle_; }

 private:
  void *handle_;
};

// A call that failed; what() says what failed, and what to do.
class error : public std::runtime_error {
 public:
  error(int status, const std::string &what) : std::runtime_error(what), status_(status) {}

  // A gpupool_status.
  int status() const noexcept { return status_; }

 private:
  int status_;
};

// There is not enough memory; what() says what holds it.
class out_of_memory : public std::bad_alloc {
 public:
  explicit out_of_memory(const std::string &what) : what_(GPUPOOL_ERROR_OUT_OF_MEMORY, what) {}

  const char *what() const noexcept override { return what_.what(); }

 private:
  error what_; // whose text can be copied without memory, as that of exceptions must
};

namespace detail {

inline std::atomic<const gpupool_api *> table{nullptr};

} // namespace detail

// Uses this table of functions from here on. Throws an error if it lacks functions of this header.
inline void set_api(const gpupool_api *api) {
  if (!api || api->version < GPUPOOL_API_VERSION || api->size < sizeof(gpupool_api))
    throw error(GPUPOOL_ERROR_INVALID_VALUE,
                "the gpupool that runs is older than the gpupool.hpp that this program was compiled with: install the "
                "same version, or a newer one");
  detail::table.store(api, std::memory_order_release);
}

// The table of functions.
inline const gpupool_api &api() {
  auto *known = detail::table.load(std::memory_order_acquire);
  if (!known) {
#ifdef GPUPOOL_NO_LIBRARY
    throw error(GPUPOOL_ERROR_INVALID_VALUE, "gpupool::set_api was not called, with the table of gpupool.c_api.capsule");
#else
    set_api(gpupool_get_api(GPUPOOL_API_VERSION));
    known = detail::table.load(std::memory_order_acquire);
#endif
  }
  return *known;
}

// Throws unless a call succeeded.
inline void check(int status) {
  if (status == GPUPOOL_SUCCESS) return;
  const char *why = api().last_error();
  if (status == GPUPOOL_ERROR_OUT_OF_MEMORY) throw out_of_memory(why);
  throw error(status, why);
}

// Is called with an exception of a callback that no function can throw again, on the thread of the callback.
using exception_handler = void (*)(std::exception_ptr) noexcept;

namespace detail {

// What the handler is at first: writes to stderr what was thrown.
inline void print_exception(std::exception_ptr exception) noexcept {
  const char *format = "gpupool: a callback threw where no function of gpupool.hpp could throw it again: %s\n";
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception &error) {
    std::fprintf(stderr, format, error.what());
  } catch (...) {
    std::fprintf(stderr, format, "not a std::exception");
  }
}

inline std::atomic<exception_handler> handler{print_exception};

// A call of the table that the thread is in, and what the callbacks threw that it led to.
class running {
 public:
  running() noexcept : outer_(std::exchange(innermost, this)) {}
  running(const running &) = delete;
  running &operator=(const running &) = delete;
  ~running() { innermost = outer_; }

  // Keeps what the running callback threw. What says that there is no memory matters only if the call fails.
  static void keep(bool is_no_memory = false) noexcept {
    auto exception = std::current_exception();
    if (!innermost) return handler.load(std::memory_order_acquire)(exception);
    auto &place = is_no_memory ? innermost->no_memory_ : innermost->thrown_;
    if (!place) place = exception;
  }
  static bool has_thrown() noexcept { return innermost && innermost->thrown_; }
  void throw_again(int status) {
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    if (status != GPUPOOL_SUCCESS && no_memory_) std::rethrow_exception(std::exchange(no_memory_, nullptr));
  }

 private:
  static inline thread_local running *innermost = nullptr;
  running *outer_;
  std::exception_ptr thrown_, no_memory_;
};

// Makes a call of the table, and throws what its callbacks threw. Returns its status.
template <class Function> int call(Function function) {
  running own;
  int status = function();
  own.throw_again(status);
  return status;
}

// Makes a call of the table that answers by a pointer, and returns the answer.
template <class Value, class Function> Value ask(Function function, Value value = {}) {
  check(call([&] { return function(&value); }));
  return value;
}

// The same for a call that allocates: nothing is allocated if it, or the function that checks its status, throws.
template <class Function, class Check = void (*)(int)> void *allocate(Function function, Check checked = check) {
  void *pointer = nullptr;
  try {
    checked(call([&] { return function(&pointer); }));
  } catch (...) {
    if (pointer) api().deallocate(pointer);
    throw;
  }
  return pointer;
}

// Structs of the table say their size.
template <class Struct> Struct sized() noexcept {
  Struct value{};
  value.size = sizeof value;
  return value;
}

// What a function of the table made, and another one ends, which is refused in a forked child.
template <auto END> struct ending {
  template <class Object> void operator()(Object *object) const noexcept { (api().*END)(object); }
};
template <class Object, auto END> using owner = std::unique_ptr<Object, ending<END>>;

// gpupool's blocks begin at multiples of this.
inline constexpr std::size_t ALIGNMENT = 512;

inline void check_alignment(std::uint64_t alignment) {
  if (alignment > ALIGNMENT || (alignment & (alignment - 1)))
    throw error(GPUPOOL_ERROR_INVALID_VALUE,
                "alignment must be a power of two up to 512, and is " + std::to_string(alignment));
}

// Waits until memory that was allocated on the legacy default stream may be used on any stream. If that fails, the memory is
// freed.
inline void wait_for_use(void *pointer, int device) {
  int status = api().synchronize(device, nullptr);
  if (status == GPUPOOL_SUCCESS) return;
  std::string why = api().last_error(); // before what comes next fails too
  api().deallocate(pointer);
  throw error(status, why); // not one that is moved: the C++ library of GCC 8 has no function for that
}

// Frees memory in the order of a stream; if that cannot be named any more, behind all work so far of the device.
inline int deallocate_behind(void *pointer, int device, void *stream) {
  int status = api().deallocate_on(pointer, device, stream);
  return status == GPUPOOL_SUCCESS ? status : api().feed_deallocate(pointer);
}

// Runs functions where nothing may be thrown, and keeps why the last one that failed did, on whichever thread.
class last_failure {
 public:
  std::string text() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return text_;
  }

  // Returns whether the function succeeded.
  template <class Function> bool attempt(Function function) noexcept {
    try {
      function();
      return true;
    } catch (const std::exception &failure) {
      keep(failure.what());
    } catch (...) {
      keep("a callback threw what is no std::exception");
    }
    return false;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;

  void keep(const char *why) noexcept {
    try {
      std::lock_guard<std::mutex> lock(mutex_);
      text_ = why;
    } catch (...) { // no memory for the text
    }
  }
};

// A program's source, behind functions that throw nothing. gpupool's release deletes it.
class source {
 public:
  explicit source(const gpupool_source &own) : own_(own) {}

  gpupool_source functions() noexcept {
    return {this, own_.allocate ? allocate : nullptr, own_.free ? free : nullptr, release};
  }

 private:
  gpupool_source own_;

  static gpupool_source &own(void *context) noexcept { return static_cast<source *>(context)->own_; }
  static void *allocate(void *context, std::uint64_t bytes, int device, void *stream) noexcept {
    try {
      return own(context).allocate(own(context).context, bytes, device, stream);
    } catch (...) {
      running::keep(true);
      return nullptr;
    }
  }
  static void free(void *context, void *pointer, std::uint64_t bytes, int device, void *stream) noexcept {
    try {
      own(context).free(own(context).context, pointer, bytes, device, stream);
    } catch (...) {
      running::keep();
    }
  }
  static void release(void *context) noexcept {
    std::unique_ptr<source> ended(static_cast<source *>(context));
    try {
      if (ended->own_.release) ended->own_.release(ended->own_.context);
    } catch (...) {
      running::keep();
    }
  }
};

} // namespace detail

// Has this called with exceptions of callbacks that no function can throw again, such as those of a source's `free` while a
// destructor ends the pool, or of a callback on a thread that called the table itself. At first they are written to stderr.
inline void set_exception_handler(exception_handler handler) noexcept {
  detail::handler.store(handler ? handler : detail::print_exception, std::memory_order_release);
}

// Waits for the work so far on a stream of the device.
inline void synchronize(stream_argument stream = nullptr, int device = 0) { check(api().synchronize(device, stream)); }

// Releases free memory to the driver, of one device, or of all for -1, and waits for the GPU work that may still use it.
// Returns how many bytes.
inline std::uint64_t empty_cache(int device = -1) {
  return detail::ask<std::uint64_t>([&](auto *bytes) { return api().empty_cache(device, bytes); });
}

inline gpupool_device_stats device_stats(int device = 0) {
  return detail::ask([&](auto *stats) { return api().device_stats(device, stats); },
                     detail::sized<gpupool_device_stats>());
}

// How a pool behaves; see gpupool_pool_options.
struct pool_options {
  bool for_graphs = false;
  bool use_on_oom = false;
  bool no_split = false;
  const char *name = nullptr;
  const gpupool_source *source = nullptr; // its functions may throw
  bool sleeps_for_others = false;
  bool wakes_on_use = false;
};

// A private pool of a device's memory. It ends with its last use; live blocks stay valid.
class pool {
 public:
  explicit pool(int device = 0, const pool_options &options = {}) : device_(device) {
    auto own = detail::sized<gpupool_pool_options>();
    own.for_graphs = options.for_graphs;
    own.use_on_oom = options.use_on_oom;
    own.no_split = options.no_split;
    own.sleeps_for_others = options.sleeps_for_others;
    own.wakes_on_use = options.wakes_on_use;
    own.name = options.name;
    gpupool_source source;
    if (options.source) {
      source = (new detail::source(*options.source))->functions();
      own.source = &source;
    }
    handle_.reset(detail::ask<gpupool_pool *>([&](auto **made) { return api().pool_create(device, &own, made); }));
  }
  // One more use of an existing pool, such as one of Python's.
  pool(int device, gpupool_pool_id id)
      : device_(device),
        handle_(detail::ask<gpupool_pool *>([&](auto **found) { return api().pool_by_id(device, &id, found); })) {}

  int device() const noexcept { return device_; }
  gpupool_pool *handle() const noexcept { return handle_.get(); }

  gpupool_pool_id id() const {
    return detail::ask<gpupool_pool_id>([&](auto *id) { return api().pool_id(handle(), id); });
  }
  // Allocates from this pool, regardless of the thread's scopes; free it with deallocate.
  void *allocate(std::size_t bytes, stream_argument stream = nullptr) const {
    return detail::allocate(
        [&](void **place) { return api().pool_allocate(handle(), UINT64_MAX, bytes, stream, place); });
  }
  void set_use_on_oom(bool use_on_oom) { check(api().pool_set_use_on_oom(handle(), use_on_oom)); }
  // Releases its free memory to the driver, and waits for the GPU work that may still use it; returns how many bytes.
  std::uint64_t trim() {
    return detail::ask<std::uint64_t>([&](auto *bytes) { return api().pool_trim(handle(), bytes); });
  }
  // Releases its device memory but keeps its addresses, and allocates it again; both return how many bytes.
  std::uint64_t sleep(gpupool_backup backup = GPUPOOL_BACKUP_HOST) {
    return detail::ask<std::uint64_t>([&](auto *bytes) { return api().pool_sleep(handle(), backup, bytes); });
  }
  std::uint64_t wake() {
    return detail::ask<std::uint64_t>([&](auto *bytes) { return api().pool_wake(handle(), bytes); });
  }
  bool is_asleep() const {
    return detail::ask<int>([&](auto *is_asleep) { return api().pool_is_asleep(handle(), is_asleep); }) != 0;
  }

 private:
  int device_;
  detail::owner<gpupool_pool, &gpupool_api::pool_release> handle_;
};

// While it lives, what its thread allocates on the pool's device comes from the pool. Scopes nest. Destroy it on the thread
// that created it.
class scope {
 public:
  explicit scope(const pool &pool) { check(api().pool_enter(pool.handle(), &number_)); }
  scope(const scope &) = delete;
  scope &operator=(const scope &) = delete;
  ~scope() { api().scope_leave(number_); }

 private:
  std::uint64_t number_ = 0;
};

// Addresses whose pages of physical memory come and go; see pool_reserve_range. It is freed in the order of the streams that
// used it and that its pages were pinned for, also what an exception has left pinned, and in a callback; see range_drop.
class memory_range {
 public:
  memory_range(const pool &pool, std::uint64_t bytes, std::uint64_t page_bytes = std::uint64_t{2} << 20)
      : device_(pool.device()), bytes_(bytes), page_bytes_(page_bytes),
        handle_(detail::ask<gpupool_range *>([&](auto **range) {
          return api().pool_reserve_range(pool.handle(), bytes, page_bytes, range, &pointer_);
        })) {}

  void *ptr() const noexcept { return pointer_; }
  std::uint64_t nbytes() const noexcept { return bytes_; }
  std::uint64_t page_bytes() const noexcept { return page_bytes_; }
  int device() const noexcept { return device_; }
  gpupool_range *handle() const noexcept { return handle_.get(); }
  std::uint64_t committed_bytes() const {
    return detail::ask<std::uint64_t>([&](auto *bytes) { return api().range_bytes(handle(), bytes, nullptr); });
  }

  // Pages by their numbers; what they are filled with, if anything, is a byte.
  void commit(const std::vector<std::uint32_t> &pages, stream_argument stream = nullptr, int fill = -1) const {
    commit(pages, nullptr, stream, fill);
  }
  // The same for pages that may be taken when memory is short, those with the lowest priority first.
  void commit_discardable(const std::vector<std::uint32_t> &pages, int priority, stream_argument stream = nullptr,
                          int fill = -1) const {
    commit(pages, &priority, stream, fill);
  }
  void decommit(const std::vector<std::uint32_t> &pages, stream_argument stream = nullptr) const {
    check(detail::call([&] { return api().range_decommit(handle(), pages.data(), pages.size(), device_, stream); }));
  }
  // Whether each page is committed, and so pinned until unpin.
  std::vector<bool> pin(const std::vector<std::uint32_t> &pages, stream_argument stream = nullptr) const {
    std::vector<unsigned char> bits((pages.size() + 7) / 8);
    check(api().range_pin(handle(), pages.data(), pages.size(), device_, stream, bits.data()));
    std::vector<bool> is_there(pages.size());
    for (std::size_t place = 0; place < pages.size(); ++place) is_there[place] = bits[place / 8] >> place % 8 & 1;
    return is_there;
  }
  void unpin(const std::vector<std::uint32_t> &pages, stream_argument stream = nullptr) const {
    check(api().range_unpin(handle(), pages.data(), pages.size(), device_, stream));
  }
  // Keeps so many pages ready.
  void prepare(std::uint64_t pages) const { check(api().range_prepare(handle(), pages)); }

 private:
  int device_;
  std::uint64_t bytes_, page_bytes_;
  void *pointer_ = nullptr;
  detail::owner<gpupool_range, &gpupool_api::range_drop> handle_;

  void commit(const std::vector<std::uint32_t> &pages, const int *priority, void *stream, int fill) const {
    check(detail::call([&] {
      return api().range_commit(handle(), pages.data(), pages.size(), device_, stream, priority, fill);
    }));
  }
};

// Makes this process a neighbour of the user's others on the device, and sets what they are told of it.
inline void set_neighbour(const char *name = nullptr, std::uint64_t guarantee = 0, std::optional<std::uint64_t> most = {},
                          int priority = 0, int device = 0) {
  check(api().set_neighbour(device, name, guarantee, most.value_or(UINT64_MAX), priority));
}

// The bytes of a device that this process could have, with what its neighbours would give back. It need not be one.
inline std::uint64_t available_memory(int device = 0) {
  return detail::ask<std::uint64_t>([&](auto *bytes) { return api().available_memory(device, bytes); });
}

// Memory that this process is about to take, of which its neighbours know as long as this lives; it becomes one itself. Waits
// so many milliseconds until so much is available, UINT64_MAX for no end.
class memory_claim {
 public:
  explicit memory_claim(std::uint64_t bytes, int device = 0, std::uint64_t timeout_ms = 0)
      : handle_(detail::ask<gpupool_claim *>(
            [&](auto **claim) { return api().claim(device, bytes, timeout_ms, claim); })) {}

 private:
  detail::owner<gpupool_claim, &gpupool_api::claim_release> handle_;
};

// Frees a block, in the order of the stream that it was allocated on, or of another one of the device. Does nothing for a
// null pointer.
inline void deallocate(void *pointer) { check(detail::call([&] { return api().deallocate(pointer); })); }
inline void deallocate(void *pointer, stream_argument stream, int device = 0) {
  check(detail::call([&] { return api().deallocate_on(pointer, device, stream); }));
}

namespace detail {

// A block that is freed with its owner.
class block {
 public:
  void *ptr() const noexcept { return pointer_.get(); }
  std::size_t nbytes() const noexcept { return pointer_ ? size_ : 0; }
  explicit operator bool() const noexcept { return pointer_ != nullptr; }

  // Makes sure that the block, once freed, is not reused before the stream's work at that time is done. The stream is of the
  // block's device, of the first one for pinned memory, or of the one that is named.
  void record_stream(stream_argument stream) const { record_stream(stream, device_); }
  void record_stream(stream_argument stream, int device) const {
    check(api().record_stream(ptr(), device, stream));
  }

  // Frees it now, in the order of its own stream; or of another one, and where that is refused it is as it was.
  void free() { deallocate(release()); }
  void free(stream_argument stream) { free(stream, device_); }
  void free(stream_argument stream, int device) {
    check(call([&] {
      int status = api().deallocate_on(ptr(), device, stream);
      if (status == GPUPOOL_SUCCESS) release();
      return status;
    }));
  }

  // Releases ownership of the block to the caller, who frees it.
  void *release() noexcept { return pointer_.release(); }

 protected:
  block() = default;
  block(void *pointer, std::size_t bytes, int device = 0) : device_(device), size_(bytes), pointer_(pointer) {}
  block(block &&) = default;
  block &operator=(block &&) = default;
  ~block() = default;

  int device_ = 0;

 private:
  std::size_t size_ = 0;
  owner<void, &gpupool_api::deallocate> pointer_;
};

} // namespace detail

// Device memory, freed in stream order. It is null for 0 bytes.
class device_buffer : public detail::block {
 public:
  device_buffer() = default;
  // From the pool of the thread's scope.
  explicit device_buffer(std::size_t bytes, stream_argument stream = nullptr, int device = 0)
      : block(detail::allocate([&](void **place) { return api().allocate(bytes, device, stream, place); }), bytes, device),
        stream_(stream) {}
  // From this pool, regardless of the scope.
  device_buffer(const pool &pool, std::size_t bytes, stream_argument stream = nullptr)
      : block(pool.allocate(bytes, stream), bytes, pool.device()), stream_(stream) {}

  int device() const noexcept { return device_; }
  void *stream() const noexcept { return stream_; }

 private:
  void *stream_ = nullptr;
};

// Pinned host memory, which the host and every device can read and write: on this NUMA node, or for -1 on the one
// nearest to the thread's current device. Once freed, it is reused when the recorded streams are done.
class pinned_buffer : public detail::block {
 public:
  pinned_buffer() = default;
  explicit pinned_buffer(std::size_t bytes, int numa = -1)
      : block(detail::allocate([&](void **place) { return api().allocate_pinned(bytes, numa, place); }), bytes) {}
};

} // namespace gpupool

#endif

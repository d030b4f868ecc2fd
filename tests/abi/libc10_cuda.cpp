// An ABI double of what gpupool needs of PyTorch's libraries: the classes of its exceptions, with their real names, and
// its pluggable allocator, which calls functions by the types that PyTorch has and catches what they throw. Python calls
// it through ctypes; each function answers 0, 1 for c10::OutOfMemoryError and 2 for any other c10::Error.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace c10 {

struct SourceLocation {
  const char *function;
  const char *file;
  uint32_t line;
};

class Error : public std::exception {
  std::string message;
  std::vector<std::string> context;
  std::shared_ptr<int> backtrace;

 public:
  Error(SourceLocation source_location, std::string msg);
  const char *what() const noexcept override;
};

Error::Error(SourceLocation source_location, std::string msg) : message(std::move(msg)) {
  context.push_back(std::string(source_location.file) + ":" + source_location.function);
}
const char *Error::what() const noexcept { return message.c_str(); }

class OutOfMemoryError : public Error {
  using Error::Error;
};

}  // namespace c10

using stream_t = struct CUstream_st *;
using pool_id = std::pair<unsigned long long, unsigned long long>;

struct Allocator {
  std::function<void *(size_t, int, stream_t)> malloc;
  std::function<void(void *, size_t, int, stream_t)> free;
  std::function<void(void *, stream_t)> record_stream;
  std::function<void()> reset;
  std::function<void(double, int)> memory_fraction;
  std::function<void(int, pool_id, std::function<bool(stream_t)>)> begin;
  std::function<void(int, pool_id)> end, release;
};

// The calling thread's current stream; its id says whether it is of PyTorch's own pools.
static thread_local stream_t current;
static thread_local bool is_own;

namespace c10 {

struct Device {
  int8_t type, index;
};

class Stream {
 public:
  Device device;
  int64_t id;
};

namespace cuda {

class CUDAStream {
  Stream stream_;

 public:
  explicit CUDAStream(Stream stream) : stream_(stream) {}
  stream_t stream() const;
};

stream_t CUDAStream::stream() const { return stream_.id ? current : nullptr; }

CUDAStream getCurrentCUDAStream(signed char device) {
  int64_t id = is_own ? 0x2b : reinterpret_cast<int64_t>(current);
  return CUDAStream({{1, device}, id});
}

}  // namespace cuda
}  // namespace c10

static std::string text;
static int filters_alive;

// What PyTorch's filters hold, and must not lose.
struct Filter {
  Filter() { filters_alive++; }
  Filter(const Filter &) { filters_alive++; }
  ~Filter() { filters_alive--; }
  bool operator()(stream_t) const { return true; }
};

template <class Run>
static int answer(Run run) {
  try {
    run();
    return 0;
  } catch (const c10::OutOfMemoryError &error) {
    text = error.what();
    return 1;
  } catch (const c10::Error &error) {
    text = error.what();
    return 2;
  }
}

extern "C" {
// So that the class's table is there.
void torch_throw() { throw c10::OutOfMemoryError({"", "", 0}, ""); }
void torch_set_current(stream_t stream, bool is_own_stream) { current = stream, is_own = is_own_stream; }
const char *torch_text() { return text.c_str(); }
int torch_filters_alive() { return filters_alive; }
Allocator *torch_make(void *(*malloc)(size_t, int, stream_t), void (*free)(void *, size_t, int, stream_t)) {
  return new Allocator{malloc, free};
}
void torch_set_record_stream_fn(Allocator *a, void (*f)(void *, stream_t)) { a->record_stream = f; }
void torch_set_reset_fn(Allocator *a, void (*f)()) { a->reset = f; }
void torch_set_memory_fraction_fn(Allocator *a, void (*f)(double, int)) { a->memory_fraction = f; }
void torch_set_begin_allocate_to_pool(Allocator *a, void (*f)(int, pool_id, std::function<bool(stream_t)>)) {
  a->begin = f;
}
void torch_set_end_allocate_to_pool_fn(Allocator *a, void (*f)(int, pool_id)) { a->end = f; }
void torch_set_release_pool(Allocator *a, void (*f)(int, pool_id)) { a->release = f; }

int torch_malloc(Allocator *a, size_t size, int device, stream_t stream, void **address) {
  return answer([&] { *address = a->malloc(size, device, stream); });
}
int torch_free(Allocator *a, void *address, size_t size, int device, stream_t stream) {
  return answer([&] { a->free(address, size, device, stream); });
}
int torch_record_stream(Allocator *a, void *address, stream_t stream) {
  return answer([&] { a->record_stream(address, stream); });
}
int torch_reset(Allocator *a) {
  return answer([&] { a->reset(); });
}
int torch_memory_fraction(Allocator *a, double fraction, int device) {
  return answer([&] { a->memory_fraction(fraction, device); });
}
int torch_begin(Allocator *a, int device, unsigned long long first, unsigned long long second) {
  return answer([&] { a->begin(device, {first, second}, Filter()); });
}
int torch_end(Allocator *a, int device, unsigned long long first, unsigned long long second) {
  return answer([&] { a->end(device, {first, second}); });
}
int torch_release(Allocator *a, int device, unsigned long long first, unsigned long long second) {
  return answer([&] { a->release(device, {first, second}); });
}
}

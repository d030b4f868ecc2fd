// What the other files share: gpupool's table, PyTorch's own allocator, and errors in PyTorch's kinds and in C's.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "gpupool.h"

#define PYTORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace gpupool_torch {

using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// A copy, so that a call needs one load and not two. Written once, before an allocator takes its place.
inline gpupool_api api{};

inline void check_table(const gpupool_api &table) {
  TORCH_CHECK(table.version >= GPUPOOL_API_VERSION && table.size >= sizeof api,
              "this library is of another gpupool: it needs version ", GPUPOOL_API_VERSION, " of gpupool.h, of ",
              sizeof api, " bytes, and got version ", table.version, ", of ", table.size, " bytes");
}

// Held while an allocator takes its place, or gives it up.
inline std::mutex installing;

inline void take_table(const gpupool_api &table) {
  if (!api.version) api = table;
}

// The allocator whose place was taken. What it has handed out goes back to it.
inline CUDAAllocator *native = nullptr;

// Why a request or a free may need more than gpupool's next block. All are 0 for most programs at all times.
enum Detour : uint32_t {
  PASSING = 1,  // gpupool was uninstalled: what is new comes from PyTorch's own allocator
  UNCACHED = 2, // PyTorch was told not to cache
  ROUTED = 4,   // some requests are to come from a pool
  OBSERVED = 8, // trackers are called, and may throw
  PROFILED = 16, // a profiler of memory has been on; of frees alone
};
constexpr uint32_t OF_REQUESTS = PASSING | UNCACHED | ROUTED | OBSERVED;
constexpr uint32_t OF_FREES = OBSERVED | PROFILED;
inline std::atomic<uint32_t> detours{0};

inline bool has_detour(uint32_t which) { return detours.load(std::memory_order_relaxed) & which; }

inline void set_detour(Detour detour, bool is_on) {
  if (is_on)
    detours.fetch_or(detour);
  else
    detours.fetch_and(~uint32_t{detour});
}

// What a function of PyTorch's threw while gpupool called it, as no exception may pass through gpupool's own frames.
// (Not an exception_ptr: that needs a newer libstdc++ than some machines with PyTorch have.)
struct Thrown {
  bool is_set = false;
  bool is_out_of_memory = false;
  std::string why;
};
inline thread_local Thrown thrown;

inline void keep(const char *why, bool is_out_of_memory = false) {
  if (!thrown.is_set) thrown = {true, is_out_of_memory, why};
}

// Calls PyTorch's function and keeps what it throws for the caller on the other side of gpupool.
template <typename Function> void guarded(Function function) noexcept {
  try {
    function();
  } catch (const c10::OutOfMemoryError &error) {
    keep(error.what_without_backtrace(), true);
  } catch (const c10::Error &error) {
    keep(error.what_without_backtrace());
  } catch (const std::exception &error) {
    keep(error.what());
  } catch (...) {
    keep("an exception of an unknown kind");
  }
}

// The same, where nothing can be told to a caller.
template <typename Function> void warned(Function function) noexcept {
  try {
    function();
  } catch (const std::exception &error) {
    try {
      TORCH_WARN(error.what());
    } catch (...) { // warnings may be errors
    }
  } catch (...) {
  }
}

inline void rethrow() {
  if (C10_LIKELY(!thrown.is_set)) return;
  auto what = std::exchange(thrown, {});
  TORCH_CHECK_WITH(OutOfMemoryError, !what.is_out_of_memory, what.why);
  TORCH_CHECK(false, what.why);
}

[[noreturn]] inline void fail(int status) {
  std::string why = api.last_error();
  rethrow();
  TORCH_CHECK_WITH(OutOfMemoryError, status != GPUPOOL_ERROR_OUT_OF_MEMORY, why);
  TORCH_CHECK(false, why);
}

inline void check(int status) {
  if (C10_UNLIKELY(status != GPUPOOL_SUCCESS)) fail(status);
  rethrow();
}

// Structs of the table say their size.
template <typename Struct> Struct sized() {
  Struct value{};
  value.size = sizeof value;
  return value;
}

// A visitor of snapshots that has an object see what it visits.
template <typename Object> gpupool_snapshot_visitor visitor_of(Object &object, bool with_events = false) {
  auto visitor = sized<gpupool_snapshot_visitor>();
  visitor.context = &object;
  visitor.segment = [](void *context, const gpupool_segment *segment) {
    guarded([&] { static_cast<Object *>(context)->see(*segment); });
  };
  visitor.block = [](void *context, const gpupool_block *block) {
    guarded([&] { static_cast<Object *>(context)->see(*block); });
  };
  if constexpr (requires(const gpupool_event &event) { object.see(event); })
    if (with_events)
      visitor.event = [](void *context, const gpupool_event *event) {
        guarded([&] { static_cast<Object *>(context)->see(*event); });
      };
  return visitor;
}

// A value that is replaced by a changed copy, so that who has it reads it without a lock.
template <typename Value> class Replaced {
 public:
  std::shared_ptr<const Value> get() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return value_;
  }
  template <typename Change> void change(Change change) {
    std::shared_ptr<const Value> before; // ends after the lock: it may hold objects of Python's
    std::lock_guard<std::mutex> lock(mutex_);
    auto value = std::make_shared<Value>(*value_);
    change(*value);
    before = std::exchange(value_, std::move(value));
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Value> value_ = std::make_shared<Value>();
};

// Whether a stream is of PyTorch's own pools, whose streams it never destroys.
inline bool is_own(const c10::cuda::CUDAStream &stream) { return stream.id() & 1; }

// Tells gpupool of a stream that lasts, so that it may ask about it later.
inline cudaStream_t lasting(const c10::cuda::CUDAStream &stream) {
  static thread_local std::pair<DeviceIndex, cudaStream_t> last{-1, nullptr};
  auto handle = stream.stream();
  if (is_own(stream))
    if (std::pair now(stream.device_index(), handle); C10_UNLIKELY(now != last)) {
      api.declare_lasting(now.first, handle);
      last = now;
    }
  return handle;
}

// Returns what went wrong in a function, valid until the thread's next call; null if nothing did.
template <typename Function> const char *attempt(Function function) noexcept {
  static thread_local std::string why;
  try {
    function();
    return nullptr;
  } catch (const c10::Error &error) {
    why = error.what_without_backtrace();
  } catch (const std::exception &error) {
    why = error.what();
  } catch (...) {
    return "an exception of an unknown kind";
  }
  return why.c_str();
}

inline bool is_ours(const void *pointer) { return api.owns(pointer); }

// Whether a block of gpupool's starts there, and which.
inline bool find_block(const void *pointer, gpupool_block &block) {
  block = sized<gpupool_block>();
  return is_ours(pointer) && api.find_block(pointer, &block) == GPUPOOL_SUCCESS;
}

} // namespace gpupool_torch

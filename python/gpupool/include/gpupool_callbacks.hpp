// gpupool_callbacks.hpp: gpupool's callbacks for C++17, as functions that may throw. Header only, over gpupool.hpp.
//
//   gpupool::snapshot({{}, [](const gpupool_block &block) { std::printf("%p\n", block.address); }, {}});
//   gpupool::oom_callback callback([&](int device, std::uint64_t bytes) { return cache.drop(device, bytes); });
//   gpupool::segment_callback listener(pool, [](const gpupool_event &event) { ... });
//
// What a callback throws is thrown again by the function of gpupool's headers that led to it; see gpupool.hpp.
#ifndef GPUPOOL_CALLBACKS_HPP
#define GPUPOOL_CALLBACKS_HPP

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "gpupool.hpp"

namespace gpupool {

// What a snapshot calls: for each segment with its blocks by address, then for events from the first to the last. Any may be
// empty. Once one has thrown, none is called again.
struct snapshot_visitor {
  std::function<void(const gpupool_segment &)> segment;
  std::function<void(const gpupool_block &)> block;
  std::function<void(const gpupool_event &)> event;
};

namespace detail {

// Calls a function of a visitor, with what it threw kept.
template <class Seen, std::function<void(const Seen &)> snapshot_visitor::*FUNCTION>
void visit(void *visitor, const Seen *seen) noexcept {
  auto &function = static_cast<const snapshot_visitor *>(visitor)->*FUNCTION;
  if (!function || running::has_thrown()) return;
  try {
    function(*seen);
  } catch (...) {
    running::keep();
  }
}

inline gpupool_snapshot_visitor functions_of(const snapshot_visitor &visitor) noexcept {
  auto functions = sized<gpupool_snapshot_visitor>();
  functions.context = const_cast<snapshot_visitor *>(&visitor);
  functions.segment = visit<gpupool_segment, &snapshot_visitor::segment>;
  functions.block = visit<gpupool_block, &snapshot_visitor::block>;
  if (visitor.event) functions.event = visit<gpupool_event, &snapshot_visitor::event>;
  return functions;
}

// Functions that gpupool may call at any time, by number: a call that was on its way when the function was removed finds it
// gone, or keeps it until it returns.
template <class Function> class registry {
 public:
  static void *add(Function function) {
    auto &own = one();
    auto held = std::make_shared<const Function>(std::move(function));
    std::lock_guard<std::mutex> lock(own.mutex_);
    own.functions_.emplace(++own.last_, std::move(held));
    return reinterpret_cast<void *>(own.last_);
  }
  static void remove(void *number) noexcept {
    auto &own = one();
    std::shared_ptr<const Function> removed; // ends outside the lock
    std::lock_guard<std::mutex> lock(own.mutex_);
    auto place = own.functions_.find(reinterpret_cast<std::uintptr_t>(number));
    if (place == own.functions_.end()) return;
    removed = std::move(place->second);
    own.functions_.erase(place);
  }
  static std::shared_ptr<const Function> find(void *number) {
    auto &own = one();
    std::lock_guard<std::mutex> lock(own.mutex_);
    auto place = own.functions_.find(reinterpret_cast<std::uintptr_t>(number));
    return place == own.functions_.end() ? nullptr : place->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::shared_ptr<const Function>> functions_;
  std::uintptr_t last_ = 0;

  // Never destroyed: gpupool's threads may call while the process ends.
  static registry &one() {
    static registry &one = *new registry;
    return one;
  }
};

} // namespace detail

// Visits the memory of a device, or of all for -1, or of one pool if its id is given.
inline void snapshot(const snapshot_visitor &visitor, int device = -1, const gpupool_pool_id *pool = nullptr) {
  auto functions = detail::functions_of(visitor);
  check(detail::call([&] { return api().snapshot(device, pool, &functions); }));
}

// Visits pinned memory, which snapshot leaves out.
inline void pinned_snapshot(const snapshot_visitor &visitor) {
  auto functions = detail::functions_of(visitor);
  check(detail::call([&] { return api().pinned_snapshot(&functions); }));
}

// A function that is called before a request fails for lack of memory, while this lives: it frees what it can, and returns
// whether it freed anything. It may be called on any thread, and when this is destroyed still be running on another.
class oom_callback {
 public:
  using function = std::function<bool(int device, std::uint64_t bytes)>;

  explicit oom_callback(function callback) : number_(functions::add(std::move(callback))) {
    if (int status = api().on_oom(run, number_)) {
      functions::remove(number_);
      check(status);
    }
  }
  oom_callback(const oom_callback &) = delete;
  oom_callback &operator=(const oom_callback &) = delete;
  ~oom_callback() {
    api().remove_oom_callback(run, number_);
    functions::remove(number_);
  }

 private:
  using functions = detail::registry<function>;
  void *number_;

  static int run(void *number, int device, std::uint64_t bytes) noexcept {
    try {
      auto callback = functions::find(number);
      return callback && (*callback)(device, bytes);
    } catch (...) {
      detail::running::keep();
      return 0;
    }
  }
};

// A function that is called for each segment of a pool with no_split or a source, while this lives: with
// GPUPOOL_SEGMENT_ALLOC immediately for existing segments, then for each new one before it is used, and with
// GPUPOOL_SEGMENT_FREE before it is released. It may be called on any thread, and when this is destroyed still be running on
// another. What it throws for a new segment is thrown by the request, which then has no memory; the segment stays in the pool.
class segment_callback {
 public:
  using function = std::function<void(const gpupool_event &)>;

  // The pool's handle must be valid when this is destroyed, or the pool have ended.
  segment_callback(const pool &pool, function callback) : pool_(pool.handle()), number_(functions::add(std::move(callback))) {
    try {
      check(detail::call([&] { return api().pool_on_segment(pool_, run, number_); }));
    } catch (...) {
      remove();
      throw;
    }
  }
  segment_callback(const segment_callback &) = delete;
  segment_callback &operator=(const segment_callback &) = delete;
  ~segment_callback() { remove(); }

 private:
  using functions = detail::registry<function>;
  gpupool_pool *pool_;
  void *number_;

  void remove() noexcept {
    api().pool_remove_segment_callback(pool_, run, number_);
    functions::remove(number_);
  }
  static void run(void *number, const gpupool_event *event) noexcept {
    try {
      if (auto callback = functions::find(number)) (*callback)(*event);
    } catch (...) {
      detail::running::keep();
    }
  }
};

} // namespace gpupool

#endif

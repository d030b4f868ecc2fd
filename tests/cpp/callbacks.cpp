// What becomes of exceptions that a program's callbacks throw, over simulated devices. Prints nothing and returns 0 where
// all is right.

#include <gpupool_callbacks.hpp>

#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "memory.hpp"

namespace {

// What a simulated device has: too much while a block of it is held.
constexpr std::size_t TOO_MUCH = std::size_t{16} << 30;

// An exception of the program's own, which counts those that live.
struct refused {
  static inline int alive = 0;
  std::string what;
  explicit refused(std::string what) : what(std::move(what)) { ++alive; }
  refused(const refused &other) : what(other.what) { ++alive; }
  ~refused() { --alive; }
};

std::vector<std::string> reported;

void keep_report(std::exception_ptr exception) noexcept {
  try {
    std::rethrow_exception(exception);
  } catch (const refused &error) {
    reported.push_back(error.what);
  } catch (const std::exception &error) {
    reported.push_back(error.what());
  }
}

template <class Exception, class Function> std::string thrown_by(Function function) {
  try {
    function();
  } catch (const Exception &error) {
    if constexpr (std::is_same_v<Exception, refused>)
      return error.what;
    else
      return error.what();
  }
  return "nothing was thrown";
}

// Memory of the program's own, which fails when it is told to.
struct memory {
  enum fault { none, no_memory, own_type } on_allocate = none, on_free = none;
  int failures = 0; // of `allocate` to come; -1 for all
  int released = 0;
  std::map<void *, std::uint64_t> held;

  static void fail(fault fault) {
    if (fault == no_memory) throw std::bad_alloc();
    if (fault == own_type) throw refused("the source refuses");
  }
  static void *allocate(void *context, std::uint64_t bytes, int, void *) {
    auto &own = *static_cast<memory *>(context);
    if (own.failures) {
      own.failures -= own.failures > 0;
      fail(own.on_allocate);
    }
    auto *pointer = std::aligned_alloc(2 * MIB, (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
    own.held[pointer] = bytes;
    return pointer;
  }
  static void free(void *context, void *pointer, std::uint64_t, int, void *) {
    auto &own = *static_cast<memory *>(context);
    EXPECT(own.held.erase(pointer) == 1);
    std::free(pointer);
    fail(own.on_free);
  }
  static void release(void *context) { ++static_cast<memory *>(context)->released; }

  gpupool_source source() { return {this, allocate, free, release}; }
};

void what_a_source_throws_comes_out_of_the_request() {
  auto before = live();
  memory memory;
  {
    auto source = memory.source();
    gpupool::pool_options options;
    options.source = &source;
    gpupool::pool pool(0, options);
    auto request = [&] { gpupool::device_buffer buffer(pool, MIB); };
    memory.failures = -1;
    memory.on_allocate = memory::no_memory;
    EXPECT(thrown_by<std::bad_alloc>(request) == std::bad_alloc().what());
    memory.on_allocate = memory::own_type;
    EXPECT(thrown_by<refused>(request) == "the source refuses");
    EXPECT(thrown_by<refused>([&] { (void)pool.allocate(MIB); }) == "the source refuses");
    EXPECT(thrown_by<refused>([&] {
      gpupool::scope scope(pool);
      gpupool::device_buffer buffer(MIB);
    }) == "the source refuses");
    EXPECT(refused::alive == 0 && live() == before);
    // The pool serves as before.
    memory.failures = 0;
    request();
    EXPECT(memory.held.size() == 1);
    memory.on_free = memory::own_type;
    EXPECT(thrown_by<refused>([&] { pool.trim(); }) == "the source refuses");
    EXPECT(memory.held.empty() && refused::alive == 0 && reported.empty());
    memory.on_free = memory::none;
    request();
  }
  EXPECT(memory.held.empty() && memory.released == 1 && live() == before);
}

void memory_that_is_there_after_all_is_no_failure() {
  memory memory;
  auto source = memory.source();
  gpupool::pool_options options;
  options.source = &source;
  gpupool::pool pool(0, options);
  gpupool::device_buffer large(pool, 40 * MIB);
  large.free();
  // It fails once; by then what the pool had free was released, and the request tries again.
  memory.failures = 1;
  memory.on_allocate = memory::own_type;
  EXPECT(gpupool::device_buffer(pool, 80 * MIB).nbytes() == 80 * MIB);
  EXPECT(memory.failures == 0 && refused::alive == 0 && reported.empty());
}

void what_no_call_led_to_is_reported() {
  memory memory;
  memory.on_allocate = memory.on_free = memory::own_type;
  memory.failures = -1;
  {
    auto source = memory.source();
    gpupool::pool_options options;
    options.source = &source;
    gpupool::pool pool(0, options);
    // By the table: its caller is told by the status.
    void *pointer = nullptr;
    EXPECT(gpupool::api().pool_allocate(pool.handle(), UINT64_MAX, MIB, nullptr, &pointer) ==
           GPUPOOL_ERROR_OUT_OF_MEMORY);
    EXPECT(!pointer && !reported.empty() && reported[0] == "the source refuses");
    reported.clear();
    memory.failures = 0;
    { gpupool::device_buffer buffer(pool, MIB); }
    EXPECT(reported.empty());
  }
  // A destructor throws nothing.
  EXPECT(memory.held.empty() && memory.released == 1);
  EXPECT(reported.size() == 1 && reported[0] == "the source refuses" && refused::alive == 0);
  reported.clear();
}

void a_pool_that_is_not_made_releases_its_source() {
  memory memory;
  auto source = memory.source();
  gpupool::pool_options options;
  options.source = &source;
  EXPECT(thrown_by<gpupool::error>([&] { gpupool::pool pool(99, options); }).find("99") != std::string::npos);
  EXPECT(memory.released == 1);
  source.free = nullptr;
  EXPECT(thrown_by<gpupool::error>([&] { gpupool::pool pool(0, options); }).find("free of") != std::string::npos);
  EXPECT(memory.released == 2);
}

void a_snapshot_ends_with_what_its_visitor_throws() {
  gpupool::device_buffer one(MIB), other(30 * MIB);
  gpupool::pinned_buffer pinned(MIB);
  int segments = 0, blocks = 0;
  bool seen = false;
  gpupool::snapshot_visitor visitor;
  visitor.segment = [&](const gpupool_segment &) { ++segments; };
  visitor.block = [&](const gpupool_block &block) { seen |= block.address == one.ptr(); };
  gpupool::snapshot(visitor);
  EXPECT(segments >= 1 && seen);
  for (int i = 0; i < 3; ++i) {
    visitor.block = [&](const gpupool_block &) {
      ++blocks;
      throw refused("seen enough");
    };
    blocks = segments = 0;
    EXPECT(thrown_by<refused>([&] { gpupool::snapshot(visitor, 0); }) == "seen enough");
    EXPECT(blocks == 1 && segments == 1 && refused::alive == 0);
    EXPECT(thrown_by<refused>([&] { gpupool::pinned_snapshot(visitor); }) == "seen enough");
  }
  EXPECT(thrown_by<gpupool::error>([&] { gpupool::snapshot(visitor, 99); }).find("99") != std::string::npos);
  EXPECT(gpupool::device_buffer(MIB).nbytes() == MIB && reported.empty());
}

void what_an_oom_callback_throws_comes_out_of_the_request() {
  gpupool::device_buffer held(MIB);
  auto before = live();
  int calls = 0;
  {
    gpupool::oom_callback callback([&](int device, std::uint64_t bytes) -> bool {
      ++calls;
      EXPECT(device == 0 && bytes >= TOO_MUCH);
      throw refused("nothing can go");
    });
    EXPECT(thrown_by<refused>([&] { gpupool::device_buffer buffer(TOO_MUCH); }) == "nothing can go");
    EXPECT(calls == 1 && refused::alive == 0);
    // On another thread as well.
    std::thread([&] {
      EXPECT(thrown_by<refused>([&] { gpupool::device_buffer buffer(TOO_MUCH); }) == "nothing can go");
    }).join();
    calls = 0;
  }
  EXPECT(thrown_by<gpupool::out_of_memory>([&] { gpupool::device_buffer buffer(TOO_MUCH); }) != "");
  EXPECT(calls == 0 && live() == before && reported.empty());
}

void a_request_gives_back_what_it_got_where_a_listener_throws() {
  auto before = live();
  gpupool::pool pool(0, {false, false, true, nullptr, nullptr});
  std::vector<int> actions;
  bool fails = false;
  {
    gpupool::segment_callback listener(pool, [&](const gpupool_event &event) {
      actions.push_back(event.action);
      if (fails) throw refused("cannot register");
    });
    { gpupool::device_buffer buffer(pool, MIB); }
    EXPECT(actions == std::vector<int>{GPUPOOL_SEGMENT_ALLOC});
    fails = true;
    EXPECT(thrown_by<refused>([&] { (void)pool.allocate(30 * MIB); }) == "cannot register");
    EXPECT(live() == before);
    EXPECT(thrown_by<refused>([&] { gpupool::device_buffer buffer(pool, 50 * MIB); }) == "cannot register");
    EXPECT(live() == before);
    // Its constructor throws what it throws of the segments that are there, and then it is not called again.
    auto listen = [&] { gpupool::segment_callback other(pool, [](const gpupool_event &) { throw refused("no"); }); };
    EXPECT(thrown_by<refused>(listen) == "no");
    fails = false;
    actions.clear();
    EXPECT(pool.trim() > 0);
    EXPECT(actions.size() == 3 && actions[0] == GPUPOOL_SEGMENT_FREE);
  }
  actions.clear();
  { gpupool::device_buffer buffer(pool, MIB); }
  EXPECT(actions.empty() && refused::alive == 0 && reported.empty());
  EXPECT(thrown_by<gpupool::error>([] {
    gpupool::pool plain;
    gpupool::segment_callback refused(plain, [](const gpupool_event &) {});
  }) != "nothing was thrown");
}

// A callback that makes calls of its own has their exceptions, and the outer call the callback's.
void calls_in_callbacks_have_exceptions_of_their_own() {
  std::string inner;
  gpupool::oom_callback callback([&](int, std::uint64_t) -> bool {
    gpupool::snapshot_visitor visitor;
    visitor.segment = [](const gpupool_segment &) { throw refused("inner"); };
    inner = thrown_by<refused>([&] { gpupool::snapshot(visitor); });
    throw refused("outer");
  });
  gpupool::device_buffer block(MIB);
  EXPECT(thrown_by<refused>([&] { gpupool::device_buffer buffer(TOO_MUCH); }) == "outer");
  EXPECT(inner == "inner" && refused::alive == 0 && reported.empty());
}

// What a callback of a range waits for.
struct gate {
  std::promise<void> is_in, may_leave;
  static void wait(void *context, const std::uint32_t *, std::uint64_t) {
    auto &own = *static_cast<gate *>(context);
    own.is_in.set_value();
    own.may_leave.get_future().wait();
  }
};

void a_range_ends_in_a_callback_while_another_thread_is_in_one_of_its_own() {
  gpupool::pool pool;
  std::optional<gpupool::memory_range> range(std::in_place, pool, 64 * 2 * MIB);
  range->commit({1, 2});
  range->pin({2});
  range->commit_discardable({0}, 0);
  gate gate;
  gpupool::check(gpupool::api().range_on_discard(range->handle(), gate::wait, &gate));
  gpupool::device_buffer held(MIB);
  std::thread other([] {
    EXPECT(thrown_by<std::bad_alloc>([] { gpupool::device_buffer buffer(TOO_MUCH); }) != "nothing was thrown");
  });
  gate.is_in.get_future().wait();
  gpupool::pool_options whole;
  whole.no_split = true;
  gpupool::pool registered(0, whole);
  {
    gpupool::segment_callback listener(registered, [&](const gpupool_event &) { range.reset(); });
    gpupool::device_buffer buffer(registered, MIB);
  }
  EXPECT(!range);
  gate.may_leave.set_value();
  other.join();
  gpupool::synchronize();
  EXPECT(pool.trim() == 2 * 2 * MIB);
}

} // namespace

int main() {
  gpupool::set_exception_handler(keep_report);
  what_a_source_throws_comes_out_of_the_request();
  memory_that_is_there_after_all_is_no_failure();
  what_no_call_led_to_is_reported();
  a_pool_that_is_not_made_releases_its_source();
  a_snapshot_ends_with_what_its_visitor_throws();
  what_an_oom_callback_throws_comes_out_of_the_request();
  a_request_gives_back_what_it_got_where_a_listener_throws();
  calls_in_callbacks_have_exceptions_of_their_own();
  a_range_ends_in_a_callback_while_another_thread_is_in_one_of_its_own();
}

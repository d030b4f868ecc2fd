// What gpupool.hpp's objects do, over simulated devices. Prints nothing and returns 0 where all is right.

#include <gpupool.hpp>

#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace {

bool is_of(const void *pointer, const gpupool::pool &pool) {
  auto id = pool.id(), found = block_at(pointer).pool;
  return id.first == found.first && id.second == found.second;
}

void buffers_free_what_they_hold() {
  auto before = live();
  {
    gpupool::device_buffer buffer(MIB);
    EXPECT(buffer && buffer.nbytes() == MIB && buffer.device() == 0 && buffer.stream() == nullptr);
    std::memset(buffer.ptr(), 7, MIB);
    EXPECT(live() == before + std::int64_t(MIB));
    auto moved = std::move(buffer);
    EXPECT(!buffer && buffer.nbytes() == 0 && moved.nbytes() == MIB);
    gpupool::device_buffer other(2 * MIB);
    other = std::move(moved);
    EXPECT(other.nbytes() == MIB);
    void *given_up = other.release();
    EXPECT(!other && gpupool::api().owns(given_up));
    gpupool::deallocate(given_up);
    gpupool::device_buffer on_another(1000, nullptr, 1);
    EXPECT(block_at(on_another.ptr()).device == 1);
  }
  EXPECT(live() == before);
  gpupool::device_buffer nothing(0);
  EXPECT(!nothing);
  gpupool::device_buffer on_its_own(1000, nullptr, 1), not_on_another(1000, nullptr, 1);
  on_its_own.record_stream(nullptr);
  on_its_own.free(nullptr);
  EXPECT(!on_its_own);
  // On a stream of a device that is no peer.
  throws(GPUPOOL_ERROR_INVALID_VALUE, "", [&] { not_on_another.free(nullptr, 0); });
  EXPECT(not_on_another && not_on_another.nbytes() == 1000);
  on_its_own = std::move(not_on_another);
  EXPECT(on_its_own.device() == 1);
  on_its_own.free(nullptr);
  gpupool::device_buffer freed(MIB);
  freed.record_stream(nullptr);
  freed.free(nullptr, 0);
  EXPECT(!freed && live() == before);
  freed.free();
}

void pinned_memory_is_the_hosts() {
  gpupool::pinned_buffer buffer(32 * MIB);
  std::memset(buffer.ptr(), 7, MIB);
  EXPECT(block_at(buffer.ptr()).device < 0);
  buffer.record_stream(nullptr);
  auto *address = buffer.ptr();
  buffer.free(nullptr, 0);
  EXPECT(gpupool::pinned_buffer(32 * MIB).ptr() == address);
}

void scopes_lead_into_pools() {
  gpupool::pool outer, inner(0, {false, true, false, "inner", nullptr});
  EXPECT(inner.device() == 0 && gpupool::pool(0, inner.id()).handle() != inner.handle());
  {
    gpupool::scope one(outer);
    gpupool::device_buffer first(MIB);
    {
      gpupool::scope two(inner);
      EXPECT(is_of(gpupool::device_buffer(MIB).ptr(), inner));
      EXPECT(is_of(gpupool::device_buffer(outer, MIB).ptr(), outer));
    }
    EXPECT(is_of(first.ptr(), outer) && is_of(gpupool::device_buffer(MIB).ptr(), outer));
    // A scope is its thread's own.
    std::thread([&] { EXPECT(!is_of(gpupool::device_buffer(MIB).ptr(), outer)); }).join();
  }
  EXPECT(!is_of(gpupool::device_buffer(MIB).ptr(), outer));
  EXPECT(outer.trim() > 0);
  auto kept = std::move(outer);
  EXPECT(outer.handle() == nullptr && kept.handle() != nullptr);
}

void a_scope_is_left_once_on_its_thread() {
  gpupool::pool pool;
  std::uint64_t number = 0;
  gpupool::check(gpupool::api().pool_enter(pool.handle(), &number));
  std::thread([&] { EXPECT(gpupool::api().scope_leave(number) == GPUPOOL_ERROR_INVALID_VALUE); }).join();
  EXPECT(gpupool::api().scope_leave(number) == GPUPOOL_SUCCESS);
  EXPECT(gpupool::api().scope_leave(number) == GPUPOOL_ERROR_INVALID_VALUE);
  EXPECT(std::strstr(gpupool::api().last_error(), "leave each scope once"));
  EXPECT(gpupool::api().scope_leave(0) == GPUPOOL_ERROR_INVALID_VALUE);
}

void pools_sleep() {
  gpupool::pool pool;
  gpupool::device_buffer buffer(pool, MIB);
  std::memset(buffer.ptr(), 7, MIB);
  EXPECT(!pool.is_asleep() && pool.sleep() > 0 && pool.is_asleep());
  throws(GPUPOOL_ERROR_ASLEEP, "", [&] { gpupool::device_buffer(pool, MIB); });
  EXPECT(pool.wake() > 0 && static_cast<char *>(buffer.ptr())[MIB - 1] == 7);
}

// Throws an invalid value that names the pointer and says why.
template <class Function> void is_refused(const void *pointer, const char *why, Function function) {
  char address[32];
  std::snprintf(address, sizeof address, "%p", pointer);
  try {
    function();
    EXPECT(!"what is no block is freed");
  } catch (const gpupool::error &error) {
    EXPECT(error.status() == GPUPOOL_ERROR_INVALID_VALUE);
    EXPECT(std::strstr(error.what(), address) && std::strstr(error.what(), why));
  }
}

void what_is_no_block_is_refused_by_its_address() {
  gpupool::device_buffer buffer(MIB);
  static int others;
  auto *inner = static_cast<char *>(buffer.ptr()) + 512;
  for (auto [wrong, why] : {std::pair<void *, const char *>{&others, "not memory that gpupool handed out"},
                            {inner, "not the start of a block"}}) {
    is_refused(wrong, why, [wrong = wrong] { gpupool::deallocate(wrong); });
    is_refused(wrong, why, [wrong = wrong] { gpupool::deallocate(wrong, nullptr); });
  }
  void *data = buffer.release();
  gpupool::deallocate(data);
  is_refused(data, "free", [data] { gpupool::deallocate(data); });
  is_refused(data, "free", [data] { gpupool::deallocate(data, nullptr); });
  // Freed behind the back of its owner.
  gpupool::device_buffer owner(MIB);
  data = owner.ptr();
  gpupool::check(gpupool::api().deallocate(data));
  is_refused(data, "free", [&] { owner.record_stream(nullptr); });
  is_refused(data, "free", [&] { owner.free(); });
  EXPECT(!owner);
  // A destructor throws nothing.
  gpupool::device_buffer second(MIB);
  gpupool::check(gpupool::api().deallocate(second.ptr()));
  gpupool::pinned_buffer pinned(MIB);
  data = pinned.release();
  gpupool::deallocate(data);
  is_refused(data, "free", [data] { gpupool::deallocate(data); });
}

void ranges_hold_addresses() {
  gpupool::pool pool;
  gpupool::memory_range range(pool, 64 * 2 * MIB);
  range.commit({1, 3}, nullptr, 5);
  range.commit_discardable({4}, 1);
  EXPECT(range.committed_bytes() == 3 * 2 * MIB && range.nbytes() == 64 * 2 * MIB && range.page_bytes() == 2 * MIB);
  gpupool::synchronize();
  EXPECT(static_cast<unsigned char *>(range.ptr())[3 * 2 * MIB] == 5);
  EXPECT((range.pin({0, 1, 4}) == std::vector<bool>{false, true, true}));
  range.unpin({1, 4});
  gpupool::memory_range same(std::move(range));
  same.decommit({1, 3, 9});
  EXPECT(same.committed_bytes() == 2 * MIB && !range.handle());
  throws(GPUPOOL_ERROR_INVALID_VALUE, "64", [&] { same.commit({64}); });
}

void a_range_is_freed_though_an_exception_passes_an_unpin() {
  gpupool::pool pool;
  try {
    gpupool::memory_range range(pool, 64 * 2 * MIB);
    range.commit({1, 3, 63});
    range.pin({3, 63, 63});
    throw std::runtime_error("in the midst of its use");
  } catch (const std::runtime_error &) {
  }
  gpupool::synchronize();
  EXPECT(pool.trim() == 3 * 2 * MIB);
}

const gpupool_api *own_table;
int freed_behind_all_work = 0;

void what_is_freed_on_a_stream_that_cannot_be_named_waits_for_all_work() {
  own_table = &gpupool::api();
  static gpupool_api table = *own_table;
  table.deallocate_on = [](void *, int, void *) -> int { return GPUPOOL_ERROR_INVALID_VALUE; };
  table.feed_deallocate = [](void *pointer) {
    ++freed_behind_all_work;
    return own_table->feed_deallocate(pointer);
  };
  gpupool::set_api(&table);
  auto before = live();
  void *data = gpupool::device_buffer(MIB).release();
  EXPECT(gpupool::detail::deallocate_behind(data, 0, nullptr) == GPUPOOL_SUCCESS);
  EXPECT(freed_behind_all_work == 1 && live() == before);
  gpupool::set_api(own_table);
}

void what_fails_throws() {
  try {
    gpupool::device_buffer(std::size_t{1} << 50);
    EXPECT(!"there is so much memory");
  } catch (const std::bad_alloc &error) {
    EXPECT(std::strstr(error.what(), "tried to allocate"));
    auto copy = dynamic_cast<const gpupool::out_of_memory &>(error);
    EXPECT(std::strcmp(copy.what(), error.what()) == 0);
  }
  throws(GPUPOOL_ERROR_INVALID_VALUE, "99", [] { gpupool::pool(99); });
  gpupool::synchronize();
  EXPECT(gpupool::empty_cache() > 0);
  gpupool_api older = gpupool::api();
  older.size = offsetof(gpupool_api, synchronize);
  throws<gpupool::error>("older", [&] { gpupool::set_api(&older); });
}

static_assert(!std::is_copy_constructible_v<gpupool::device_buffer>);
static_assert(std::is_nothrow_move_constructible_v<gpupool::device_buffer>);
static_assert(std::is_nothrow_move_assignable_v<gpupool::pinned_buffer>);
static_assert(std::is_nothrow_move_constructible_v<gpupool::pool> && !std::is_copy_constructible_v<gpupool::pool>);
static_assert(!std::is_move_constructible_v<gpupool::scope>);
static_assert(std::is_nothrow_move_constructible_v<gpupool::memory_range>);

} // namespace

int main() {
  buffers_free_what_they_hold();
  pinned_memory_is_the_hosts();
  scopes_lead_into_pools();
  a_scope_is_left_once_on_its_thread();
  pools_sleep();
  what_is_no_block_is_refused_by_its_address();
  ranges_hold_addresses();
  a_range_is_freed_though_an_exception_passes_an_unpin();
  what_is_freed_on_a_stream_that_cannot_be_named_waits_for_all_work();
  what_fails_throws();
}

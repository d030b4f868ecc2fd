// Fuzzes the table of gpupool.h over simulated devices: random calls, right and wrong ones, of one thread or of several.
//
// Each live block is full of its own pattern, and none overlaps another; a wrong call is refused, and is not how the next
// right one fails; after each round all memory is back. Each wrong value of each function is in tests/c_api/wrong_values.rs,
// and what pages of a range hold in tests/models/memory.rs. Usage: c_table SECONDS SEED THREADS. One thread makes the same
// calls for the same seed. What is not so is written to stderr with the seed, and ends the process.

#include <gpupool.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

// What gpupool has for a device lasts as long as the process; what threads allocated of it looks like a leak once they ended.
extern "C" const char *__asan_default_options();
extern "C" const char *__asan_default_options() { return "detect_leaks=0"; }

namespace {

constexpr std::uint64_t KIB = 1 << 10, MIB = 1 << 20;
constexpr int DEVICES = 2, CALLS_A_ROUND = 1500;
constexpr std::size_t MOST_BLOCKS = 48, MOST_POOLS = 6, MOST_RANGES = 3;
constexpr std::uint64_t DEVICE_MEMORY = 192 * MIB; // it runs out

const gpupool_api *api;
std::uint64_t seed;
bool is_one_thread;
std::atomic<std::uint64_t> calls{0}, refusals{0}, blocks_made{0};

[[noreturn]] void fail(const char *format, ...) {
  std::fprintf(stderr, "c_table: seed %llu, call %llu: ", static_cast<unsigned long long>(seed),
               static_cast<unsigned long long>(calls.load()));
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "; the last error: %s\n", api->last_error());
  std::abort();
}

// Every call is made under this lock, shared; alone is who frees what was freed, and who looks at what all have.
std::shared_mutex alone;

// Where live blocks are, by their starts.
std::mutex placing;
std::map<std::uintptr_t, std::uintptr_t> places;

void place(void *pointer, std::uint64_t bytes) {
  auto start = reinterpret_cast<std::uintptr_t>(pointer), end = start + bytes;
  std::lock_guard<std::mutex> lock(placing);
  auto next = places.lower_bound(start);
  if (next != places.end() && next->first < end) fail("%p was handed out over a live block", pointer);
  if (next != places.begin() && std::prev(next)->second > start) fail("%p was handed out inside a live block", pointer);
  places.emplace(start, end);
}

void take_away(void *pointer) {
  std::lock_guard<std::mutex> lock(placing);
  places.erase(reinterpret_cast<std::uintptr_t>(pointer));
}

bool is_placed(void *pointer) {
  std::lock_guard<std::mutex> lock(placing);
  return places.count(reinterpret_cast<std::uintptr_t>(pointer));
}

// A pool's memory from this program. Some requests get none, and some what is not aligned, which gpupool must free.
struct Source {
  static inline std::atomic<int> held{0}, alive{0};
  std::atomic<unsigned> asked{0};

  static gpupool_source make() {
    ++alive;
    return {new Source, allocate, free, release};
  }
  static void *allocate(void *context, std::uint64_t bytes, int, void *) {
    auto number = ++static_cast<Source *>(context)->asked;
    if (number % 5 == 0) return nullptr;
    ++held;
    auto *start = static_cast<char *>(std::aligned_alloc(2 * MIB, (bytes / (2 * MIB) + 2) * 2 * MIB));
    // The base is found again from the address: it is the last multiple of 2 MiB.
    return start + (number % 7 == 0 ? 8 : 0);
  }
  static void free(void *, void *pointer, std::uint64_t, int, void *) {
    --held;
    std::free(reinterpret_cast<void *>(reinterpret_cast<std::uintptr_t>(pointer) & ~std::uintptr_t(2 * MIB - 1)));
  }
  static void release(void *context) {
    --alive;
    delete static_cast<Source *>(context);
  }
};

struct Pool {
  gpupool_pool *handle = nullptr;
  int device = 0;
  gpupool_pool_id id{};
  bool is_asleep = false, for_graphs = false, has_fixed_segments = false;
};

struct Block {
  char *pointer = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t mark = 0;
  int device = 0; // negative for pinned memory
  std::shared_ptr<Pool> pool; // null for one that does not sleep
  bool is_lost = false; // its pool was released while it slept

  bool is_readable() const { return !is_lost && !(pool && pool->is_asleep); }

  template <class Visit> void each_word(Visit visit) const {
    // All of a small block, else a word of each cache line's neighbourhood, and the last.
    std::uint64_t stride = bytes <= 64 * KIB ? 8 : 1032;
    std::uint64_t offset = 0;
    for (; offset + 8 <= bytes; offset += stride) visit(offset);
    if (bytes >= 8) visit((bytes - 8) & ~std::uint64_t{7});
  }
  void fill() const {
    if (!is_readable()) return;
    each_word([&](std::uint64_t offset) {
      auto word = mark ^ offset;
      std::memcpy(pointer + offset, &word, 8);
    });
    if (bytes < 8) std::memset(pointer, static_cast<int>(mark), bytes);
  }
  void check() const {
    if (!is_readable()) return;
    each_word([&](std::uint64_t offset) {
      std::uint64_t word;
      std::memcpy(&word, pointer + offset, 8);
      if (word != (mark ^ offset)) fail("block %p of %llu bytes was written to at %llu", static_cast<void *>(pointer),
                                        static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(offset));
    });
    for (std::uint64_t i = 0; bytes < 8 && i < bytes; ++i)
      if (pointer[i] != static_cast<char>(mark)) fail("block %p was written to", static_cast<void *>(pointer));
  }
};

// A memory range, of one thread. What its pages hold, and which may be taken, the naive model in tests/models checks.
struct Range {
  gpupool_range *handle = nullptr;
  char *pointer = nullptr;
  std::uint64_t page_bytes = 0;
  std::shared_ptr<Pool> pool;
  std::vector<unsigned> pins; // of each page

  std::uint32_t count() const { return static_cast<std::uint32_t>(pins.size()); }
  std::uint64_t bytes() const { return page_bytes * pins.size(); }
  char *at(std::uint32_t page) const { return pointer + page * page_bytes; }

  // What the callback is told, on any thread.
  static void gone(void *, const std::uint32_t *pages, std::uint64_t count) {
    if (!count) fail("no page was taken, and the callback called");
    for (std::uint64_t i = 1; i < count; ++i)
      if (pages[i] <= pages[i - 1]) fail("the callback is told of page %u after %u", pages[i], pages[i - 1]);
  }
};

// Blocks on their way from one thread to another.
std::mutex exchanging;
std::vector<Block> exchange;

// Pools by their devices and ids.
using PoolNames = std::set<std::tuple<int, std::uint64_t, std::uint64_t>>;

// Those that were released while they slept: each keeps its memory until its last block is free, one that waits included.
std::mutex releasing;
PoolNames released_asleep;

int give_nothing(void *, int, std::uint64_t) { return 0; }
void count_event(void *count, const gpupool_event *) { ++*static_cast<std::atomic<std::uint64_t> *>(count); }
std::atomic<std::uint64_t> events{0};
std::uint32_t take_stack(int) { return 0x80000001u; }

class Worker;
std::vector<Worker *> workers;

class Worker {
 public:
  explicit Worker(std::uint64_t seed) : random_(seed) {}

  void run(int calls) {
    for (int i = 0; i < calls; ++i) step();
  }

  // Gives back all that this thread has.
  void end() {
    std::shared_lock<std::shared_mutex> lock(alone);
    for (auto scope : scopes_) succeeded(api->scope_leave(scope.first), "scope_leave");
    scopes_.clear();
    while (!blocks_.empty()) free_one(blocks_.size() - 1);
    while (!ranges_.empty()) release_range(ranges_.size() - 1);
    while (!pools_.empty()) release_pool(pools_.size() - 1);
    while (!leases_.empty()) end_lease(leases_.size() - 1);
    for (int device : expected_) succeeded(api->end_expecting_captures(device), "end_expecting_captures");
    expected_.clear();
  }

 private:
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
  std::vector<std::shared_ptr<Pool>> pools_;
  std::vector<Range> ranges_;
  std::vector<std::pair<std::uint64_t, std::shared_ptr<Pool>>> scopes_;
  std::vector<int> expected_;
  std::vector<gpupool_lease> leases_;
  struct Freed {
    void *pointer;
    std::uint64_t bytes;
    int device;
  };
  std::vector<Freed> freed_;

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool one_in(std::uint64_t bound) { return below(bound) == 0; }
  int device() { return static_cast<int>(below(DEVICES)); }
  int wrong_device() {
    static constexpr int WRONG[] = {DEVICES, 99, -2, INT32_MAX, INT32_MIN};
    return WRONG[below(5)];
  }
  // The default streams.
  void *stream() { return reinterpret_cast<void *>(static_cast<std::uintptr_t>(below(3))); }
  static void *wrong_stream() { return reinterpret_cast<void *>(std::uintptr_t{0xdead000}); }
  std::uint64_t size() {
    switch (below(10)) {
      case 0: return below(16);
      case 1: case 2: case 3: return below(4 * KIB);
      case 4: case 5: return below(256 * KIB);
      case 6: return below(2 * MIB);
      case 7: return (1 + below(8)) * MIB;
      case 8: return below(24 * MIB);
      default: return one_in(8) ? random_() >> below(40) : 512 * (1 + below(64));
    }
  }

  static void succeeded(int status, const char *function) {
    if (status) fail("%s failed with %d", function, status);
  }
  static void refused(int status, const char *function) {
    ++refusals;
    if (status != GPUPOOL_ERROR_INVALID_VALUE) fail("%s of what is wrong returned %d", function, status);
    if (!std::strlen(api->last_error())) fail("%s says not why it refused", function);
  }
  static void one_of(int status, std::initializer_list<int> statuses, const char *function) {
    for (int expected : statuses)
      if (status == expected) return;
    fail("%s returned %d", function, status);
  }

  bool is_any_asleep() const {
    for (auto &pool : pools_)
      if (pool->is_asleep) return true;
    for (auto &scope : scopes_)
      if (scope.second->is_asleep) return true;
    return false;
  }

  // Also of pools that were released while they slept.
  bool has_sleeping() const {
    for (auto &block : blocks_)
      if (block.is_lost) return true;
    return is_any_asleep();
  }

  static gpupool_block found(const void *pointer) {
    gpupool_block block{};
    block.size = sizeof block;
    succeeded(api->find_block(pointer, &block), "find_block");
    return block;
  }

  // This thread's pool that a block is of; null for none of its own.
  std::shared_ptr<Pool> pool_of(const gpupool_block &block) const {
    auto is_it = [&](const Pool &pool) {
      return pool.id.first == block.pool.first && pool.id.second == block.pool.second;
    };
    for (auto &scope : scopes_)
      if (is_it(*scope.second)) return scope.second;
    for (auto &pool : pools_)
      if (is_it(*pool)) return pool;
    return nullptr;
  }
  bool is_of_mine(const void *pointer) const {
    auto block = found(pointer);
    return !(block.pool.first || block.pool.second) || pool_of(block);
  }

  // What a request returned.
  void got(int status, void *pointer, std::uint64_t bytes, const char *function) {
    if (status == GPUPOOL_ERROR_ASLEEP && !is_any_asleep()) fail("%s: no pool is asleep", function);
    // What a source returns at a wrong address is an invalid value of the program's.
    if (status == GPUPOOL_ERROR_INVALID_VALUE && std::strstr(api->last_error(), "not a multiple")) status = 1;
    one_of(status, {GPUPOOL_SUCCESS, GPUPOOL_ERROR_OUT_OF_MEMORY, GPUPOOL_ERROR_ASLEEP}, function);
    if (status || !bytes) {
      if (pointer) fail("%s returned %d and a pointer", function, status);
      return;
    }
    if (!pointer) fail("%s returned no pointer", function);
    add(pointer, bytes, function);
  }
  void add(void *pointer, std::uint64_t bytes, const char *function) {
    ++blocks_made;
    if (reinterpret_cast<std::uintptr_t>(pointer) % 512) fail("%s returned %p", function, pointer);
    place(pointer, bytes);
    auto at = found(pointer);
    if (at.address != pointer || at.requested != bytes || at.bytes < bytes || !at.is_live)
      fail("find_block found another block than %s returned", function);
    Block block;
    block.pointer = static_cast<char *>(pointer);
    block.bytes = bytes;
    block.mark = random_();
    block.device = at.device;
    block.pool = pool_of(at);
    block.fill();
    blocks_.push_back(std::move(block));
  }

  void allocate() {
    if (blocks_.size() >= MOST_BLOCKS) return free_one(below(blocks_.size()));
    auto bytes = size();
    auto on = device();
    void *pointer = nullptr;
    switch (below(13)) {
      case 0:
        if (bytes > INT64_MAX) return;
        pointer = api->malloc(static_cast<std::ptrdiff_t>(bytes), on, stream());
        return pointer ? add(pointer, bytes, "malloc") : void();
      case 1:
        pointer = api->cupy_malloc(nullptr, bytes, on);
        return pointer ? add(pointer, bytes, "cupy_malloc") : void();
      case 9: {
        if (freed_.empty()) return;
        auto &freed = freed_[below(freed_.size())];
        int status = api->allocate_at(freed.pointer, freed.bytes, std::max(freed.device, 0), stream());
        one_of(status, {GPUPOOL_SUCCESS, GPUPOOL_ERROR_INVALID_VALUE, GPUPOOL_ERROR_ASLEEP}, "allocate_at");
        if (status) return;
        // Where it is free may be a pool of another thread by now, which would not know of this block when it sleeps.
        if (!is_of_mine(freed.pointer)) return succeeded(api->deallocate(freed.pointer), "deallocate");
        return add(freed.pointer, freed.bytes, "allocate_at");
      }
      case 2: {
        int status = api->handler_alloc(nullptr, &pointer, bytes, nullptr);
        if (!status && bytes) add(pointer, bytes, "handler_alloc");
        return;
      }
      case 3: case 4: {
        if (bytes > 64 * MIB) bytes = MIB;
        int status = api->allocate_pinned(bytes, -1, &pointer);
        return got(status, pointer, bytes, "allocate_pinned");
      }
      case 10: {
        auto *pool = pools_.empty() || one_in(2) ? nullptr : pools_[below(pools_.size())]->handle;
        int status = api->feed_allocate(pool, on, bytes, &pointer);
        // The pool may be of the other device.
        if (pool && status == GPUPOOL_ERROR_INVALID_VALUE) return;
        return got(status, pointer, bytes, "feed_allocate");
      }
      case 5: case 6: case 7: case 8: {
        if (pools_.empty()) return;
        auto &pool = pools_[below(pools_.size())];
        auto ticket = one_in(2) ? UINT64_MAX : one_in(2) ? api->ticket() : 0;
        int status = api->pool_allocate(pool->handle, ticket, bytes, stream(), &pointer);
        return got(status, pointer, bytes, "pool_allocate");
      }
      default: {
        int status = api->allocate(bytes, on, stream(), &pointer);
        return got(status, pointer, bytes, "allocate");
      }
    }
  }

  void free_one(std::size_t number) {
    auto block = std::move(blocks_[number]);
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(number));
    free(std::move(block));
  }
  void free(Block block) {
    block.check();
    // First: another thread may have it as soon as it is free.
    take_away(block.pointer);
    freed_.push_back({block.pointer, block.bytes, block.device});
    if (freed_.size() > 16) freed_.erase(freed_.begin());
    auto on = block.device < 0 ? 0 : block.device;
    switch (below(9)) {
      case 4: return succeeded(api->feed_deallocate(block.pointer), "feed_deallocate");
      case 0: return api->free(block.pointer, static_cast<std::ptrdiff_t>(block.bytes), on, stream());
      case 1: return api->cupy_free(nullptr, block.pointer, on);
      case 2: case 3: return succeeded(api->deallocate_on(block.pointer, on, stream()), "deallocate_on");
      default: return succeeded(api->deallocate(block.pointer), "deallocate");
    }
  }

  void free_wrongly() {
    char own[64] = {};
    switch (below(7)) {
      case 0: return refused(api->deallocate(own + below(64)), "deallocate");
      case 1: {
        std::unique_ptr<char[]> heap(new char[64]);
        return refused(api->deallocate_on(heap.get(), device(), stream()), "deallocate_on");
      }
      case 2: return succeeded(api->deallocate(nullptr), "deallocate of null");
      case 3: return succeeded(api->deallocate_on(nullptr, device(), stream()), "deallocate_on of null");
      case 4: return refused(api->deallocate(reinterpret_cast<void *>(random_() | 1)), "deallocate");
      default: {
        if (blocks_.empty()) return;
        auto &block = blocks_[below(blocks_.size())];
        if (block.bytes < 2) return;
        auto *inner = block.pointer + 1 + below(block.bytes - 1);
        switch (below(5)) {
          case 0: refused(api->deallocate_on(inner, block.device < 0 ? 0 : block.device, stream()), "deallocate_on"); break;
          case 1: api->free(inner, 1, device(), stream()); break;
          case 2: api->cupy_free(nullptr, inner, device()); break;
          case 3:
            if (!api->handler_free(nullptr, inner, 1, nullptr)) fail("handler_free freed the inside of a block");
            break;
          default: refused(api->deallocate(inner), "deallocate");
        }
        return block.check();
      }
    }
  }

  // Alone, for another thread could have been given the address.
  void free_twice() {
    if (freed_.empty()) return;
    auto *pointer = freed_[below(freed_.size())].pointer;
    if (is_placed(pointer)) return;
    refused(one_in(2) ? api->deallocate(pointer) : api->deallocate_on(pointer, device(), stream()), "a second free");
  }

  void use() {
    if (blocks_.empty()) return;
    auto &block = blocks_[below(blocks_.size())];
    auto on = block.device < 0 ? device() : block.device;
    switch (below(5)) {
      case 0: return block.check();
      case 1: {
        auto at = found(block.pointer);
        if (at.requested != block.bytes || at.device != block.device) fail("find_block found another block");
        if (!api->owns(block.pointer + below(block.bytes))) fail("owns does not know a block");
        return;
      }
      default: return succeeded(api->record_stream(block.pointer, on, stream()), "record_stream");
    }
  }

  void allocate_wrongly() {
    void *pointer = &pointer;
    switch (below(7)) {
      case 0: refused(api->allocate(1 + below(MIB), wrong_device(), stream(), &pointer), "allocate"); break;
      case 1: return refused(api->allocate(1, device(), stream(), nullptr), "allocate");
      case 2: refused(api->allocate_pinned(1, 77, &pointer), "allocate_pinned"); break;
      case 3: return refused(api->allocate_pinned(1, -1, nullptr), "allocate_pinned");
      case 4: refused(api->pool_allocate(nullptr, 0, 1, stream(), &pointer), "pool_allocate"); break;
      case 5: {
        auto *wrong = reinterpret_cast<gpupool_pool *>(random_());
        refused(api->pool_allocate(wrong, UINT64_MAX, 1, stream(), &pointer), "pool_allocate");
        break;
      }
      default:
        if (api->malloc(-1, device(), stream())) fail("malloc of -1 bytes");
        if (api->malloc(1, 99, stream())) fail("malloc on a wrong device");
        return;
    }
    if (pointer) fail("a request that was refused left a pointer");
  }

  void make_pool() {
    if (pools_.size() >= MOST_POOLS) return release_pool(below(pools_.size()));
    gpupool_pool_options options{};
    options.size = sizeof options;
    options.for_graphs = one_in(4);
    options.use_on_oom = one_in(3);
    options.no_split = one_in(4);
    options.name = one_in(3) ? "a pool of the fuzzer's" : nullptr;
    gpupool_source source{};
    if (one_in(4)) {
      source = Source::make();
      options.source = &source;
    }
    auto on = device();
    auto pool = std::make_shared<Pool>();
    auto *&handle = pool->handle;
    succeeded(api->pool_create(on, &options, &handle), "pool_create");
    pool->device = on;
    pool->for_graphs = options.for_graphs;
    pool->has_fixed_segments = options.no_split || options.source;
    succeeded(api->pool_id(handle, &pool->id), "pool_id");
    pools_.push_back(std::move(pool));
  }

  void release_pool(std::size_t number) {
    auto pool = std::move(pools_[number]);
    pools_.erase(pools_.begin() + static_cast<std::ptrdiff_t>(number));
    for (auto &scope : scopes_)
      if (scope.second == pool) {
        pools_.push_back(std::move(pool));
        return;
      }
    // A range keeps its pool; of one that sleeps none is left, for nothing could wake it.
    for (auto number = ranges_.size(); number--;)
      if (ranges_[number].pool == pool && (pool->is_asleep || one_in(2))) release_range(number);
    for (auto &block : blocks_)
      if (block.pool == pool) {
        block.check();
        block.is_lost = pool->is_asleep;
        block.pool = nullptr;
      }
    if (pool->is_asleep) {
      std::lock_guard<std::mutex> lock(releasing);
      released_asleep.emplace(pool->device, pool->id.first, pool->id.second);
    }
    succeeded(api->pool_release(pool->handle), "pool_release");
    refused(api->pool_release(pool->handle), "a second pool_release");
    std::uint64_t bytes;
    refused(api->pool_trim(pool->handle, &bytes), "pool_trim");
  }

  void change_pool() {
    if (pools_.empty()) return;
    gpupool_pool *handle = nullptr;
    auto &pool = pools_[below(pools_.size())];
    switch (below(6)) {
      case 0: return succeeded(api->pool_set_use_on_oom(pool->handle, one_in(2)), "pool_set_use_on_oom");
      case 1: {
        for (auto &range : ranges_)
          if (range.pool == pool) return refused(api->pool_set_no_split(pool->handle), "pool_set_no_split");
        int status = api->pool_set_no_split(pool->handle);
        one_of(status, {0, GPUPOOL_ERROR_INVALID_VALUE}, "pool_set_no_split");
        pool->has_fixed_segments |= !status;
        return;
      }
      case 2: one_of(api->pool_trim(pool->handle, nullptr), {0, GPUPOOL_ERROR_ASLEEP}, "pool_trim"); return;
      case 3:
        succeeded(api->pool_by_id(pool->device, &pool->id, &handle), "pool_by_id");
        succeeded(api->pool_release(handle), "pool_release of another use");
        refused(api->pool_by_id(1 - pool->device, &pool->id, &handle), "pool_by_id");
        if (handle) fail("pool_by_id left a pool");
        return;
      case 4: {
        gpupool_checkpoint *checkpoint = nullptr;
        int status = api->pool_checkpoint(pool->handle, &checkpoint);
        if (status && checkpoint) fail("pool_checkpoint left a checkpoint");
        api->checkpoint_release(checkpoint);
        return;
      }
      default:
        int (*callback)(void *, int, std::uint64_t) = give_nothing;
        succeeded(api->on_oom(callback, this), "on_oom");
        succeeded(api->remove_oom_callback(callback, this), "remove_oom_callback");
        refused(api->remove_oom_callback(callback, this), "remove_oom_callback");
    }
  }

  void change_scope() {
    std::uint64_t scope = 0;
    if (!scopes_.empty() && one_in(2)) {
      auto number = below(scopes_.size());
      scope = scopes_[number].first;
      succeeded(api->scope_leave(scope), "scope_leave");
      scopes_.erase(scopes_.begin() + static_cast<std::ptrdiff_t>(number));
      return refused(api->scope_leave(scope), "a second scope_leave");
    }
    if (pools_.empty() || scopes_.size() > 4) return refused(api->scope_leave(random_()), "scope_leave");
    auto &pool = pools_[below(pools_.size())];
    succeeded(api->pool_enter(pool->handle, &scope), "pool_enter");
    if (!scope) fail("pool_enter returned no scope");
    scopes_.emplace_back(scope, pool);
  }

  void sleep() {
    if (pools_.empty()) return;
    auto pool = pools_[below(pools_.size())];
    int is_asleep = -1;
    succeeded(api->pool_is_asleep(pool->handle, &is_asleep), "pool_is_asleep");
    if (bool(is_asleep) != pool->is_asleep) fail("pool_is_asleep returned %d", is_asleep);
    if (!pool->is_asleep) {
      for (auto &block : blocks_)
        if (block.pool == pool) block.check();
      auto backup = one_in(2) ? GPUPOOL_BACKUP_HOST : GPUPOOL_BACKUP_NONE;
      // Refused for some pools, and where pinned memory runs out.
      if (api->pool_sleep(pool->handle, backup, nullptr)) return;
      pool->is_asleep = true;
      if (backup == GPUPOOL_BACKUP_NONE) discarded_.insert(pool.get());
      return;
    }
    int status = api->pool_wake(pool->handle, nullptr);
    one_of(status, {0, GPUPOOL_ERROR_OUT_OF_MEMORY}, "pool_wake");
    if (!status) awoke(pool);
  }
  std::set<Pool *> discarded_;
  void awoke(const std::shared_ptr<Pool> &pool) {
    pool->is_asleep = false;
    bool is_discarded = discarded_.erase(pool.get());
    for (auto &block : blocks_)
      if (block.pool == pool) is_discarded ? block.fill() : block.check();
  }

  // Alone, for all threads' memory sleeps; where nothing does yet, so that there is memory for all of it to wake.
  void sleep_device() {
    auto on = device();
    for (auto *worker : workers)
      if (worker->has_sleeping()) return;
    succeeded(api->set_per_process_memory_fraction(on, 1), "set_per_process_memory_fraction");
    if (api->sleep_device(on, GPUPOOL_BACKUP_HOST, nullptr)) return;
    // Of the default pool, which gives way: a pool of a scope may stay awake, and keep what the others need to wake.
    if (scopes_.empty()) {
      void *pointer = nullptr;
      int status = api->allocate(MIB, on, nullptr, &pointer);
      if (!status) succeeded(api->deallocate(pointer), "deallocate");
      one_of(status, {0, GPUPOOL_ERROR_ASLEEP, GPUPOOL_ERROR_OUT_OF_MEMORY}, "allocate while the device sleeps");
    }
    int status = api->wake_device(on, nullptr);
    if (status) fail("wake_device failed with %d", status);
    for (auto *worker : workers)
      for (auto &block : worker->blocks_) block.check();
    for (auto &block : exchange) block.check();
  }

  // Alone: every live block of every thread is in a snapshot, once, and blocks fill their segments. Others are only pinned
  // memory for what sleeps, which is not freed by its address.
  void look() {
    struct Seen {
      std::map<void *, std::uint64_t> live;
      PoolNames waiting;
      std::uint64_t left = 0;
    } seen;
    gpupool_snapshot_visitor visitor{};
    visitor.size = sizeof visitor;
    visitor.context = &seen;
    visitor.segment = [](void *context, const gpupool_segment *segment) {
      auto &seen = *static_cast<Seen *>(context);
      if (seen.left) fail("blocks of a snapshot do not fill their segment");
      seen.left = segment->bytes;
    };
    visitor.block = [](void *context, const gpupool_block *block) {
      auto &seen = *static_cast<Seen *>(context);
      seen.left -= block->bytes;
      if (block->is_waiting) seen.waiting.emplace(block->device, block->pool.first, block->pool.second);
      if (block->is_live && !seen.live.emplace(block->address, block->requested).second)
        fail("a block is in a snapshot twice");
    };
    succeeded(api->snapshot(-1, nullptr, &visitor), "snapshot");
    succeeded(api->pinned_snapshot(&visitor), "pinned_snapshot");
    auto expect = [&](const std::vector<Block> &blocks) {
      for (auto &block : blocks) {
        auto place = seen.live.find(block.pointer);
        if (place == seen.live.end() || place->second != block.bytes) {
          gpupool_block at{};
          at.size = sizeof at;
          int status = api->find_block(block.pointer, &at);
          fail("block %p of %llu bytes is not in a snapshot, which has %lld there; it is of device %d, lost %d, its pool asleep "
               "%d; find_block returns %d, pool (%llu, %llu), %llu bytes, live %d",
               static_cast<void *>(block.pointer), static_cast<unsigned long long>(block.bytes),
               place == seen.live.end() ? -1LL : static_cast<long long>(place->second), block.device, block.is_lost,
               block.pool && block.pool->is_asleep, status, static_cast<unsigned long long>(at.pool.first),
               static_cast<unsigned long long>(at.pool.second), static_cast<unsigned long long>(at.requested), at.is_live);
        }
        seen.live.erase(place);
      }
    };
    for (auto *worker : workers) expect(worker->blocks_);
    expect(exchange);
    for (auto *worker : workers)
      for (auto &range : worker->ranges_)
        for (std::uint32_t page = 0; page < range.count(); ++page) seen.live.erase(range.at(page));
    bool is_asleep = false;
    for (auto *worker : workers) is_asleep |= worker->has_sleeping();
    for (auto &pool : released_asleep) is_asleep |= seen.waiting.count(pool) > 0;
    for (auto &[pointer, bytes] : seen.live) {
      if (!is_asleep) fail("a snapshot has %p of %llu bytes, which no thread has", pointer,
                           static_cast<unsigned long long>(bytes));
      gpupool_block block{};
      block.size = sizeof block;
      refused(api->find_block(pointer, &block), "find_block of memory for what sleeps");
      refused(api->deallocate(pointer), "deallocate of memory for what sleeps");
      refused(api->deallocate_on(pointer, 0, nullptr), "deallocate_on of memory for what sleeps");
      refused(api->record_stream(pointer, 0, nullptr), "record_stream of memory for what sleeps");
    }
    for (int device = 0; device < DEVICES; ++device) {
      gpupool_device_stats stats{};
      stats.size = sizeof stats;
      succeeded(api->device_stats(device, &stats), "device_stats");
      auto live = stats.allocated_bytes[GPUPOOL_ALL].current;
      // What sleeps is allocated and not reserved.
      if (live < 0 || (!is_asleep && live > stats.reserved_bytes[GPUPOOL_ALL].current))
        fail("more is allocated than reserved");
    }
  }

  void ask() {
    auto on = device();
    gpupool_device_stats stats{};
    stats.size = sizeof stats;
    std::uint64_t bytes = 0;
    double fraction = 0;
    switch (below(11)) {
      case 0: return succeeded(api->device_stats(on, &stats), "device_stats");
      case 1: return succeeded(api->pinned_stats(-1, &stats), "pinned_stats");
      case 2:
        succeeded(api->reset_peak_stats(on), "reset_peak_stats");
        return succeeded(api->reset_peak_pinned_stats(-1), "reset_peak_pinned_stats");
      case 3: return succeeded(api->empty_cache(one_in(2) ? -1 : on, &bytes), "empty_cache");
      case 4: return succeeded(api->empty_pinned_cache(nullptr), "empty_pinned_cache");
      case 5:
        succeeded(api->set_per_process_memory_fraction(on, 0.5 + 0.5 * double(below(3)) / 2), "set_per_process_memory_fraction");
        return succeeded(api->get_per_process_memory_fraction(on, &fraction), "get_per_process_memory_fraction");
      case 6: return succeeded(api->largest_block(on, &bytes), "largest_block");
      case 7: return succeeded(api->synchronize(on, stream()), "synchronize");
      case 8: {
        gpupool_recording recording{};
        recording.size = sizeof recording;
        recording.most_events = below(200);
        recording.live_stacks = recording.alloc_stacks = one_in(2);
        recording.take_stack = one_in(2) ? take_stack : nullptr;
        return succeeded(api->record(one_in(3) ? nullptr : &recording), "record");
      }
      case 9: return succeeded(api->observe(one_in(2) ? count_event : nullptr, &events), "observe");
      default:
        if (expected_.empty() || one_in(2)) {
          succeeded(api->expect_captures(on), "expect_captures");
          expected_.push_back(on);
        } else {
          succeeded(api->end_expecting_captures(expected_.back()), "end_expecting_captures");
          expected_.pop_back();
        }
    }
  }

  void end_lease(std::size_t number) {
    auto lease = leases_[number];
    leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(number));
    take_away(lease.handle);
    if (one_in(8))
      succeeded(api->lease_discard(&lease), "lease_discard");
    else
      succeeded(api->lease_release(&lease), "lease_release");
    if (lease.handle || lease.pooled) fail("a lease is left that has ended");
    refused(one_in(2) ? api->lease_release(&lease) : api->lease_discard(&lease), "a second end of a lease");
  }

  // A handle that others have not.
  void begin_lease() {
    gpupool_lease lease{};
    int status = api->lease(GPUPOOL_SIMULATED, device(), stream(), UINT64_MAX, &lease);
    one_of(status, {0, GPUPOOL_ERROR_OUT_OF_MEMORY}, "lease");
    if (!status != bool(lease.handle)) fail("lease returned %d and the handle %p", status, lease.handle);
    if (status) return;
    place(lease.handle, 1);
    leases_.push_back(lease);
  }

  void ask_for_handles() {
    auto on = device();
    gpupool_handle_stats stats{};
    stats.size = sizeof stats;
    std::uint64_t number = 0;
    void *own = nullptr, *again = nullptr;
    switch (below(6)) {
      case 0: {
        int status = api->handle(GPUPOOL_SIMULATED, on, stream(), &own);
        one_of(status, {0, GPUPOOL_ERROR_OUT_OF_MEMORY}, "handle");
        if (status) return own ? fail("handle failed and returned one") : void();
        succeeded(api->handle(GPUPOOL_SIMULATED, on, stream(), &again), "handle");
        if (!own || again != own) fail("a thread has two handles on a device, %p and %p", own, again);
        return;
      }
      case 1: case 2: return leases_.size() < 4 ? begin_lease() : end_lease(below(leases_.size()));
      case 3: return leases_.empty() ? void() : end_lease(below(leases_.size()));
      case 4:
        // In the background it would go on where nothing may: the number of handles is checked at the end.
        one_of(api->warm_handles(GPUPOOL_SIMULATED, on, below(4), 0, one_in(2) ? &number : nullptr),
               {0, GPUPOOL_ERROR_OUT_OF_MEMORY}, "warm_handles");
        if (number > 3) fail("warm_handles created %llu", static_cast<unsigned long long>(number));
        return;
      default:
        succeeded(api->trim_handles(GPUPOOL_SIMULATED, one_in(2) ? -1 : on, &number), "trim_handles");
        succeeded(api->handle_stats(GPUPOOL_SIMULATED, one_in(2) ? -1 : on, &stats), "handle_stats");
        if (stats.created < stats.destroyed + stats.idle) fail("more handles are counted than were created");
        return succeeded(api->reset_peak_handle_stats(GPUPOOL_SIMULATED, on), "reset_peak_handle_stats");
    }
  }

  // A few pages in any order, some of them twice.
  std::vector<std::uint32_t> some_pages(const Range &range) {
    std::vector<std::uint32_t> pages(below(6));
    for (auto &page : pages) page = static_cast<std::uint32_t>(below(range.count()));
    if (one_in(8))
      for (std::uint32_t page = 0; page < std::min(range.count(), 12u); ++page) pages.push_back(page);
    return pages;
  }

  void make_range() {
    if (pools_.empty()) return;
    auto &pool = pools_[below(pools_.size())];
    Range range;
    range.pool = pool;
    range.page_bytes = 2 * MIB * (one_in(3) ? 1 + below(3) : 1);
    range.pins.resize(1 + below(24));
    void *pointer = this;
    gpupool_range *&handle = range.handle;
    auto reserve = [&](std::uint64_t bytes, std::uint64_t page_bytes) {
      return api->pool_reserve_range(pool->handle, bytes, page_bytes, &handle, &pointer);
    };
    if (pool->has_fixed_segments) {
      one_of(reserve(range.bytes(), range.page_bytes), {GPUPOOL_ERROR_UNAVAILABLE}, "pool_reserve_range of segments that stay");
      if (handle || pointer) fail("pool_reserve_range failed and left a range");
      return;
    }
    succeeded(reserve(range.bytes(), range.page_bytes), "pool_reserve_range");
    if (!handle || reinterpret_cast<std::uintptr_t>(pointer) % (2 * MIB)) fail("a range begins at %p", pointer);
    range.pointer = static_cast<char *>(pointer);
    place(pointer, range.bytes());
    succeeded(api->range_on_discard(handle, Range::gone, nullptr), "range_on_discard");
    ranges_.push_back(std::move(range));
  }

  // Pins pages, some of which may be gone, and returns those that are there.
  std::vector<std::uint32_t> pin(Range &range, const std::vector<std::uint32_t> &pages) {
    std::vector<unsigned char> bits((pages.size() + 7) / 8, 0xa5);
    bool has_stream = one_in(2);
    succeeded(api->range_pin(range.handle, pages.data(), pages.size(), has_stream ? range.pool->device : -1,
                             has_stream ? stream() : nullptr, bits.data()), "range_pin");
    if (pages.size() % 8 && bits.back() >> pages.size() % 8) fail("range_pin set bits of no page");
    std::vector<std::uint32_t> there;
    for (std::size_t place = 0; place < pages.size(); ++place) {
      if (!(bits[place / 8] >> place % 8 & 1)) continue;
      ++range.pins[pages[place]];
      there.push_back(pages[place]);
    }
    return there;
  }

  void unpin(Range &range, const std::vector<std::uint32_t> &pages) {
    succeeded(api->range_unpin(range.handle, pages.data(), pages.size(), one_in(2) ? range.pool->device : -1, nullptr),
              "range_unpin");
    for (auto page : pages) --range.pins[page];
  }

  void commit(Range &range) {
    auto pages = some_pages(range);
    int priority = static_cast<int>(below(5)) - 2, fill = one_in(3) ? static_cast<int>(below(256)) : -1;
    int status = api->range_commit(range.handle, pages.data(), pages.size(), range.pool->device, stream(),
                                   one_in(2) ? &priority : nullptr, fill);
    if ((status == GPUPOOL_ERROR_ASLEEP) != range.pool->is_asleep) fail("range_commit returned %d", status);
    one_of(status, {0, GPUPOOL_ERROR_OUT_OF_MEMORY, GPUPOOL_ERROR_ASLEEP}, "range_commit");
    if (status) return;
    auto pinned = pin(range, pages);
    for (auto page : pinned) std::memset(range.at(page), 7, range.page_bytes);
    if (one_in(16))
      for (auto page : pinned) refuse_as_block(range.at(page));
    if (!one_in(4)) unpin(range, pinned);
  }

  // No address in a range is that of a block.
  void refuse_as_block(void *pointer) {
    refused(api->deallocate(pointer), "deallocate of a page");
    refused(api->deallocate_on(pointer, device(), stream()), "deallocate_on of a page");
    refused(api->record_stream(pointer, device(), stream()), "record_stream of a page");
    gpupool_block block{};
    block.size = sizeof block;
    refused(api->find_block(pointer, &block), "find_block of a page");
  }

  void decommit(Range &range) {
    auto pages = some_pages(range);
    bool is_pinned = std::any_of(pages.begin(), pages.end(), [&](auto page) { return range.pins[page] > 0; });
    bool has_stream = one_in(2);
    int status = api->range_decommit(range.handle, pages.data(), pages.size(), has_stream ? range.pool->device : -1,
                                     has_stream ? stream() : nullptr);
    if (range.pool->is_asleep) return one_of(status, {GPUPOOL_ERROR_ASLEEP}, "range_decommit");
    if (is_pinned) return refused(status, "range_decommit of a pinned page");
    succeeded(status, "range_decommit");
    for (auto page : pages) freed_.push_back({range.at(page), range.page_bytes, range.pool->device});
    while (freed_.size() > 16) freed_.erase(freed_.begin());
  }

  void ask_range(Range &range) {
    std::uint64_t committed = 0, discardable = 0;
    succeeded(api->range_bytes(range.handle, &committed, one_in(4) ? nullptr : &discardable), "range_bytes");
    if (discardable > committed || committed > range.bytes()) fail("more of a range is committed than there is");
  }

  void release_range(std::size_t number) {
    auto range = std::move(ranges_[number]);
    ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(number));
    std::vector<std::uint32_t> pinned;
    for (std::uint32_t page = 0; page < range.count(); ++page)
      pinned.insert(pinned.end(), range.pins[page], page);
    if (!pinned.empty()) refused(api->range_release(range.handle, -1, nullptr), "range_release of a pinned page");
    bool is_dropped = one_in(4);
    if (!is_dropped && !pinned.empty()) unpin(range, pinned);
    freed_.push_back({range.pointer, range.page_bytes, range.pool->device});
    // First: another thread may have the addresses as soon as they are free.
    take_away(range.pointer);
    if (is_dropped) return succeeded(api->range_drop(range.handle), "range_drop");
    bool has_stream = one_in(2);
    succeeded(api->range_release(range.handle, has_stream ? range.pool->device : -1, has_stream ? stream() : nullptr),
              "range_release");
  }

  void use_ranges() {
    if (ranges_.empty() || (ranges_.size() < MOST_RANGES && one_in(8))) return make_range();
    auto number = below(ranges_.size());
    auto &range = ranges_[number];
    auto which = below(100);
    if (which < 40) return commit(range);
    if (which < 60) return decommit(range);
    if (which < 70) {
      auto pinned = pin(range, some_pages(range));
      return one_in(2) ? unpin(range, pinned) : void();
    }
    if (which < 80) {
      std::vector<std::uint32_t> pinned;
      for (std::uint32_t page = 0; page < range.count(); ++page)
        if (range.pins[page]) pinned.push_back(page);
      return unpin(range, pinned);
    }
    if (which < 92) return ask_range(range);
    // A thread of gpupool's own makes them, at any time: what one thread is told would differ from run to run.
    if (which < 95) {
      auto pages = is_one_thread ? 0 : below(std::min(range.count(), 2U) + 1);
      return succeeded(api->range_prepare(range.handle, pages), "range_prepare");
    }
    release_range(number);
  }

  void trade() {
    std::lock_guard<std::mutex> lock(exchanging);
    if (exchange.size() > 8 || (one_in(2) && !exchange.empty())) {
      blocks_.push_back(std::move(exchange.back()));
      exchange.pop_back();
    } else if (!blocks_.empty() && !blocks_.back().pool && !blocks_.back().is_lost) {
      exchange.push_back(std::move(blocks_.back()));
      blocks_.pop_back();
    }
  }

  void step() {
    ++calls;
    auto which = below(1080);
    if (which < 30) {
      std::unique_lock<std::shared_mutex> lock(alone);
      return which < 20 ? free_twice() : which < 27 ? look() : sleep_device();
    }
    std::shared_lock<std::shared_mutex> lock(alone);
    if (which < 380) return allocate();
    if (which < 640) return blocks_.empty() ? void() : free_one(below(blocks_.size()));
    if (which < 700) return free_wrongly();
    if (which < 740) return use();
    if (which < 770) return ask_for_handles();
    if (which < 810) return allocate_wrongly();
    if (which < 850) return make_pool();
    if (which < 870) return pools_.empty() ? void() : release_pool(below(pools_.size()));
    if (which < 890) return change_pool();
    if (which < 920) return change_scope();
    if (which < 950) return sleep();
    if (which < 980) return ask();
    if (which < 1000) return trade();
    use_ranges();
  }
};

// One round: random calls, after which everything is back.
void round(std::uint64_t round_seed, int threads) {
  std::vector<std::unique_ptr<Worker>> own;
  for (int i = 0; i < threads; ++i) own.push_back(std::make_unique<Worker>(round_seed + static_cast<std::uint64_t>(i)));
  workers.clear();
  for (auto &worker : own) workers.push_back(worker.get());
  if (threads == 1) {
    own[0]->run(CALLS_A_ROUND);
    own[0]->end();
  } else {
    std::vector<std::thread> running;
    for (auto &worker : own)
      running.emplace_back([&worker] {
        worker->run(CALLS_A_ROUND);
        worker->end();
      });
    for (auto &thread : running) thread.join();
  }
  for (auto &block : exchange) {
    block.check();
    take_away(block.pointer);
    if (int status = api->deallocate(block.pointer)) fail("deallocate failed with %d", status);
  }
  exchange.clear();
  released_asleep.clear();
  gpupool_handle_stats handles{};
  handles.size = sizeof handles;
  if (api->trim_handles(GPUPOOL_SIMULATED, -1, nullptr) || api->handle_stats(GPUPOOL_SIMULATED, -1, &handles))
    fail("handles are not trimmed");
  // Those of the thread itself stay.
  if (handles.leased || handles.idle || handles.discarded || handles.created != handles.destroyed + handles.held ||
      handles.held > (threads == 1 ? DEVICES : 0))
    fail("of %llu handles %llu are destroyed, %llu held and %llu leased at the end",
         static_cast<unsigned long long>(handles.created), static_cast<unsigned long long>(handles.destroyed),
         static_cast<unsigned long long>(handles.held), static_cast<unsigned long long>(handles.leased));
  api->record(nullptr);
  api->observe(nullptr, nullptr);
  for (int device = 0; device < DEVICES; ++device) api->set_per_process_memory_fraction(device, 1);
  if (api->empty_cache(-1, nullptr) || api->empty_pinned_cache(nullptr)) fail("caches are not emptied");
  for (int device = -1; device < DEVICES; ++device) {
    gpupool_device_stats stats{};
    stats.size = sizeof stats;
    auto ask = [&] {
      if (device < 0 ? api->pinned_stats(-1, &stats) : api->device_stats(device, &stats)) fail("there are no statistics");
      return stats.reserved_bytes[0].current;
    };
    // Pinned memory goes back on a thread of gpupool's own, and another one may just make pages ready.
    for (auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
         ask() && (device < 0 || threads > 1) && std::chrono::steady_clock::now() < end;)
      std::this_thread::yield();
    auto live = stats.allocated_bytes[0].current, reserved = stats.reserved_bytes[0].current;
    if (live || reserved || stats.requested_bytes[0].current)
      fail("of device %d %lld bytes are live and %lld reserved at the end", device, static_cast<long long>(live),
           static_cast<long long>(reserved));
  }
  if (Source::held || Source::alive) fail("%d pieces of %d sources are not back", Source::held.load(), Source::alive.load());
  if (!places.empty()) fail("blocks are left");
}

} // namespace

int main(int count, char **arguments) {
  if (count != 4) {
    std::fprintf(stderr, "usage: %s SECONDS SEED THREADS\n", arguments[0]);
    return 2;
  }
  setenv("GPUPOOL_RUNTIME", "host", 1);
  setenv("GPUPOOL_HOST_DEVICES", std::to_string(DEVICES).c_str(), 1);
  setenv("GPUPOOL_HOST_MEMORY", std::to_string(DEVICE_MEMORY).c_str(), 1);
  api = gpupool_get_api(GPUPOOL_API_VERSION);
  if (!api || api->size < sizeof *api || gpupool_get_api(99)) return 3;
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(arguments[1]));
  auto first = seed = std::strtoull(arguments[2], nullptr, 10);
  int threads = std::max(1, std::atoi(arguments[3]));
  is_one_thread = threads == 1;
  std::mt19937_64 rounds(first);
  int number = 0;
  do {
    round(rounds(), threads);
    ++number;
  } while (std::chrono::steady_clock::now() < end);
  std::printf("c_table: seed %llu, threads %d: %d rounds, %llu calls, %llu blocks, %llu refusals\n",
              static_cast<unsigned long long>(first), threads, number, static_cast<unsigned long long>(calls.load()),
              static_cast<unsigned long long>(blocks_made.load()), static_cast<unsigned long long>(refusals.load()));
}

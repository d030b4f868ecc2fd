// PyTorch's private pools, each a pool of gpupool's, and the routes that lead requests into them.
//
// PyTorch numbers its pools, and so does gpupool. A pool that PyTorch made has PyTorch's number here; one that gpupool
// made is shown to PyTorch with its counter plus 2^32, so that the two never meet, and can be used by that number.
// Pools that PyTorch's own allocator had made before stay there: their numbers are passed on to it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "table.h"

namespace gpupool_torch {

constexpr uint64_t FOREIGN = uint64_t{1} << 32;

inline bool is_none(const MempoolId_t &id) { return id.first == 0 && id.second == 0; }

// A use of one of gpupool's pools, and how many uses of it PyTorch counts.
struct Pool {
  DeviceIndex device;
  MempoolId_t id;
  gpupool_pool *handle;
  gpupool_pool_id own_id{};
  int uses = 0;

  Pool(DeviceIndex device, MempoolId_t id, gpupool_pool *handle) : device(device), id(id), handle(handle) {
    api.pool_id(handle, &own_id);
  }
  Pool(const Pool &) = delete;
  Pool &operator=(const Pool &) = delete;
  ~Pool() { api.pool_release(handle); }
};

// Captures on a device that gpupool expects as long as this lives, or until the one that it was made for has begun on a stream
// that gpupool asks from then on.
class ExpectedCaptures {
 public:
  ExpectedCaptures(DeviceIndex device, bool is_asked) : device_(device), is_asked_(is_asked) {
    check(api.expect_captures(device));
  }
  ExpectedCaptures(const ExpectedCaptures &) = delete;
  ExpectedCaptures &operator=(const ExpectedCaptures &) = delete;
  ~ExpectedCaptures() { end(); }

  // Notes a request for memory. PyTorch begins a capture before the thread that does allocates again, or has failed to.
  void note_request(bool is_captured) {
    if (is_asked_ && (is_captured || std::this_thread::get_id() == thread_)) end();
  }

 private:
  DeviceIndex device_;
  bool is_asked_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> is_over_{false};

  void end() {
    if (!is_over_.exchange(true)) api.end_expecting_captures(device_);
  }
};

// Announces a capture that is about to begin: PyTorch captures its current stream. One of its own is asked once it has begun.
// Any other may be gone by the time it would be asked. None is expected for a scope, whose filter accepts the stream already.
inline std::shared_ptr<ExpectedCaptures> expect_capture(DeviceIndex device,
                                                        const std::function<bool(cudaStream_t)> &accepts) {
  auto stream = c10::cuda::getCurrentCUDAStream(device);
  // The default stream, which is never captured.
  if (stream.id() == 0) return nullptr;
  return accepts(lasting(stream)) ? nullptr : std::make_shared<ExpectedCaptures>(device, is_own(stream));
}

// Which requests come from a pool, from beginAllocateToPool to endAllocateToPool.
struct Route {
  DeviceIndex device;
  MempoolId_t id;
  std::function<bool(cudaStream_t)> accepts;
  uint64_t ticket;
  std::shared_ptr<Pool> pool; // null: the pool is of PyTorch's own allocator
  std::shared_ptr<ExpectedCaptures> expected;
};
using Routes = std::vector<Route>;

// A custom allocator as the source of a pool's memory.
struct Source {
  std::shared_ptr<CUDAAllocator> allocator;

  static gpupool_source of(std::shared_ptr<CUDAAllocator> allocator) {
    gpupool_source source{};
    source.context = new Source{std::move(allocator)};
    source.allocate = [](void *context, uint64_t bytes, int, void *) {
      void *pointer = nullptr;
      guarded([&] { pointer = static_cast<Source *>(context)->allocator->raw_alloc(bytes); });
      return pointer;
    };
    source.free = [](void *context, void *pointer, uint64_t, int, void *) {
      // It is called when a block is freed or a pool ends, where nothing may be thrown.
      warned([&] { static_cast<Source *>(context)->allocator->raw_delete(pointer); });
    };
    source.release = [](void *context) { delete static_cast<Source *>(context); };
    return source;
  }
};

class Pools {
 public:
  using Key = std::pair<DeviceIndex, MempoolId_t>;

  // Returns the pool of this number, or null if gpupool has none.
  std::shared_ptr<Pool> find(DeviceIndex device, const MempoolId_t &id) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto place = pools_.find({device, id});
    return place == pools_.end() ? nullptr : place->second;
  }

  // The same, also of a pool that gpupool made and PyTorch has not used yet; null if PyTorch's own allocator is to say.
  std::shared_ptr<Pool> look_up(DeviceIndex device, const MempoolId_t &id) {
    auto pool = find(device, id);
    return pool || !is_foreign(id) ? pool : open(device, id);
  }

  // The pools of all devices of this number.
  std::vector<std::shared_ptr<Pool>> find_all(const MempoolId_t &id) {
    std::vector<std::shared_ptr<Pool>> found;
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto &[key, pool] : pools_)
      if (key.second == id) found.push_back(pool);
    return found;
  }

  // Calls a function with the handle of a pool that gpupool made, on whichever device it is, if it lives.
  template <typename Function> void with_foreign(const MempoolId_t &id, Function function) {
    auto number = own_number(id);
    for (int device = 0; device < c10::cuda::device_count(); device++)
      if (gpupool_pool *handle = nullptr; api.pool_by_id(device, &number, &handle) == GPUPOOL_SUCCESS)
        function(Pool(static_cast<DeviceIndex>(device), id, handle));
  }

  std::vector<std::shared_ptr<Pool>> of_device(DeviceIndex device) {
    std::vector<std::shared_ptr<Pool>> found;
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto &[key, pool] : pools_)
      if (key.first == device) found.push_back(pool);
    return found;
  }

  // Who makes a pool. A user's has an object, which makes it; graphs begin to allocate to a number that they were
  // given.
  enum Maker { USER, GRAPHS };

  // Takes a use of a pool, which is made if there is none. Returns null if it is one of PyTorch's own allocator.
  std::shared_ptr<Pool> create_or_use(DeviceIndex device, const MempoolId_t &id,
                                      std::shared_ptr<CUDAAllocator> allocator, Maker maker) {
    if (auto pool = use(device, id, allocator)) return pool;
    if (is_native(device, id)) return nullptr;
    auto made = is_foreign(id) ? open(device, id) : make(device, id, std::move(allocator), maker);
    forget_names();
    std::lock_guard<std::mutex> lock(mutex_);
    auto [place, is_new] = pools_.emplace(Key{device, id}, made);
    place->second->uses++;
    if (is_new && !is_foreign(id)) names_[{made->own_id.first, made->own_id.second}] = id;
    return place->second;
  }

  // Makes a pool that PyTorch has just made one of gpupool's, by the number that this knows it by.
  void adopt(DeviceIndex device, const MempoolId_t &id, const gpupool_pool_id &own) {
    gpupool_pool *handle = nullptr;
    check(api.pool_by_id(device, &own, &handle));
    auto adopted = std::make_shared<Pool>(device, id, handle);
    std::shared_ptr<Pool> before; // ends after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    auto place = pools_.find({device, id});
    TORCH_CHECK(place != pools_.end(), "gpupool has no pool of PyTorch's with this number");
    adopted->uses = place->second->uses;
    names_[{own.first, own.second}] = id;
    before = std::exchange(place->second, std::move(adopted));
  }

  // Ends a use, and with the last one PyTorch's claim on the pool. Returns whether there was one.
  bool release(DeviceIndex device, const MempoolId_t &id) {
    std::shared_ptr<Pool> last; // ends after the lock
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto place = pools_.find({device, id});
      if (place == pools_.end()) return false;
      if (--place->second->uses == 0) {
        last = std::move(place->second);
        pools_.erase(place);
      }
    }
    // A capture that failed, whose end PyTorch 2.11 does not tell of, is not expected any more.
    if (last)
      change_routes([&](Routes &routes) {
        for (auto &route : routes)
          if (route.device == device && route.id == id) route.expected = nullptr;
      });
    return true;
  }

  // Ends what is expected of captures that have not ended: of one that failed PyTorch may never report the end.
  void end_expectations() {
    change_routes([](Routes &routes) {
      for (auto &route : routes) route.expected = nullptr;
    });
  }

  int uses(const std::shared_ptr<Pool> &pool) {
    std::lock_guard<std::mutex> lock(mutex_);
    return pool->uses;
  }

  void begin(DeviceIndex device, const MempoolId_t &id, std::function<bool(cudaStream_t)> accepts) {
    check_not_routed(device, id);
    auto expected = expect_capture(device, accepts);
    auto pool = create_or_use(device, id, nullptr, GRAPHS);
    if (!pool) native->beginAllocateToPool(device, id, accepts);
    Route route{device, id, std::move(accepts), api.ticket(), std::move(pool), std::move(expected)};
    change_routes([&](Routes &routes) { routes.push_back(std::move(route)); });
  }

  void end(DeviceIndex device, const MempoolId_t &id) {
    std::optional<Route> ended;
    change_routes([&](Routes &routes) {
      for (auto route = routes.begin(); route != routes.end(); ++route)
        if (route->device == device && route->id == id) {
          ended = std::move(*route);
          routes.erase(route);
          return;
        }
    });
    TORCH_CHECK(ended, "endAllocatePool: not currently recording to mempool_id");
    if (!ended->pool) native->endAllocateToPool(device, id);
  }

  // Returns the newest route that accepts a request. Its filter, a function of PyTorch's, is called without a lock.
  std::optional<Route> route(DeviceIndex device, cudaStream_t stream) {
    auto routes = routes_.get();
    std::optional<Route> found;
    for (auto route = routes->rbegin(); route != routes->rend(); ++route) {
      if (!found && route->device == device && route->accepts(stream)) found = *route;
      if (route->expected) route->expected->note_request(found && found->expected == route->expected);
    }
    return found;
  }

  // Returns the number that PyTorch knows a pool by.
  MempoolId_t shown(const gpupool_pool_id &id) {
    if (id.first == 0 && id.second == 0) return {0, 0};
    std::lock_guard<std::mutex> lock(mutex_);
    auto name = names_.find({id.first, id.second});
    if (name != names_.end()) return name->second;
    return {id.first ? id.first + FOREIGN : 0, id.second ? id.second + FOREIGN : 0};
  }

  static bool is_foreign(const MempoolId_t &id) { return id.first >= FOREIGN || id.second >= FOREIGN; }

  static gpupool_pool_id own_number(const MempoolId_t &id) {
    return {id.first ? id.first - FOREIGN : 0, id.second ? id.second - FOREIGN : 0};
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Pool>> pools_;
  // PyTorch's numbers of all pools that it made, also of those that are gone, whose blocks may live.
  std::map<std::pair<uint64_t, uint64_t>, MempoolId_t> names_;
  size_t most_names_ = 1024;
  Replaced<Routes> routes_;

  template <typename Change> void change_routes(Change change) {
    routes_.change([&](Routes &routes) {
      change(routes);
      set_detour(ROUTED, !routes.empty());
    });
  }

  void check_not_routed(DeviceIndex device, const MempoolId_t &id) {
    for (auto &route : *routes_.get())
      TORCH_CHECK(route.device != device || route.id != id, "beginAllocateToPool: already recording to mempool_id");
  }

  std::shared_ptr<Pool> use(DeviceIndex device, const MempoolId_t &id,
                            const std::shared_ptr<CUDAAllocator> &allocator) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto place = pools_.find({device, id});
    if (place == pools_.end()) return nullptr;
    TORCH_CHECK(!allocator, "The pool is there already: it keeps the allocator that it was made with");
    place->second->uses++;
    return place->second;
  }

  // Forgets the numbers of pools that are gone with all their memory, when there are twice as many as there were.
  void forget_names() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (names_.size() < most_names_) return;
    }
    struct Seen : std::set<std::pair<uint64_t, uint64_t>> {
      void see(const gpupool_segment &segment) { insert({segment.pool.first, segment.pool.second}); }
      void see(const gpupool_block &) {}
    } seen;
    auto visitor = visitor_of(seen);
    check(api.snapshot(-1, nullptr, &visitor));
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto &[key, pool] : pools_) seen.insert({pool->own_id.first, pool->own_id.second});
    std::erase_if(names_, [&](auto &name) { return !seen.count(name.first); });
    most_names_ = std::max(size_t{1024}, 2 * names_.size());
  }

  // Whether PyTorch's own allocator made the pool, before gpupool took its place or since it was uninstalled.
  bool is_native(DeviceIndex device, const MempoolId_t &id) {
    if (is_foreign(id)) return false;
    if (detours.load() & PASSING) return true;
    try {
      return native->getPoolUseCount(device, id) > 0;
    } catch (const c10::Error &) {
      return false; // it has no pool of that number
    }
  }

  std::shared_ptr<Pool> make(DeviceIndex device, const MempoolId_t &id, std::shared_ptr<CUDAAllocator> allocator,
                             Maker maker) {
    auto options = sized<gpupool_pool_options>();
    options.for_graphs = maker == GRAPHS;
    auto name = c10::str("PyTorch's (", id.first, ", ", id.second, ")");
    options.name = name.c_str();
    gpupool_source source{};
    if (allocator) {
      source = Source::of(std::move(allocator));
      options.source = &source;
    }
    gpupool_pool *handle = nullptr;
    check(api.pool_create(device, &options, &handle)); // which releases the source if it fails
    return std::make_shared<Pool>(device, id, handle);
  }

  std::shared_ptr<Pool> open(DeviceIndex device, const MempoolId_t &id) {
    auto number = own_number(id);
    gpupool_pool *handle = nullptr;
    check(api.pool_by_id(device, &number, &handle));
    return std::make_shared<Pool>(device, id, handle);
  }
};

} // namespace gpupool_torch

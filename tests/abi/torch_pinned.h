// Calls of PyTorch's interface for allocators of pinned memory. A part of torch_calls.cpp, whose blocks, streams and
// answers these are.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <cstring>
#include <deque>
#include <mutex>

static at::HostAllocator *const first_pinned = at::getHostAllocator(c10::kCUDA);

// 0 is the allocator that PyTorch came with, 1 the one that is in its place now.
static at::HostAllocator *pinned(int which) { return which ? at::getHostAllocator(c10::kCUDA) : first_pinned; }

#define ASK_PINNED(name, expression, ...)                                                                              \
  CALL(name, int which __VA_OPT__(, ) __VA_ARGS__) {                                                                   \
    return answer([=] { return pinned(which)->expression; });                                                          \
  }
CALL(pinned_in_place) {
  return answer([] { return at::getHostAllocator(c10::kCUDA) != first_pinned; });
}
CALL(pinned_allocate, int which, size_t bytes) {
  return answer([=] {
    auto data = pinned(which)->allocate(bytes);
    if (bytes) memset(data.get(), 0xa5, bytes);
    int number = ++last_number;
    auto described = Object()
                         .add("block", number)
                         .add("address", data.get())
                         .add("is_of_cpu", data.device() == c10::Device(c10::kCPU))
                         .add("is_simple", data.get() == data.get_context())
                         .add("has_raw_deleter", data.get_deleter() == pinned(which)->raw_deleter())
                         .end();
    blocks.emplace(number, std::move(data));
    return described;
  });
}
// Of an address so far into the block, with the block's context or none.
CALL(pinned_record, int which, int block, size_t offset, int with_context, int number, c10::DeviceIndex device) {
  return answer([=] {
    auto &data = blocks.at(block);
    auto *address = static_cast<char *>(data.get()) + offset;
    return pinned(which)->record_event(address, with_context ? data.get_context() : nullptr, stream(number, device));
  });
}
ASK_PINNED(pinned_record_address, record_event(address, context, stream(number)),
           void *address, void *context, int number)
ASK_PINNED(pinned_empty_cache, empty_cache())
CALL(pinned_copy_data, int which, int block, size_t bytes) {
  return answer([=] {
    std::vector<char> source(bytes, 'x');
    auto *target = blocks.at(block).get();
    pinned(which)->copy_data(target, source.data(), bytes);
    return memcmp(target, source.data(), bytes) == 0;
  });
}

static Json json_of(const c10::CachingAllocator::DurationStat &stat) {
  return Object()
      .add("total", stat.total)
      .add("max", stat.max)
      .add("min", stat.min)
      .add("count", stat.count)
      .end();
}
CALL(pinned_stats, int which) {
  return answer([=] {
    auto stats = pinned(which)->get_stats();
    Object object;
#define KEY(name) object.add(#name, json_of(stats.name))
    KEY(active_requests), KEY(active_bytes), KEY(allocations), KEY(allocated_bytes);
    KEY(host_alloc_time), KEY(host_free_time);
    object.add("num_host_alloc", stats.num_host_alloc).add("num_host_free", stats.num_host_free);
    return object.add("bucket_allocation", stats.bucket_allocation).end();
  });
}
ASK_PINNED(pinned_reset_accumulated_stats, reset_accumulated_stats())
ASK_PINNED(pinned_reset_peak_stats, reset_peak_stats())

// A stream's requests are a graph's. A filter may throw, as PyTorch's do that ask the driver.
static std::atomic<int> filters_asked;
CALL(pinned_begin, int which, Id pool, int number) {
  return answer([=] {
    auto filter = [wanted = number < 0 ? -1 : stream(number).id()](c10::Stream asked) {
      filters_asked++;
      TORCH_CHECK(wanted != -1, "a filter that fails");
      return asked.id() == wanted;
    };
    pinned(which)->begin_allocate_to_pool(pool, filter);
  });
}
ASK_PINNED(pinned_end, end_allocate_to_pool(pool), Id pool)
ASK_PINNED(pinned_release, release_pool(pool), Id pool)
CALL(number_of_filters_asked) {
  return answer([] { return filters_asked.exchange(0); });
}

#if AT_LEAST(14)
ASK_PINNED(pinned_record_history,
           record_history(enabled, enabled ? take_context : nullptr, 1000,
                          static_cast<CA::RecordContext>(enabled ? 3 : 0), true),
           int enabled)
ASK_PINNED(pinned_is_history_enabled, is_history_enabled())
CALL(pinned_segments, int which) {
  return answer([=] {
    std::vector<Json> segments;
    for (auto &segment : pinned(which)->get_segments())
      segments.push_back(Object()
                             .add("address", segment.address)
                             .add("bytes", segment.size)
                             .add("allocated", segment.allocated)
                             .add("active", segment.active)
                             .add("pool", json_of(segment.owner_private_pool_id))
                             .add("context", segment.context_when_allocated)
                             .end());
    return segments;
  });
}
CALL(pinned_traces, int which) {
  return answer([=] {
    std::vector<Json> entries;
    for (auto &entry : pinned(which)->get_traces()) entries.push_back(json_of(entry));
    return entries;
  });
}
CALL(pinned_external, int which, void *address, size_t bytes) {
  return answer([=] {
    if (bytes)
      pinned(which)->record_external_register(address, bytes);
    else
      pinned(which)->record_external_unregister(address);
  });
}
#endif

// Threads that allocate, write, hand their blocks to each other, check and free them: how many were wrong.
CALL(pinned_turn_over, int which, int threads, int steps) {
  return answer([=] {
    std::mutex mutex;
    std::deque<std::pair<uint32_t, c10::DataPtr>> handed;
    std::atomic<int> wrong{0};
    auto work = [&](uint32_t mark) {
      c10::cuda::set_device(0);
      for (int step = 0; step < steps; step++) try {
          size_t words = 128u << (step * 5 % 9);
          auto data = pinned(which)->allocate(words * sizeof mark);
          std::fill_n(static_cast<uint32_t *>(data.get()), words, mark);
          if (step % 8 == 0)
            pinned(which)->record_event(data.get(), data.get_context(), c10::cuda::getDefaultCUDAStream());
          std::lock_guard<std::mutex> lock(mutex);
          handed.emplace_back(mark, std::move(data));
          if (handed.size() < 16) continue;
          auto &[other, taken] = handed.front();
          if (*static_cast<uint32_t *>(taken.get()) != other || static_cast<uint32_t *>(taken.get())[127] != other)
            wrong++;
          handed.pop_front();
        } catch (const std::exception &) {
          wrong++;
        }
    };
    std::vector<std::thread> all;
    for (int index = 0; index < threads; index++) all.emplace_back(work, index + 1);
    for (auto &thread : all) thread.join();
    return wrong.load();
  });
}

// Another library's allocator of pinned memory, for the place with a priority; null gives it back.
struct PinnedHeap final : at::HostAllocator {
  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void *, const void *, size_t) const override {}
  bool record_event(void *, void *, c10::Stream) override { return false; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};
CALL(pinned_replace, int is_replaced, int priority) {
  return answer([=] {
    static PinnedHeap heap;
    static at::HostAllocator *before;
    if (is_replaced) before = at::getHostAllocator(c10::kCUDA);
    at::setHostAllocator(c10::kCUDA, is_replaced ? &heap : before, static_cast<uint8_t>(priority));
  });
}
// PyTorch's own, with a priority.
CALL(pinned_prefer_first, int priority) {
  return answer([=] { at::setHostAllocator(c10::kCUDA, first_pinned, static_cast<uint8_t>(priority)); });
}

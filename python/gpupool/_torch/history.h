// What PyTorch knows of each event of gpupool's: the stacks that its recorder took, the compile context and the user's
// metadata of the thread, and who wants to see events while they happen.
//
// gpupool's recording keeps a number for each stack, and this file what the number stands for.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <c10/util/ApproximateClock.h>

#include "pools.h"

namespace gpupool_torch {

using c10::GatheredContext;
using c10::CachingDeviceAllocator::AllocatorTraceTracker;
using c10::CachingDeviceAllocator::CreateContextFn;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;

// Of the calling thread, as PyTorch sets them.
inline thread_local std::vector<std::string> compile_contexts;
inline thread_local std::string user_metadata;

inline std::string compile_context() { return compile_contexts.empty() ? "N/A" : compile_contexts.back(); }

class History {
 public:
  // What a number stands for.
  struct Stack {
    std::shared_ptr<GatheredContext> context;
    std::string compile_context;
    std::string metadata;
  };

  explicit History(Pools &pools) : pools_(pools) { current = this; }

  void record(bool enabled, CreateContextFn recorder, size_t most_events, RecordContext when, bool clear,
              const std::vector<std::string> &skipped) {
    TORCH_CHECK(when == RecordContext::NEVER || recorder);
    auto recording = sized<gpupool_recording>();
    for (auto &action : skipped)
      recording.skipped_actions |= uint32_t{1} << c10::CachingDeviceAllocator::parseTraceEntryAction(action);
    most_events = std::max(size_t{1}, most_events);
    // gpupool notes a snapshot of each device before it visits events, PyTorch's own allocator afterwards.
    recording.most_events = most_events + static_cast<size_t>(c10::cuda::device_count());
    // A number also carries what is not a stack, so that one is asked for in any case.
    recording.alloc_stacks = 1;
    recording.live_stacks = when >= RecordContext::STATE;
    recording.free_stacks = 1;
    recording.take_stack = [](int is_free) { return current->take_stack(is_free); };
    recording.forget = clear;
    std::deque<TraceEntry> forgotten_entries; // ends after the lock: stacks may be objects of Python's
    {
      std::lock_guard<std::mutex> lock(mutex_);
      recorder_ = enabled ? recorder : nullptr;
      when_ = enabled ? when : RecordContext::NEVER;
      most_events_ = most_events;
      if (!enabled || clear) std::swap(added_, forgotten_entries);
    }
    check(api.record(enabled ? &recording : nullptr));
    // Live blocks keep theirs.
    if (!enabled) forget(0);
    is_recording_.store(enabled);
  }

  bool is_recording() const { return is_recording_.load(); }

  // Keeps an entry that no event of gpupool's stands for.
  void add(TraceEntry entry) {
    std::lock_guard<std::mutex> lock(mutex_);
    added_.push_back(std::move(entry));
    if (added_.size() > most_events_) added_.pop_front();
  }

  // Returns the stack under which a live block or a segment was allocated.
  std::shared_ptr<GatheredContext> context(uint32_t number) {
    if (!number) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    auto stack = stacks_.find(number);
    return stack == stacks_.end() ? nullptr : stack->second.context;
  }

  // The same, where gpupool may not be the allocator of devices' memory, and keeps no stacks then.
  static std::shared_ptr<GatheredContext> known_context(uint32_t number) {
    return current ? current->context(number) : nullptr;
  }

  // The stack under which the last block, and the last segment, came to each address.
  struct Before {
    std::unordered_map<uint64_t, uint32_t> blocks, segments;
  };

  // What a visitor of events gathers.
  struct Entries {
    std::deque<TraceEntry> entries;
    Before before;
  };
  void collect(Entries &collected, const gpupool_event &event) {
    collected.entries.push_back(entry(event, collected.before));
  }
  // Returns all that was recorded, in the order in which it happened.
  std::deque<TraceEntry> finish(Entries collected) {
    rethrow();
    auto &entries = collected.entries;
    std::set<DeviceIndex> noted; // that this snapshot was taken
    auto is_noted = [&](const TraceEntry &entry) {
      return entry.action_ == TraceEntry::SNAPSHOT && noted.insert(entry.device_).second;
    };
    while (!entries.empty() && is_noted(entries.back())) entries.pop_back();
    std::deque<TraceEntry> all;
    std::lock_guard<std::mutex> lock(mutex_);
    std::merge(added_.begin(), added_.end(), entries.begin(), entries.end(), std::back_inserter(all),
               [](const TraceEntry &a, const TraceEntry &b) { return a.time_.t_ < b.time_.t_; });
    while (all.size() > most_events_) all.pop_front();
    return all;
  }

  void attach(AllocatorTraceTracker tracker) {
    trackers_.change([&](auto &trackers) { trackers.push_back(std::move(tracker)); });
    check(api.observe(
        [](void *context, const gpupool_event *event) {
          guarded([&] { static_cast<History *>(context)->track(*event); });
        },
        this));
    set_detour(OBSERVED, true);
  }

 private:
  // Numbers of PyTorch's have the top bit, so that none is taken for one of gpupool's own.
  static constexpr uint32_t OF_TORCH = uint32_t{1} << 31;
  // So many of the newest are never forgotten, since their events may not be noted yet.
  static constexpr uint32_t NEWEST = 1 << 16;

  static inline History *current = nullptr;

  Pools &pools_;
  std::mutex mutex_;
  std::atomic<bool> is_recording_{false};
  CreateContextFn recorder_ = nullptr;
  RecordContext when_ = RecordContext::NEVER;
  size_t most_events_ = 1;
  uint32_t last_number_ = 0;
  size_t most_stacks_ = 2 * NEWEST;
  std::unordered_map<uint32_t, Stack> stacks_;
  std::deque<TraceEntry> added_; // by add()
  Replaced<std::vector<AllocatorTraceTracker>> trackers_;

  uint32_t take_stack(bool is_free) noexcept {
    uint32_t number = 0;
    warned([&] {
      CreateContextFn recorder;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        bool is_wanted = when_ >= (is_free ? RecordContext::ALL : RecordContext::STATE);
        recorder = is_wanted ? recorder_ : nullptr;
      }
      if (!recorder && compile_contexts.empty() && user_metadata.empty()) return;
      Stack stack{recorder ? recorder() : nullptr, compile_context(), user_metadata};
      bool are_many;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        last_number_ = last_number_ % (OF_TORCH - 1) + 1;
        number = last_number_ | OF_TORCH;
        std::swap(stacks_[number], stack); // what it stood for ends after the lock
        are_many = stacks_.size() > most_stacks_;
      }
      if (are_many) forget(NEWEST);
    });
    return number;
  }

  // Forgets the stacks that neither an event nor a live block names, but for so many of the newest.
  void forget(uint32_t newest) {
    std::unordered_set<uint32_t> named;
    check(api.visit_stacks(&named, [](void *context, uint32_t number) {
      guarded([&] { static_cast<std::unordered_set<uint32_t> *>(context)->insert(number); });
    }));
    std::vector<Stack> forgotten;
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto stack = stacks_.begin(); stack != stacks_.end();) {
      uint32_t age = (last_number_ - (stack->first & ~OF_TORCH)) & ~OF_TORCH;
      if (age < newest || named.count(stack->first)) {
        ++stack;
      } else {
        forgotten.push_back(std::move(stack->second));
        stack = stacks_.erase(stack);
      }
    }
    most_stacks_ = std::max(size_t{2 * NEWEST}, 2 * stacks_.size());
  }

  Stack stack(uint32_t number) {
    auto place = stacks_.find(number);
    return place == stacks_.end() ? Stack{nullptr, "N/A", ""} : place->second;
  }

  TraceEntry entry(const gpupool_event &event, Before &before) {
    auto pool = pools_.shown(event.pool);
    std::lock_guard<std::mutex> lock(mutex_);
    auto known = stack(event.stack);
    auto is = [&](auto... actions) { return ((event.action == actions) || ...); };
    bool is_of_block = is(GPUPOOL_ALLOC, GPUPOOL_FREE_REQUESTED, GPUPOOL_FREE_COMPLETED);
    auto &came = is_of_block ? before.blocks : before.segments;
    // What goes without a stack of its own has that under which it came.
    if (is(GPUPOOL_ALLOC, GPUPOOL_SEGMENT_ALLOC, GPUPOOL_SEGMENT_MAP))
      came[event.address] = event.stack;
    else if (!known.context && is(GPUPOOL_FREE_REQUESTED, GPUPOOL_FREE_COMPLETED, GPUPOOL_SEGMENT_FREE, GPUPOOL_SEGMENT_UNMAP))
      if (auto place = came.find(event.address); place != came.end()) known.context = stack(place->second).context;
    if (when_ < RecordContext::ALLOC) known.context = nullptr;
    TraceEntry entry(static_cast<TraceEntry::Action>(event.action), static_cast<DeviceIndex>(event.device),
                     event.address, event.bytes, event.stream, pool, 0, std::move(known.context),
                     std::move(known.compile_context), std::move(known.metadata));
    entry.time_.t_ = static_cast<c10::time_t>(event.unix_micros);
    return entry;
  }

  void track(const gpupool_event &event) {
    auto trackers = trackers_.get();
    Before none;
    auto entry = this->entry(event, none);
    entry.compile_context_ = compile_context();
    entry.user_metadata_ = user_metadata;
    entry.time_.approx_t_ = c10::getApproximateTime();
    for (auto &tracker : *trackers) tracker(entry);
  }
};

} // namespace gpupool_torch

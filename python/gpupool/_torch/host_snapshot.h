// Snapshots of pinned memory in PyTorch's form, since PyTorch 2.14: a segment is a block there, for its own allocator cuts
// none.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <vector>

#include "history.h"

namespace gpupool_torch {

#if PYTORCH_AT_LEAST(2, 14)
struct HostSnapshot {
  std::vector<at::HostSegmentInfo> segments;
  std::vector<TraceEntry> entries;

  void take(bool with_entries) {
    auto visitor = visitor_of(*this, with_entries);
    thrown = {}; // by what another library did
    check(api.pinned_snapshot(&visitor));
  }

  void see(const gpupool_segment &) {}
  void see(const gpupool_block &block) {
    auto &info = segments.emplace_back();
    info.address = reinterpret_cast<size_t>(block.address);
    info.size = block.bytes;
    info.allocated = block.is_live;
    info.active = block.is_live || block.is_waiting;
    info.context_when_allocated = History::known_context(block.stack);
  }

  void see(const gpupool_event &event) {
    auto &entry = entries.emplace_back(static_cast<TraceEntry::Action>(event.action), DeviceIndex{-1}, event.address,
                                       event.bytes, nullptr, MempoolId_t{0, 0}, 0, History::known_context(event.stack));
    entry.time_.t_ = static_cast<c10::time_t>(event.unix_micros);
  }
};
#endif

} // namespace gpupool_torch

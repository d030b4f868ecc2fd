//! Reports on memory: statistics, summaries, snapshots, and recording.

mod snapshot;
mod stats;
mod summary;

pub use snapshot::{BlockView, MemorySnapshot, SegmentView, memory_snapshot};
pub(in crate::memory) use snapshot::{Frozen, FrozenCache, block_around, segments_of_pool};
pub(crate) use snapshot::{
    begin_observing, begin_recording, end_observing, end_recording, end_recording_with_stacks, live_block,
    stacks_in_use, take_snapshot,
};
pub use stats::{DeviceStats, MemoryStats, PoolStats, Stat, Stats, memory_stats, reset_peak_memory_stats};
pub(crate) use stats::{device_counters, device_stats, largest_block, stat_counters};
#[cfg(feature = "python")]
pub(crate) use stats::{memory_counters, pool_counters};
pub(in crate::memory) use stats::{reset_peaks_of, reset_pool_peaks};
pub(crate) use summary::pool_summaries;
pub(in crate::memory) use summary::summarize;
pub use summary::{PoolSummary, StreamStats};

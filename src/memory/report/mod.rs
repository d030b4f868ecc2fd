//! Reports on memory: statistics, summaries, snapshots, and recording.

mod device_stats;
mod frozen;
mod largest_block;
mod live_block;
mod recording;
mod snapshot;
mod stats;
mod summary;

pub(crate) use device_stats::device_stats;
pub use device_stats::{DeviceStats, Stat, Stats};
pub(crate) use device_stats::{device_counters, stat_counters};
pub(in crate::memory) use frozen::{Frozen, FrozenCache};
pub(crate) use largest_block::largest_block;
pub(in crate::memory) use live_block::block_around;
pub(crate) use live_block::live_block;
pub(crate) use recording::{
    begin_observing, begin_recording, end_observing, end_recording, end_recording_with_stacks, stacks_in_use,
};
pub(in crate::memory) use snapshot::segments_of_pool;
pub(crate) use snapshot::take_snapshot;
pub use snapshot::{BlockView, MemorySnapshot, SegmentView, memory_snapshot};
pub use stats::{MemoryStats, PoolStats, memory_stats, reset_peak_memory_stats};
#[cfg(feature = "python")]
pub(crate) use stats::{memory_counters, pool_counters};
pub(in crate::memory) use stats::{reset_peaks_of, reset_pool_peaks};
pub(crate) use summary::pool_summaries;
pub(in crate::memory) use summary::summarize;
pub use summary::{PoolSummary, StreamStats};

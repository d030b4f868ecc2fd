//! What is told of memory: statistics, summaries, snapshots.

pub(in crate::memory) mod frozen;
pub(crate) mod snapshot;
pub(in crate::memory) mod stats;
pub(in crate::memory) mod summary;

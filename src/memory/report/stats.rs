//! Statistics of pools and devices. Counted by each thread for itself and summed up when asked for.

use std::sync::Arc;

use crate::error::{MemoryUse, Result};
use crate::ids::Device;
use crate::memory::cache::heap::Counts;
use crate::memory::cache::thread as local;
use crate::memory::device::budget::Budget;
use crate::memory::device::device_memory::DeviceMemory;
use crate::memory::pool::state::Pool;
use crate::memory::report::summary::{self, PoolSummary};
use crate::memory::serve::trim as release;

/// What a pool holds and has done. Bytes and counts of blocks. What is reserved is live, cached or being released.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes of blocks that callers hold, as cut: multiples of 512, small ones rounded up by at most an eighth.
    pub live_bytes: u64,
    /// The most they were. Exact for a pool that one thread uses; with several, taken whenever one of them grows.
    pub peak_live_bytes: u64,
    /// The bytes that callers asked for, of the same blocks.
    pub requested_bytes: u64,
    /// Bytes that are free for the next requests.
    pub cached_bytes: u64,
    /// Bytes that nobody can have any more and that go back to the driver once the GPU is done with them; also those that
    /// a request under way is just adding or moving.
    pub releasing_bytes: u64,
    /// Physical bytes that the pool has.
    pub reserved_bytes: u64,
    /// The most they were.
    pub peak_reserved_bytes: u64,
    /// Blocks that callers hold.
    pub live_blocks: u64,
    /// Blocks that were freed and wait for other streams; they count as live.
    pub waiting_blocks: u64,
    /// Blocks handed out so far.
    pub allocations: u64,
    /// Blocks that came back so far.
    pub frees: u64,
}

/// What a device's memory holds and has done, all pools together.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryStats {
    /// All pools together, and of those that are gone what they have done and what is being released. The peak of live
    /// bytes is the sum of theirs.
    pub total: PoolStats,
    /// Calls of the driver's memory functions so far.
    pub driver_calls: u64,
    /// Pages of 2 MiB that were moved so far.
    pub moved_pages: u64,
    /// How many pools there are, the default one among them.
    pub pools: u64,
}

impl PoolStats {
    pub(in crate::memory) fn of(pool: &Pool) -> Self {
        PoolSummary::of(pool).stats
    }

    /// Notes what is reserved. Never less than what was found in use, where both change meanwhile.
    pub(in crate::memory) fn set_reserved(&mut self, budget: &Budget) {
        let in_use = self.live_bytes + self.cached_bytes;
        self.reserved_bytes = budget.reserved().max(in_use);
        self.releasing_bytes = self.reserved_bytes - in_use;
        self.peak_reserved_bytes = budget.peak().max(self.reserved_bytes);
    }
}

/// The statistics of a device's memory.
///
/// # Errors
/// As [`device`](crate::device).
pub fn memory_stats(device: Device) -> Result<MemoryStats> {
    Ok(summary::summarize(DeviceMemory::of(device)?).0)
}

/// What all caches of a pool have counted, those that are gone too.
pub(in crate::memory) fn counts(pool: &Pool) -> Counts {
    let (caches, mut counts) = pool.caches_and_past();
    caches.iter().for_each(|cache| counts.add(cache.lock(local::thread()).counts()));
    counts
}

/// Starts the peaks of a device's memory anew, from what it holds now.
///
/// # Errors
/// As [`memory_stats`].
pub fn reset_peak_memory_stats(device: Device) -> Result<()> {
    let memory = DeviceMemory::of(device)?;
    memory.budget.reset_peak();
    memory.pools().iter().for_each(|pool| reset_peaks(pool));
    Ok(())
}

/// Starts the peaks of a pool anew, from what it holds now.
pub(in crate::memory) fn reset_peaks(pool: &Pool) {
    for cache in pool.caches() {
        cache.lock(local::thread()).reset_peak();
        cache.tell_live(pool, local::thread());
    }
    pool.reset_peaks();
}

/// Gives free memory of every pool back to the driver, on every device that was used, and answers the bytes that went. Works
/// inside scopes, and does not wait: pages that the GPU may still be using go later.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses; what it did not refuse has gone.
pub fn empty_cache() -> Result<u64> {
    crate::process::refuse_forked()?;
    let mut released = 0;
    let mut outcome = Ok(());
    for memory in DeviceMemory::all() {
        match release::trim_device(memory, local::thread(), false) {
            Ok(bytes) => released += bytes,
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome.map(|()| released)
}

/// Gives every pool's free memory on the device back, for somebody whose request failed. Waits for work that uses it.
pub(in crate::memory) fn release(device: Device) {
    for memory in DeviceMemory::all().filter(|memory| memory.device == device) {
        // What cannot be given back leaves the rest to help.
        let _ = release::trim_device(memory, local::thread(), true);
    }
}

/// What each pool has of the device's memory.
pub(in crate::memory) fn used(device: Device) -> Vec<MemoryUse> {
    let Some(memory) = DeviceMemory::all().find(|memory| memory.device == device) else { return Vec::new() };
    let describe = |pool: &Arc<Pool>| {
        let stats = PoolStats::of(pool);
        let name =
            if pool.is_default() { "default memory pool".to_owned() } else { format!("memory pool {}", pool.id) };
        MemoryUse { pool: name, count: stats.live_blocks as usize, bytes: stats.reserved_bytes }
    };
    memory.pools().iter().map(describe).filter(|used| used.bytes > 0).collect()
}

//! Statistics of pools and devices. Counted by each thread for itself and summed up when asked for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::device_memory::DeviceMemory;
use super::pool::Pool;
use super::{local, release};
use crate::error::Result;
use crate::stream::Device;

/// What a pool holds and has done. Bytes and counts of blocks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes of blocks that callers hold, as cut: multiples of 512, small ones rounded up by at most an eighth.
    pub live_bytes: u64,
    /// The most they were. Exact for a pool that one thread uses; with several, taken whenever one of them grows.
    pub peak_live_bytes: u64,
    /// The bytes that callers asked for, of the same blocks.
    pub requested_bytes: u64,
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
    /// All pools together. The peak of live bytes is the sum of theirs.
    pub total: PoolStats,
    /// Calls of the driver's memory functions so far.
    pub driver_calls: u64,
    /// Pages of 2 MiB that were moved so far.
    pub moved_pages: u64,
    /// How many pools there are, the default one among them.
    pub pools: usize,
}

impl PoolStats {
    pub(super) fn of(pool: &Pool) -> Self {
        let thread = local::thread();
        let (caches, past) = (pool.caches(), pool.past());
        let mut stats = Self {
            allocations: past.allocations,
            frees: past.frees,
            reserved_bytes: pool.budget.reserved(),
            peak_reserved_bytes: pool.budget.peak(),
            peak_live_bytes: pool.peak_live().max(past.peak),
            ..Self::default()
        };
        for cache in caches {
            let counts = cache.lock(thread).counts();
            stats.live_bytes += counts.live;
            stats.requested_bytes += counts.requested;
            stats.allocations += counts.allocations;
            stats.frees += counts.frees;
            stats.peak_live_bytes = stats.peak_live_bytes.max(counts.peak);
            stats.waiting_blocks += cache.waiting.change(|waiting| (waiting.len(), waiting.len())) as u64;
        }
        stats.live_blocks = stats.allocations - stats.frees;
        stats.peak_live_bytes = stats.peak_live_bytes.max(stats.live_bytes);
        stats
    }
}

/// The statistics of a device's memory.
///
/// # Errors
/// As [`device`](crate::device).
pub fn memory_stats(device: Device) -> Result<MemoryStats> {
    let memory = DeviceMemory::of(device)?;
    let pools = memory.pools();
    let mut stats = MemoryStats {
        driver_calls: memory.driver_calls.load(Ordering::Relaxed),
        moved_pages: memory.moved_pages.load(Ordering::Relaxed),
        pools: pools.len(),
        ..MemoryStats::default()
    };
    let total = &mut stats.total;
    for pool in &pools {
        let one = PoolStats::of(pool);
        total.live_bytes += one.live_bytes;
        total.peak_live_bytes += one.peak_live_bytes;
        total.requested_bytes += one.requested_bytes;
        total.live_blocks += one.live_blocks;
        total.waiting_blocks += one.waiting_blocks;
        total.allocations += one.allocations;
        total.frees += one.frees;
    }
    total.reserved_bytes = memory.budget.reserved();
    total.peak_reserved_bytes = memory.budget.peak();
    Ok(stats)
}

/// Starts the peaks of a device's memory anew, from what it holds now.
///
/// # Errors
/// As [`memory_stats`].
pub fn reset_peak_memory_stats(device: Device) -> Result<()> {
    let memory = DeviceMemory::of(device)?;
    memory.budget.reset_peak();
    for pool in memory.pools() {
        for cache in pool.caches() {
            cache.lock(local::thread()).reset_peak();
            cache.tell_live(&pool, local::thread());
        }
        pool.reset_peaks();
    }
    Ok(())
}

/// Gives free memory of every pool back to the driver, on every device that was used, and answers the bytes that went. Works
/// inside scopes, and does not wait: pages that the GPU may still be using go later.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses; what it did not refuse has gone.
pub fn empty_cache() -> Result<u64> {
    crate::lifecycle::refuse_forked()?;
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
pub(super) fn release(device: Device) {
    for memory in DeviceMemory::all().filter(|memory| memory.device == device) {
        // What cannot be given back leaves the rest to help.
        let _ = release::trim_device(memory, local::thread(), true);
    }
}

/// What holds the device's memory, for an error: pool, blocks, physical bytes.
pub(super) fn held(device: Device) -> Vec<(String, usize, u64)> {
    let Some(memory) = DeviceMemory::all().find(|memory| memory.device == device) else { return Vec::new() };
    let describe = |pool: &Arc<Pool>| {
        let stats = PoolStats::of(pool);
        let name =
            if pool.is_default() { "default memory pool".to_owned() } else { format!("memory pool {}", pool.id) };
        (name, stats.live_blocks as usize, stats.reserved_bytes)
    };
    memory.pools().iter().map(describe).filter(|(_, _, bytes)| *bytes > 0).collect()
}

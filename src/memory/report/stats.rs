//! Statistics of pools and devices. Each stream is counted for itself; a query adds the counts up.

use std::time::Duration;

use super::summary::{PoolSummary, summarize};
use crate::counters::counters;
use crate::error::Result;
use crate::ids::Device;
use crate::memory::cache::{ALL, Counts, DeviceCaches};
use crate::memory::device::Budget;
use crate::memory::pool::Pool;
use crate::memory::serve::device_caches;
use crate::runtime;
use crate::sync::ThisThread;

counters! {
    $
    /// Statistics of a pool, in bytes and in numbers of blocks. Reserved memory is live, cached or being released; live
    /// memory may also be asleep.
    #[non_exhaustive]
    pub struct PoolStats as pool_counters {
        /// Bytes of live blocks, with rounding: multiples of 512, small ones rounded up by at most an eighth.
        pub live_bytes: u64,
        /// The peak of `live_bytes`: exact on a device that is used on one stream. With several streams it is an upper
        /// bound: never less than the true peak, and never more than `peak_reserved_bytes`. It exceeds the true peak by at
        /// most 1 MiB for each stream, unless threads allocate on several streams at the same time: then by memory that was
        /// freed on one stream, until pages of it are used elsewhere.
        pub peak_live_bytes: u64,
        /// The requested bytes of the same blocks.
        pub requested_bytes: u64,
        /// Free bytes, cached for the next requests.
        pub cached_bytes: u64,
        /// Bytes that no request can use any more and that are released to the driver once the GPU is done with them; also
        /// those that a request in progress is adding or moving.
        pub releasing_bytes: u64,
        /// Live bytes that are asleep, without device memory: live, cached and releasing bytes add up to these and the
        /// reserved bytes.
        pub asleep_bytes: u64,
        /// Bytes of pinned memory that hold the backup of what is asleep.
        pub backup_bytes: u64,
        /// Bytes of physical memory that the pool has.
        pub reserved_bytes: u64,
        /// The peak of `reserved_bytes`.
        pub peak_reserved_bytes: u64,
        /// Live blocks.
        pub live_blocks: u64,
        /// Blocks that were freed and wait for other streams; they count as live.
        pub waiting_blocks: u64,
        /// Allocations so far.
        pub allocations: u64,
        /// Frees so far.
        pub frees: u64,
    }
}

counters! {
    $
    /// Statistics of a device's memory, all pools together.
    #[non_exhaustive]
    pub struct MemoryStats as memory_counters {
        /// All pools together; of pools that no longer exist, their allocations and frees and the memory being released.
        pub total: PoolStats as _,
        /// Calls of the driver's memory functions so far.
        pub driver_calls: u64,
        /// Pages of 2 MiB that were moved so far.
        pub moved_pages: u64,
        /// Requests that were tried again after memory was released to the driver so far.
        pub retries: u64,
        /// Requests that failed for lack of memory so far.
        pub failures: u64,
        /// The number of pools, with the default one.
        pub pools: u64,
        /// Bytes of other processes' buffers that are attached on the device. The counts above do not include them, since
        /// those are this process's own memory.
        pub attached_bytes: u64,
        /// Bytes of buffers that were sent to other processes by a queue or a pipe, and that none has attached yet. They
        /// are live.
        pub sent_bytes: u64,
        /// Times that this process asked its neighbours for memory so far, since a request found none.
        pub asked_neighbours: u64,
        /// Bytes that they gave back for it so far.
        pub received_bytes: u64,
        /// Time that it waited for that so far.
        pub asking_time: Duration as asking_seconds,
        /// Questions of neighbours for memory that this process answered so far: each asks for one kind of memory after
        /// the other.
        pub asked_by_neighbours: u64,
        /// Bytes that it gave back for them so far.
        pub given_bytes: u64,
    }
}

impl PoolStats {
    pub(in crate::memory) fn of(pool: &Pool) -> Self {
        PoolSummary::with_counts(pool).0.stats
    }

    /// Notes what caches have counted.
    pub(in crate::memory) fn set_counts(&mut self, counts: &Counts) {
        let now = counts.now[ALL];
        (self.live_bytes, self.requested_bytes, self.live_blocks) = (now.bytes, now.requested, now.blocks);
        self.waiting_blocks = counts.waiting[ALL].blocks;
        self.peak_live_bytes = counts.peak[ALL].bytes;
        (self.allocations, self.frees) = (counts.allocations(), counts.frees());
    }

    /// Returns the bytes that are live or cached and have device memory behind them.
    pub(in crate::memory) const fn in_use(&self) -> u64 {
        self.live_bytes.saturating_sub(self.asleep_bytes) + self.cached_bytes
    }

    /// Notes what is reserved. Never less than what was found in use, where both change meanwhile.
    pub(in crate::memory) fn set_reserved(&mut self, budget: &Budget) {
        let in_use = self.in_use();
        self.reserved_bytes = budget.reserved().max(in_use);
        self.releasing_bytes = self.reserved_bytes - in_use;
        self.peak_reserved_bytes = budget.peak().max(self.reserved_bytes);
        self.peak_live_bytes = self.peak_live_bytes.min(self.peak_reserved_bytes).max(self.live_bytes);
    }
}

/// Returns the statistics of a device's memory.
///
/// # Errors
/// As [`device`](crate::device).
pub fn memory_stats(device: Device) -> Result<MemoryStats> {
    Ok(summarize(device_caches(runtime::existing(device)?)?).0)
}

/// Resets the peaks of a device's memory to the current values.
///
/// # Errors
/// As [`memory_stats`].
pub fn reset_peak_memory_stats(device: Device) -> Result<()> {
    device_caches(runtime::existing(device)?).map(reset_peaks_of)
}

/// [`reset_peak_memory_stats`] of a device or of a NUMA node of the host.
pub(in crate::memory) fn reset_peaks_of(caches: &DeviceCaches) {
    caches.memory.budget.reset_peak();
    caches.memory.pieces.reset_peaks();
    caches.reports.reset_free_beside_held();
    caches.pools.all().iter().for_each(|pool| reset_pool_peaks(pool));
    caches.pools.reset_past_peaks();
    caches.memory.live.reset();
}

/// Starts the peaks of a pool anew, from what it holds now.
pub(in crate::memory) fn reset_pool_peaks(pool: &Pool) {
    let thread = ThisThread::get();
    for cache in DeviceCaches::caches_of(pool) {
        cache.lock(thread).reset_peak();
    }
    DeviceCaches::reset_past_peak(pool);
    pool.budget().reset_peak();
    pool.ledger.live.reset();
}

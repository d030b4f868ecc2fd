//! Statistics of pools and devices. Counted by each thread for itself and summed up when asked for.

use super::summary::{self, PoolSummary};
use crate::error::Result;
use crate::ids::Device;
use crate::memory::cache::{ALL, Counts, DeviceCaches};
use crate::memory::device::Budget;
use crate::memory::pool::Pool;
use crate::memory::serve::device_caches;
use crate::sync::ThisThread;

/// What a pool holds and has done. Bytes and counts of blocks. What is reserved is live, cached or being released; what is
/// live may also be asleep.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes of blocks that callers hold, as cut: multiples of 512, small ones rounded up by at most an eighth.
    pub live_bytes: u64,
    /// The most they were: exact for a pool that one thread uses on one stream. With several threads or streams a bound:
    /// never less than the most that callers held at once, and never more than `peak_reserved_bytes`. It exceeds the
    /// former by what was freed in one of them and not yet told to the others, as it is once the pages go elsewhere, or
    /// after a thousand frees.
    pub peak_live_bytes: u64,
    /// The bytes that callers asked for, of the same blocks.
    pub requested_bytes: u64,
    /// Bytes that are free for the next requests.
    pub cached_bytes: u64,
    /// Bytes that no request can have any more and that go back to the driver once the GPU is done with them; also those
    /// that a request under way is just adding or moving.
    pub releasing_bytes: u64,
    /// Of the live bytes those that are asleep, with no device memory behind them: live, cached and being released are these
    /// and what is reserved.
    pub asleep_bytes: u64,
    /// Bytes of pinned memory that hold the content of what is asleep.
    pub backup_bytes: u64,
    /// Extent bytes that the pool has.
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
    /// All pools together, and of those that are gone what they have done and what is being released.
    pub total: PoolStats,
    /// Calls of the driver's memory functions so far.
    pub driver_calls: u64,
    /// Pages of 2 MiB that were moved so far.
    pub moved_pages: u64,
    /// How many pools there are, the default one among them.
    pub pools: u64,
    /// Bytes of other processes' buffers that are attached for the device. They are none of the bytes above, which are this
    /// process's own.
    pub attached_bytes: u64,
    /// Bytes of buffers that were sent to other processes by a queue or a pipe, and that none has taken up yet. They are live.
    pub sent_bytes: u64,
}

impl MemoryStats {
    /// Adds what another place has. Of the peaks too, so that they are bounds of what was at once.
    pub(in crate::memory) fn add(&mut self, other: &Self) {
        let (sum, more) = (&mut self.total, &other.total);
        for (sum, more) in [
            (&mut sum.live_bytes, more.live_bytes),
            (&mut sum.peak_live_bytes, more.peak_live_bytes),
            (&mut sum.requested_bytes, more.requested_bytes),
            (&mut sum.cached_bytes, more.cached_bytes),
            (&mut sum.releasing_bytes, more.releasing_bytes),
            (&mut sum.asleep_bytes, more.asleep_bytes),
            (&mut sum.backup_bytes, more.backup_bytes),
            (&mut sum.reserved_bytes, more.reserved_bytes),
            (&mut sum.peak_reserved_bytes, more.peak_reserved_bytes),
            (&mut sum.live_blocks, more.live_blocks),
            (&mut sum.waiting_blocks, more.waiting_blocks),
            (&mut sum.allocations, more.allocations),
            (&mut sum.frees, more.frees),
            (&mut self.driver_calls, other.driver_calls),
            (&mut self.moved_pages, other.moved_pages),
            (&mut self.pools, other.pools),
            (&mut self.attached_bytes, other.attached_bytes),
            (&mut self.sent_bytes, other.sent_bytes),
        ] {
            *sum += more;
        }
    }
}

impl PoolStats {
    pub(in crate::memory) fn of(pool: &Pool) -> Self {
        PoolSummary::of(pool).stats
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
    Ok(summary::summarize(device_caches(device)?).0)
}

/// Starts the peaks of a device's memory anew, from what it holds now.
///
/// # Errors
/// As [`memory_stats`].
pub fn reset_peak_memory_stats(device: Device) -> Result<()> {
    let caches = device_caches(device)?;
    caches.memory.budget.reset_peak();
    caches.memory.pieces.reset_peaks();
    caches.reset_free_beside_held();
    caches.pools().iter().for_each(|pool| reset_pool_peaks(pool));
    caches.reset_past_peaks();
    caches.memory.live.reset();
    Ok(())
}

/// Starts the peaks of a pool anew, from what it holds now.
pub(in crate::memory) fn reset_pool_peaks(pool: &Pool) {
    let thread = ThisThread::get();
    for cache in DeviceCaches::caches_of(pool) {
        cache.lock(thread).reset_peak();
    }
    DeviceCaches::reset_past_peak(pool);
    pool.reset_peaks();
}

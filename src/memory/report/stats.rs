//! Statistics of pools and devices. Each stream is counted for itself; a query adds the counts up.
//!
//! PyTorch's statistics of a device are of all blocks, small ones and large ones, with peaks and sums. A small block is a
//! slot of a slab here, and slabs are reserved for small blocks; a small segment is a piece of one page, whatever is in
//! it. Free blocks beside held ones are counted on demand, and their peaks and sums are of what was found then. Their
//! structs are those of `gpupool.h`, so each counter is declared only here.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::summary::{PoolSummary, summarize};
use crate::counters::counters;
use crate::error::Result;
use crate::ids::{Device, MemoryLocation};
use crate::memory::cache::{ALL, Amount, Amounts, Counts, DeviceCaches};
use crate::memory::device::{Budget, Flow};
use crate::memory::pool::Pool;
use crate::memory::serve::device_caches;
use crate::memory::tuning::PAGE;
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

counters! {
    $
    /// `gpupool_stat`.
    #[repr(C)]
    pub struct Stat as stat_counters {
        /// The current value.
        pub current: i64,
        /// The peak.
        pub peak: i64,
        /// The sum of all increases since the process started.
        pub allocated: i64,
        /// The sum of all decreases.
        pub freed: i64,
    }
}

impl Stat {
    fn new([current, peak, allocated, freed]: [u64; 4]) -> Self {
        let [current, peak, allocated, freed] = [current, peak, allocated, freed].map(u64::cast_signed);
        Self { current, peak, allocated, freed }
    }
}

impl From<Flow> for Stat {
    fn from(flow: Flow) -> Self {
        Self::new([flow.now(), flow.peak, flow.came, flow.went])
    }
}

/// Of all memory; of small blocks, which stand in slabs; of all else.
pub type Stats = [Stat; 3];

counters! {
    $
    /// `gpupool_device_stats`: all pools of a device together.
    #[repr(C)]
    pub struct DeviceStats as device_counters {
        /// The size of this struct, in bytes, as the caller sets it.
        pub size: u64,
        /// Live blocks.
        pub allocation: Stats,
        /// Pieces of memory from the driver.
        pub segment: Stats,
        /// Live blocks, and freed ones that wait for streams.
        pub active: Stats,
        /// Free blocks next to live ones.
        pub inactive_split: Stats,
        /// Bytes of live blocks.
        pub allocated_bytes: Stats,
        /// Bytes from the driver.
        pub reserved_bytes: Stats,
        /// Bytes of live blocks, and of freed ones that wait for streams.
        pub active_bytes: Stats,
        /// Bytes of free blocks next to live ones.
        pub inactive_split_bytes: Stats,
        /// Requested bytes of the live blocks.
        pub requested_bytes: Stats,
        /// Requests that were tried again after memory was released to the driver.
        pub alloc_retries: i64,
        /// Requests that failed for lack of memory.
        pub ooms: i64,
        /// Driver calls that allocated memory.
        pub device_allocs: i64,
        /// Driver calls that freed memory.
        pub device_frees: i64,
    }
}

/// Returns PyTorch's statistics of memory there.
pub(crate) fn device_stats(location: impl Into<MemoryLocation>) -> Result<DeviceStats> {
    let caches = device_caches(location)?;
    let (_, _, counts) = summarize(caches);
    let (out, back) = caches.reports.grow(counts.ever, counts.back());
    let held = counts.held();
    let stats = |of: fn(Amount) -> u64, now: Amounts, peak: Amounts, came: Amounts, went: Amounts| -> Stats {
        std::array::from_fn(|kind| {
            Stat::new([of(now[kind]), of(peak[kind]).max(of(now[kind])), of(came[kind]), of(went[kind])])
        })
    };
    // Waiting blocks have been freed.
    let freed = std::array::from_fn(|kind| back[kind].plus(counts.waiting[kind]));
    let active = |of| stats(of, counts.now, counts.peak, out, back);
    let held = |of| stats(of, held, counts.held_peak, out, freed);
    let pieces = caches.memory.pieces.get();
    let segment: Stats = pieces.map(|[pieces, _]| pieces.into());
    let reserved = pieces[ALL][1];
    let beside = caches.reports.find_free_beside_held(caches.pools.serving(), ThisThread::get());
    Ok(DeviceStats {
        // The caller's struct has its own size.
        size: 0,
        allocation: held(|amount| amount.blocks),
        segment,
        active: active(|amount| amount.blocks),
        inactive_split: beside.map(|(blocks, _)| blocks.into()),
        allocated_bytes: held(|amount| amount.bytes),
        reserved_bytes: [reserved, counts.slabs, reserved.without(counts.slabs)].map(Stat::from),
        active_bytes: active(|amount| amount.bytes),
        inactive_split_bytes: beside.map(|(_, bytes)| bytes.into()),
        requested_bytes: active(|amount| amount.requested),
        alloc_retries: caches.memory.retries.load(Ordering::Relaxed).cast_signed(),
        ooms: caches.memory.failures.load(Ordering::Relaxed).cast_signed(),
        device_allocs: segment[0].allocated,
        device_frees: segment[0].freed,
    })
}

/// Returns the largest block that the default pool could serve without giving anything back, as far as is known: free
/// pages together, and the rest from the driver. Other programs and busy streams can make it less.
pub(crate) fn largest_block(device: Device) -> Result<u64> {
    let caches = device_caches(device)?;
    let pool = caches.default_pool()?;
    let (mut largest, mut pages) = (0, 0);
    for cache in DeviceCaches::caches_of(pool) {
        let heap = cache.lock_by_mutex();
        // A sleeping heap's free memory does not exist.
        let (of_cache, in_pages) = if heap.is_asleep() { (0, 0) } else { heap.free_bytes() };
        drop(heap);
        largest = largest.max(of_cache);
        pages += in_pages;
    }
    let room =
        caches.memory.budget.limit().map_or(u64::MAX, |limit| limit.saturating_sub(caches.memory.budget.reserved()));
    let new = runtime::memory_info(device)?.free.min(room) / PAGE * PAGE;
    Ok(largest.max(if pool.source().is_pages() { pages + new } else { new }))
}

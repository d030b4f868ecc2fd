//! PyTorch's statistics of a device: all blocks, small ones and large ones, with peaks and sums. A small block is a
//! slot of a slab here, and slabs are reserved for small blocks; a small segment is a piece of one page, whatever is in
//! it. Free blocks beside held ones are counted on demand, and their peaks and sums are of what was found then. The
//! structs are those of `gpupool.h`, so each counter is declared only here.

use std::sync::atomic::Ordering;

use super::summary::summarize;
use crate::counters::counters;
use crate::error::Result;
use crate::ids::MemoryLocation;
use crate::memory::cache::{ALL, Amount, Amounts};
use crate::memory::device::Flow;
use crate::memory::serve::device_caches;
use crate::sync::ThisThread;

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

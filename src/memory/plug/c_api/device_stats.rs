//! Statistics of a device, as `torch.cuda.memory_stats` has them.

use std::ffi::c_int;

use super::call::{device_of, run};
use super::sized::{SizedStruct, write};
use crate::error::Result;
use crate::memory::report;

/// `gpupool_stat`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The current value.
    pub current: i64,
    /// The peak.
    pub peak: i64,
    /// The sum of all increases since the process started.
    pub allocated: i64,
    /// The sum of all decreases.
    pub freed: i64,
}

/// For all requests; for those of at most 1 MiB; for larger ones.
pub type Stats = [Stat; 3];

/// `gpupool_device_stats`: all pools of a device together.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DeviceStats {
    /// The size of this struct, in bytes.
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

// SAFETY: numbers alone, the size first.
unsafe impl SizedStruct for DeviceStats {
    const NAME: &'static str = "gpupool_device_stats";
}

impl From<report::Stat> for Stat {
    fn from(stat: report::Stat) -> Self {
        let report::Stat { current, peak, allocated, freed } = stat;
        let [current, peak, allocated, freed] = [current, peak, allocated, freed].map(u64::cast_signed);
        Self { current, peak, allocated, freed }
    }
}

/// Says what a device's memory holds and has done.
pub(super) unsafe extern "C" fn device_stats(device: c_int, stats: *mut DeviceStats) -> c_int {
    run(|| {
        let found = report::device_stats(device_of(device)?)?;
        // SAFETY: the caller passes statistics of its version, whose size it has set, or null.
        unsafe { write_stats(stats, found) }
    })
}

/// Fills a caller's statistics.
///
/// # Safety
/// As [`write`].
pub(super) unsafe fn write_stats(stats: *mut DeviceStats, found: report::DeviceStats) -> Result<()> {
    let each = |stats: report::Stats| stats.map(Stat::from);
    let (device_allocs, device_frees) = (found.pieces[0].allocated, found.pieces[0].freed);
    let found = DeviceStats {
        size: size_of::<DeviceStats>() as u64,
        allocation: each(found.held),
        segment: each(found.pieces),
        active: each(found.active),
        inactive_split: each(found.free_beside_held),
        allocated_bytes: each(found.held_bytes),
        reserved_bytes: each(found.reserved_bytes),
        active_bytes: each(found.active_bytes),
        inactive_split_bytes: each(found.free_beside_held_bytes),
        requested_bytes: each(found.requested_bytes),
        alloc_retries: found.retries.cast_signed(),
        ooms: found.failures.cast_signed(),
        device_allocs: device_allocs.cast_signed(),
        device_frees: device_frees.cast_signed(),
    };
    // SAFETY: the caller passes statistics of its version, whose size it has set, or null.
    unsafe { write(stats, found) }
}

/// Starts the peaks of a device's memory anew, from what it holds now.
pub(super) unsafe extern "C" fn reset_peak_stats(device: c_int) -> c_int {
    run(|| report::reset_peak_memory_stats(device_of(device)?))
}

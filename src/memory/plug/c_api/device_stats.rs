//! Statistics of a device, as `torch.cuda.memory_stats` has them.

use std::ffi::c_int;

use super::call::run;
use super::sized::SizedStruct;
use crate::error::Error;

/// `gpupool_stat`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Now.
    pub current: i64,
    /// The most that there was.
    pub peak: i64,
    /// The sum of what came since the process began.
    pub allocated: i64,
    /// The sum of what went.
    pub freed: i64,
}

/// Of all requests; of those of at most a MiB; of those of more.
pub type Stats = [Stat; 3];

/// `gpupool_device_stats`: all pools of a device together.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DeviceStats {
    /// Of this struct.
    pub size: u64,
    /// Blocks that callers hold.
    pub allocation: Stats,
    /// Pieces of memory that the driver gave.
    pub segment: Stats,
    /// Blocks held, or freed and waiting for streams.
    pub active: Stats,
    /// Free blocks beside ones that are held.
    pub inactive_split: Stats,
    /// Bytes of blocks that callers hold.
    pub allocated_bytes: Stats,
    /// Bytes that the driver gave.
    pub reserved_bytes: Stats,
    /// Bytes of blocks held, or freed and waiting for streams.
    pub active_bytes: Stats,
    /// Bytes of free blocks beside ones that are held.
    pub inactive_split_bytes: Stats,
    /// Bytes that callers asked for, of the blocks that they hold.
    pub requested_bytes: Stats,
    /// Requests for which memory was given back to the driver, and that were tried again.
    pub alloc_retries: i64,
    /// Requests that failed for want of memory.
    pub ooms: i64,
    /// Calls of the driver that brought memory.
    pub device_allocs: i64,
    /// Calls of the driver that gave memory back.
    pub device_frees: i64,
}

// SAFETY: numbers alone, the size first.
unsafe impl SizedStruct for DeviceStats {
    const NAME: &'static str = "gpupool_device_stats";
}

pub(super) unsafe extern "C" fn device_stats(_device: c_int, _stats: *mut DeviceStats) -> c_int {
    run(|| Err(Error::internal("not there yet")))
}

pub(super) unsafe extern "C" fn reset_peak_stats(_device: c_int) -> c_int {
    run(|| Err(Error::internal("not there yet")))
}

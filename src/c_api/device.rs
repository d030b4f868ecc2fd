//! Settings and statistics of a device, and its streams.

use std::ffi::{c_int, c_void};

use super::sized::{self, SizedStruct};
use crate::error::Error;
use crate::memory::limits;
use crate::memory::plug::call::{answer, count, device_of, one_or_all, run, stream_on_existing};
use crate::memory::report::{self, DeviceStats};
use crate::memory::serve::{self, Patience};
use crate::observe::recording::{Purpose, hold_stack};
use crate::runtime;

// SAFETY: numbers alone, the size first.
unsafe impl SizedStruct for DeviceStats {}

pub(super) unsafe extern "C" fn empty_cache(device: c_int, bytes: *mut u64) -> c_int {
    let release = || {
        let device = one_or_all(device)?;
        let _stack = hold_stack(Purpose::Free);
        limits::empty_cache_of(device, Patience::Wait)
    };
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, release) }
}

pub(super) unsafe extern "C" fn get_memory_fraction(device: c_int, fraction: *mut f64) -> c_int {
    let ask = || limits::get_per_process_memory_fraction(device_of(device)?);
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { answer(fraction, "fraction", ask) }
}

pub(super) unsafe extern "C" fn set_memory_fraction(device: c_int, fraction: f64) -> c_int {
    run(|| limits::set_per_process_memory_fraction(fraction, device_of(device)?))
}

pub(super) unsafe extern "C" fn largest_block(device: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { answer(bytes, "bytes", || report::largest_block(device_of(device)?)) }
}

pub(super) unsafe extern "C" fn device_stats(device: c_int, stats: *mut DeviceStats) -> c_int {
    // SAFETY: the caller passes statistics of its version, whose size it has set, or null.
    run(|| unsafe { sized::write(stats, report::device_stats(device_of(device)?)?) })
}

pub(super) unsafe extern "C" fn reset_peak_stats(device: c_int) -> c_int {
    run(|| report::reset_peak_memory_stats(device_of(device)?))
}

pub(super) unsafe extern "C" fn enable_peer_access(device: c_int, peer: c_int) -> c_int {
    // Of the header's two the first is the one that reads and writes.
    run(|| serve::enable_peer(device_of(peer)?, device_of(device)?))
}

pub(super) unsafe extern "C" fn synchronize(device: c_int, stream: *mut c_void) -> c_int {
    // SAFETY: the caller names a stream that is alive, of this device.
    run(|| unsafe { stream_on_existing(device, stream) }?.synchronize())
}

pub(super) unsafe extern "C" fn declare_lasting(device: c_int, stream: *mut c_void) -> c_int {
    // SAFETY: the caller names a stream that is alive, of this device.
    run(|| unsafe { stream_on_existing(device, stream) }?.declare_lasting())
}

pub(super) unsafe extern "C" fn expect_captures(device: c_int) -> c_int {
    run(|| runtime::expect_captures(device_of(device)?))
}

pub(super) unsafe extern "C" fn end_expecting_captures(device: c_int) -> c_int {
    run(|| {
        runtime::end_expecting_captures(device_of(device)?).then_some(()).ok_or_else(|| {
            Error::invalid_value(
                "no captures are expected: end_expecting_captures goes with one call of expect_captures",
            )
        })
    })
}

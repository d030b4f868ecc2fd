//! What is set and asked of a device.

use std::ffi::{c_int, c_void};

use super::call::{device_of, place, run, stream_on};
use crate::error::{Error, Result};
use crate::memory::serve::{self, Patience};
use crate::memory::{limits, report};
use crate::observe::recording::{Purpose, hold_stack};
use crate::runtime;

/// Gives back what is free, of one device, or of all for -1, once the GPU is done with it.
pub(super) unsafe extern "C" fn empty_cache(device: c_int, bytes: *mut u64) -> c_int {
    run(|| {
        let device = if device == -1 { None } else { Some(device_of(device)?) };
        let _stack = hold_stack(Purpose::Free);
        let released = limits::empty_cache_of(device, Patience::Wait)?;
        // SAFETY: the caller passes a place for a number, or null.
        if let Some(bytes) = unsafe { bytes.as_mut() } {
            *bytes = released;
        }
        Ok(())
    })
}

/// Puts the answer for a device in its place.
///
/// # Safety
/// The place is one for the answer, or null.
unsafe fn answer<T>(device: c_int, to: *mut T, name: &str, ask: impl FnOnce(crate::Device) -> Result<T>) -> c_int {
    run(|| {
        // SAFETY: the caller promises as much.
        let to = unsafe { place(to, name) }?;
        *to = ask(device_of(device)?)?;
        Ok(())
    })
}

/// Says which part of the device's memory this process may reserve.
pub(super) unsafe extern "C" fn get_memory_fraction(device: c_int, fraction: *mut f64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { answer(device, fraction, "fraction", limits::get_per_process_memory_fraction) }
}

/// Sets which part of the device's memory this process may reserve.
pub(super) unsafe extern "C" fn set_memory_fraction(device: c_int, fraction: f64) -> c_int {
    run(|| limits::set_per_process_memory_fraction(fraction, device_of(device)?))
}

/// Says how large a block could be had without anything given back.
pub(super) unsafe extern "C" fn largest_block(device: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { answer(device, bytes, "bytes", report::largest_block) }
}

/// Lets one device use the memory of another.
pub(super) unsafe extern "C" fn enable_peer_access(device: c_int, peer: c_int) -> c_int {
    // Of the header's two the first is the one that reads and writes.
    run(|| serve::enable_peer(device_of(peer)?, device_of(device)?))
}

/// Waits for the work of a stream.
pub(super) unsafe extern "C" fn synchronize(device: c_int, stream: *mut c_void) -> c_int {
    run(|| {
        device_of(device)?;
        // SAFETY: the caller names a stream that is alive, of this device.
        unsafe { stream_on(device, stream) }?.synchronize()
    })
}

/// Says that a stream is never destroyed.
pub(super) unsafe extern "C" fn declare_lasting(device: c_int, stream: *mut c_void) -> c_int {
    run(|| {
        device_of(device)?;
        // SAFETY: the caller names a stream that is alive, of this device.
        unsafe { stream_on(device, stream) }?.declare_lasting();
        Ok(())
    })
}

/// Says that streams of the device may be captured from now on.
pub(super) unsafe extern "C" fn expect_captures(device: c_int) -> c_int {
    run(|| {
        runtime::expect_captures(device_of(device)?);
        Ok(())
    })
}

/// Ends what one call of [`expect_captures`] said.
pub(super) unsafe extern "C" fn end_expecting_captures(device: c_int) -> c_int {
    run(|| {
        if runtime::end_expecting_captures(device_of(device)?) {
            return Ok(());
        }
        Err(Error::invalid_value(
            "no captures are expected: end_expecting_captures goes with one call of expect_captures",
        ))
    })
}

//! A device, for C: its settings and statistics, and its streams; what this process tells its neighbours of itself, and
//! claims; and callbacks for when its memory has run out.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Mutex;
use std::time::Duration;

use super::header::{self, Callback, SizedStruct};
use crate::error::Error;
use crate::memory::plug::call::{answer, answer_or_none, count, device_of, null, one_or_all, run, stream_on_existing};
use crate::memory::report::{self, DeviceStats};
use crate::memory::serve::{self, OomGuard, Patience};
use crate::memory::{
    MemoryClaim, NeighbourSettings, available_memory as available, claim_within, limits, set_neighbour as set,
};
use crate::observe::recording::{Purpose, hold_stack};
use crate::runtime;
use crate::sync::{lock, take_last};

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

pub(super) unsafe extern "C" fn get_per_process_memory_fraction(device: c_int, fraction: *mut f64) -> c_int {
    let ask = || limits::get_per_process_memory_fraction(device_of(device)?);
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { answer(fraction, "fraction", ask) }
}

pub(super) unsafe extern "C" fn set_per_process_memory_fraction(device: c_int, fraction: f64) -> c_int {
    run(|| limits::set_per_process_memory_fraction(fraction, device_of(device)?))
}

pub(super) unsafe extern "C" fn largest_block(device: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { answer(bytes, "bytes", || report::largest_block(device_of(device)?)) }
}

pub(super) unsafe extern "C" fn device_stats(device: c_int, stats: *mut DeviceStats) -> c_int {
    // SAFETY: the caller passes statistics of its version, whose size it has set, or null.
    run(|| unsafe { header::write(stats, report::device_stats(device_of(device)?)?) })
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

/// `gpupool_claim`: a claim, until `claim_release` ends it.
#[derive(Debug)]
pub struct ClaimHandle(MemoryClaim);

pub(super) unsafe extern "C" fn set_neighbour(
    device: c_int,
    name: *const c_char,
    guarantee: u64,
    most: u64,
    priority: c_int,
) -> c_int {
    run(|| {
        let name = (!name.is_null()).then(|| {
            // SAFETY: the caller promises that it is a string.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        });
        let most = (most != u64::MAX).then_some(most);
        set(NeighbourSettings { name, guarantee, most, priority }, device_of(device)?)
    })
}

pub(super) unsafe extern "C" fn available_memory(device: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { answer(bytes, "bytes", || available(device_of(device)?)) }
}

pub(super) unsafe extern "C" fn claim(
    device: c_int,
    bytes: u64,
    timeout_ms: u64,
    claim: *mut *mut ClaimHandle,
) -> c_int {
    let hold = || {
        let held = claim_within(bytes, device_of(device)?, Duration::from_millis(timeout_ms))?;
        Ok(Box::into_raw(Box::new(ClaimHandle(held))))
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(claim, "claim", ptr::null_mut(), hold) }
}

pub(super) unsafe extern "C" fn claim_release(claim: *mut ClaimHandle) -> c_int {
    run(|| {
        if claim.is_null() {
            return Err(null("claim"));
        }
        // SAFETY: `claim` made it, and the caller gives it up.
        let ClaimHandle(claim) = *unsafe { Box::from_raw(claim) };
        drop(claim);
        Ok(())
    })
}

/// Frees what it can, and returns whether it freed anything.
pub type OomFunction = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;

impl Callback<OomFunction> {
    /// Returns whether the function freed anything.
    fn call(&self, device: c_int, bytes: u64) -> bool {
        // SAFETY: the program that registered the function promises that it may be called so until it is removed.
        unsafe { (self.function)(self.context, device, bytes) != 0 }
    }
}

static REGISTERED: Mutex<Vec<(Callback<OomFunction>, OomGuard)>> = Mutex::new(Vec::new());

pub(super) unsafe extern "C" fn on_oom(function: Option<OomFunction>, context: *mut c_void) -> c_int {
    run(|| {
        let callback = Callback::new(function, context)?;
        let guard = serve::on_oom(move |device, bytes| callback.call(device.ordinal() as c_int, bytes));
        lock(&REGISTERED).push((callback, guard));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn remove_oom_callback(function: Option<OomFunction>, context: *mut c_void) -> c_int {
    run(|| {
        let meant = Callback::new(function, context)?;
        // The guard is dropped outside the lock.
        let removed = take_last(&mut lock(&REGISTERED), |(callback, _)| *callback == meant);
        removed.map(drop).ok_or_else(|| {
            Error::invalid_value("no such callback is registered; give the function and the context that were added")
        })
    })
}

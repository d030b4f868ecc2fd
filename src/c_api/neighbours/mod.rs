//! Neighbours, for C: what this process tells others of itself, and claims.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::time::Duration;

use crate::memory::plug::call::{answer, answer_or_none, device_of, null, run};
use crate::memory::{
    MemoryClaim, NeighbourSettings, available_memory as available, claim_within, set_neighbour as set,
};

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

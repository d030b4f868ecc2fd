//! Callbacks of C's for when memory has run out.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use super::callback::Callback;
use crate::error::Error;
use crate::memory::plug::call::run;
use crate::memory::serve::{OomGuard, on_oom};
use crate::sync::{lock, take_last};

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

pub(super) unsafe extern "C" fn add_oom_callback(function: Option<OomFunction>, context: *mut c_void) -> c_int {
    run(|| {
        let callback = Callback::new(function, context)?;
        let guard = on_oom(move |device, bytes| callback.call(device.ordinal() as c_int, bytes));
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

//! Callbacks of C's for when memory has run out.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use super::call::{null, run};
use crate::error::Error;
use crate::memory::serve::{OomGuard, on_oom};
use crate::process;
use crate::sync::lock;

/// Frees what it can, and returns whether it freed anything.
pub type OomFunction = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;

/// A function and what it is called with, by which it is known.
#[derive(Clone, Copy, Debug)]
struct Callback {
    function: OomFunction,
    context: *mut c_void,
}

// SAFETY: the program that gives the two promises that the function may be called so from any thread.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Callback {
    fn is(&self, function: OomFunction, context: *mut c_void) -> bool {
        std::ptr::fn_addr_eq(self.function, function) && self.context == context
    }

    fn call(&self, device: c_int, bytes: u64) -> bool {
        // SAFETY: the program that gave the function promises that it may be called so until it is removed.
        unsafe { (self.function)(self.context, device, bytes) != 0 }
    }
}

static REGISTERED: Mutex<Vec<(Callback, OomGuard)>> = Mutex::new(Vec::new());

/// Asks the function from now on.
pub(super) unsafe extern "C" fn add_oom_callback(function: Option<OomFunction>, context: *mut c_void) -> c_int {
    run(|| {
        process::refuse_forked()?;
        let callback = Callback { function: function.ok_or_else(|| null("callback"))?, context };
        let guard = on_oom(move |device, bytes| callback.call(device.ordinal() as c_int, bytes));
        lock(&REGISTERED).push((callback, guard));
        Ok(())
    })
}

/// Asks the function no more, with this context.
pub(super) unsafe extern "C" fn remove_oom_callback(function: Option<OomFunction>, context: *mut c_void) -> c_int {
    run(|| {
        process::refuse_forked()?;
        let function = function.ok_or_else(|| null("callback"))?;
        let removed = {
            let mut registered = lock(&REGISTERED);
            let place = registered.iter().rposition(|(callback, _)| callback.is(function, context));
            place.map(|place| registered.remove(place))
        };
        // Its guard ends outside the lock.
        removed.map(drop).ok_or_else(|| {
            Error::invalid_value("no such callback is registered; give the function and the context that were added")
        })
    })
}

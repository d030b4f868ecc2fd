//! Functions that a C program registers, each with its context.

use std::ffi::{c_int, c_void};

use super::event::{Event, Observer};
use super::oom_callbacks::OomFunction;
use crate::error::Result;
use crate::memory::plug::call::null;

/// A function and the context that it is called with. Together they identify a registration.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Callback<F> {
    pub(super) function: F,
    pub(super) context: *mut c_void,
}

// SAFETY: the program that registers the function promises that any thread may call it with this context.
unsafe impl<F: Send> Send for Callback<F> {}
// SAFETY: the program promises it of any number of threads at a time.
unsafe impl<F: Sync> Sync for Callback<F> {}

impl<F> Callback<F> {
    /// # Errors
    /// `ErrorKind::InvalidValue` without a function.
    pub(super) fn new(function: Option<F>, context: *mut c_void) -> Result<Self> {
        Ok(Self { function: function.ok_or_else(|| null("callback"))?, context })
    }
}

impl Callback<Observer> {
    pub(super) fn call(&self, event: &Event) {
        // SAFETY: the program that registered the function promises that it may be called so until it is removed.
        unsafe { (self.function)(self.context, event) };
    }
}

impl Callback<OomFunction> {
    /// Returns whether the function freed anything.
    pub(super) fn call(&self, device: c_int, bytes: u64) -> bool {
        // SAFETY: the program that registered the function promises that it may be called so until it is removed.
        unsafe { (self.function)(self.context, device, bytes) != 0 }
    }
}

//! Functions that a C program registers, each with its context.

use std::ffi::c_void;

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

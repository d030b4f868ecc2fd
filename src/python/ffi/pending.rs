//! Calls of Python from where there may be no GIL, and where nothing may wait for it: the interpreter makes them soon, in
//! its main thread, between two instructions.

use std::ffi::{c_int, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::python::program::take_left;

/// Has the main thread raise the exceptions that are left to it.
pub(in crate::python) fn raise_soon() {
    // SAFETY: any thread may call this without the GIL, and the function is there as long as the process.
    let _ = unsafe { ffi::Py_AddPendingCall(Some(raise_left), ptr::null_mut()) };
}

/// Called by the interpreter, with the GIL, one exception at a time.
extern "C" fn raise_left(_: *mut c_void) -> c_int {
    let Some(exception) = take_left() else { return 0 };
    raise_soon();
    match Python::try_attach(|py| exception.restore(py)) {
        Some(()) => -1,
        None => 0,
    }
}

//! Calls of Python from where there may be no GIL, and where nothing may wait for it: the interpreter makes them soon, in
//! its main thread, between two instructions.

use std::ffi::{c_int, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

/// Has the interpreter call a function of `gpupool._logging` soon, and returns whether it will.
pub(in crate::python) fn begin_log_soon() -> bool {
    // SAFETY: any thread may call this without the GIL, and the function is there as long as the process.
    unsafe { ffi::Py_AddPendingCall(Some(begin_log), ptr::null_mut()) == 0 }
}

/// Called by the interpreter, with the GIL. An exception goes to `sys.unraisablehook`: the code that it interrupts did not
/// ask for this call.
extern "C" fn begin_log(_: *mut c_void) -> c_int {
    let _ = Python::try_attach(|py| {
        let begun = py.import("gpupool._logging").and_then(|logging| logging.call_method0("begin"));
        if let Err(raised) = begun {
            raised.write_unraisable(py, None);
        }
    });
    0
}

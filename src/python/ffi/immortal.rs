//! Objects that all threads use and that live as long as the process: their references are not counted.
//!
//! Without a GIL threads that call one function, or make objects of one class, would wait for each other to count their
//! references to it. Python calls such objects immortal (https://peps.python.org/pep-0683/). Modules can make them from 3.15
//! on, by `PyUnstable_SetImmortal`; before that, this does what Python does for its own.

use std::sync::atomic::Ordering;

use pyo3::ffi;
use pyo3::prelude::*;

/// `_Py_IMMORTAL_REFCNT_LOCAL`.
const IMMORTAL: u32 = u32::MAX;

/// Ends the counting of references to an object, which then lives as long as the process.
pub(in crate::python) fn make_immortal(object: &Bound<'_, PyAny>) {
    let object = object.as_ptr();
    // SAFETY: the object is alive, and no other thread knows it yet, as its module is just made. Its fields are those of the
    // Python that this is built for: without a GIL no module fits several.
    unsafe {
        if (*object).ob_ref_local.load(Ordering::Relaxed) == IMMORTAL {
            return;
        }
        if ffi::PyObject_GC_IsTracked(object) != 0 {
            ffi::PyObject_GC_UnTrack(object.cast());
        }
        (*object).ob_tid = 0;
        (*object).ob_ref_local.store(IMMORTAL, Ordering::Relaxed);
        (*object).ob_ref_shared.store(0, Ordering::Relaxed);
    }
}

//! CuPy's current stream, by the C function that CuPy's compiled modules import from each other: it runs no Python.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

/// What Cython wrote of `cupy.cuda.stream.get_current_stream`, of CuPy 13 and 14. One that has changed is not called.
const SIGNATURE: &CStr =
    c"PyObject *(int __pyx_skip_dispatch, struct __pyx_opt_args_4cupy_4cuda_6stream_get_current_stream \
                           *__pyx_optional_args)";

/// The first argument is for methods alone; the second has those that may be left out, and is null for none.
type GetCurrentStream = unsafe extern "C" fn(c_int, *const Options) -> *mut ffi::PyObject;

/// Arguments that may be left out, as Cython passes them.
#[repr(C)]
#[derive(Debug)]
pub(in crate::python) struct Options {
    /// How many are given.
    count: c_int,
    device: c_int,
}

/// How the thread's current stream on its current device is asked for.
#[derive(Debug)]
pub(in crate::python) enum CurrentStream {
    /// By the C function.
    Exported(GetCurrentStream),
    /// By the function for users, where CuPy exports another one or none.
    Called(Py<PyAny>),
}

impl CurrentStream {
    /// `exported` is what `cupy.cuda.stream.__pyx_capi__` has of the name; `function` is for users.
    pub(in crate::python) fn new(exported: Option<&Bound<'_, PyAny>>, function: Py<PyAny>) -> Self {
        let Some(exported) = exported else { return Self::Called(function) };
        // SAFETY: the object is alive, and may be any; the name is a string.
        let is_known = unsafe { ffi::PyCapsule_IsValid(exported.as_ptr(), SIGNATURE.as_ptr()) } == 1;
        if !is_known {
            return Self::Called(function);
        }
        // SAFETY: the capsule is one of this name.
        let address = unsafe { ffi::PyCapsule_GetPointer(exported.as_ptr(), SIGNATURE.as_ptr()) };
        // SAFETY: the capsule's name is the function's signature, and a module is never unloaded.
        Self::Exported(unsafe { transmute::<*mut c_void, GetCurrentStream>(address) })
    }

    /// Whether it is the C function that is called.
    pub(in crate::python) const fn is_exported(&self) -> bool {
        matches!(self, Self::Exported(_))
    }

    /// Returns the object of the stream.
    #[inline]
    pub(in crate::python) fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            // SAFETY: the thread is attached; the function returns a new reference, or null with an error set.
            Self::Exported(function) => unsafe { Bound::from_owned_ptr_or_err(py, function(0, ptr::null())) },
            Self::Called(function) => function.bind(py).call0(),
        }
    }

    /// Returns the object of the thread's current stream on a device.
    pub(in crate::python) fn get_on<'py>(&self, py: Python<'py>, device: c_int) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Exported(function) => {
                let options = Options { count: 1, device };
                // SAFETY: the thread is attached, and the options live as long as the call; the function returns a new
                // reference, or null with an error set.
                unsafe { Bound::from_owned_ptr_or_err(py, function(0, &raw const options)) }
            }
            Self::Called(function) => function.bind(py).call1((device,)),
        }
    }
}

//! Calls that pass their arguments in an array, without a tuple and a dict for each: `PyObject_Vectorcall`.
//!
//! Python has had both functions since 3.9, but in the stable ABI, which this module uses, only since 3.12. So they are looked
//! up, and calls are made in the usual way if they are not found.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

/// `PyObject_Vectorcall(callable, arguments, count, names)` and `PyObject_VectorcallMethod(name, arguments, count, names)`.
type Vectorcall = unsafe extern "C" fn(*mut PyObject, *const *mut PyObject, usize, *mut PyObject) -> *mut PyObject;

/// Added to the count (`PY_VECTORCALL_ARGUMENTS_OFFSET`): the callee may write to the place before the arguments, and restores
/// it.
const PLACE_BEFORE: usize = 1 << (usize::BITS - 1);

#[derive(Clone, Copy)]
struct VectorcallFunctions {
    call: Vectorcall,
    method: Vectorcall,
}

#[inline]
fn functions() -> Option<VectorcallFunctions> {
    static FOUND: OnceLock<Option<VectorcallFunctions>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        Some(VectorcallFunctions { call: find(c"PyObject_Vectorcall")?, method: find(c"PyObject_VectorcallMethod")? })
    })
}

fn find(name: &CStr) -> Option<Vectorcall> {
    // SAFETY: the name is a string.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: Python's functions of these names have this prototype in all versions that have them.
    (!function.is_null()).then(|| unsafe { transmute::<*mut c_void, Vectorcall>(function) })
}

/// Calls with three arguments, and a fourth by the one name in `names`.
#[inline]
pub(in crate::python) fn call_named<'py>(
    callable: &Bound<'py, PyAny>,
    arguments: [&Bound<'py, PyAny>; 3],
    names: &Bound<'py, PyTuple>,
    named: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = callable.py();
    let [first, second, third] = arguments;
    let Some(functions) = functions() else {
        let keywords = PyDict::new(py);
        keywords.set_item(names.get_item(0)?, named)?;
        return callable.call((first, second, third), Some(&keywords));
    };
    let mut places = [ptr::null_mut(), first.as_ptr(), second.as_ptr(), third.as_ptr(), named.as_ptr()];
    // SAFETY: all are alive, the names are as many as arguments follow the three, and the place before them is ours.
    unsafe {
        let arguments = places.as_mut_ptr().add(1).cast_const();
        let result = (functions.call)(callable.as_ptr(), arguments, 3 | PLACE_BEFORE, names.as_ptr());
        Bound::from_owned_ptr_or_err(py, result)
    }
}

/// Calls a method without arguments.
#[inline]
pub(in crate::python) fn call_method<'py>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(functions) = functions() else { return object.call_method0(name) };
    let mut places = [ptr::null_mut(), object.as_ptr()];
    // SAFETY: both are alive, and the place before the object is ours.
    unsafe {
        let arguments = places.as_mut_ptr().add(1).cast_const();
        let result = (functions.method)(name.as_ptr(), arguments, 1 | PLACE_BEFORE, ptr::null_mut::<ffi::PyObject>());
        Bound::from_owned_ptr_or_err(object.py(), result)
    }
}

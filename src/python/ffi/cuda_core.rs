//! Handles of cuda.core's streams, read directly from the objects.
//!
//! A `cuda.core.Stream` has a `std::shared_ptr` to its handle. Calling its `__cuda_stream__` builds a tuple and an int, twice
//! for each buffer. So gpupool checks whether streams of known handles have these where it expects them, and then reads the
//! handles of other streams there. Otherwise, and for objects of other classes, it calls `__cuda_stream__`.
//!
//! Calls pass their arguments in an array, without a tuple and a dict for each: `PyObject_Vectorcall`. Python has had that since
//! 3.9, but in the stable ABI, which this module uses, only since 3.12. So it is looked up, and calls are made in the usual way
//! if it is not found.

use std::ptr;
use std::sync::OnceLock;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use super::address::PythonAddress;
use super::interpreter::function;

/// Where a stream has the pointer to its handle: behind what every object has, and Cython's table of functions.
const PLACE: usize = size_of::<ffi::PyObject>() + size_of::<*const ()>();
/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`, which are valid whatever cuda.core asks the driver of them.
const TRIALS: [usize; 2] = [1, 2];

/// How handles of streams are read.
pub(crate) struct StreamHandles {
    /// `cuda.core.Stream`, whose objects have the handle at [`PLACE`].
    class: Py<PyType>,
}

impl StreamHandles {
    /// Returns none if streams have another layout, and without a GIL, where another thread may close the stream meanwhile.
    pub(crate) fn find(class: &Bound<'_, PyType>) -> Option<Self> {
        if cfg!(Py_GIL_DISABLED) || !class.hasattr("__pyx_vtable__").is_ok_and(|has_table| has_table) {
            return None;
        }
        let size = class.getattr("__basicsize__").ok()?.extract::<usize>().ok()?;
        if size < PLACE + size_of::<*const usize>() {
            return None;
        }
        let is_there = |&handle: &usize| {
            let stream = class.call_method1("from_handle", (handle,)).ok()?;
            // SAFETY: an object of this very class is as long as that.
            let pointer = stream.is_exact_instance(class).then(|| unsafe { handle_pointer(&stream) })?;
            (read_anywhere(pointer)? == handle).then_some(())
        };
        TRIALS.iter().all(|handle| is_there(handle).is_some()).then(|| Self { class: class.clone().unbind() })
    }

    /// Returns the handle of a stream; none if it is closed, or the object is of another class.
    #[inline]
    pub(crate) fn read(&self, object: &Bound<'_, PyAny>) -> Option<PythonAddress> {
        if !object.is_exact_instance(self.class.bind(object.py())) {
            return None;
        }
        // SAFETY: an object of this very class has the pointer, null or to a handle that lives as long, and with the GIL
        // held no other thread closes it.
        unsafe { handle_pointer(object).as_ref() }.map(|handle| PythonAddress::from_stream(*handle))
    }
}

/// Returns the word at [`PLACE`].
///
/// # Safety
/// The object has so many bytes, and no other thread writes to them.
#[inline]
unsafe fn handle_pointer(object: &Bound<'_, PyAny>) -> *const usize {
    // SAFETY: the caller promises that the word is there.
    unsafe { object.as_ptr().byte_add(PLACE).cast::<*const usize>().read() }
}

/// Returns the word at an address; none if the process has no memory there.
fn read_anywhere(address: *const usize) -> Option<usize> {
    let mut word = 0usize;
    let here = libc::iovec { iov_base: ptr::from_mut(&mut word).cast(), iov_len: size_of::<usize>() };
    let there = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: size_of::<usize>() };
    // SAFETY: `here` is a word of ours, and the kernel looks whether `there` is memory.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    (usize::try_from(read) == Ok(size_of::<usize>())).then_some(word)
}

/// `PyObject_Vectorcall(callable, arguments, count, names)` and `PyObject_VectorcallMethod(name, arguments, count, names)`.
type Vectorcall = unsafe extern "C" fn(*mut PyObject, *const *mut PyObject, usize, *mut PyObject) -> *mut PyObject;

/// Added to the count (`PY_VECTORCALL_ARGUMENTS_OFFSET`): the callee may write to the place before the arguments, and restores
/// it.
const PLACE_BEFORE: usize = 1 << (usize::BITS - 1);

/// Returns both; none where this Python lacks any.
#[inline]
fn functions() -> Option<[Vectorcall; 2]> {
    static FOUND: OnceLock<Option<[Vectorcall; 2]>> = OnceLock::new();
    // SAFETY: Python's functions of these names have this prototype in all versions that have them.
    let find = |name| unsafe { function::<Vectorcall>(name) };
    *FOUND.get_or_init(|| Some([find(c"PyObject_Vectorcall")?, find(c"PyObject_VectorcallMethod")?]))
}

/// Calls with three arguments, and a fourth by the one name in `names`.
#[inline]
pub(crate) fn call_named<'py>(
    callable: &Bound<'py, PyAny>,
    arguments: [&Bound<'py, PyAny>; 3],
    names: &Bound<'py, PyTuple>,
    named: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = callable.py();
    let [first, second, third] = arguments;
    let Some([call, _]) = functions() else {
        let keywords = PyDict::new(py);
        keywords.set_item(names.get_item(0)?, named)?;
        return callable.call((first, second, third), Some(&keywords));
    };
    let mut places = [ptr::null_mut(), first.as_ptr(), second.as_ptr(), third.as_ptr(), named.as_ptr()];
    // SAFETY: all are alive, the names are as many as arguments follow the three, and the place before them is ours.
    unsafe {
        let arguments = places.as_mut_ptr().add(1).cast_const();
        let result = call(callable.as_ptr(), arguments, 3 | PLACE_BEFORE, names.as_ptr());
        Bound::from_owned_ptr_or_err(py, result)
    }
}

/// Calls a method without arguments.
#[inline]
pub(crate) fn call_method<'py>(object: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    let Some([_, method]) = functions() else { return object.call_method0(name) };
    let mut places = [ptr::null_mut(), object.as_ptr()];
    // SAFETY: both are alive, and the place before the object is ours.
    unsafe {
        let arguments = places.as_mut_ptr().add(1).cast_const();
        let result = method(name.as_ptr(), arguments, 1 | PLACE_BEFORE, ptr::null_mut::<ffi::PyObject>());
        Bound::from_owned_ptr_or_err(object.py(), result)
    }
}

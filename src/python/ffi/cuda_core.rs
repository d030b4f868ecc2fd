//! Handles of cuda.core's streams, read directly from the objects.
//!
//! A `cuda.core.Stream` has a `std::shared_ptr` to its handle. Calling its `__cuda_stream__` builds a tuple and an int, twice
//! for each buffer. So gpupool checks whether streams of known handles have these where it expects them, and then reads the
//! handles of other streams there. Otherwise, and for objects of other classes, it calls `__cuda_stream__`.

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::PythonAddress;

/// Where a stream has the pointer to its handle: behind what every object has, and Cython's table of functions.
const PLACE: usize = size_of::<ffi::PyObject>() + size_of::<*const ()>();
/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`, which are valid whatever cuda.core asks the driver of them.
const TRIALS: [usize; 2] = [1, 2];

/// How handles of streams are read.
#[derive(Debug)]
pub(in crate::python) struct StreamHandles {
    /// `cuda.core.Stream`, whose objects have the handle at [`PLACE`].
    class: Py<PyType>,
}

impl StreamHandles {
    /// Returns none if streams have another layout, and without a GIL, where another thread may close the stream meanwhile.
    pub(in crate::python) fn find(class: &Bound<'_, PyType>) -> Option<Self> {
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
    pub(in crate::python) fn read(&self, object: &Bound<'_, PyAny>) -> Option<PythonAddress> {
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

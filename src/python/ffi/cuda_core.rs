//! Handles of cuda.core's streams, read where they stand.
//!
//! A `cuda.core.Stream` has a `std::shared_ptr` to its handle, and asking it for that builds a tuple and an int, twice for
//! each buffer. So gpupool looks for a known handle in streams that cuda.core has made, and reads others there. Where it
//! does not find it, and of what is no such stream, it asks.

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::PythonAddress;

/// Where a stream has the pointer to its handle: behind what every object has, and Cython's table of functions.
const PLACE: usize = size_of::<ffi::PyObject>() + size_of::<*const ()>();
/// Handles that do not come about by chance.
const TRIALS: [usize; 2] = [0x1e5a_77c3_9b04_e200, 0x63d0_08f1_4ab7_2c00];

/// How handles of streams are read.
#[derive(Debug)]
pub(in crate::python) struct StreamHandles {
    /// `cuda.core.Stream`, whose objects have the handle at [`PLACE`].
    class: Py<PyType>,
}

impl StreamHandles {
    /// None where streams are made in another way than is known, and without a GIL: a stream may then be closed meanwhile.
    pub(in crate::python) fn find(class: &Bound<'_, PyType>) -> Option<Self> {
        if cfg!(Py_GIL_DISABLED) || !class.hasattr("__pyx_vtable__").is_ok_and(|has_table| has_table) {
            return None;
        }
        let size = class.getattr("__basicsize__").ok()?.extract::<usize>().ok()?;
        let is_there = |&handle: &usize| {
            let stream = class.call_method1("from_handle", (handle,)).ok()?;
            (stream.is_exact_instance(class) && size >= PLACE + size_of::<*const usize>()).then_some(())?;
            // SAFETY: the object is alive, and has this word.
            let pointer = unsafe { stream.as_ptr().byte_add(PLACE).cast::<*const usize>().read() };
            (read_anywhere(pointer)? == handle).then_some(())
        };
        TRIALS.iter().all(|handle| is_there(handle).is_some()).then(|| Self { class: class.clone().unbind() })
    }

    /// Returns the handle of a stream; none of a closed one, and of what is no such stream.
    #[inline]
    pub(in crate::python) fn read(&self, object: &Bound<'_, PyAny>) -> Option<PythonAddress> {
        if !object.is_exact_instance(self.class.bind(object.py())) {
            return None;
        }
        // SAFETY: the object is alive, of this very class, and with the GIL held no other thread closes it.
        let pointer = unsafe { object.as_ptr().byte_add(PLACE).cast::<*const usize>().read() };
        // SAFETY: it points to the handle, which lives as long as it does, or is null.
        unsafe { pointer.as_ref() }.map(|handle| PythonAddress::from_stream(*handle))
    }
}

/// Returns the word at an address; none where the process has no memory there.
fn read_anywhere(address: *const usize) -> Option<usize> {
    let mut word = 0usize;
    let here = libc::iovec { iov_base: ptr::from_mut(&mut word).cast(), iov_len: size_of::<usize>() };
    let there = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: size_of::<usize>() };
    // SAFETY: `here` is a word of ours, and the kernel looks whether `there` is memory.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    (usize::try_from(read) == Ok(size_of::<usize>())).then_some(word)
}

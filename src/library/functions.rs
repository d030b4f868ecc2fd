//! A library given by three C functions, for pools of libraries that gpupool does not know.
//!
//! The shape is the one that NVIDIA's and AMD's libraries share: `int create(void** handle)`, `int destroy(void*
//! handle)` and `int set_stream(void* handle, void* stream)`, each returning 0 on success.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use super::RawHandle;
pub(crate) use super::entry_points::{CreateFn, SetStreamFn};
use crate::error::{Error, Result, StatusKind};
use crate::ids::RawStream;

/// `int destroy(void* handle)`.
pub(crate) type DestroyFn = unsafe extern "C" fn(*mut c_void) -> c_int;

fn refused(library: &str, function: &str, code: c_int) -> Error {
    Error::refused(library, function, "status", code, StatusKind::Other)
}

/// A function that makes handles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Create {
    function: CreateFn,
}

/// A function that ends handles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destroy {
    function: DestroyFn,
}

/// A function that sets a handle's stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetStream {
    function: SetStreamFn,
}

impl Create {
    /// Makes a function for [`Create::call`].
    ///
    /// # Safety
    /// On any thread, as long as the process lives, the function writes a live handle to its argument, which is the caller's
    /// alone, or refuses with a status other than 0.
    pub(crate) const unsafe fn new(function: CreateFn) -> Self {
        Self { function }
    }

    /// Makes a handle.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the function refuses, or makes a null handle.
    pub(crate) fn call(self, library: &str) -> Result<RawHandle> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is a valid place for a handle.
        let status = unsafe { (self.function)(&mut handle) };
        if status != 0 {
            return Err(refused(library, "create", status));
        }
        let null = || Error::refused(library, "create", "a null handle", 0, StatusKind::Other);
        let handle = NonNull::new(handle).ok_or_else(null)?;
        // SAFETY: the function just made it for this caller alone, by the contract of `Create::new`.
        Ok(unsafe { RawHandle::from_ptr(handle) })
    }
}

impl Destroy {
    /// Makes a function for [`Destroy::call`].
    ///
    /// # Safety
    /// On any thread, as long as the process lives, the function ends a live handle of the library that it is used for.
    pub(crate) const unsafe fn new(function: DestroyFn) -> Self {
        Self { function }
    }

    /// Ends a handle.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the function refuses.
    pub(crate) fn call(self, library: &str, handle: RawHandle) -> Result<()> {
        // SAFETY: the handle is live and owned by this call.
        match unsafe { (self.function)(handle.as_ptr()) } {
            0 => Ok(()),
            code => Err(refused(library, "destroy", code)),
        }
    }
}

impl SetStream {
    /// Makes a function for [`SetStream::call`].
    ///
    /// # Safety
    /// On any thread, as long as the process lives, the function sets the stream of a live handle of the library that it is
    /// used for.
    pub(crate) const unsafe fn new(function: SetStreamFn) -> Self {
        Self { function }
    }

    /// Sets a handle's stream.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the function refuses.
    pub(crate) fn call(self, library: &str, handle: &RawHandle, stream: RawStream) -> Result<()> {
        // SAFETY: the handle is live, and a `RawStream` is alive by the contract of `Stream::from_raw`.
        match unsafe { (self.function)(handle.as_ptr(), stream.as_ptr()) } {
            0 => Ok(()),
            code => Err(refused(library, "set_stream", code)),
        }
    }
}

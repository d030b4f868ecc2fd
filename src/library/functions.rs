//! A library given by three C functions, for pools of libraries that gpupool does not know.
//!
//! The shape is the one that NVIDIA's and AMD's libraries share: `int create(void** handle)`, `int destroy(void*
//! handle)` and `int set_stream(void* handle, void* stream)`, each returning 0 on success.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use super::RawHandle;
pub(crate) use super::api::{CreateFn, DestroyFn, SetStreamFn};
use crate::error::{Error, Result, StatusKind};
use crate::ids::RawStream;

/// A function of a user's library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LibraryFunction<F>(F);

/// It writes a live handle to its argument, which is the caller's alone, or refuses with a status other than 0.
pub(crate) type Create = LibraryFunction<CreateFn>;
/// It ends a live handle of its library.
pub(crate) type Destroy = LibraryFunction<DestroyFn>;
/// It sets the stream of a live handle of its library.
pub(crate) type SetStream = LibraryFunction<SetStreamFn>;

impl<F> LibraryFunction<F> {
    /// # Safety
    /// The function does what the type's alias says, on any thread, as long as the process lives.
    pub(crate) const unsafe fn new(function: F) -> Self {
        Self(function)
    }
}

fn check(library: &str, function: &str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Error::refused(library, function, "status", code, StatusKind::Other)) }
}

impl Create {
    /// Makes a handle.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the function refuses, or makes a null handle.
    pub(crate) fn call(self, library: &str) -> Result<RawHandle> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is a valid place for a handle.
        check(library, "create", unsafe { (self.0)(&mut handle) })?;
        let null = || Error::refused(library, "create", "a null handle", 0, StatusKind::Other);
        let handle = NonNull::new(handle).ok_or_else(null)?;
        // SAFETY: the function just made it for this caller alone, by the contract of `LibraryFunction::new`.
        Ok(unsafe { RawHandle::from_ptr(handle) })
    }
}

impl Destroy {
    /// Ends a handle.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the function refuses.
    pub(crate) fn call(self, library: &str, handle: RawHandle) -> Result<()> {
        // SAFETY: the handle is live and owned by this call.
        check(library, "destroy", unsafe { (self.0)(handle.as_ptr()) })
    }
}

impl SetStream {
    /// Sets a handle's stream.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the function refuses.
    pub(crate) fn call(self, library: &str, handle: &RawHandle, stream: RawStream) -> Result<()> {
        // SAFETY: the handle is live, and a `RawStream` is alive by the contract of `Stream::from_raw`.
        check(library, "set_stream", unsafe { (self.0)(handle.as_ptr(), stream.as_ptr()) })
    }
}

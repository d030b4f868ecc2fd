//! A library given by the addresses of three C functions, for pools of libraries that gpupool does not know.
//!
//! The shape is the one that NVIDIA's and AMD's libraries share: `int create(void** handle)`, `int destroy(void*
//! handle)` and `int set_stream(void* handle, void* stream)`, each answering 0 on success.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use super::RawHandle;
use crate::error::{Error, Result, StatusKind};
use crate::ids::RawStream;

type CreateFn = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type DestroyFn = unsafe extern "C" fn(*mut c_void) -> c_int;
type SetStreamFn = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

fn refused(library: &str, function: &str, code: c_int) -> Error {
    Error::refused(library, function, "status", code, StatusKind::Other)
}

/// The address of `int create(void** handle)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Create(CreateFn);

/// The address of `int destroy(void* handle)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destroy(DestroyFn);

/// The address of `int set_stream(void* handle, void* stream)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetStream(SetStreamFn);

fn address(function: &str, address: usize) -> Result<*const c_void> {
    if address == 0 {
        return Err(Error::invalid_value(format!("{function}: 0 is not the address of a C function")));
    }
    Ok(ptr::with_exposed_provenance(address))
}

impl Create {
    /// The caller of the Python API vouches for the address, as with ctypes.
    pub(crate) fn from_address(number: usize) -> Result<Self> {
        let pointer = address("create", number)?;
        // SAFETY: the address is not null, and the user says that a function of this prototype lies there.
        Ok(Self(unsafe { std::mem::transmute::<*const c_void, CreateFn>(pointer) }))
    }

    pub(crate) fn call(self, library: &str) -> Result<RawHandle> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is a valid place for a handle.
        match unsafe { (self.0)(&mut handle) } {
            0 => raw_handle(library, handle),
            code => Err(refused(library, "create", code)),
        }
    }
}

impl Destroy {
    /// As [`Create::from_address`].
    pub(crate) fn from_address(number: usize) -> Result<Self> {
        let pointer = address("destroy", number)?;
        // SAFETY: as in `Create::from_address`.
        Ok(Self(unsafe { std::mem::transmute::<*const c_void, DestroyFn>(pointer) }))
    }

    pub(crate) fn call(self, library: &str, handle: RawHandle) -> Result<()> {
        // SAFETY: the handle is live and owned by this call.
        match unsafe { (self.0)(handle.as_ptr()) } {
            0 => Ok(()),
            code => Err(refused(library, "destroy", code)),
        }
    }
}

impl SetStream {
    /// As [`Create::from_address`].
    pub(crate) fn from_address(number: usize) -> Result<Self> {
        let pointer = address("set_stream", number)?;
        // SAFETY: as in `Create::from_address`.
        Ok(Self(unsafe { std::mem::transmute::<*const c_void, SetStreamFn>(pointer) }))
    }

    pub(crate) fn call(self, library: &str, handle: &RawHandle, stream: RawStream) -> Result<()> {
        // SAFETY: the handle is live, and a `RawStream` is alive by the contract of `Stream::from_raw`.
        match unsafe { (self.0)(handle.as_ptr(), stream.as_ptr()) } {
            0 => Ok(()),
            code => Err(refused(library, "set_stream", code)),
        }
    }
}

/// Takes ownership of a handle that a user's `create` answered.
///
/// # Errors
/// `ErrorKind::Library` if it is null.
pub(crate) fn raw_handle(library: &str, handle: *mut c_void) -> Result<RawHandle> {
    let handle =
        NonNull::new(handle).ok_or_else(|| Error::refused(library, "create", "a null handle", 0, StatusKind::Other))?;
    // SAFETY: the user's function just made it for this pool alone, which is what `HandlePool` asks of it.
    Ok(unsafe { RawHandle::from_ptr(handle) })
}

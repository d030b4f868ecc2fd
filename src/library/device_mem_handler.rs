//! The functions by which NVIDIA's libraries allocate device memory, if they were set on a handle.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// `int (void *context, void **pointer, size_t size, cudaStream_t stream)`, 0 on success.
pub type DeviceAllocFn = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, usize, *mut c_void) -> c_int;
/// `int (void *context, void *pointer, size_t size, cudaStream_t stream)`, 0 on success.
pub type DeviceFreeFn = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut c_void) -> c_int;

/// `cudssDeviceMemHandler_t` and cuQuantum's `DeviceMemHandler_t`: a context, two functions and a name. The libraries
/// copy it; the object that the context points to must outlive their handles.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemHandler {
    /// Passed to both functions.
    pub context: *mut c_void,
    /// Allocates in stream order, on any thread.
    pub device_alloc: DeviceAllocFn,
    /// Frees in stream order, on any thread.
    pub device_free: DeviceFreeFn,
    /// Its name in the library's log, terminated by a zero.
    pub name: [c_char; 64],
}

// SAFETY: a context is null or lives as long as the process, and the functions may be called from any thread.
unsafe impl Sync for DeviceMemHandler {}

impl DeviceMemHandler {
    /// Makes a handler of gpupool's.
    pub(crate) const fn new(
        context: *mut c_void,
        device_alloc: DeviceAllocFn,
        device_free: DeviceFreeFn,
        called: &[u8],
    ) -> Self {
        let mut name = [0; 64];
        let mut index = 0;
        while index < called.len() && index < name.len() - 1 {
            name[index] = called[index] as c_char;
            index += 1;
        }
        Self { context, device_alloc, device_free, name }
    }
}

/// A handler as a library returns it: as [`DeviceMemHandler`], with functions that may be anything.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ReturnedHandler {
    context: *mut c_void,
    device_alloc: *const c_void,
    device_free: *const c_void,
    name: [c_char; 64],
}

impl ReturnedHandler {
    pub(super) const fn empty() -> Self {
        Self { context: ptr::null_mut(), device_alloc: ptr::null(), device_free: ptr::null(), name: [0; 64] }
    }

    /// Returns whether it allocates and frees as this one does.
    pub(super) fn is(&self, handler: &DeviceMemHandler) -> bool {
        let (alloc, free) = (handler.device_alloc as *const c_void, handler.device_free as *const c_void);
        (self.context, self.device_alloc, self.device_free) == (handler.context, alloc, free)
    }
}

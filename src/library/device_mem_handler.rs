//! What NVIDIA's libraries take device memory by, where a handle was given one.

use std::ffi::{c_char, c_int, c_void};

/// `int (void *context, void **pointer, size_t size, cudaStream_t stream)`, 0 on success.
pub type DeviceAllocFn = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, usize, *mut c_void) -> c_int;
/// `int (void *context, void *pointer, size_t size, cudaStream_t stream)`, 0 on success.
pub type DeviceFreeFn = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut c_void) -> c_int;

/// `cudssDeviceMemHandler_t` and cuQuantum's `DeviceMemHandler_t`: a context, two functions and a name. The libraries copy
/// it; what the context points to has to outlive their handles.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemHandler {
    /// Passed to both functions.
    pub context: *mut c_void,
    /// Allocates in the stream's order, on any thread.
    pub device_alloc: DeviceAllocFn,
    /// Frees in the stream's order, on any thread.
    pub device_free: DeviceFreeFn,
    /// What the library's log calls it, with a zero at the end.
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

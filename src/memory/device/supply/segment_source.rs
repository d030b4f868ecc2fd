//! Segments: memory from another source than gpupool's pages, which is never moved: a user's own allocator, or the
//! driver's plain allocation if memory must be shared by legacy IPC or registered with a network card. It is returned
//! to the source that it came from.

use std::fmt;

use crate::error::{Error, OWN_ALLOCATOR, Result};
use crate::ids::Device;
use crate::memory::device::address_range::with_device;
use crate::runtime::Stream;

/// Supplies a pool's memory. Called without any lock held, from any thread.
///
/// # Safety
/// What [`SegmentSource::allocate`] returns is memory of the stream's device, as long as was asked for, and has no other
/// owner until it is freed.
pub unsafe trait SegmentSource: Send + Sync + fmt::Debug {
    /// Allocates at least `bytes` of device memory at a multiple of 512 bytes, to be used first on the stream.
    ///
    /// # Errors
    /// Any error but `ErrorKind::Interrupted`, which ends the request, is treated as a lack of memory: the request releases
    /// what it can and tries again, and the caller sees the error of the last attempt.
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64>;

    /// Frees memory of [`SegmentSource::allocate`]. All work that uses it is done.
    ///
    /// # Errors
    /// The memory counts as freed nevertheless, unless [`SegmentSource::frees_again`] is true.
    ///
    /// # Safety
    /// This source has allocated it, so long and on that stream, and its owner gives it up.
    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()>;

    /// Returns whether memory whose free failed still exists, and must be freed again later.
    fn frees_again(&self) -> bool {
        false
    }
}

/// Two C functions with the signatures of PyTorch's pluggable allocator.
#[derive(Clone, Copy, Debug)]
pub struct SegmentFunctions {
    allocate: AllocateFunction,
    free: FreeFunction,
}

/// `void *(ssize_t size, int device, cudaStream_t stream)`: returns null if there is no memory.
pub type AllocateFunction = unsafe extern "C" fn(isize, i32, *mut std::ffi::c_void) -> *mut std::ffi::c_void;
/// `void (void *pointer, ssize_t size, int device, cudaStream_t stream)`.
pub type FreeFunction = unsafe extern "C" fn(*mut std::ffi::c_void, isize, i32, *mut std::ffi::c_void);

impl SegmentFunctions {
    /// Creates a source from these functions.
    ///
    /// # Safety
    /// The functions do what their types say, from any thread, until the process ends.
    pub unsafe fn new(allocate: AllocateFunction, free: FreeFunction) -> Self {
        Self { allocate, free }
    }
}

fn ordinal(device: Device) -> i32 {
    i32::try_from(device.ordinal()).unwrap_or(i32::MAX)
}

// SAFETY: `new` requires that the functions do what their types say.
unsafe impl SegmentSource for SegmentFunctions {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let size = isize::try_from(bytes).map_err(|_| Error::invalid_value(format!("{bytes} bytes are too many")))?;
        // SAFETY: `new` requires that the function may be called so, from any thread.
        let address = unsafe { (self.allocate)(size, ordinal(stream.device()), stream.raw().as_ptr()) };
        if address.is_null() {
            return Err(Error::no_memory(OWN_ALLOCATOR, "allocate returned a null pointer"));
        }
        Ok(address.addr() as u64)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        let pointer = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: `new` requires that the function takes back what `allocate` returned, from any thread.
        unsafe { (self.free)(pointer, bytes as isize, ordinal(stream.device()), stream.raw().as_ptr()) };
        Ok(())
    }
}

/// The driver's plain allocations (`cuMemAlloc`). Freeing one (`cuMemFree`) waits for the device.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct DriverSegments;

// SAFETY: the driver's memory is as long as was asked for, and this process's alone.
unsafe impl SegmentSource for DriverSegments {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        with_device(stream.device(), |runtime| runtime.memory_allocate(bytes))
    }

    unsafe fn free(&self, address: u64, _bytes: u64, stream: &Stream) -> Result<()> {
        // SAFETY: the memory came from `memory_allocate`, and the caller gives it up.
        with_device(stream.device(), |runtime| unsafe { runtime.memory_free(address) })
    }

    fn frees_again(&self) -> bool {
        true
    }
}

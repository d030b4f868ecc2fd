//! Segments: memory that a source other than gpupool's own pages supplies, and that stays where it is.
//!
//! A source is a pair of functions: a user's own allocator, or the driver's plain allocation where memory must be
//! shared by legacy IPC or registered with a network card. What a source gave goes back to the same source.

use std::fmt;

use crate::error::{Error, OWN_ALLOCATOR, Result};
use crate::ids::Device;
use crate::runtime::{self, BoundDevice, RelaxedCapture, Stream};

/// Supplies a pool's memory. Called without any lock held, from any thread.
pub trait SegmentSource: Send + Sync + fmt::Debug {
    /// At least `bytes` of device memory at a multiple of 512 bytes, to be used first on the stream.
    ///
    /// # Errors
    /// Any error is taken for a lack of memory: the request goes on to free what it can and asks once more, and the
    /// error of the last try is what the caller sees.
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64>;

    /// Takes back what [`SegmentSource::allocate`] gave. All work that uses it is done.
    ///
    /// # Errors
    /// The memory counts as returned all the same, unless [`SegmentSource::frees_again`].
    fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()>;

    /// Returns whether memory whose free failed is still there, and is to be freed again later.
    fn frees_again(&self) -> bool {
        false
    }
}

/// Two C functions with PyTorch's signatures of a pluggable allocator.
#[derive(Clone, Copy)]
pub struct SegmentFunctions {
    allocate: AllocateFunction,
    free: FreeFunction,
}

/// `void *(ssize_t size, int device, cudaStream_t stream)`: null where there is no memory.
pub type AllocateFunction = unsafe extern "C" fn(isize, i32, *mut std::ffi::c_void) -> *mut std::ffi::c_void;
/// `void (void *pointer, ssize_t size, int device, cudaStream_t stream)`.
pub type FreeFunction = unsafe extern "C" fn(*mut std::ffi::c_void, isize, i32, *mut std::ffi::c_void);

impl SegmentFunctions {
    /// Makes a source of these functions.
    ///
    /// # Safety
    /// The functions do what their types say, from any thread, as long as the process lives.
    pub unsafe fn new(allocate: AllocateFunction, free: FreeFunction) -> Self {
        Self { allocate, free }
    }
}

impl fmt::Debug for SegmentFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentFunctions({:#x}, {:#x})", self.allocate as usize, self.free as usize)
    }
}

/// Returns the functions' argument for a device.
fn ordinal(device: Device) -> i32 {
    i32::try_from(device.ordinal()).unwrap_or(i32::MAX)
}

impl SegmentSource for SegmentFunctions {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let size = isize::try_from(bytes).map_err(|_| Error::invalid_value(format!("{bytes} bytes are too many")))?;
        // SAFETY: `new` requires that the function may be called so, from any thread.
        let address = unsafe { (self.allocate)(size, ordinal(stream.device()), stream.raw().as_ptr()) };
        if address.is_null() {
            return Err(Error::no_memory(OWN_ALLOCATOR, "allocate returned a null pointer"));
        }
        Ok(address.addr() as u64)
    }

    fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        let pointer = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: `new` requires that the function takes back what `allocate` returned, from any thread.
        unsafe { (self.free)(pointer, bytes as isize, ordinal(stream.device()), stream.raw().as_ptr()) };
        Ok(())
    }
}

/// The driver's plain allocations (`cuMemAlloc`). Giving one back waits for the device (`cuMemFree`).
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct DriverSegments;

impl SegmentSource for DriverSegments {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let runtime = runtime::get()?;
        let _bound = BoundDevice::new(runtime, stream.device())?;
        let _relaxed = RelaxedCapture::new(runtime)?;
        runtime.memory_allocate(bytes).map_err(|e| e.on(stream.device()))
    }

    fn free(&self, address: u64, _bytes: u64, stream: &Stream) -> Result<()> {
        let runtime = runtime::get()?;
        let _bound = BoundDevice::new(runtime, stream.device())?;
        let _relaxed = RelaxedCapture::new(runtime)?;
        // SAFETY: the memory came from `memory_allocate`, and the caller gives it up.
        unsafe { runtime.memory_free(address) }.map_err(|e| e.on(stream.device()))
    }

    fn frees_again(&self) -> bool {
        true
    }
}

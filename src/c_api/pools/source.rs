//! A pool's memory from functions of C's.

use std::ffi::{c_int, c_void};

use super::PoolSource;
use crate::error::{Error, OWN_ALLOCATOR, Result};
use crate::memory::device::SegmentSource;
use crate::memory::plug::call::{null, pointer};
use crate::runtime::Stream;

/// `gpupool_source`, with what it must have. It is released when it is dropped.
#[derive(Debug)]
pub(super) struct CSource {
    allocate: unsafe extern "C" fn(*mut c_void, u64, c_int, *mut c_void) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, u64, c_int, *mut c_void),
    context: SourceContext,
}

/// The context of a source, which ends with its release.
#[derive(Debug)]
struct SourceContext {
    context: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: `new` requires that the functions may be called from any thread.
unsafe impl Send for CSource {}
// SAFETY: `new` requires it of any number of threads at a time.
unsafe impl Sync for CSource {}

impl CSource {
    /// Makes the source of these functions.
    ///
    /// # Safety
    /// They do what the header says, from any thread, until `release` was called.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if `allocate` or `free` is null; then it has been released.
    pub(super) unsafe fn new(source: &PoolSource) -> Result<Self> {
        let context = SourceContext { context: source.context, release: source.release };
        Ok(Self {
            allocate: source.allocate.ok_or_else(|| null("allocate of the gpupool_source"))?,
            free: source.free.ok_or_else(|| null("free of the gpupool_source"))?,
            context,
        })
    }
}

// SAFETY: `new` requires that the functions do what the header says of them.
unsafe impl SegmentSource for CSource {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        // SAFETY: `new` requires that the function may be called so until the source is released.
        let address =
            unsafe { (self.allocate)(self.context.context, bytes, stream.device().number(), stream.raw().as_ptr()) };
        if address.is_null() {
            return Err(Error::no_memory(OWN_ALLOCATOR, "allocate returned a null pointer"));
        }
        Ok(address.addr() as u64)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        let (device, stream) = (stream.device().number(), stream.raw().as_ptr());
        // SAFETY: `new` requires that the function may be called until the release, with what `allocate` returned.
        unsafe { (self.free)(self.context.context, pointer(address), bytes, device, stream) };
        Ok(())
    }
}

impl Drop for SourceContext {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: nothing has the source any more, and all its memory was freed.
            unsafe { release(self.context) };
        }
    }
}

//! The contexts of streams: a device's primary one, a green one, or one of other code's own (`cuCtxCreate`). A green
//! context has a part of its device's processors, and shares all else with the device's primary context, whose memory,
//! modules, events and handles work on its streams. So a stream of one is its device's, and gpupool makes all for it in
//! the primary context: see `cuCtxFromGreenCtx` in the driver's reference. An event of the primary context includes the
//! work of its green contexts (`cuCtxRecordEvent`). A context of other code's own shares none of these.

use std::ptr;

use cudarc::driver::sys;

use super::{Cuda, Status, as_stream};
use crate::error::{Error, Result};
use crate::ids::{Device, RawStream};

const CONTEXT_IS_DESTROYED: Status = sys::CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as Status;
/// `CUDA_ERROR_STREAM_DETACHED`, which cudarc's bindings for CUDA before 13.1 do not name.
const STREAM_DETACHED: Status = 917;

pub(super) const ADVICE_IF_GONE: &str =
    "The stream's context, such as a green context, was destroyed: take a stream of one that lives";

/// Returns whether the driver refused a stream because its context was destroyed. For a green one, drivers before CUDA
/// 13.1 have no status.
pub(super) fn is_gone(status: Status) -> bool {
    matches!(status, CONTEXT_IS_DESTROYED | STREAM_DETACHED)
}

impl Cuda {
    /// Returns the device of a stream in this context, which is not a primary one retained here.
    ///
    /// # Safety
    /// The stream is alive.
    #[cold]
    pub(super) unsafe fn device_of_stream(&self, stream: RawStream, context: usize) -> Result<Device> {
        if let Some(device) = self.device_of(context)? {
            return Ok(device);
        }
        // SAFETY: the caller promises that the stream is alive.
        let parent = unsafe { self.parent_of_green_context(stream) }?;
        if let Some(parent) = parent
            && let Some(device) = self.device_of(parent)?
        {
            return Ok(device);
        }
        let older = if self.symbols.stream_green_context.is_ok() {
            ""
        } else {
            ". If it is of a green context: this driver cannot say of which, one for CUDA 12.5 or later can"
        };
        Err(Error::invalid_value(format!(
            "stream {:#x} belongs to a context that is neither the primary context of a device nor a green one; handles are made in primary contexts, so take a stream made there (cuDevicePrimaryCtxRetain, cudaSetDevice){older}",
            stream.address()
        )))
    }

    /// Returns the primary context of the device of a stream's green context, if it has one and the driver knows.
    ///
    /// # Safety
    /// The stream is alive.
    unsafe fn parent_of_green_context(&self, stream: RawStream) -> Result<Option<usize>> {
        let Ok(green_context) = self.symbols.stream_green_context else { return Ok(None) };
        let (mut parent, mut green) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the caller promises that the stream is alive, and both are valid places for a context.
        self.check(unsafe { green_context.call(as_stream(stream), &mut parent, &mut green) })?;
        Ok((!green.is_null()).then(|| parent.addr()))
    }
}

//! Copies between a device and pinned memory of the host, in the order of a stream.

use super::{BoundDevice, Stream, get};
use crate::error::Result;

impl Stream {
    /// Copies memory of the stream's device to pinned memory of the host, after the work submitted to the stream.
    ///
    /// # Safety
    /// All of both ranges is there until the copy is done, and nothing else uses the host's meanwhile.
    pub(crate) unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        let runtime = get()?;
        let _bound = BoundDevice::of(runtime, self.device())?;
        // SAFETY: a `Stream` is alive, and the caller vouches for both ranges.
        unsafe { runtime.copy_to_host(to, from, bytes, self.raw()) }.map_err(|e| e.on(self.device()))
    }

    /// Copies pinned memory of the host to memory of the stream's device, after the work submitted to the stream.
    ///
    /// # Safety
    /// All of both ranges is there until the copy is done, and nothing else uses the device's meanwhile.
    pub(crate) unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        let runtime = get()?;
        let _bound = BoundDevice::of(runtime, self.device())?;
        // SAFETY: a `Stream` is alive, and the caller vouches for both ranges.
        unsafe { runtime.copy_to_device(to, from, bytes, self.raw()) }.map_err(|e| e.on(self.device()))
    }
}

//! Guards for the two things that creating a handle changes in the calling thread: its current context and its capture
//! mode. They may end in any order, those of contexts also among scopes of streams.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::nesting::{BegunGuard, Nesting};
use super::{Context, Runtime, existing};
use crate::error::Result;
use crate::ids::{CaptureMode, Device, MemoryLocation};

thread_local! {
    static CONTEXTS: RefCell<Nesting<Context>> = const { Nesting::new() };
    static MODES: RefCell<Nesting<CaptureMode>> = const { Nesting::new() };
}

/// A device's primary context made current for this thread until the guard is dropped, and until all that were made later
/// are.
#[must_use = "the previous context comes back when this is dropped"]
#[derive(Debug)]
pub struct BoundDevice {
    runtime: &'static dyn Runtime,
    previous: BegunGuard<Context>,
    this_thread: PhantomData<*mut ()>,
}

impl BoundDevice {
    /// Binds the device.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if there is no such device; `ErrorKind::Library` if the driver refuses.
    pub fn new(runtime: &'static dyn Runtime, device: Device) -> Result<Self> {
        Self::of(runtime, existing(device)?)
    }

    /// As [`BoundDevice::new`], for a caller that knows the device, or for host memory, whose calls need no device's
    /// context.
    pub(crate) fn of(runtime: &'static dyn Runtime, location: impl Into<MemoryLocation>) -> Result<Self> {
        let location = location.into();
        let previous = runtime.bind(location).map_err(|e| e.on(location))?;
        Ok(Self { runtime, previous: BegunGuard::new(&CONTEXTS, previous), this_thread: PhantomData })
    }
}

impl Drop for BoundDevice {
    fn drop(&mut self) {
        if let Some(previous) = self.previous.end(&CONTEXTS) {
            self.runtime.restore(previous);
        }
    }
}

/// This thread's capture mode, relaxed until the guard is dropped, and until all that were made later are, so that calls which
/// allocate invalidate no capture.
///
/// Without it creating a handle while any thread captures fails and invalidates that capture
/// (`CUDA_ERROR_STREAM_CAPTURE_*`). See `cuThreadExchangeStreamCaptureMode` in NVIDIA's driver API reference.
#[must_use = "the previous mode comes back when this is dropped"]
#[derive(Debug)]
pub struct RelaxedCapture {
    runtime: &'static dyn Runtime,
    previous: BegunGuard<CaptureMode>,
    this_thread: PhantomData<*mut ()>,
}

impl RelaxedCapture {
    /// Relaxes the calling thread's mode.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses.
    pub fn new(runtime: &'static dyn Runtime) -> Result<Self> {
        let previous = runtime.exchange_capture_mode(CaptureMode::Relaxed)?;
        Ok(Self { runtime, previous: BegunGuard::new(&MODES, Some(previous)), this_thread: PhantomData })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some(previous) = self.previous.end(&MODES) {
            // Nothing can be done about a refusal here, and the driver has none documented for a valid mode.
            let _ = self.runtime.exchange_capture_mode(previous);
        }
    }
}

//! Guards for the two things that creating a handle changes in the calling thread: its current context and its capture
//! mode. They may end in any order, those of contexts also among scopes of streams: each keeps what it found when it began,
//! which is restored once it and all later ones have ended.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::thread::LocalKey;

use super::{Context, Runtime, existing};
use crate::error::Result;
use crate::ids::{CaptureMode, Device, MemoryLocation};

thread_local! {
    static CONTEXTS: RefCell<Nesting<Context>> = const { Nesting::new() };
    static MODES: RefCell<Nesting<CaptureMode>> = const { Nesting::new() };
}

/// The guards of one kind that a thread has, the innermost last.
#[derive(Debug)]
struct Nesting<T> {
    next: u64,
    /// Each one's number and what it is to restore; none if it changed nothing.
    begun: Vec<(u64, Option<T>)>,
}

impl<T> Nesting<T> {
    const fn new() -> RefCell<Self> {
        RefCell::new(Self { next: 0, begun: Vec::new() })
    }
}

#[derive(Debug)]
struct BegunGuard<T> {
    /// None in a thread that was ending.
    number: Option<u64>,
    found: Option<T>,
}

impl<T: Copy> BegunGuard<T> {
    fn new(nesting: &'static LocalKey<RefCell<Nesting<T>>>, found: Option<T>) -> Self {
        let number = nesting.try_with(|nesting| {
            let mut nesting = nesting.try_borrow_mut().ok()?;
            let number = nesting.next;
            nesting.next += 1;
            nesting.begun.push((number, found));
            Some(number)
        });
        Self { number: number.ok().flatten(), found }
    }

    /// Ends it, on the same thread, and returns what is to be restored now.
    fn end(&self, nesting: &'static LocalKey<RefCell<Nesting<T>>>) -> Option<T> {
        let Some(number) = self.number else { return self.found };
        let restored = nesting.try_with(|nesting| {
            let mut nesting = nesting.try_borrow_mut().ok()?;
            let place = nesting.begun.iter().rposition(|begun| begun.0 == number)?;
            let (_, found) = nesting.begun.remove(place);
            match nesting.begun.get_mut(place) {
                // The next one restores at its end what this one would have.
                Some((_, next)) => {
                    *next = found.or(*next);
                    None
                }
                None => found,
            }
        });
        // The thread is ending, where guards end in their order.
        restored.unwrap_or(self.found)
    }
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

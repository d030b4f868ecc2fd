//! The calling thread's current stream on each device, set for a scope.
//!
//! This is a concept of gpupool, used if a call names no stream: no driver has a current stream, and each framework
//! keeps its own.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::{Context, Stream, get};
use crate::error::Result;
use crate::ids::{Device, RawStream};

thread_local! {
    /// Indexed by device.
    static CURRENT: RefCell<Vec<Option<RawStream>>> = const { RefCell::new(Vec::new()) };
}

/// Returns the stream of the innermost scope on the device, if the thread is in one. The borrow is never held across a
/// call, so it cannot fail.
#[inline]
pub(crate) fn scoped(device: Device) -> Option<RawStream> {
    CURRENT.try_with(|streams| *streams.try_borrow().ok()?.get(device.ordinal())?).ok().flatten()
}

/// Returns the current stream on the device.
#[inline]
pub(super) fn current(device: Device) -> RawStream {
    scoped(device).unwrap_or(RawStream::LEGACY)
}

fn replace(device: Device, stream: Option<RawStream>) -> Option<RawStream> {
    let replaced = CURRENT.try_with(|streams| {
        let mut streams = streams.try_borrow_mut().ok()?;
        if streams.len() <= device.ordinal() {
            streams.resize(device.ordinal() + 1, None);
        }
        std::mem::replace(streams.get_mut(device.ordinal())?, stream)
    });
    replaced.ok().flatten()
}

/// What a scope replaced.
#[derive(Debug)]
pub(crate) struct EnteredStream {
    device: Device,
    stream: Option<RawStream>,
    context: Option<Context>,
}

/// Makes the stream current for the calling thread, and its device with it.
pub(crate) fn enter(stream: &Stream) -> Result<EnteredStream> {
    let context = get()?.bind(stream.device()).map_err(|e| e.on(stream.device()))?;
    Ok(EnteredStream { device: stream.device(), stream: replace(stream.device(), Some(stream.raw())), context })
}

/// Undoes [`enter`], on the same thread.
pub(crate) fn leave(entered: &EnteredStream) {
    replace(entered.device, entered.stream);
    if let (Ok(runtime), Some(context)) = (get(), entered.context) {
        runtime.restore(context);
    }
}

/// A stream made current for this thread until the guard is dropped; see [`Stream::enter`].
#[must_use = "the previous stream comes back when this is dropped"]
#[derive(Debug)]
pub struct StreamScope {
    entered: EnteredStream,
    /// Keeps a stream of our own alive while it is current.
    _stream: Stream,
    this_thread: PhantomData<*mut ()>,
}

impl StreamScope {
    pub(super) fn new(stream: &Stream) -> Result<Self> {
        Ok(Self { entered: enter(stream)?, _stream: stream.clone(), this_thread: PhantomData })
    }
}

impl Drop for StreamScope {
    fn drop(&mut self) {
        leave(&self.entered);
    }
}

//! The calling thread's current stream on each device, set for a scope. This is a concept of gpupool, for calls that
//! name no stream: no driver has a current stream, and each framework keeps its own. Scopes may end in any order: the
//! current stream is that of the innermost open scope, which keeps its stream.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use super::{BoundDevice, Stream, get};
use crate::error::{Error, Result};
use crate::ids::Device;

#[derive(Debug)]
struct Scope {
    number: u64,
    /// Not dropped by the end of the thread, which may call no driver: a forgotten scope keeps its stream.
    stream: ManuallyDrop<Stream>,
    bound: ManuallyDrop<BoundDevice>,
}

#[derive(Debug)]
struct Scopes {
    next: u64,
    entered: Vec<Scope>,
}

thread_local! {
    static SCOPES: RefCell<Scopes> = const { RefCell::new(Scopes { next: 0, entered: Vec::new() }) };
}

/// Takes the stream of the innermost scope on the device, if any. No call is made during the borrow, so it cannot fail.
#[inline]
fn innermost(device: Device, take: impl FnOnce(&Stream) -> Stream) -> Option<Stream> {
    let taken = SCOPES.try_with(|scopes| {
        let scopes = scopes.try_borrow().ok()?;
        scopes.entered.iter().rev().find(|scope| scope.stream.device() == device).map(|scope| take(&scope.stream))
    });
    taken.ok().flatten()
}

/// Returns the stream of the innermost scope on the device, if the thread is in one.
#[inline]
pub(crate) fn scoped(device: Device) -> Option<Stream> {
    innermost(device, Stream::clone)
}

/// As [`scoped`], for a call that ends before the scope, which keeps the stream alive.
#[inline]
pub(crate) fn scoped_view(device: Device) -> Option<Stream> {
    innermost(device, Stream::view)
}

/// A scope that was entered, to be left on the same thread.
#[derive(Debug)]
pub(crate) struct EnteredStream {
    number: u64,
}

/// Makes the stream current for the calling thread, and its device with it.
pub(crate) fn enter(stream: &Stream) -> Result<EnteredStream> {
    let runtime = get()?;
    let stream = stream.kept();
    let bound = BoundDevice::of(runtime, stream.device())?;
    let entered = SCOPES.try_with(|scopes| {
        let mut scopes = scopes.try_borrow_mut().ok()?;
        let number = scopes.next;
        scopes.next += 1;
        let (stream, bound) = (ManuallyDrop::new(stream), ManuallyDrop::new(bound));
        scopes.entered.push(Scope { number, stream, bound });
        Some(EnteredStream { number })
    });
    let entered = entered.ok().flatten();
    entered.ok_or_else(|| Error::invalid_value("this thread is ending, and can enter no stream any more"))
}

/// Undoes [`enter`], on the same thread.
pub(crate) fn leave(entered: &EnteredStream) {
    let left = SCOPES.try_with(|scopes| {
        let mut scopes = scopes.try_borrow_mut().ok()?;
        let place = scopes.entered.iter().rposition(|scope| scope.number == entered.number)?;
        Some(scopes.entered.remove(place))
    });
    let Some(Scope { stream, bound, .. }) = left.ok().flatten() else { return };
    // Outside the borrow: the last clone of a stream destroys it.
    drop(ManuallyDrop::into_inner(bound));
    drop(ManuallyDrop::into_inner(stream));
}

/// A stream made current for this thread until the guard is dropped; see [`Stream::enter`].
#[must_use = "the previous stream comes back when this is dropped"]
#[derive(Debug)]
pub struct StreamScope {
    entered: EnteredStream,
    this_thread: PhantomData<*mut ()>,
}

impl Stream {
    /// Makes this the calling thread's current stream, and its device the current one, until the guard is dropped, which
    /// keeps the stream alive. Guards may be dropped in any order: the stream of the one entered last among those that are
    /// left is current.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses to bind the device.
    pub fn enter(&self) -> Result<StreamScope> {
        Ok(StreamScope { entered: enter(self)?, this_thread: PhantomData })
    }
}

impl Drop for StreamScope {
    fn drop(&mut self) {
        leave(&self.entered);
    }
}

//! The calling thread's current stream on each device, set for a scope. This is a concept of gpupool, for calls that
//! name no stream: no driver has a current stream, and each framework keeps its own. Scopes may end in any order: the
//! current stream is that of the innermost open scope, which keeps its stream.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::{BoundDevice, Stream, get};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::process;
use crate::sync::{lock, take_last};

#[derive(Debug)]
struct Scope {
    /// Whether another thread has ended it. It goes with the thread's next scope.
    is_over: Arc<AtomicBool>,
    /// Neither is dropped by the end of the thread, which may call no driver.
    stream: ManuallyDrop<Stream>,
    bound: ManuallyDrop<BoundDevice>,
}

struct Scopes(RefCell<Vec<Scope>>);

thread_local! {
    static SCOPES: Scopes = const { Scopes(RefCell::new(Vec::new())) };
}

/// Streams of scopes that threads had when they ended, forgotten ones and those that another thread has ended. They go with the
/// next scope of any thread.
static LEFT: Mutex<Vec<Stream>> = Mutex::new(Vec::new());

impl Drop for Scopes {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if !process::is_forked() {
            let streams = self.0.get_mut().drain(..).map(|scope| ManuallyDrop::into_inner(scope.stream));
            lock(&LEFT).extend(streams);
        }
    }
}

/// Takes the stream of the innermost scope on the device, if any. No call is made during the borrow, so it cannot fail.
#[inline]
fn innermost(device: Device, take: impl FnOnce(&Stream) -> Stream) -> Option<Stream> {
    let taken = SCOPES.try_with(|scopes| {
        let scopes = scopes.0.try_borrow().ok()?;
        scopes
            .iter()
            .rev()
            .find(|scope| scope.stream.device() == device && !scope.is_over.load(Ordering::Acquire))
            .map(|scope| take(&scope.stream))
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

/// A scope that was entered, to be left.
#[derive(Debug)]
pub(crate) struct EnteredStream {
    is_over: Arc<AtomicBool>,
}

impl Scope {
    /// Outside a borrow of the thread's scopes: the last clone of a stream destroys it.
    fn end(self) {
        drop(ManuallyDrop::into_inner(self.bound));
        drop(ManuallyDrop::into_inner(self.stream));
    }
}

/// Takes the thread's last scope that this holds for out of the list.
fn take(is_meant: impl FnMut(&Scope) -> bool) -> Option<Scope> {
    let taken = SCOPES.try_with(|scopes| {
        let mut scopes = scopes.0.try_borrow_mut().ok()?;
        take_last(&mut scopes, is_meant)
    });
    taken.ok().flatten()
}

/// Makes the stream current for the calling thread, and its device with it.
pub(crate) fn enter(stream: &Stream) -> Result<EnteredStream> {
    let runtime = get()?;
    while let Some(ended) = take(|scope| scope.is_over.load(Ordering::Acquire)) {
        ended.end();
    }
    // Outside the lock.
    let left = mem::take(&mut *lock(&LEFT));
    drop(left);
    let stream = stream.kept();
    let bound = BoundDevice::of(runtime, stream.device())?;
    let entered = SCOPES.try_with(|scopes| {
        let mut scopes = scopes.0.try_borrow_mut().ok()?;
        let (stream, bound) = (ManuallyDrop::new(stream), ManuallyDrop::new(bound));
        let is_over = Arc::new(AtomicBool::new(false));
        scopes.push(Scope { is_over: Arc::clone(&is_over), stream, bound });
        Some(EnteredStream { is_over })
    });
    let entered = entered.ok().flatten();
    entered.ok_or_else(|| Error::invalid_value("this thread is ending, and can enter no stream any more"))
}

/// Undoes [`enter`]. On another thread the stream is no longer current for the one that entered it, whose current device stays
/// until it enters another scope.
pub(crate) fn leave(entered: &EnteredStream) {
    match take(|scope| Arc::ptr_eq(&scope.is_over, &entered.is_over)) {
        Some(left) => left.end(),
        None => entered.is_over.store(true, Ordering::Release),
    }
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

//! Guards for what calls find in the calling thread: its current context, its capture mode, and its current stream on each
//! device. They may end in any order, those of contexts also among scopes of streams: each keeps what it found when it
//! began, which is restored once it and all later ones have ended.
//!
//! A current stream, set for a scope, is a concept of gpupool, for calls that name no stream: no driver has one, and each
//! framework keeps its own. It is that of the innermost open scope, which keeps its stream.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::LocalKey;

use super::{Context, Runtime, Stream, existing, get};
use crate::error::{Error, Result};
use crate::ids::{CaptureMode, Device, MemoryLocation};
use crate::process;
use crate::sync::{lock, take_last};

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
    pub(super) runtime: &'static dyn Runtime,
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

    /// As [`BoundDevice::new`], for a caller that knows the device, with the process's runtime.
    pub(super) fn on(device: Device) -> Result<Self> {
        Self::of(get()?, device)
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
    static CONTEXTS: RefCell<Nesting<Context>> = const { Nesting::new() };
    static MODES: RefCell<Nesting<CaptureMode>> = const { Nesting::new() };
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

//! Streams: those of gpupool, or views of those of other code; whether they are captured into a graph, and what tells two
//! apart.
//!
//! For captures the driver answers for a stream alone, which is asked each time: nothing is kept. What is known of all
//! captures on a device is in `known_captures.rs`.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, Weak};

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::{BoundDevice, Capture, Event, Kind, existing, get, guard};
use crate::error::{Error, Result};
use crate::ids::{CaptureStatus, Device, RawStream};
use crate::observe::nvtx;
use crate::process;
use crate::sync::{ThisThread, ThreadNumber, lock};

/// A stream and the device it belongs to.
///
/// Either one that gpupool created ([`Stream::new`]), which every clone, scope and block of memory keeps alive, or a view of
/// a stream of other code ([`Stream::from_raw`]), which its owner keeps alive.
///
/// ```
/// use gpupool::Stream;
///
/// let stream = Stream::new(gpupool::device(0)?)?;
/// let _scope = stream.enter()?; // this thread's current stream, until the scope is dropped
/// assert_eq!(Stream::current()?.raw(), stream.raw());
/// stream.synchronize()?;
/// # Ok::<(), gpupool::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stream {
    raw: RawStream,
    device: Device,
    /// Keeps it alive; none for a view.
    owned: Option<Arc<Owned>>,
}

/// Every stream of our own that is alive, and every other that lasts, of which those that are never destroyed stay for ever:
/// those that can be asked whether they are captured. By device and address, so that one is found among thousands.
static OWNED: Mutex<FxHashMap<(Device, usize), Weak<Owned>>> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));

/// A stream of our own, or another that lasts, which this does not keep alive.
#[derive(Clone, Debug)]
pub(crate) struct WeakStream(Weak<Owned>);

impl WeakStream {
    /// Returns the stream, if it was not destroyed.
    pub(crate) fn upgrade(&self) -> Option<Stream> {
        self.0.upgrade().map(Stream::of_owned)
    }
}

#[derive(Debug)]
struct Owned {
    raw: RawStream,
    device: Device,
    end: StreamEnd,
}

/// What becomes of a stream with its last clone.
#[derive(Debug)]
enum StreamEnd {
    /// One of our own is destroyed.
    Destroyed,
    /// Nothing: it is never destroyed.
    None,
    /// What has kept another library's stream alive is dropped.
    #[cfg(feature = "cudarc")]
    Released { _keeper: Arc<cudarc::driver::CudaStream> },
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A forked child leaves the parent's stream alone, and its lists too, whose locks may be held for ever.
        if process::is_forked() {
            return;
        }
        forget_owned(self);
        if matches!(self.end, StreamEnd::Destroyed)
            && let Ok(runtime) = get()
            && let Ok(_bound) = BoundDevice::of(runtime, self.device)
        {
            // SAFETY: `raw` came from `stream_create` and this is its last owner.
            let _ = unsafe { runtime.stream_destroy(self.raw) };
        }
    }
}

impl Stream {
    /// Creates a stream on the device. It does not wait for the legacy default stream (`CU_STREAM_NON_BLOCKING`).
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if there is no such device; `ErrorKind::Library` if the driver refuses.
    pub fn new(device: Device) -> Result<Self> {
        let device = existing(device)?;
        let bound = BoundDevice::on(device)?;
        let raw = bound.runtime.stream_create().map_err(|e| e.on(device))?;
        if bound.runtime.kind() == Kind::Cuda {
            nvtx::name_stream(raw, c"gpupool");
        }
        Ok(note_owned(Owned { raw, device, end: StreamEnd::Destroyed }))
    }

    fn of_owned(owned: Arc<Owned>) -> Self {
        Self { raw: owned.raw, device: owned.device, owned: Some(owned) }
    }

    /// Returns the device's legacy default stream.
    ///
    /// # Errors
    /// As [`device`](crate::device).
    pub fn legacy(device: Device) -> Result<Self> {
        existing(device).map(Self::default_of)
    }

    /// Returns the calling thread's own default stream on the device. On another thread the result is that one's own.
    ///
    /// # Errors
    /// As [`device`](crate::device).
    pub fn per_thread(device: Device) -> Result<Self> {
        Ok(Self { raw: RawStream::PER_THREAD, device: existing(device)?, owned: None })
    }

    /// Makes the legacy default stream of a device that exists.
    #[inline]
    pub(crate) const fn default_of(device: Device) -> Self {
        Self { raw: RawStream::LEGACY, device, owned: None }
    }

    /// Creates a view of a stream of other code: a `CUstream` or `cudaStream_t`, of a device's primary context or of a
    /// green context. If there are several devices, the driver is queried for the stream's device; a default stream (0,
    /// 1 or 2) is that of the thread's current device.
    ///
    /// # Errors
    /// If there are several devices, `ErrorKind::InvalidValue` if it belongs to a context that other code created, and
    /// `ErrorKind::Library` if the driver does not know it.
    ///
    /// # Safety
    /// The stream is alive, and outlives all that has it: this view and its clones, scopes that they enter
    /// ([`Stream::enter`]), streams that a buffer allocated on it returns ([`DeviceBuffer::stream`](crate::DeviceBuffer::stream)),
    /// memory that was recorded on it, and handles whose stream it is. Memory that was allocated on it may be freed later.
    ///
    /// ```compile_fail,E0133
    /// let view = gpupool::Stream::from_raw(std::ptr::null_mut()); // in an unsafe block alone
    /// ```
    pub unsafe fn from_raw(raw: *mut c_void) -> Result<Self> {
        // SAFETY: the caller promises that the stream is alive for as long as this view is used.
        unsafe { Self::foreign(raw.addr(), None) }
    }

    /// As [`Stream::from_raw`] for a caller that knows the device, so that the driver is not queried.
    ///
    /// # Errors
    /// As [`device`](crate::device).
    ///
    /// # Safety
    /// As [`Stream::from_raw`], and the stream belongs to the device.
    ///
    /// ```compile_fail,E0133
    /// let device = gpupool::device(0).unwrap();
    /// let view = gpupool::Stream::from_raw_on(std::ptr::null_mut(), device); // in an unsafe block alone
    /// ```
    pub unsafe fn from_raw_on(raw: *mut c_void, device: Device) -> Result<Self> {
        // SAFETY: as the caller promises.
        Ok(unsafe { Self::view_of(raw, existing(device)?) })
    }

    /// [`Stream::from_raw_on`] for a device that is looked up where the stream is used.
    ///
    /// # Safety
    /// As [`Stream::from_raw_on`].
    #[inline]
    pub(crate) unsafe fn view_of(raw: *mut c_void, device: Device) -> Self {
        Self { raw: RawStream::from_ptr(raw), device, owned: None }
    }

    /// Returns the stream of cudarc's, of this device, which the result and its clones keep alive.
    #[cfg(feature = "cudarc")]
    pub(crate) fn of_cudarc(stream: &Arc<cudarc::driver::CudaStream>, device: Device) -> Self {
        let view = Self { raw: RawStream::from_ptr(stream.cu_stream().cast()), device, owned: None };
        if view.raw.is_default() {
            return view;
        }
        let known = view.kept();
        if known.owned.is_some() {
            return known;
        }
        let keeper = Arc::clone(stream);
        note_owned(Owned { raw: view.raw, device, end: StreamEnd::Released { _keeper: keeper } })
    }

    /// [`Stream::from_raw`] for the stream at an address. A default stream is that of `device` if one is given; any other
    /// stream must belong to it.
    ///
    /// # Safety
    /// As [`Stream::from_raw`].
    pub(crate) unsafe fn foreign(address: usize, device: Option<Device>) -> Result<Self> {
        let raw = RawStream::from_address(address);
        if let (true, Some(device)) = (raw.is_default(), device) {
            return Ok(Self { raw, device, owned: None });
        }
        // SAFETY: the caller promises that the stream is alive.
        let actual = unsafe { get()?.stream_device(raw) }.map_err(|error| {
            error.advised(format_args!(
                "stream is {address:#x}, which is not the address of a stream that is alive; give that of one that is, or 0 for the \
                 default stream"
            ))
        })?;
        Self { raw, device: actual, owned: None }.on(device)
    }

    /// Declares that the code that made this stream never destroys it.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for a per-thread default stream, which no other thread can use, and which ends with its own.
    pub(crate) fn declare_lasting(&self) -> Result<()> {
        if self.raw == RawStream::PER_THREAD {
            return Err(Error::invalid_value(
                "stream 2 is the per-thread default stream, which is another one in each thread and ends with it: declare \
                 streams that your code has made, and never destroys",
            ));
        }
        if !self.is_lasting() {
            lock(&OWNED).entry((self.device, self.raw.address())).or_insert_with(|| {
                let owned = Arc::new(Owned { raw: self.raw, device: self.device, end: StreamEnd::None });
                Arc::downgrade(&ManuallyDrop::new(owned))
            });
        }
        Ok(())
    }

    /// Returns whether it can be used at any time: a stream of our own, the legacy default one, or one that was
    /// declared to last. Another foreign one may have been destroyed since it was given, and no driver says so: it
    /// crashes.
    pub(crate) fn is_lasting(&self) -> bool {
        self.owned.is_some() || self.raw.is_legacy()
    }

    /// Returns the same stream, which the result keeps alive if it is one of our own, of which this may be a view, or
    /// known to last.
    pub(crate) fn kept(&self) -> Self {
        // In a forked child the lock may be held for ever.
        if self.owned.is_some() || self.raw.is_legacy() || process::is_forked() {
            return self.clone();
        }
        let owned = lock(&OWNED).get(&(self.device, self.raw.address())).and_then(Weak::upgrade);
        Self { owned, ..self.view() }
    }

    /// Returns the stream at this address, if it is known to be alive: one of our own, one that was declared to last,
    /// or the legacy default stream.
    pub(crate) fn lasting(raw: RawStream, device: Device) -> Option<Self> {
        let stream = Self { raw, device, owned: None }.kept();
        stream.is_lasting().then_some(stream)
    }

    /// Returns the same stream without what keeps it alive; none for a foreign one, or a default stream.
    pub(crate) fn weak(&self) -> Option<WeakStream> {
        Some(WeakStream(Arc::downgrade(self.kept().owned.as_ref()?)))
    }

    /// Returns how many clones there are of a stream of our own; none for a foreign one, whose end no driver reports.
    pub(crate) fn clones(&self) -> Option<usize> {
        self.owned.as_ref().map(Arc::strong_count)
    }

    /// Returns the same stream, if it is one of the device that a caller asked for.
    pub(crate) fn on(self, wanted: Option<Device>) -> Result<Self> {
        let (address, device) = (self.raw.address(), self.device);
        match wanted {
            Some(wanted) if wanted != device => Err(Error::invalid_value(format!(
                "stream {address:#x} belongs to {device}, not to {wanted}; give a stream of {wanted}, or leave the device out"
            ))),
            _ => Ok(self),
        }
    }

    /// Returns a view of this stream for a caller that keeps it alive meanwhile.
    #[inline]
    pub(crate) const fn view(&self) -> Self {
        Self { raw: self.raw, device: self.device, owned: None }
    }

    /// Returns the calling thread's current stream: that of the innermost [`Stream::enter`] for its current device,
    /// otherwise the legacy default stream.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver cannot return the current device.
    pub fn current() -> Result<Self> {
        Ok(Self::current_of(get()?.current_device()?))
    }

    /// Returns the calling thread's current stream on this device.
    ///
    /// # Errors
    /// As [`device`](crate::device).
    pub fn current_on(device: Device) -> Result<Self> {
        existing(device).map(Self::current_of)
    }

    /// [`Stream::current_on`] for a device that exists.
    #[inline]
    pub(crate) fn current_of(device: Device) -> Self {
        guard::scoped(device).unwrap_or(Self::default_of(device))
    }

    /// [`Stream::current_of`] for a call that ends before the thread leaves a scope.
    #[inline]
    pub(crate) fn current_view(device: Device) -> Self {
        guard::scoped_view(device).unwrap_or(Self::default_of(device))
    }

    /// Returns the address.
    #[inline]
    pub const fn raw(&self) -> RawStream {
        self.raw
    }

    /// Returns the device.
    #[inline]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Returns a number that no other stream of this process has or will have; 0 for a default stream, and where the driver
    /// has none; none while the stream is captured, which the query would spoil. A new stream may have the address of one that
    /// was destroyed, whose work goes on.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses.
    pub(crate) fn id(&self) -> Result<Option<u64>> {
        if self.raw.is_default() {
            return Ok(Some(0));
        }
        if self.is_captured()? { Ok(None) } else { self.id_outside_captures().map(Some) }
    }

    /// As [`Stream::id`], for a stream of which the caller just learnt that it is not captured.
    ///
    /// # Errors
    /// As [`Stream::id`].
    pub(crate) fn id_outside_captures(&self) -> Result<u64> {
        if self.raw.is_default() {
            return Ok(0);
        }
        // SAFETY: the stream is alive: ours until the last clone, a foreign one by `from_raw`'s contract.
        unsafe { get()?.stream_id(self.raw) }.map_err(|e| e.on(self.device))
    }

    /// Returns whether all work on the stream is done.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for the legacy default stream while a blocking stream of its device is captured, which
    /// the call would invalidate; `ErrorKind::Library`, also for an error of earlier work.
    pub fn query(&self) -> Result<bool> {
        let _bound = self.begin_use()?;
        // SAFETY: the stream is alive: ours until the last clone, a foreign one by `from_raw`'s contract.
        unsafe { get()?.stream_query(self.raw) }.map_err(|e| e.on(self.device))
    }

    /// Waits for all work on the stream.
    ///
    /// # Errors
    /// As [`Stream::query`].
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.begin_use()?;
        // SAFETY: the stream is alive: ours until the last clone, a foreign one by `from_raw`'s contract.
        unsafe { get()?.stream_synchronize(self.raw) }.map_err(|e| e.on(self.device))
    }

    /// Makes later work on this stream wait for what the event recorded.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` as for [`Stream::query`]; `ErrorKind::Library` if the driver refuses.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _bound = self.begin_use()?;
        // SAFETY: the stream is alive: ours until the last clone, a foreign one by `from_raw`'s contract. An `Event` owns its
        // event.
        unsafe { get()?.stream_wait_event(self.raw, event.raw()) }.map_err(|e| e.on(self.device))
    }

    /// Returns whether work on the stream is recorded into a graph.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses.
    pub fn capture_status(&self) -> Result<CaptureStatus> {
        let _bound = self.bind_default()?;
        // SAFETY: the stream is alive: ours until the last clone, a foreign one by `from_raw`'s contract.
        unsafe { get()?.stream_capture_status(self.raw) }.map_err(|e| e.on(self.device))
    }

    /// Returns whether what is submitted to the stream goes to a graph, or to a capture that was invalidated. The legacy
    /// default stream is never captured, whatever is captured beside it, and is not asked.
    pub(crate) fn is_captured(&self) -> Result<bool> {
        Ok(!self.raw.is_legacy() && self.capture_status()? != CaptureStatus::None)
    }

    /// Returns the capture that work on the stream goes to, if the driver identifies it.
    pub(crate) fn capture(&self) -> Result<Option<Capture>> {
        let _bound = self.bind_default()?;
        // SAFETY: the stream is alive: ours until the last clone, a foreign one by `from_raw`'s contract.
        unsafe { get()?.stream_capture(self.raw) }.map_err(|e| e.on(self.device))
    }

    /// Makes a use of the stream possible, and refuses one that would invalidate the capture of a blocking stream.
    ///
    /// # Errors
    /// As [`Stream::query`].
    pub(crate) fn begin_use(&self) -> Result<Option<BoundDevice>> {
        let bound = self.bind_default()?;
        if self.raw.is_legacy() && self.capture_status()? == CaptureStatus::Implicit {
            return Err(Error::invalid_value(format!(
                "a blocking stream of {} is being captured, and any use of the legacy default stream would invalidate that \
                 capture: use another stream, or do this after the capture",
                self.device
            )));
        }
        Ok(bound)
    }

    /// Copies memory of the stream's device to pinned memory of the host, after the work submitted to the stream.
    ///
    /// # Safety
    /// All of both ranges is there until the copy is done, and nothing else uses the host's meanwhile.
    pub(crate) unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        let bound = BoundDevice::on(self.device)?;
        // SAFETY: a `Stream` is alive, and the caller vouches for both ranges.
        unsafe { bound.runtime.copy_to_host(to, from, bytes, self.raw()) }.map_err(|e| e.on(self.device()))
    }

    /// Copies pinned memory of the host to memory of the stream's device, after the work submitted to the stream.
    ///
    /// # Safety
    /// All of both ranges is there until the copy is done, and nothing else uses the device's meanwhile.
    pub(crate) unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        let bound = BoundDevice::on(self.device)?;
        // SAFETY: a `Stream` is alive, and the caller vouches for both ranges.
        unsafe { bound.runtime.copy_to_device(to, from, bytes, self.raw()) }.map_err(|e| e.on(self.device()))
    }

    /// Default streams are found through the current context, so that must be the device's.
    fn bind_default(&self) -> Result<Option<BoundDevice>> {
        if self.raw.is_default() { BoundDevice::of(get()?, self.device).map(Some) } else { Ok(None) }
    }
}

fn note_owned(owned: Owned) -> Stream {
    let owned = Arc::new(owned);
    lock(&OWNED).insert((owned.device, owned.raw.address()), Arc::downgrade(&owned));
    Stream::of_owned(owned)
}

/// Returns the streams of the device that are known to be alive, but for default streams.
pub(super) fn alive_on(device: Device) -> Vec<Stream> {
    // No clone ends under the lock, which its end takes.
    let owned: Vec<_> = lock(&OWNED).values().filter_map(Weak::upgrade).collect();
    let of_device = owned.into_iter().filter(|owned| owned.device == device);
    of_device.map(Stream::of_owned).collect()
}

/// Forgets a stream whose last clone is gone, before the driver can give its address to another.
fn forget_owned(owned: &Owned) {
    let mut streams = lock(&OWNED);
    let key = (owned.device, owned.raw.address());
    // One stream of cudarc's may be noted twice, by two threads at once: the other note stays.
    if streams.get(&key).is_some_and(|noted| noted.strong_count() == 0) {
        streams.remove(&key);
    }
}

/// A stream, as a caller has just named it. An address alone tells no two apart: a new stream may get that of one that was
/// destroyed while its work goes on, and each thread has a per-thread default stream of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamIdentity {
    device: Device,
    raw: RawStream,
    /// The stream's own number, none while it is captured, as no driver tells it then; 0 for one that outlives all that has
    /// this identity, so that its address is its alone.
    number: Option<u64>,
    /// The thread of a per-thread default stream.
    thread: Option<ThreadNumber>,
}

impl StreamIdentity {
    /// Returns the identity of a stream that the calling thread names.
    ///
    /// # Errors
    /// As [`Stream::id`].
    pub(crate) fn of(stream: &Stream) -> Result<Self> {
        Ok(Self::numbered(stream, stream.id()?))
    }

    /// As [`StreamIdentity::of`], for a caller that knows the stream's number.
    pub(crate) fn numbered(stream: &Stream, number: Option<u64>) -> Self {
        let raw = stream.raw().by_one_name();
        let thread = (raw == RawStream::PER_THREAD).then(|| ThisThread::get().number());
        Self { device: stream.device(), raw, number, thread }
    }

    pub(crate) const fn number(&self) -> Option<u64> {
        self.number
    }

    /// Returns whether it is the per-thread default stream of a thread.
    pub(crate) const fn is_per_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Returns whether the thread can name the stream: it is not the per-thread default stream of another one.
    pub(crate) fn is_nameable_by(&self, thread: ThisThread) -> bool {
        self.thread.is_none_or(|own| own == thread.number())
    }

    /// Returns whether a stream that the calling thread names is this one, as far as is known: a captured one, whose number
    /// no driver tells, is taken for the last one at its address.
    pub(crate) fn is_named_by(&self, stream: &Stream) -> bool {
        Self::numbered(stream, self.number).is_behind(self)
            && (self.number == Some(0) || is_still(self.number, || stream.id()))
    }

    /// Returns the stream, if it can be used at any time.
    pub(crate) fn lasting(&self) -> Option<Stream> {
        Stream::lasting(self.raw, self.device)
    }

    /// Returns whether another stream, alive now, has the address that this one had.
    pub(crate) fn had_address_of(&self, alive: &Self) -> bool {
        (self.device, self.raw) == (alive.device, alive.raw) && self != alive
    }

    /// Returns whether work that is submitted now to the one comes after all work so far of the other.
    pub(crate) fn is_behind(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

/// Returns whether the stream at an address is the one that had this number, as far as is known. If the driver refuses to
/// answer, it is not.
#[inline(never)]
pub(crate) fn is_still(number: Option<u64>, now: impl FnOnce() -> Result<Option<u64>>) -> bool {
    now().is_ok_and(|now| now.is_none() || now == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::forked_child::assert_ends_in_forked_child;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no forks")]
    fn a_forked_child_names_the_stream_of_a_buffer_though_the_lock_is_held_for_ever() {
        let view = Stream { raw: RawStream::from_address(4096), device: Device::from_ordinal(77), owned: None };
        let held = lock(&OWNED);
        assert_ends_in_forked_child(|| drop(view.kept()));
        drop(held);
    }
}

//! Stream order: when a freed block may be used again, and when a page that was moved away may be unmapped.
//!
//! A block used on its own stream alone waits for nothing. One that other streams used waits for an event on each; events
//! are pooled, and asked about only when a request finds no free block.

use std::sync::Mutex;

use crate::error::Result;
use crate::ids::{CaptureStatus, Device, RawStream};
use crate::memory::cache::event as trace;
use crate::memory::cache::thread_cache::{Service, ThreadCache};
use crate::memory::device::device_memory::DeviceMemory;
use crate::runtime::{self, Event, RelaxedCapture, Stream};
use crate::sync::lock;

/// A stream that uses a block.
#[derive(Clone, Debug)]
pub(in crate::memory) struct User {
    pub(in crate::memory) stream: Stream,
    /// The thread whose per-thread default stream this is, the only one that can name it; 0 for any other stream, and no
    /// thread's number for one that may be gone.
    thread: u64,
}

/// No thread: the stream is not touched again.
#[cfg(feature = "python")]
const NOBODY: u64 = u64::MAX;

impl User {
    pub(in crate::memory) fn new(stream: &Stream, thread: u64) -> Self {
        Self { stream: stream.kept(), thread: if stream.raw() == RawStream::PER_THREAD { thread } else { 0 } }
    }

    /// The same where nobody promises that the stream lives until the block is freed: all work on its device then stands
    /// for its.
    #[cfg(feature = "python")]
    pub(in crate::memory) fn fleeting(self) -> Self {
        if self.thread != 0 || self.stream.is_lasting() { self } else { Self { thread: NOBODY, ..self } }
    }

    pub(in crate::memory) fn is(&self, other: &Self) -> bool {
        self.stream.raw() == other.stream.raw()
            && self.stream.device() == other.stream.device()
            && self.thread == other.thread
    }
}

/// A freed block and what must happen before it is used again.
#[derive(Debug)]
pub(in crate::memory) struct Waiting {
    pub(in crate::memory) offset: u64,
    pub(in crate::memory) until: Until,
}

/// What is waited for.
#[derive(Debug)]
pub(in crate::memory) enum Until {
    /// Work recorded on streams.
    Events(Vec<Event>),
    /// Streams on which nothing could be recorded yet: one is being captured, or the driver refused.
    Unrecorded(Vec<Stream>),
    /// All work on these devices, which could not be recorded yet.
    Devices(Vec<Device>),
}

/// Events that are not in use.
#[derive(Debug, Default)]
pub(in crate::memory) struct EventPool {
    idle: Mutex<Vec<Event>>,
}

impl EventPool {
    /// An event that has recorded the stream's work so far.
    pub(in crate::memory) fn record(&self, stream: &Stream) -> Result<Event> {
        let event = self.take(stream.device())?;
        event.record(stream)?;
        Ok(event)
    }

    fn take(&self, device: Device) -> Result<Event> {
        let idle = {
            let mut idle = lock(&self.idle);
            // A stream of a peer device takes an event of its own device.
            let place = idle.iter().rposition(|event| event.device() == device);
            place.map(|place| idle.swap_remove(place))
        };
        idle.map_or_else(|| Event::new(device), Ok)
    }

    pub(in crate::memory) fn put_back(&self, events: impl IntoIterator<Item = Event>) {
        lock(&self.idle).extend(events);
    }
}

/// Puts a fence through the device: later work, on whichever stream, waits for all work so far, and the host does not.
/// So memory of `stream` that others used unrecorded may be freed behind it, and be used again on any stream. False, and
/// nothing done, while a capture is known of, which that would spoil.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses, as those before CUDA 12.5 do.
#[cfg(feature = "python")]
pub(crate) fn fence(stream: &Stream) -> Result<bool> {
    let device = stream.device();
    let memory = DeviceMemory::of(device)?;
    if runtime::is_known_stream_capturing(runtime::get()?, device)? {
        return Ok(false);
    }
    let event = memory.events.take(device)?;
    event.record_context()?;
    let is_done = {
        let _relaxed = RelaxedCapture::new(runtime::get()?)?;
        event.query()?
    };
    if !is_done {
        // What the allocator asks about later is this stream.
        stream.wait(&event)?;
        event.delay_context()?;
    }
    memory.events.put_back([event]);
    Ok(true)
}

impl Until {
    /// The streams' work so far.
    pub(in crate::memory) fn now(device: &DeviceMemory, streams: Vec<Stream>) -> Result<Self> {
        for stream in &streams {
            if stream.capture_status()? != CaptureStatus::None {
                return Ok(Self::Unrecorded(streams));
            }
        }
        streams.iter().map(|stream| device.events.record(stream)).collect::<Result<_>>().map(Self::Events)
    }

    /// The work so far on the stream that a cache serves, for somebody whose own stream is alive. A foreign stream may have
    /// been destroyed by now, and is not touched: all work on the device stands for its.
    pub(in crate::memory) fn served(
        device: &DeviceMemory,
        service: &Service,
        thread: u64,
        alive: Option<&Stream>,
    ) -> Result<Self> {
        if service.is_stream_usable(thread, alive) {
            Self::now(device, vec![service.stream.clone()])
        } else {
            Self::all_work(device, &[device.device])
        }
    }

    /// All work on the devices so far. Not while a capture is known of, which that would spoil.
    fn all_work(memory: &DeviceMemory, devices: &[Device]) -> Result<Self> {
        for &device in devices {
            if runtime::is_known_stream_capturing(runtime::get()?, device)? {
                return Ok(Self::Devices(devices.to_vec()));
            }
        }
        let record = |&device: &Device| {
            let event = memory.events.take(device)?;
            event.record_context().map(|()| event)
        };
        devices.iter().map(record).collect::<Result<_>>().map(Self::Events)
    }

    /// The users' work so far, or as soon as the driver records it, which is later and so never too early.
    fn users(device: &DeviceMemory, users: &[User], thread: u64) -> Self {
        let streams: Vec<_> = users.iter().map(|user| user.stream.clone()).collect();
        if users.iter().all(|user| user.thread == 0 || user.thread == thread) {
            return Self::now(device, streams.clone()).unwrap_or(Self::Unrecorded(streams));
        }
        let devices = devices(&streams);
        Self::all_work(device, &devices).unwrap_or(Self::Devices(devices))
    }

    /// Whether all of it is done. With `wait`, waits for what is recorded.
    pub(in crate::memory) fn is_done(&mut self, device: &DeviceMemory, wait: bool) -> Result<bool> {
        // A refusal leaves them as they are.
        match self {
            // Those that may have been destroyed meanwhile are not touched again.
            Self::Unrecorded(streams) if streams.iter().all(Stream::is_lasting) => {
                *self = Self::now(device, streams.clone())?
            }
            Self::Unrecorded(streams) => *self = Self::all_work(device, &devices(streams))?,
            Self::Devices(devices) => *self = Self::all_work(device, devices)?,
            Self::Events(_) => {}
        }
        match self {
            Self::Unrecorded(_) | Self::Devices(_) => Ok(false),
            Self::Events(events) => {
                if events.is_empty() {
                    return Ok(true);
                }
                // A question about an event spoils captures of this thread, and of others in global mode.
                let _relaxed = RelaxedCapture::new(runtime::get()?)?;
                while let Some(event) = events.last() {
                    if wait {
                        event.synchronize()?;
                    } else if !event.query()? {
                        return Ok(false);
                    }
                    device.events.put_back(events.pop());
                }
                Ok(true)
            }
        }
    }
}

/// The devices of streams, each once.
fn devices(streams: &[Stream]) -> Vec<Device> {
    let mut devices: Vec<_> = streams.iter().map(Stream::device).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// Makes those blocks of the cache free whose streams are done; with `wait`, waits for the streams.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses. Blocks that were not asked about still wait.
pub(in crate::memory) fn settle(cache: &ThreadCache, thread: u64, wait: bool) -> Result<()> {
    if cache.waiting.is_empty() {
        return Ok(());
    }
    let mut asked = cache.waiting.change(|waiting| (0, std::mem::take(waiting)));
    let mut done = Vec::new();
    let mut outcome = Ok(());
    asked.retain_mut(|block| match block.until.is_done(cache.device, wait) {
        Ok(true) => {
            done.push(block.offset);
            false
        }
        Ok(false) => true,
        Err(error) => {
            outcome = Err(error);
            true
        }
    });
    if !done.is_empty() {
        let mut heap = cache.lock(thread);
        for offset in done {
            if trace::is_on() {
                cache.trace_completed(offset);
            }
            heap.release(&cache.device.pages, offset);
        }
    }
    cache.waiting.change(|waiting| {
        asked.append(waiting);
        *waiting = asked;
        (waiting.len(), ())
    });
    outcome
}

/// Keeps a freed block back until the streams that use it are done.
pub(in crate::memory) fn defer(cache: &ThreadCache, thread: u64, offset: u64, users: &[User]) {
    keep_back(cache, offset, Until::users(cache.device, users, thread));
}

/// Keeps a freed block back until all work so far is done, on its device and on those of streams that use it.
pub(in crate::memory) fn defer_after_all_work(cache: &ThreadCache, offset: u64, users: &[User]) {
    let streams = users.iter().map(|user| user.stream.clone());
    let devices = devices(&streams.chain([Stream::legacy(cache.device.device)]).collect::<Vec<_>>());
    keep_back(cache, offset, Until::all_work(cache.device, &devices).unwrap_or(Until::Devices(devices)));
}

fn keep_back(cache: &ThreadCache, offset: u64, until: Until) {
    cache.waiting.change(|waiting| {
        waiting.push(Waiting { offset, until });
        (waiting.len(), ())
    });
}

//! What freed memory waits for: work of streams, recorded by events as soon as the driver records it. Memory used only
//! on its own stream waits for nothing. Events are queried only when a request finds no free block, or memory is given
//! back.

use std::sync::Mutex;

use crate::error::Result;
use crate::ids::{CaptureStatus, Device, MemoryLocation};
use crate::runtime::{self, ContextRecord, Event, Point, RelaxedCapture, Stream};
use crate::sync::lock;

/// What giving memory back waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// It only queries.
    Ask,
    /// It waits only for the work on segments whose end callbacks are told of.
    Report,
    /// It waits for recorded work.
    Wait,
}

#[derive(Debug)]
pub(in crate::memory) enum Until {
    /// Work recorded on streams.
    Events(Vec<Event>),
    /// Streams that could not be recorded yet: one is being captured, or is the legacy default stream beside a capture,
    /// or the driver refused.
    Unrecorded(Vec<Stream>),
    /// All work on these devices submitted before the point, which could not be recorded yet.
    Devices(Vec<Device>, Point),
}

impl Until {
    pub(in crate::memory) const fn at_once() -> Self {
        Self::Events(Vec::new())
    }

    /// Ends a wait that nothing needs any more, and reuses its events.
    pub(in crate::memory) fn recycle(self, events: &EventPool) {
        if let Self::Events(recorded) = self {
            events.put_back(recorded);
        }
    }

    /// Waits for all work so far on the devices, recorded when this is next checked.
    pub(in crate::memory) fn recorded_later(devices: impl IntoIterator<Item = Device>) -> Self {
        Self::Devices(devices.into_iter().collect(), Point::now())
    }

    pub(in crate::memory) fn work_on(events: &EventPool, streams: Vec<Stream>) -> Result<Self> {
        for stream in &streams {
            if stream.capture_status()? != CaptureStatus::None {
                return Ok(Self::Unrecorded(streams));
            }
        }
        streams.iter().map(|stream| events.record(stream)).collect::<Result<_>>().map(Self::Events)
    }

    /// Waits for all work so far on the devices. It is recorded later if a known capture would be spoilt by that; if
    /// the driver cannot record it, the next check waits for the devices.
    pub(in crate::memory) fn all_work(events: &EventPool, devices: &[Device]) -> Result<Self> {
        Self::work_before(Point::now(), events, devices, |_| Ok(false))
    }

    /// Waits for all work on the devices, at least for what was submitted before the point, for which `waits` may wait.
    fn work_before(
        point: Point,
        events: &EventPool,
        devices: &[Device],
        mut waits: impl FnMut(Device) -> Result<bool>,
    ) -> Result<Self> {
        let mut recorded = Vec::new();
        for &device in devices {
            let event = events.take(device)?;
            let is_covered = match event.record_context()? {
                ContextRecord::Recorded => {
                    recorded.push(event);
                    continue;
                }
                ContextRecord::Captured => false,
                ContextRecord::Unsupported => waits(device)?,
            };
            events.put_back([event]);
            if !is_covered {
                events.put_back(recorded);
                return Ok(Self::Devices(devices.to_vec(), point));
            }
        }
        Ok(Self::Events(recorded))
    }

    /// Returns whether all of it is done. It always waits for devices whose work the driver cannot record. A refusal changes
    /// nothing.
    pub(in crate::memory) fn is_done(&mut self, pool: &EventPool, patience: Patience) -> Result<bool> {
        match self {
            // Streams that may have been destroyed meanwhile are not touched.
            Self::Unrecorded(streams) if streams.iter().all(Stream::is_lasting) => {
                *self = Self::work_on(pool, streams.clone())?
            }
            Self::Unrecorded(streams) => *self = Self::all_work(pool, &each_once(streams.iter().map(Stream::device)))?,
            Self::Devices(..) | Self::Events(_) => {}
        }
        if let Self::Devices(devices, point) = self {
            let point = *point;
            let waits = |device| runtime::wait_for_work_before(point, device);
            *self = Self::work_before(point, pool, devices, waits)?;
        }
        let Self::Events(events) = self else { return Ok(false) };
        if events.is_empty() {
            return Ok(true);
        }
        // Querying an event spoils captures of this thread, and of others in global mode.
        let _relaxed = RelaxedCapture::new(runtime::get()?)?;
        while let Some(event) = events.last() {
            if patience == Patience::Wait {
                event.synchronize()?;
            } else if !event.query()? {
                return Ok(false);
            }
            pool.put_back(events.pop());
        }
        Ok(true)
    }
}

/// Returns the devices without duplicates.
pub(in crate::memory) fn each_once(devices: impl Iterator<Item = Device>) -> Vec<Device> {
    let mut devices: Vec<_> = devices.collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// Events that are reused, since the driver takes a microsecond to make one.
#[derive(Debug)]
pub(in crate::memory) struct EventPool {
    /// Where the memory is that the events guard. They are of its device, and of others that use it.
    pub(in crate::memory) location: MemoryLocation,
    idle: Mutex<Vec<Event>>,
}

impl EventPool {
    pub(super) const fn new(location: MemoryLocation) -> Self {
        Self { location, idle: Mutex::new(Vec::new()) }
    }

    /// Returns an event that has recorded the stream's work so far.
    pub(in crate::memory) fn record(&self, stream: &Stream) -> Result<Event> {
        let event = self.take(stream.device())?;
        event.record(stream)?;
        Ok(event)
    }

    /// Returns an event of this device: a peer's stream takes one of the peer.
    pub(in crate::memory) fn take(&self, device: Device) -> Result<Event> {
        let idle = {
            let mut idle = lock(&self.idle);
            let place = idle.iter().rposition(|event| event.device() == device);
            place.map(|place| idle.swap_remove(place))
        };
        idle.map_or_else(|| Event::of(device), Ok)
    }

    pub(in crate::memory) fn put_back(&self, events: impl IntoIterator<Item = Event>) {
        lock(&self.idle).extend(events);
    }
}

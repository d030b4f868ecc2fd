//! Events that are reused, since the driver takes a microsecond to make one.

use std::sync::Mutex;

use crate::error::Result;
use crate::ids::{Device, MemoryLocation};
use crate::runtime::{Event, Stream};
use crate::sync::lock;

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

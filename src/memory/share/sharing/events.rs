//! Events that other processes wait for, used again and again: none is destroyed, for a process may be about to take one up.

use std::sync::{Arc, Mutex, OnceLock};

use crate::error::Result;
use crate::ids::Device;
use crate::runtime::{Event, ExportedEvent, RelaxedCapture, Stream, get};
use crate::sync::lock;

static IDLE: Mutex<Vec<Named>> = Mutex::new(Vec::new());

/// An event, and the name by which another process takes it up, once it was asked for.
#[derive(Debug)]
struct Named {
    event: Event,
    name: OnceLock<[u8; 64]>,
}

/// An event that was recorded, which comes back to the others when it is dropped.
#[derive(Debug)]
pub(in crate::memory::share) struct Recorded(Option<Named>);

impl Recorded {
    /// Records the work so far on a stream.
    pub(in crate::memory::share) fn on(stream: &Stream) -> Result<Arc<Self>> {
        let device = stream.device();
        let idle = {
            let mut idle = lock(&IDLE);
            let place = idle.iter().rposition(|named| named.event.device() == device);
            place.map(|place| idle.swap_remove(place))
        };
        let named = match idle {
            Some(named) => named,
            None => Named { event: made(device)?, name: OnceLock::new() },
        };
        let recorded = Self(Some(named));
        recorded.event().map_or(Ok(()), |event| event.record(stream))?;
        Ok(Arc::new(recorded))
    }

    pub(in crate::memory::share) fn event(&self) -> Option<&Event> {
        self.0.as_ref().map(|named| &named.event)
    }

    /// Returns the event's name, if that is all that another process needs; none also where the driver refuses to tell it.
    pub(super) fn name(&self) -> Option<[u8; 64]> {
        let Named { event, name } = self.0.as_ref()?;
        if let Some(name) = name.get() {
            return Some(*name);
        }
        match event.export() {
            Ok(ExportedEvent { name: told, descriptor: None }) => Some(*name.get_or_init(|| told)),
            _ => None,
        }
    }

    /// Returns whether the work is done.
    pub(in crate::memory::share) fn is_done(&self) -> Result<bool> {
        // The question spoils captures of this thread, and of others in global mode.
        let _relaxed = RelaxedCapture::new(get()?)?;
        self.event().map_or(Ok(true), Event::query)
    }
}

fn made(device: Device) -> Result<Event> {
    let _relaxed = RelaxedCapture::new(get()?)?;
    Event::interprocess(device)
}

impl Drop for Recorded {
    fn drop(&mut self) {
        lock(&IDLE).extend(self.0.take());
    }
}

//! Events that other processes wait for, used again and again: none is destroyed, for a process may be about to take one up.

use std::sync::{Arc, Mutex};

use crate::error::Result;
use crate::ids::Device;
use crate::runtime::{Event, RelaxedCapture, Stream, get};
use crate::sync::lock;

static IDLE: Mutex<Vec<Event>> = Mutex::new(Vec::new());

/// An event that was recorded, which comes back to the others when it is dropped.
#[derive(Debug)]
pub(in crate::memory::share) struct Recorded(Option<Event>);

impl Recorded {
    /// Records the work so far on a stream.
    pub(in crate::memory::share) fn on(stream: &Stream) -> Result<Arc<Self>> {
        let device = stream.device();
        let idle = {
            let mut idle = lock(&IDLE);
            let place = idle.iter().rposition(|event| event.device() == device);
            place.map(|place| idle.swap_remove(place))
        };
        let event = match idle {
            Some(event) => event,
            None => made(device)?,
        };
        let recorded = Self(Some(event));
        recorded.event().map_or(Ok(()), |event| event.record(stream))?;
        Ok(Arc::new(recorded))
    }

    pub(in crate::memory::share) fn event(&self) -> Option<&Event> {
        self.0.as_ref()
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

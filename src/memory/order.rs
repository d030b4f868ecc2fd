//! Stream order: when a freed block may be used again, and when a page that was moved away may be unmapped.
//!
//! A block used on its own stream alone waits for nothing. One that other streams used waits for an event on each; events
//! are pooled, and asked about only when a request finds no free block.

use std::sync::{Mutex, PoisonError};

use super::device_memory::DeviceMemory;
use super::thread_cache::ThreadCache;
use crate::error::Result;
use crate::runtime::{self, Event, RelaxedCapture, Stream};
use crate::stream::CaptureStatus;

/// A freed block and what must happen before it is used again.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) offset: u64,
    pub(super) until: Until,
}

/// What is waited for.
#[derive(Debug)]
pub(super) enum Until {
    /// Work recorded on streams.
    Events(Vec<Event>),
    /// Streams on which nothing could be recorded yet: one is being captured, or the driver refused.
    Unrecorded(Vec<Stream>),
}

/// Events that are not in use.
#[derive(Debug, Default)]
pub(super) struct EventPool {
    idle: Mutex<Vec<Event>>,
}

impl EventPool {
    /// An event that has recorded the stream's work so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<Event> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let event = match idle {
            Some(event) => event,
            None => Event::new(stream.device())?,
        };
        event.record(stream)?;
        Ok(event)
    }

    pub(super) fn put_back(&self, events: impl IntoIterator<Item = Event>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(events);
    }
}

impl Until {
    /// The streams' work so far.
    pub(super) fn now(device: &DeviceMemory, streams: Vec<Stream>) -> Result<Self> {
        for stream in &streams {
            if stream.capture_status()? != CaptureStatus::None {
                return Ok(Self::Unrecorded(streams));
            }
        }
        streams.iter().map(|stream| device.events.record(stream)).collect::<Result<_>>().map(Self::Events)
    }

    /// [`Until::now`], or as soon as the driver records it, which is later and so never too early.
    pub(super) fn now_or_later(device: &DeviceMemory, streams: Vec<Stream>) -> Self {
        Self::now(device, streams.clone()).unwrap_or(Self::Unrecorded(streams))
    }

    /// Whether all of it is done. With `wait`, waits for what is recorded.
    pub(super) fn is_done(&mut self, device: &DeviceMemory, wait: bool) -> Result<bool> {
        if let Self::Unrecorded(streams) = self {
            // A refusal leaves the streams here.
            *self = Self::now(device, streams.clone())?;
        }
        match self {
            Self::Unrecorded(_) => Ok(false),
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

/// Makes those blocks of the cache free whose streams are done; with `wait`, waits for the streams.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses. Blocks that were not asked about still wait.
pub(super) fn settle(cache: &ThreadCache, thread: u64, wait: bool) -> Result<()> {
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
pub(super) fn defer(cache: &ThreadCache, offset: u64, streams: Vec<Stream>) {
    let until = Until::now_or_later(cache.device, streams);
    cache.waiting.change(|waiting| {
        waiting.push(Waiting { offset, until });
        (waiting.len(), ())
    });
}

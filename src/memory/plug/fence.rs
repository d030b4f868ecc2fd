//! Fences for memory that a framework uses on streams that it does not name.

use crate::error::Result;
use crate::ids::CaptureStatus;
use crate::memory::serve::device_caches;
use crate::runtime::{self, RelaxedCapture, Stream};

/// Makes later work of the device, on any stream, wait for all work so far, without the host, unless the driver is
/// older than CUDA 12.5: then the host waits. So memory of `stream` that others used unrecorded may be freed after it,
/// and reused on any stream. Without `delay` only later work on `stream` waits, which is enough if each next user of
/// the memory waits for that stream. Returns false, with nothing done, if that would spoil a known capture, or the stream's.
pub(crate) fn fence(stream: &Stream, delay: bool) -> Result<bool> {
    if stream.is_captured()? {
        return Ok(false);
    }
    let device = stream.device();
    let events = &device_caches(device)?.memory.events;
    let event = events.take(device)?;
    if !event.record_or_await_context()? {
        events.put_back([event]);
        return Ok(false);
    }
    let is_done = {
        let _relaxed = RelaxedCapture::new(runtime::get()?)?;
        event.query()?
    };
    if !is_done {
        // A capture that has begun since is spared, too.
        if delay && !event.delay_context()? {
            return Ok(false);
        }
        // Only this stream is queried by the allocator later.
        stream.wait(&event)?;
    }
    events.put_back([event]);
    Ok(true)
}

/// Makes later work on the stream wait for all work so far on the blocking streams of its device, which work on the legacy
/// default stream follows. So memory of `stream` that those used unrecorded may be freed after it. Costs less than
/// [`fence`], needs no new driver, and spoils no capture of a non-blocking stream. Returns false, with nothing done, while
/// the stream or a blocking stream is captured.
pub(crate) fn follow_blocking(stream: &Stream) -> Result<bool> {
    if stream.raw().is_legacy() {
        return Ok(true);
    }
    let device = stream.device();
    let default = Stream::legacy(device)?;
    if stream.is_captured()? || default.capture_status()? == CaptureStatus::Implicit {
        return Ok(false);
    }
    let events = &device_caches(device)?.memory.events;
    let event = events.take(device)?;
    event.record(&default)?;
    stream.wait(&event)?;
    events.put_back([event]);
    Ok(true)
}

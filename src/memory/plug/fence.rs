//! A fence for memory that a framework uses on streams that it does not name.

use crate::error::Result;
use crate::memory::serve::device_caches;
use crate::runtime::{self, RelaxedCapture, Stream};

/// Makes later work of the device, on any stream, wait for all work so far, without the host, unless the driver is
/// older than CUDA 12.5: then the host waits. So memory of `stream` that others used unrecorded may be freed after it,
/// and reused on any stream. Without `delay` only later work on `stream` waits, which is enough if each next user of
/// the memory waits for that stream. Returns false, with nothing done, if that would spoil a known capture.
pub(crate) fn fence(stream: &Stream, delay: bool) -> Result<bool> {
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
        // Only this stream is queried by the allocator later.
        stream.wait(&event)?;
        // A capture that has begun since is spared, too.
        if delay && !event.delay_context()? {
            return Ok(false);
        }
    }
    events.put_back([event]);
    Ok(true)
}

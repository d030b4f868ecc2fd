//! A fence for memory that a framework uses on streams that it does not name.

use crate::error::Result;
use crate::memory::serve::device_caches;
use crate::runtime::{self, RelaxedCapture, Stream};

/// Puts a fence through the device: later work, on whichever stream, waits for all work so far, and the host does not, unless
/// the driver is older than CUDA 12.5: then it waits for all that work.
/// So memory of `stream` that others used unrecorded may be freed behind it, and be used again on any stream. Without
/// `delay` later work waits on `stream` alone, which is enough where each next user of the memory waits for that stream. Returns
/// false, with nothing done, while a capture is known of, which that would spoil.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses.
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
        // What the allocator asks about later is this stream.
        stream.wait(&event)?;
        // A capture that has begun since is spared, too.
        if delay && !event.delay_context()? {
            return Ok(false);
        }
    }
    events.put_back([event]);
    Ok(true)
}

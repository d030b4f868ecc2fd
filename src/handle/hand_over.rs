//! Hand-over: what makes a handle that somebody else used fit for the next.
//!
//! Where a library keeps scratch memory in its handles, work of the former stream may still be using it, so the new stream
//! waits for that first. What the former owner could change of the handle is set back.

use super::record::Record;
use crate::error::Result;
use crate::ids::{CaptureStatus, RawStream};
use crate::library::Library;
use crate::observe::Activity;
use crate::runtime::{BoundDevice, Event, RelaxedCapture, Runtime, Stream, is_known_stream_capturing};

/// Makes an idle handle ready for the stream. False if it cannot be now: then another handle is to be had. With `at_all_costs`
/// it is also made ready after a foreign stream that may be gone, whose work only the whole device's stands for: captures
/// that nobody has told of are spoiled by that.
///
/// # Errors
/// What the library or the driver refused.
pub(super) fn make_ready(
    runtime: &'static dyn Runtime,
    library: &dyn Library,
    record: &Record,
    stream: &Stream,
    at_all_costs: bool,
) -> Result<bool> {
    if library.keeps_scratch() && !record.last_ran_on(stream.raw()) {
        let Some(former) = record.stream() else { return library.reset(&record.handle).map(|()| true) };
        let _activity = Activity::begin(format_args!("hand over {} handle", library.name()));
        if !wait_for(runtime, former, stream, at_all_costs)? {
            return Ok(false);
        }
    }
    library.reset(&record.handle).map(|()| true)
}

/// Makes the stream wait for the work so far on a former one of the same device.
fn wait_for(runtime: &'static dyn Runtime, former: RawStream, stream: &Stream, at_all_costs: bool) -> Result<bool> {
    let device = stream.device();
    let _bound = BoundDevice::new(runtime, device)?;
    let _relaxed = RelaxedCapture::new(runtime).map_err(|e| e.on(device))?;
    // A captured stream cannot wait for work outside of its graph.
    if stream.capture_status()? != CaptureStatus::None {
        return Ok(false);
    }
    // SAFETY: only a stream that turns out to be one of our own, and so alive, or the legacy default stream is used.
    let former = unsafe { Stream::from_raw_on(former.as_ptr(), device) }.kept();
    let event = Event::new(device)?;
    if former.is_lasting() {
        if former.capture_status()? != CaptureStatus::None {
            return Ok(false);
        }
        event.record(&former)?;
    } else {
        // It may have been destroyed by now, so all work on the device stands for its.
        if !at_all_costs || is_known_stream_capturing(runtime, device)? {
            return Ok(false);
        }
        event.record_context()?;
    }
    stream.wait(&event).map(|()| true)
}

//! Hand-over: where a library keeps scratch memory in its handles, work of a handle's former stream may still use it,
//! so the new stream waits for that first.

use super::device_pool::PooledHandle;
use crate::error::{OneLine, Result};
use crate::ids::CaptureStatus;
use crate::library::Library;
use crate::observe::Activity;
use crate::runtime::{BoundDevice, Event, RelaxedCapture, Runtime, Stream, StreamIdentity};

/// Makes the stream wait for the work of the handle's former stream, if needed. False if it cannot now: then another
/// handle is to be used. With `at_all_costs` it also waits, by way of the whole device, for a foreign stream that may
/// be gone: that spoils captures unknown to gpupool.
pub(super) fn wait_for_former(
    runtime: &'static dyn Runtime,
    library: &dyn Library,
    pooled: &PooledHandle,
    stream: &Stream,
    at_all_costs: bool,
) -> Result<bool> {
    if !library.keeps_scratch() || pooled.is_ready_for(stream) {
        return Ok(true);
    }
    let Some(former) = pooled.ready_for() else { return Ok(true) };
    let _activity = Activity::begin(format_args!("hand over {} handle", OneLine(library.name())));
    wait_for(runtime, &former, stream, at_all_costs)
}

fn wait_for(
    runtime: &'static dyn Runtime,
    former: &StreamIdentity,
    stream: &Stream,
    at_all_costs: bool,
) -> Result<bool> {
    let device = stream.device();
    let _bound = BoundDevice::of(runtime, device)?;
    let _relaxed = RelaxedCapture::new(runtime).map_err(|e| e.on(device))?;
    // A captured stream cannot wait for work outside of its graph, nor the legacy default one beside a capture.
    if stream.capture_status()? != CaptureStatus::None {
        return Ok(false);
    }
    let event = Event::of(device)?;
    // Another stream may have its address by now, also one of gpupool's.
    match former.lasting().filter(|alive| former.is_named_by(alive)) {
        Some(former) => {
            if former.capture_status()? != CaptureStatus::None {
                return Ok(false);
            }
            event.record(&former)?;
        }
        // It may be destroyed by now, so this waits for all work on the device.
        None => {
            if !at_all_costs || !event.record_or_await_context()? {
                return Ok(false);
            }
        }
    }
    stream.wait(&event).map(|()| true)
}

//! Whether a cache's free memory can be taken for a request: what is checked before its heap is locked.

use super::reach::Reach;
use super::work_marks;
use crate::error::Result;
use crate::ids::CaptureStatus;
use crate::memory::cache::{Service, StreamCache};
use crate::memory::serve::request::AllocationRequest;
use crate::memory::tuning::PAGE;
use crate::runtime::{self, RelaxedCapture};

/// Whether a cache's free memory can be taken for another cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Readiness {
    Never,
    /// Not now: its stream is at work.
    AtWork,
    /// After the work so far on its stream, or on the device.
    AfterWork,
    /// At once, if its heap's turnover is still this.
    Done(u64),
}

/// Returns whether a request can take another cache's free memory.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses, also for an error of earlier work.
pub(super) fn readiness(
    cache: &StreamCache,
    service: &Service,
    request: &AllocationRequest,
    reach: &Reach,
) -> Result<Readiness> {
    let Some(stream) = &service.stream else { return Ok(Readiness::AfterWork) };
    // A graph may use it at any time.
    if service.is_of_live_graph() {
        return Ok(Readiness::Never);
    }
    if !service.is_stream_usable(request.thread, Some(&request.service)) {
        if reach.waits {
            return Ok(Readiness::AfterWork);
        }
        if service.role.is_captured() {
            // No call names its stream, so this one marks the work. Without a mark nothing is taken.
            let _ = work_marks::mark_all_work(cache, request.thread);
        } else if !service.pool.marks_work() && cache.lock(request.thread).unused() >= PAGE {
            work_marks::begin(&service.pool);
        }
        let turnover = work_marks::finished_turnover(cache)?;
        return Ok(turnover.map_or(Readiness::Never, Readiness::Done));
    }
    if service.is_of_stream_of(&request.service) {
        return Ok(Readiness::AfterWork);
    }
    if stream.capture_status()? != CaptureStatus::None {
        return Ok(Readiness::Never);
    }
    if reach.waits {
        return Ok(Readiness::AfterWork);
    }
    // The query spoils captures as an allocation does.
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    let is_idle = stream.query()?;
    Ok(if is_idle { Readiness::AfterWork } else { Readiness::AtWork })
}

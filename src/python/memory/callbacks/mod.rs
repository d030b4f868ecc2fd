//! Callbacks that Python registers: for a pool's segments, and for requests that find no memory.

mod discard;
mod oom;
mod registration;
mod segment;
mod segment_event;

pub(in crate::python) use discard::PyDiscardCallback;
pub(super) use discard::on_discard;
pub(in crate::python) use oom::{PyOomCallback, on_oom};
pub(in crate::python) use segment::PySegmentCallback;
pub(super) use segment::on_segment;
pub(in crate::python) use segment_event::PySegmentEvent;

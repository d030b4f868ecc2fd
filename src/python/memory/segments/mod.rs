//! Segments of pools that Python is told of.

mod callback;
mod event;

pub(in crate::python) use callback::PySegmentCallback;
pub(super) use callback::on_segment;
pub(in crate::python) use event::PySegmentEvent;

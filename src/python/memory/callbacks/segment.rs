//! `SegmentCallback`: a callable that is called for a pool's segments.

use log::warn;
use pyo3::prelude::*;

use super::registration::{Registration, callable_name, callback_class};
use super::segment_event::PySegmentEvent;
use crate::memory::{MemPool, SegmentEvent, SegmentGuard};
use crate::observe::target::MEMORY;
use crate::python::program::{KeptObjects, call_unasked};
use crate::python::with_blocks::Ignored;

callback_class! { PySegmentCallback = "SegmentCallback" of SegmentGuard }

/// Registers a callable for the pool's segments.
pub(in crate::python::memory) fn on_segment(
    pool: &MemPool,
    kept: &KeptObjects,
    callback: &Bound<'_, PyAny>,
) -> PyResult<PySegmentCallback> {
    let name = callable_name(callback, "on_segment takes a callable(event)")?;
    let (callable, called) = (kept.keep(callback), name.clone());
    let call = move |event: &SegmentEvent| {
        // Where the interpreter is shutting down nothing is called.
        let _ = Python::try_attach(|py| {
            let Ok(callable) = callable.bind(py) else { return };
            call_unasked(&callable, (PySegmentEvent::from(event),), |raised| {
                let pool = event.pool;
                warn!(target: MEMORY, "pool {pool}: {called}, a callback of on_segment, raised {raised} for {event:?}");
            });
        });
    };
    let guard = callback.py().detach(|| pool.on_segment(call))?;
    Ok(PySegmentCallback(Registration::new(name, guard)))
}

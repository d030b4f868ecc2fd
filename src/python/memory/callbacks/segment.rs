//! `SegmentCallback`: a callable that is called for a pool's segments.

use log::warn;
use pyo3::prelude::*;

use super::registration::{Registration, call, callable_name};
use super::segment_event::PySegmentEvent;
use crate::memory::{MemPool, SegmentEvent, SegmentGuard};
use crate::observe::target::MEMORY;
use crate::process;
use crate::sync::lock;

#[doc = docstring!("SegmentCallback")]
#[pyclass(name = "SegmentCallback", module = "gpupool", frozen)]
#[derive(Debug)]
pub(in crate::python) struct PySegmentCallback(Registration<SegmentGuard>);

/// Registers a callable for the pool's segments.
pub(in crate::python::memory) fn on_segment(
    pool: &MemPool,
    callback: &Bound<'_, PyAny>,
) -> PyResult<PySegmentCallback> {
    let name = callable_name(callback, "on_segment takes a callable(event)")?;
    let (callable, called) = (callback.clone().unbind(), name.clone());
    let call = move |event: &SegmentEvent| {
        call(&callable, (PySegmentEvent::from(event),), |raised| {
            let pool = event.pool;
            warn!(target: MEMORY, "pool {pool}: {called}, a callback of on_segment, raised {raised} for {event:?}");
        });
    };
    let guard = callback.py().detach(|| pool.on_segment(call))?;
    Ok(PySegmentCallback(Registration::new(name, guard)))
}

/// The callback stays registered without this object: a program may not keep it.
impl Drop for PySegmentCallback {
    fn drop(&mut self) {
        if let Some(guard) = lock(&self.0.guard).take() {
            guard.keep();
        }
    }
}

#[pymethods]
impl PySegmentCallback {
    #[doc = docstring!("SegmentCallback.remove")]
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        self.0.remove(py)
    }

    #[doc = docstring!("SegmentCallback.__enter__")]
    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        process::refuse_forked()?;
        Ok(slf.clone().unbind())
    }

    #[doc = docstring!("SegmentCallback.__exit__")]
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if !process::is_forked() {
            self.remove(py)?;
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        self.0.repr("SegmentCallback")
    }
}

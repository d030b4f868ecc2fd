//! `SegmentCallback`: a callable that is told of a pool's segments.

use std::sync::Mutex;

use log::warn;
use pyo3::intern;
use pyo3::prelude::*;

use super::event::PySegmentEvent;
use crate::error::Error;
use crate::memory::{MemPool, SegmentEvent, SegmentGuard};
use crate::observe::target::MEMORY;
use crate::process;
use crate::sync::lock;

#[doc = docstring!("SegmentCallback")]
#[pyclass(name = "SegmentCallback", module = "gpupool", frozen)]
#[derive(Debug)]
pub(in crate::python) struct PySegmentCallback {
    /// What Python calls the callback.
    name: String,
    guard: Mutex<Option<SegmentGuard>>,
}

/// Tells a callable of the pool's segments.
pub(in crate::python::memory) fn on_segment(
    pool: &MemPool,
    callback: &Bound<'_, PyAny>,
) -> PyResult<PySegmentCallback> {
    process::refuse_forked()?;
    if !callback.is_callable() {
        return Err(Error::invalid_value(format!("on_segment takes a callable(event), not {callback}")).into());
    }
    let py = callback.py();
    let name = match callback.getattr_opt(intern!(py, "__qualname__"))? {
        Some(name) => name.to_string(),
        None => callback.get_type().name()?.to_string(),
    };
    let (callable, called) = (callback.clone().unbind(), name.clone());
    let guard = py.detach(|| pool.on_segment(move |event| call(&callable, &called, event)))?;
    Ok(PySegmentCallback { name, guard: Mutex::new(Some(guard)) })
}

/// Calls the callable. What it raises is told to the log and to `sys.unraisablehook`: the code that runs is another's.
fn call(callable: &Py<PyAny>, name: &str, event: &SegmentEvent) {
    // Where the interpreter is shutting down nothing is called.
    let _ = Python::try_attach(|py| {
        // A pool may die while an exception is on its way, under which no Python code can run.
        let under_way = PyErr::take(py);
        if let Err(raised) = callable.call1(py, (PySegmentEvent::from(event),)) {
            warn!(target: MEMORY, "pool {}: {name}, a callback of on_segment, raised {raised} for {event:?}", event.pool);
            raised.write_unraisable(py, Some(callable.bind(py)));
        }
        if let Some(raised) = under_way {
            raised.restore(py);
        }
    });
}

impl PySegmentCallback {
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        process::refuse_forked()?;
        let guard = lock(&self.guard).take();
        py.detach(|| drop(guard));
        Ok(())
    }
}

/// The callback is told of segments without this object, too: one that is forgotten would leave them unregistered.
impl Drop for PySegmentCallback {
    fn drop(&mut self) {
        if let Some(guard) = lock(&self.guard).take() {
            guard.keep();
        }
    }
}

#[pymethods]
impl PySegmentCallback {
    #[doc = docstring!("SegmentCallback.remove")]
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py)
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
            self.end(py)?;
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        let state = if process::is_forked() {
            ", of the parent process"
        } else if lock(&self.guard).is_none() {
            ", removed"
        } else {
            ""
        };
        format!("<gpupool.SegmentCallback {}{state}>", self.name)
    }
}

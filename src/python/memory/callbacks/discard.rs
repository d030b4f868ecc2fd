//! `DiscardCallback`: a callable that is called for pages of a range that were taken.

use log::warn;
use pyo3::prelude::*;

use super::registration::{Registration, call, callable_name};
use crate::memory::{DiscardGuard, MemoryRange};
use crate::observe::target::MEMORY;
use crate::process;
use crate::sync::lock;

#[doc = docstring!("DiscardCallback")]
#[pyclass(name = "DiscardCallback", module = "gpupool", frozen)]
#[derive(Debug)]
pub(in crate::python) struct PyDiscardCallback(Registration<DiscardGuard>);

/// Registers a callable for the pages that are taken of a range.
pub(in crate::python::memory) fn on_discard(
    range: &MemoryRange,
    callback: &Bound<'_, PyAny>,
) -> PyResult<PyDiscardCallback> {
    let name = callable_name(callback, "on_discard takes a callable(pages)")?;
    let (callable, called) = (callback.clone().unbind(), name.clone());
    let guard = range.on_discard(move |pages| {
        call(&callable, (pages.to_vec(),), |raised| {
            warn!(target: MEMORY, "{called}, a callback of on_discard, raised {raised}");
        });
    });
    Ok(PyDiscardCallback(Registration::new(name, guard)))
}

/// The callback stays registered without this object: a program may not keep it.
impl Drop for PyDiscardCallback {
    fn drop(&mut self) {
        if let Some(guard) = lock(&self.0.guard).take() {
            guard.keep();
        }
    }
}

#[pymethods]
impl PyDiscardCallback {
    #[doc = docstring!("DiscardCallback.remove")]
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        self.0.remove(py)
    }

    #[doc = docstring!("DiscardCallback.__enter__")]
    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        process::refuse_forked()?;
        Ok(slf.clone().unbind())
    }

    #[doc = docstring!("DiscardCallback.__exit__")]
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
        self.0.repr("DiscardCallback")
    }
}

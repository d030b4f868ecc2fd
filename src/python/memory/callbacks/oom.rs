//! `OomCallback`: a callable that is called before a request fails for lack of memory.

use std::sync::Arc;

use pyo3::prelude::*;

use super::registration::{Registration, callable_name};
use crate::ids::Device;
use crate::memory::{self, OomGuard};

#[doc = docstring!("OomCallback")]
#[pyclass(name = "OomCallback", module = "gpupool", frozen)]
#[derive(Debug)]
pub(in crate::python) struct PyOomCallback(Registration<OomGuard>);

#[pymethods]
impl PyOomCallback {
    #[doc = docstring!("OomCallback.remove")]
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        self.0.remove(py)
    }

    fn __repr__(&self) -> String {
        self.0.repr("OomCallback")
    }
}

#[doc = docstring!("on_oom")]
#[pyfunction]
pub(in crate::python) fn on_oom(callback: Bound<'_, PyAny>) -> PyResult<PyOomCallback> {
    let name = callable_name(&callback, "on_oom takes a callable(device, nbytes) -> bool")?;
    let callback = callback.unbind();
    let call = move |device: Device, nbytes: u64| {
        let freed = Python::try_attach(|py| {
            let answer = callback.call1(py, (device.ordinal(), nbytes)).and_then(|answer| answer.is_truthy(py));
            answer.unwrap_or_else(|raised| {
                raised.write_unraisable(py, Some(callback.bind(py)));
                false
            })
        });
        freed.unwrap_or(false)
    };
    let guard = memory::on_oom_as(name.clone(), Arc::new(call));
    Ok(PyOomCallback(Registration::new(name, guard)))
}

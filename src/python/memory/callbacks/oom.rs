//! `OomCallback`: a callable that is called before a request fails for lack of memory.

use std::sync::Arc;

use pyo3::prelude::*;

use super::registration::{Registration, callable_name, callback_class};
use crate::ids::Device;
use crate::memory::{self, OomGuard};
use crate::python::program::interrupted;
use crate::python::with_blocks::Ignored;

callback_class! { PyOomCallback = "OomCallback" of OomGuard }

#[doc = docstring!("on_oom")]
#[pyfunction]
pub(in crate::python) fn on_oom(callback: Bound<'_, PyAny>) -> PyResult<PyOomCallback> {
    let name = callable_name(&callback, "on_oom takes a callable(device, nbytes) -> bool")?;
    let callback = callback.unbind();
    let call = move |device: Device, nbytes: u64| {
        let freed = Python::try_attach(|py| {
            let answer = callback.call1(py, (device.ordinal(), nbytes)).and_then(|answer| answer.is_truthy(py));
            answer.map_err(|raised| interrupted(py, raised))
        });
        freed.unwrap_or(Ok(false))
    };
    let guard = memory::on_oom_as(name.clone(), Arc::new(call));
    Ok(PyOomCallback(Registration::new(name, guard)))
}

//! The runtime and its devices.

use std::ffi::CStr;
use std::fmt::Display;

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::intern;
use pyo3::prelude::*;

use super::whole::{accepted, refuse_bool, wrong_objects};
use crate::ids::Device;
use crate::runtime::{Kind, Runtime, device as existing, get as chosen, is_chosen, passed_over};

/// The warning of a program's first call if no GPU was found.
const NO_GPU: &CStr =
    c"no GPU was found, so gpupool simulates devices in the host's memory, and nothing computes on a GPU: \
run `gpupool info` to see what is missing, or set GPUPOOL_RUNTIME=host to have simulated devices without this warning";

/// Chooses the runtime without the GIL: the first call initialises the driver, which takes a while.
#[inline]
pub(super) fn get(py: Python<'_>) -> PyResult<&'static dyn Runtime> {
    if is_chosen() {
        return Ok(chosen()?);
    }
    let runtime = py.detach(chosen)?;
    if runtime.kind() == Kind::Host && !passed_over().is_empty() {
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), NO_GPU, 1)?;
    }
    Ok(runtime)
}

/// Returns a device, or a NUMA node, as a `repr` shows it.
pub(super) fn shown(number: impl Display) -> String {
    let is_simulated = is_chosen() && chosen().is_ok_and(|runtime| runtime.kind() == Kind::Host);
    format!("{number}{}", if is_simulated { " (simulated)" } else { "" })
}

/// The device that an argument names.
pub(super) fn extract(py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<Device> {
    get(py)?;
    let wrong = || wrong_objects([device], |[device]| format!("device must be a whole number from 0, not {device}"));
    match accepted(py, device.extract::<i64>())? {
        Some(ordinal) => {
            refuse_bool(device, ordinal.cast_unsigned(), wrong)?;
            Ok(existing(ordinal)?)
        }
        None => extract_index(py, device)?.ok_or_else(|| wrong().into()),
    }
}

/// The device that an object of PyTorch's names, whose `index` is None for the current one; none for another object.
fn extract_index(py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    let Some(index) = device.getattr_opt(intern!(py, "index"))? else { return Ok(None) };
    Ok(match accepted(py, index.extract::<Option<i64>>())? {
        Some(Some(ordinal)) => Some(existing(ordinal)?),
        Some(None) => Some(get(py)?.current_device()?),
        None => None,
    })
}

/// The device that an argument names, else the thread's current one.
pub(super) fn extract_or_current(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Device> {
    match device {
        Some(device) => extract(py, device),
        None => Ok(get(py)?.current_device()?),
    }
}

#[doc = docstring!("runtime")]
#[pyfunction]
pub(super) fn runtime(py: Python<'_>) -> PyResult<&'static str> {
    Ok(get(py)?.kind().name())
}

#[doc = docstring!("device_count")]
#[pyfunction]
pub(super) fn device_count(py: Python<'_>) -> PyResult<u32> {
    Ok(get(py)?.device_count())
}

#[doc = docstring!("current_device")]
#[pyfunction]
pub(super) fn current_device(py: Python<'_>) -> PyResult<usize> {
    Ok(get(py)?.current_device()?.ordinal())
}

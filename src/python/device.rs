//! The runtime and its devices.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt::Display;

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::ids::Device;
use crate::library::{
    CUBLAS, CUBLASLT, CUDNN, CUDSS, CUSOLVER, CUSPARSE, CUSPARSELT, CUSTATEVEC, CUTENSOR, CUTENSORNET, Library, Vendor,
};
use crate::memory::{self, Backup};
use crate::observe::recording::{Purpose, hold_stack};
use crate::python::arguments::{accepted, refuse_bool, wrong_objects};
use crate::runtime::{Kind, Runtime, device as existing, get as chosen, is_chosen, passed_over};

/// The warning of a program's first call if no GPU was found.
const NO_GPU: &CStr =
    c"no GPU was found, so gpupool simulates devices in the host's memory, and nothing computes on a GPU: \
run `gpupool info` to see what is missing, or set GPUPOOL_RUNTIME=host to have simulated devices without this warning";

/// Chooses the runtime without the GIL: the first call initialises the driver, which takes a while.
#[inline]
pub(crate) fn get(py: Python<'_>) -> PyResult<&'static dyn Runtime> {
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
pub(crate) fn shown(number: impl Display) -> String {
    let is_simulated = is_chosen() && chosen().is_ok_and(|runtime| runtime.kind() == Kind::Host);
    format!("{number}{}", if is_simulated { " (simulated)" } else { "" })
}

/// The device that an argument names.
pub(crate) fn extract(py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<Device> {
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
pub(crate) fn extract_or_current(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Device> {
    match device {
        Some(device) => extract(py, device),
        None => Ok(get(py)?.current_device()?),
    }
}

#[doc = docstring!("runtime")]
#[pyfunction]
pub(crate) fn runtime(py: Python<'_>) -> PyResult<&'static str> {
    Ok(get(py)?.kind().name())
}

#[doc = docstring!("device_count")]
#[pyfunction]
pub(crate) fn device_count(py: Python<'_>) -> PyResult<u32> {
    Ok(get(py)?.device_count())
}

#[doc = docstring!("current_device")]
#[pyfunction]
pub(crate) fn current_device(py: Python<'_>) -> PyResult<usize> {
    Ok(get(py)?.current_device()?.ordinal())
}

// What platforms and devices report, for `gpupool.info()`.

#[doc = docstring!("driver_version")]
#[pyfunction]
pub(crate) fn driver_version(py: Python<'_>) -> PyResult<Option<(u32, u32)>> {
    Ok(get(py)?.driver_version())
}

#[doc = docstring!("device_info")]
#[pyfunction]
pub(crate) fn device_info<'py>(py: Python<'py>, device: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let device = extract(py, device)?;
    let info = py.detach(|| crate::runtime::device_info(device))?;
    let dict = PyDict::new(py);
    dict.set_item("name", info.name)?;
    dict.set_item("uuid", info.uuid)?;
    dict.set_item("compute_capability", info.compute_capability)?;
    dict.set_item("pci_bus_id", info.pci_bus_id)?;
    dict.set_item("is_mig", info.is_mig)?;
    dict.set_item("is_shareable", info.is_shareable)?;
    dict.set_item("is_rdma", info.is_rdma)?;
    dict.set_item("total_bytes", info.total_bytes)?;
    dict.set_item("free_bytes", info.free_bytes)?;
    Ok(dict)
}

#[doc = docstring!("runtimes_passed_over")]
#[pyfunction]
pub(crate) fn runtimes_passed_over() -> Vec<(&'static str, String, bool)> {
    let all = passed_over().iter();
    all.map(|passed| (passed.kind.name(), passed.reason.clone(), passed.is_present)).collect()
}

#[doc = docstring!("cuda_builds")]
#[pyfunction]
pub(crate) fn cuda_builds() -> Vec<(&'static str, Option<u32>, BTreeMap<u32, &'static str>)> {
    let vendors: [&'static Vendor; 10] =
        [&CUDNN, &CUBLAS, &CUBLASLT, &CUSOLVER, &CUSPARSE, &CUDSS, &CUSTATEVEC, &CUTENSORNET, &CUTENSOR, &CUSPARSELT];
    vendors.into_iter().map(|vendor| (vendor.name(), vendor.cuda(), vendor.packages())).collect()
}

// Sleeping and waking, of one pool and of all memory of a device.

/// What Python calls a backup: `"host"`, or `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PyBackup(pub(crate) Backup);

impl<'py> FromPyObject<'_, 'py> for PyBackup {
    type Error = PyErr;

    fn extract(backup: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if backup.is_none() {
            return Ok(Self(Backup::None));
        }
        if backup.extract::<&str>().is_ok_and(|name| name == "host") {
            return Ok(Self(Backup::Host));
        }
        let text = |[given]: [String; 1]| {
            format!("backup is \"host\" for pinned memory, or None to discard the content, not {given}")
        };
        Err(wrong_objects([&backup], text).into())
    }
}

#[doc = docstring!("sleep")]
#[pyfunction]
#[pyo3(signature = (device = None, backup = PyBackup(Backup::Host)), text_signature = "(device=None, backup='host')")]
pub(crate) fn sleep(py: Python<'_>, device: Option<&Bound<'_, PyAny>>, backup: PyBackup) -> PyResult<u64> {
    let device = extract_or_current(py, device)?;
    let _stack = hold_stack(Purpose::Allocation);
    Ok(py.detach(|| crate::sleep(device, backup.0))?)
}

#[doc = docstring!("wake")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn wake(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    let device = extract_or_current(py, device)?;
    let _stack = hold_stack(Purpose::Allocation);
    Ok(py.detach(|| memory::wake(device))?)
}

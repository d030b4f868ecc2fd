//! The runtime and its devices: as arguments and results, what they report for `gpupool.info()`, and how a device's memory
//! sleeps.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::CStr;
use std::fmt::Display;

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt};

use crate::error::Result;
use crate::ids::Device;
use crate::library::{
    CUBLAS, CUBLASLT, CUDNN, CUDSS, CUSOLVER, CUSPARSE, CUSPARSELT, CUSTATEVEC, CUTENSOR, CUTENSORNET, Library, Vendor,
};
use crate::memory::{self, Backup};
use crate::observe::recording::{Purpose, hold_stack};
use crate::python::arguments::{accepted, refuse_bool, wrong_objects};
use crate::runtime::{self as platforms, Kind, Runtime, is_chosen, passed_over};

/// The warning of a program's first call if no GPU was found.
const NO_GPU: &CStr =
    c"no GPU was found, so gpupool simulates devices in the host's memory, and nothing computes on a GPU: \
run `gpupool info` to see what is missing, or set GPUPOOL_RUNTIME=host to have simulated devices without this warning";

/// Chooses the runtime without the GIL: the first call initialises the driver, which takes a while.
#[inline]
pub(crate) fn get(py: Python<'_>) -> PyResult<&'static dyn Runtime> {
    if is_chosen() {
        return Ok(platforms::get()?);
    }
    let runtime = py.detach(platforms::get)?;
    if runtime.kind() == Kind::Host && !passed_over().is_empty() {
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), NO_GPU, 1)?;
    }
    Ok(runtime)
}

/// Returns a device, or a NUMA node, as a `repr` shows it.
pub(crate) fn shown(number: impl Display) -> String {
    let is_simulated = is_chosen() && platforms::get().is_ok_and(|runtime| runtime.kind() == Kind::Host);
    format!("{number}{}", if is_simulated { " (simulated)" } else { "" })
}

/// The device that an argument names: by its number, or by an object of PyTorch's, whose `index` is None for the current one.
impl<'py> FromPyObject<'_, 'py> for Device {
    type Error = PyErr;

    fn extract(device: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = device.py();
        get(py)?;
        let wrong =
            || wrong_objects([&device], |[device]| format!("device must be a whole number from 0, not {device}"));
        if let Some(ordinal) = accepted(py, device.extract::<i64>())? {
            refuse_bool(&device, ordinal.cast_unsigned(), wrong)?;
            return Ok(platforms::device(ordinal)?);
        }
        let Some(index) = device.getattr_opt(intern!(py, "index"))? else { return Err(wrong().into()) };
        match accepted(py, index.extract::<Option<i64>>())? {
            Some(Some(ordinal)) => Ok(platforms::device(ordinal)?),
            Some(None) => or_current(py, None),
            None => Err(wrong().into()),
        }
    }
}

/// Its number.
impl<'py> IntoPyObject<'py> for Device {
    type Target = PyInt;
    type Output = Bound<'py, PyInt>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        self.ordinal().into_pyobject(py)
    }
}

/// The device that an argument names, else the thread's current one.
pub(crate) fn or_current(py: Python<'_>, device: Option<Device>) -> PyResult<Device> {
    match device {
        Some(device) => Ok(device),
        None => Ok(get(py)?.current_device()?),
    }
}

/// Does this without the GIL on [that device](or_current).
pub(crate) fn detached<R: Send>(
    py: Python<'_>,
    device: Option<Device>,
    run: impl FnOnce(Device) -> Result<R> + Send,
) -> PyResult<R> {
    let device = or_current(py, device)?;
    Ok(py.detach(|| run(device))?)
}

/// Does this without the GIL; where stacks are recorded, the calling code's is that of what it does.
pub(crate) fn detached_for<R: Send>(
    py: Python<'_>,
    purpose: Purpose,
    run: impl FnOnce() -> Result<R> + Send,
) -> PyResult<R> {
    let _stack = hold_stack(purpose);
    Ok(py.detach(run)?)
}

functions! { py;
    fn runtime() -> PyResult<&'static str> = Ok(get(py)?.kind().name());
    fn device_count() -> PyResult<u32> = Ok(get(py)?.device_count());
    fn current_device() -> PyResult<Device> = or_current(py, None);
    fn driver_version() -> PyResult<Option<(u32, u32)>> = Ok(get(py)?.driver_version());
    fn wake(device: Option<Device> = None) -> PyResult<u64> =
        or_current(py, device).and_then(|device| detached_for(py, Purpose::Allocation, || memory::wake(device)));
    fn runtimes_passed_over() -> Vec<(&'static str, String, bool)> =
        passed_over().iter().map(|passed| (passed.kind.name(), passed.reason.clone(), passed.is_present)).collect();
}

#[doc = docstring!("device_info")]
#[pyfunction]
pub(crate) fn device_info(py: Python<'_>, device: Device) -> PyResult<Bound<'_, PyDict>> {
    let info = py.detach(|| platforms::device_info(device))?;
    Ok(with_items!(PyDict::new(py), {
        "name": info.name,
        "uuid": info.uuid,
        "compute_capability": info.compute_capability,
        "pci_bus_id": info.pci_bus_id,
        "is_mig": info.is_mig,
        "is_shareable": info.is_shareable,
        "is_rdma": info.is_rdma,
        "total_bytes": info.total_bytes,
        "free_bytes": info.free_bytes,
    }))
}

#[doc = docstring!("cuda_builds")]
#[pyfunction]
pub(crate) fn cuda_builds() -> Vec<(&'static str, Option<u32>, BTreeMap<u32, &'static str>)> {
    let vendors: [&'static Vendor; 10] =
        [&CUDNN, &CUBLAS, &CUBLASLT, &CUSOLVER, &CUSPARSE, &CUDSS, &CUSTATEVEC, &CUTENSORNET, &CUTENSOR, &CUSPARSELT];
    vendors.into_iter().map(|vendor| (vendor.name(), vendor.cuda(), vendor.packages())).collect()
}

/// What Python calls a backup: `"host"`, or `None`.
impl<'py> FromPyObject<'_, 'py> for Backup {
    type Error = PyErr;

    fn extract(backup: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if backup.is_none() {
            return Ok(Self::None);
        }
        if backup.extract::<&str>().is_ok_and(|name| name == "host") {
            return Ok(Self::Host);
        }
        let text = |[given]: [String; 1]| {
            format!("backup is \"host\" for pinned memory, or None to discard the content, not {given}")
        };
        Err(wrong_objects([&backup], text).into())
    }
}

#[doc = docstring!("sleep")]
#[pyfunction(signature = (device = None, backup = Backup::Host), text_signature = "(device=None, backup='host')")]
pub(crate) fn sleep(py: Python<'_>, device: Option<Device>, backup: Backup) -> PyResult<u64> {
    let device = or_current(py, device)?;
    detached_for(py, Purpose::Allocation, || crate::sleep(device, backup))
}

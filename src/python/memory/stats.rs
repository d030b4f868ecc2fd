//! Statistics and limits of device memory.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use crate::ids::Device;
use crate::memory::report::{self, memory_counters, pool_counters};
use crate::memory::{self, MemoryLimit, MemoryStats, PoolStats};
use crate::observe::recording::{Purpose, hold_stack};
use crate::python::counts::counts_class;
use crate::python::device;
use crate::python::whole::{Nbytes, Whole, number_of};

pool_counters! { counts_class! { PyPoolStats = "PoolStats" from stats: PoolStats { stats } } }
pool_counters! {
    memory_counters! { counts_class! { PyMemoryStats = "MemoryStats" from stats: MemoryStats { stats.total, stats } } }
}

#[doc = docstring!("empty_cache")]
#[pyfunction]
pub(in crate::python) fn empty_cache(py: Python<'_>) -> PyResult<u64> {
    let _stack = hold_stack(Purpose::Free);
    Ok(py.detach(memory::empty_cache)?)
}

#[doc = docstring!("memory_stats")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(in crate::python) fn memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyMemoryStats> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::memory_stats(device))?.into())
}

#[doc = docstring!("request_counts")]
#[pyfunction]
pub(in crate::python) fn request_counts(py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<(i64, i64, i64)> {
    let device = device::extract(py, device)?;
    let stats = py.detach(|| report::device_stats(device))?;
    Ok((stats.requested_bytes[0].peak, stats.alloc_retries, stats.ooms))
}

/// A fraction of a device's memory, whose range is checked where it is set.
#[derive(Clone, Copy, Debug)]
pub(in crate::python) struct Fraction(f64);

impl<'py> FromPyObject<'_, 'py> for Fraction {
    type Error = PyErr;

    fn extract(fraction: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let wrong = || memory::no_fraction(&*fraction);
        let number = number_of(fraction, wrong)?;
        if fraction.is_exact_instance_of::<PyBool>() { Err(wrong().into()) } else { Ok(Self(number)) }
    }
}

#[doc = docstring!("set_per_process_memory_fraction")]
#[pyfunction]
#[pyo3(signature = (fraction, device = None))]
pub(in crate::python) fn set_per_process_memory_fraction(
    py: Python<'_>,
    fraction: Fraction,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::set_per_process_memory_fraction(fraction.0, device))?)
}

#[doc = docstring!("get_per_process_memory_fraction")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(in crate::python) fn get_per_process_memory_fraction(
    py: Python<'_>,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<f64> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::get_per_process_memory_fraction(device))?)
}

#[doc = docstring!("set_memory_limit")]
#[pyfunction]
pub(in crate::python) fn set_memory_limit(
    py: Python<'_>,
    fraction: Option<Fraction>,
    nbytes: Option<Whole<Nbytes>>,
) -> PyResult<(Option<f64>, Option<u64>)> {
    let limit = MemoryLimit { fraction: fraction.map(|fraction| fraction.0), bytes: nbytes.map(|nbytes| nbytes.0) };
    let former = py.detach(|| memory::set_memory_limit(limit))?;
    Ok((former.fraction, former.bytes))
}

#[doc = docstring!("get_memory_limit")]
#[pyfunction]
pub(in crate::python) fn get_memory_limit() -> PyResult<(Option<f64>, Option<u64>)> {
    let MemoryLimit { fraction, bytes } = memory::memory_limit()?;
    Ok((fraction, bytes))
}

#[doc = docstring!("peers")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(in crate::python) fn peers(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<usize>> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::peers(device))?.into_iter().map(Device::ordinal).collect())
}

#[doc = docstring!("oom_callbacks")]
#[pyfunction]
pub(in crate::python) fn oom_callbacks() -> PyResult<Vec<String>> {
    Ok(memory::oom_callbacks()?)
}

#[doc = docstring!("enable_peer_access")]
#[pyfunction]
pub(in crate::python) fn enable_peer_access(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    peer: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (device, peer) = (device::extract(py, device)?, device::extract(py, peer)?);
    Ok(py.detach(|| memory::enable_peer_access(device, peer))?)
}

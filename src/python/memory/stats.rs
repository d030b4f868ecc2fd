//! Statistics, limits and callbacks of device memory.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::mem_pool::dict;
use crate::error::Error;
use crate::history::{Purpose, hold_stack};
use crate::memory::{self, MemoryLimit, MemoryStats, OomGuard, PoolStats};
use crate::python::device;
use crate::python::whole::Whole;
use crate::stream::Device;

#[pyclass(name = "PoolStats", module = "gpupool", frozen, eq, get_all)]
#[derive(Debug, PartialEq)]
pub(in crate::python) struct PyPoolStats {
    live_bytes: u64,
    peak_live_bytes: u64,
    requested_bytes: u64,
    reserved_bytes: u64,
    peak_reserved_bytes: u64,
    live_blocks: u64,
    waiting_blocks: u64,
    allocations: u64,
    frees: u64,
}

impl From<PoolStats> for PyPoolStats {
    fn from(stats: PoolStats) -> Self {
        Self {
            live_bytes: stats.live_bytes,
            peak_live_bytes: stats.peak_live_bytes,
            requested_bytes: stats.requested_bytes,
            reserved_bytes: stats.reserved_bytes,
            peak_reserved_bytes: stats.peak_reserved_bytes,
            live_blocks: stats.live_blocks,
            waiting_blocks: stats.waiting_blocks,
            allocations: stats.allocations,
            frees: stats.frees,
        }
    }
}

impl PyPoolStats {
    fn items(&self) -> [(&'static str, u64); 9] {
        [
            ("live_bytes", self.live_bytes),
            ("peak_live_bytes", self.peak_live_bytes),
            ("requested_bytes", self.requested_bytes),
            ("reserved_bytes", self.reserved_bytes),
            ("peak_reserved_bytes", self.peak_reserved_bytes),
            ("live_blocks", self.live_blocks),
            ("waiting_blocks", self.waiting_blocks),
            ("allocations", self.allocations),
            ("frees", self.frees),
        ]
    }
}

fn describe(name: &str, items: &[(&str, u64)]) -> String {
    let items: Vec<_> = items.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("{name}({})", items.join(", "))
}

#[pymethods]
impl PyPoolStats {
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dict(py, &self.items())
    }

    fn __repr__(&self) -> String {
        describe("PoolStats", &self.items())
    }
}

#[pyclass(name = "MemoryStats", module = "gpupool", frozen, eq, get_all)]
#[derive(Debug, PartialEq)]
pub(in crate::python) struct PyMemoryStats {
    live_bytes: u64,
    peak_live_bytes: u64,
    requested_bytes: u64,
    reserved_bytes: u64,
    peak_reserved_bytes: u64,
    live_blocks: u64,
    waiting_blocks: u64,
    allocations: u64,
    frees: u64,
    driver_calls: u64,
    moved_pages: u64,
    pools: u64,
}

impl From<MemoryStats> for PyMemoryStats {
    fn from(stats: MemoryStats) -> Self {
        Self {
            live_bytes: stats.total.live_bytes,
            peak_live_bytes: stats.total.peak_live_bytes,
            requested_bytes: stats.total.requested_bytes,
            reserved_bytes: stats.total.reserved_bytes,
            peak_reserved_bytes: stats.total.peak_reserved_bytes,
            live_blocks: stats.total.live_blocks,
            waiting_blocks: stats.total.waiting_blocks,
            allocations: stats.total.allocations,
            frees: stats.total.frees,
            driver_calls: stats.driver_calls,
            moved_pages: stats.moved_pages,
            pools: stats.pools as u64,
        }
    }
}

impl PyMemoryStats {
    fn items(&self) -> [(&'static str, u64); 12] {
        [
            ("live_bytes", self.live_bytes),
            ("peak_live_bytes", self.peak_live_bytes),
            ("requested_bytes", self.requested_bytes),
            ("reserved_bytes", self.reserved_bytes),
            ("peak_reserved_bytes", self.peak_reserved_bytes),
            ("live_blocks", self.live_blocks),
            ("waiting_blocks", self.waiting_blocks),
            ("allocations", self.allocations),
            ("frees", self.frees),
            ("driver_calls", self.driver_calls),
            ("moved_pages", self.moved_pages),
            ("pools", self.pools),
        ]
    }
}

#[pymethods]
impl PyMemoryStats {
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dict(py, &self.items())
    }

    fn __repr__(&self) -> String {
        describe("MemoryStats", &self.items())
    }
}

#[pyfunction]
pub(in crate::python) fn empty_cache(py: Python<'_>) -> PyResult<u64> {
    let _stack = hold_stack(Purpose::Allocation);
    Ok(py.detach(memory::empty_cache)?)
}

#[pyfunction]
#[pyo3(signature = (device = None))]
pub(in crate::python) fn memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyMemoryStats> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::memory_stats(device))?.into())
}

#[pyfunction]
#[pyo3(signature = (device = None))]
pub(in crate::python) fn reset_peak_memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::reset_peak_memory_stats(device))?)
}

#[pyfunction]
#[pyo3(signature = (fraction, device = None))]
pub(in crate::python) fn set_per_process_memory_fraction(
    py: Python<'_>,
    fraction: f64,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::set_per_process_memory_fraction(fraction, device))?)
}

#[pyfunction]
#[pyo3(signature = (device = None))]
pub(in crate::python) fn get_per_process_memory_fraction(
    py: Python<'_>,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<f64> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::get_per_process_memory_fraction(device))?)
}

#[pyfunction]
pub(in crate::python) fn set_memory_limit(
    py: Python<'_>,
    fraction: Option<f64>,
    nbytes: Option<Whole>,
) -> PyResult<(Option<f64>, Option<u64>)> {
    let limit = MemoryLimit { fraction, bytes: nbytes.map(|nbytes| nbytes.0) };
    let former = py.detach(|| memory::set_memory_limit(limit))?;
    Ok((former.fraction, former.bytes))
}

#[pyfunction]
pub(in crate::python) fn devices_in_use() -> PyResult<Vec<usize>> {
    Ok(memory::devices_in_use()?.into_iter().map(Device::ordinal).collect())
}

#[pyfunction]
pub(in crate::python) fn enable_peer_access(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    peer: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (device, peer) = (device::extract(py, device)?, device::extract(py, peer)?);
    Ok(py.detach(|| memory::enable_peer_access(device, peer))?)
}

/// A registered callback for when memory has run out.
#[pyclass(name = "OomCallback", module = "gpupool", frozen)]
#[derive(Debug)]
pub(in crate::python) struct PyOomCallback(Mutex<Option<OomGuard>>);

#[pymethods]
impl PyOomCallback {
    fn remove(&self, py: Python<'_>) {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(guard));
    }
}

#[pyfunction]
pub(in crate::python) fn on_oom(callback: Bound<'_, PyAny>) -> PyResult<PyOomCallback> {
    if !callback.is_callable() {
        return Err(
            Error::invalid_value(format!("on_oom takes a callable(device, nbytes) -> bool, not {callback}")).into()
        );
    }
    let callback = callback.unbind();
    let guard = memory::on_oom(move |device, nbytes| {
        let freed = Python::try_attach(|py| {
            let answer = callback.call1(py, (device.ordinal(), nbytes)).and_then(|answer| answer.is_truthy(py));
            answer.unwrap_or_else(|raised| {
                raised.write_unraisable(py, Some(callback.bind(py)));
                false
            })
        });
        freed.unwrap_or(false)
    });
    Ok(PyOomCallback(Mutex::new(Some(guard))))
}

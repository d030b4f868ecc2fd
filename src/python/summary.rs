//! The summary as plain values, for Python to make its tree of, and what belongs to all pools together.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::device;
use super::handle::PyHandleStats;
use super::memory::{PyMemoryStats, PyPoolStats, pair};
use crate::ids::Device;
use crate::memory::{self, PoolSummary, StreamStats};
use crate::summary;

fn stream<'py>(py: Python<'py>, stream: &StreamStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("stream", stream.stream)?;
    dict.set_item("is_feed", stream.is_feed)?;
    dict.set_item("is_ranges", stream.is_ranges)?;
    dict.set_item("live_bytes", stream.live_bytes)?;
    dict.set_item("requested_bytes", stream.requested_bytes)?;
    dict.set_item("cached_bytes", stream.cached_bytes)?;
    dict.set_item("live_blocks", stream.live_blocks)?;
    Ok(dict)
}

fn pool<'py>(py: Python<'py>, pool: &PoolSummary) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyPoolStats::from(pool.stats).as_dict(py)?;
    dict.set_item("id", pair(pool.id))?;
    dict.set_item("given_name", pool.name.as_deref())?;
    dict.set_item("is_closed", pool.is_closed)?;
    dict.set_item("is_asleep", pool.is_asleep)?;
    dict.set_item("sleeps", pool.sleeps)?;
    dict.set_item("sleep_seconds", pool.sleep_took.as_secs_f64())?;
    dict.set_item("wake_seconds", pool.wake_took.as_secs_f64())?;
    dict.set_item("limit", pool.limit)?;
    let streams = pool.streams.iter().map(|one| stream(py, one)).collect::<PyResult<Vec<_>>>()?;
    dict.set_item("streams", streams)?;
    Ok(dict)
}

#[doc = docstring!("summarize")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(super) fn summarize<'py>(py: Python<'py>, device: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyDict>> {
    let device = device::extract_or_current(py, device)?;
    let found = py.detach(|| summary::memory_summary(device))?;
    let dict = PyMemoryStats::from(found.memory).as_dict(py)?;
    dict.set_item("device", device.ordinal())?;
    dict.set_item("handle_bytes", found.handle_bytes())?;
    dict.set_item("workspace_bytes", found.workspace_bytes())?;
    dict.set_item("other_bytes", found.other_bytes())?;
    dict.set_item("used_bytes", found.info.as_ref().ok().map(|info| info.total.saturating_sub(info.free)))?;
    dict.set_item("free_bytes", found.info.as_ref().ok().map(|info| info.free))?;
    dict.set_item("total_bytes", found.info.as_ref().ok().map(|info| info.total))?;
    dict.set_item("driver_error", found.info.as_ref().err().map(ToString::to_string))?;
    let pools = found.pools.iter().map(|one| pool(py, one)).collect::<PyResult<Vec<_>>>()?;
    dict.set_item("pools", pools)?;
    let mut shared = Vec::new();
    for block in py.detach(|| memory::shared_blocks(device))? {
        let one = PyDict::new(py);
        one.set_item("ptr", block.address)?;
        one.set_item("nbytes", block.nbytes)?;
        one.set_item("is_freed", block.is_freed)?;
        one.set_item("processes", block.processes)?;
        shared.push(one);
    }
    dict.set_item("shared", shared)?;
    let mut libraries = Vec::new();
    for (name, stats) in found.handles {
        let library = PyHandleStats::from(stats).as_dict(py)?;
        library.set_item("library", name)?;
        libraries.push(library);
    }
    dict.set_item("libraries", libraries)?;
    Ok(dict)
}

#[doc = docstring!("devices_in_use")]
#[pyfunction]
pub(super) fn devices_in_use() -> PyResult<Vec<usize>> {
    Ok(summary::devices_in_use()?.into_iter().map(Device::ordinal).collect())
}

#[doc = docstring!("reset_peak_memory_stats")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(super) fn reset_peak_memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| summary::reset_peak_stats(device))?)
}

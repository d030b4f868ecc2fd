//! Statistics and limits of device memory.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use crate::error::Result;
use crate::ids::Device;
use crate::memory::report::{self, memory_counters, pool_counters};
use crate::memory::{self, MemoryLimit, MemoryStats, PoolStats, PoolSummary, StreamStats, host};
use crate::observe::recording::{Purpose, hold_stack};
use crate::python::arguments::{Address, Nbytes, Numa, Whole, number_of};
use crate::python::device;
use crate::python::handle::PyHandleStats;
use crate::python::mem_pool::pair;
use crate::python::values::counts_class;
use crate::runtime::{nearest_host_node, no_host_node};
use crate::summary;

pool_counters! { counts_class! { PyPoolStats = "PoolStats" from stats: PoolStats { stats } } }
pool_counters! {
    memory_counters! { counts_class! { PyMemoryStats = "MemoryStats" from stats: MemoryStats { stats.total, stats } } }
}

#[doc = docstring!("empty_cache")]
#[pyfunction]
pub(crate) fn empty_cache(py: Python<'_>) -> PyResult<u64> {
    let _stack = hold_stack(Purpose::Free);
    Ok(py.detach(memory::empty_cache)?)
}

#[doc = docstring!("memory_stats")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyMemoryStats> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::memory_stats(device))?.into())
}

#[doc = docstring!("request_counts")]
#[pyfunction]
pub(crate) fn request_counts(py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<(i64, i64, i64)> {
    let device = device::extract(py, device)?;
    let stats = py.detach(|| report::device_stats(device))?;
    Ok((stats.requested_bytes[0].peak, stats.alloc_retries, stats.ooms))
}

/// A fraction of a device's memory, whose range is checked where it is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fraction(f64);

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
pub(crate) fn set_per_process_memory_fraction(
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
pub(crate) fn get_per_process_memory_fraction(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<f64> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::get_per_process_memory_fraction(device))?)
}

#[doc = docstring!("set_memory_limit")]
#[pyfunction]
pub(crate) fn set_memory_limit(
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
pub(crate) fn get_memory_limit() -> PyResult<(Option<f64>, Option<u64>)> {
    let MemoryLimit { fraction, bytes } = memory::memory_limit()?;
    Ok((fraction, bytes))
}

#[doc = docstring!("peers")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn peers(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<usize>> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::peers(device))?.into_iter().map(Device::ordinal).collect())
}

#[doc = docstring!("oom_callbacks")]
#[pyfunction]
pub(crate) fn oom_callbacks() -> PyResult<Vec<String>> {
    Ok(memory::oom_callbacks()?)
}

#[doc = docstring!("enable_peer_access")]
#[pyfunction]
pub(crate) fn enable_peer_access(py: Python<'_>, device: &Bound<'_, PyAny>, peer: &Bound<'_, PyAny>) -> PyResult<()> {
    let (device, peer) = (device::extract(py, device)?, device::extract(py, peer)?);
    Ok(py.detach(|| memory::enable_peer_access(device, peer))?)
}

// The summary as plain values, for Python to make its tree of, and what belongs to all pools together.

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
pub(crate) fn summarize<'py>(py: Python<'py>, device: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyDict>> {
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
pub(crate) fn devices_in_use() -> PyResult<Vec<usize>> {
    Ok(summary::devices_in_use()?.into_iter().map(Device::ordinal).collect())
}

#[doc = docstring!("reset_peak_memory_stats")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn reset_peak_memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| summary::reset_peak_stats(device))?)
}

// Settings and statistics of pinned memory.

/// Returns the number of a NUMA node. Whether it exists is checked where it is used.
pub(crate) fn numa_number(numa: Option<Whole<Numa>>) -> Result<Option<u32>> {
    numa.map(|number| u32::try_from(number.0).map_err(|_| no_host_node(number.0))).transpose()
}

#[doc = docstring!("warm_pinned")]
#[pyfunction]
#[pyo3(signature = (nbytes, numa = None, background = true))]
pub(crate) fn warm_pinned(
    py: Python<'_>,
    nbytes: Whole<Nbytes>,
    numa: Option<Whole<Numa>>,
    background: bool,
) -> PyResult<()> {
    device::get(py)?;
    let numa = numa_number(numa)?;
    Ok(py.detach(|| memory::warm_pinned(nbytes.0, numa, background))?)
}

#[doc = docstring!("set_pinned_limit")]
#[pyfunction]
pub(crate) fn set_pinned_limit(py: Python<'_>, nbytes: Option<Whole<Nbytes>>) -> PyResult<()> {
    Ok(py.detach(|| memory::set_pinned_limit(nbytes.map(|nbytes| nbytes.0)))?)
}

#[doc = docstring!("get_pinned_limit")]
#[pyfunction]
pub(crate) fn get_pinned_limit() -> PyResult<Option<u64>> {
    Ok(memory::pinned_limit()?)
}

#[doc = docstring!("pinned_stats")]
#[pyfunction]
#[pyo3(signature = (numa = None))]
pub(crate) fn pinned_stats(py: Python<'_>, numa: Option<Whole<Numa>>) -> PyResult<PyMemoryStats> {
    let numa = numa_number(numa)?;
    Ok(py.detach(|| memory::pinned_stats(numa))?.into())
}

#[doc = docstring!("reset_peak_pinned_stats")]
#[pyfunction]
#[pyo3(signature = (numa = None))]
pub(crate) fn reset_peak_pinned_stats(py: Python<'_>, numa: Option<Whole<Numa>>) -> PyResult<()> {
    let numa = numa_number(numa)?;
    Ok(py.detach(|| memory::reset_peak_pinned_stats(numa))?)
}

#[doc = docstring!("pinned_times")]
#[pyfunction]
pub(crate) fn pinned_times(py: Python<'_>) -> PyResult<(u64, u64)> {
    let [made, given_back] = py.detach(host::pinned_times)?;
    Ok((made.total, given_back.total))
}

#[doc = docstring!("summarize_pinned")]
#[pyfunction]
pub(crate) fn summarize_pinned(py: Python<'_>) -> PyResult<(Vec<Bound<'_, PyDict>>, Option<u64>)> {
    let found = py.detach(memory::pinned_stats_by_node)?;
    let of_node = |(node, stats)| {
        let counts = PyMemoryStats::from(stats).as_dict(py)?;
        counts.set_item("numa", node)?;
        Ok(counts)
    };
    let nodes = found.into_iter().map(of_node).collect::<PyResult<_>>()?;
    Ok((nodes, memory::pinned_limit()?))
}

#[doc = docstring!("nearest_numa_node")]
#[pyfunction]
pub(crate) fn nearest_numa_node(py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<u32> {
    let device = device::extract(py, device)?;
    Ok(py.detach(|| nearest_host_node(device))?.number())
}

#[doc = docstring!("empty_pinned_cache")]
#[pyfunction]
pub(crate) fn empty_pinned_cache(py: Python<'_>) -> PyResult<()> {
    let _stack = hold_stack(Purpose::Free);
    Ok(py.detach(memory::empty_pinned_cache).map(drop)?)
}

#[doc = docstring!("owns")]
#[pyfunction]
pub(crate) fn owns(address: Whole<Address>) -> bool {
    memory::owns(address.0)
}

//! Statistics, summaries and limits of memory, also of pinned memory.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Result;
use crate::ids::{Device, NumaNode};
use crate::memory::report::{self, memory_counters, pool_counters};
use crate::memory::{self, MemoryLimit, MemoryStats, PoolStats, PoolSummary, StreamStats, pinned};
use crate::observe::recording::Purpose;
use crate::python::arguments::{Address, Nbytes, Whole, number_of};
use crate::python::device;
use crate::python::handle::PyHandleStats;
use crate::python::holder::of_holder;
use crate::runtime::nearest_host_node;
use crate::summary;

pool_counters! { counts_class! { PyPoolStats = "PoolStats" from stats: PoolStats { stats } } }
pool_counters! {
    memory_counters! { counts_class! { PyMemoryStats = "MemoryStats" from stats: MemoryStats { stats.total, stats } } }
}

/// A fraction of a device's memory, whose range is checked where it is set.
pub(crate) struct Fraction(f64);

impl<'py> FromPyObject<'_, 'py> for Fraction {
    type Error = PyErr;

    fn extract(fraction: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        number_of(fraction, || memory::no_fraction(&*fraction)).map(Self)
    }
}

functions! { py;
    fn empty_cache() -> PyResult<u64> = device::detached_for(py, Purpose::Free, memory::empty_cache);
    fn memory_stats(device: Option<Device> = None) -> PyResult<PyMemoryStats> =
        Ok(device::detached(py, device, memory::memory_stats)?.into());
    fn reset_peak_stats(device: Option<Device> = None) -> PyResult<()> =
        device::detached(py, device, summary::reset_peak_stats);
    fn set_per_process_memory_fraction(fraction: Fraction, device: Option<Device> = None) -> PyResult<()> =
        device::detached(py, device, |device| memory::set_per_process_memory_fraction(fraction.0, device));
    fn get_per_process_memory_fraction(device: Option<Device> = None) -> PyResult<f64> =
        device::detached(py, device, memory::get_per_process_memory_fraction);
    fn peers(device: Option<Device> = None) -> PyResult<Vec<Device>> = device::detached(py, device, memory::peers);
    fn enable_peer_access(device: Device, peer: Device) -> Result<()> =
        py.detach(|| memory::enable_peer_access(device, peer));
    fn oom_callbacks() -> Result<Vec<String>> = memory::oom_callbacks();
    fn devices_in_use() -> Result<Vec<Device>> = summary::devices_in_use();
    fn request_counts(device: Device) -> Result<(i64, i64, i64)> = py
        .detach(|| report::device_stats(device))
        .map(|stats| (stats.requested_bytes[0].peak, stats.alloc_retries, stats.ooms));
    fn get_memory_limit() -> Result<(Option<f64>, Option<u64>)> =
        memory::memory_limit().map(|limit| (limit.fraction, limit.bytes));
    fn owns(address: Whole<Address>) -> bool = memory::owns(address.0);

    fn set_pinned_limit(nbytes: Option<Whole<Nbytes>>) -> Result<()> =
        py.detach(|| memory::set_pinned_limit(nbytes.map(|nbytes| nbytes.0)));
    fn get_pinned_limit() -> Result<Option<u64>> = memory::pinned_limit();
    fn pinned_stats(numa: Option<NumaNode> = None) -> PyResult<PyMemoryStats> =
        Ok(py.detach(|| memory::pinned_stats(numa.map(NumaNode::number)))?.into());
    fn reset_peak_pinned_stats(numa: Option<NumaNode> = None) -> Result<()> =
        py.detach(|| memory::reset_peak_pinned_stats(numa.map(NumaNode::number)));
    fn pinned_times() -> Result<(u64, u64)> =
        py.detach(pinned::pinned_times).map(|[made, given_back]| (made.total, given_back.total));
    fn nearest_numa_node(device: Device) -> Result<u32> = py.detach(|| nearest_host_node(device)).map(NumaNode::number);
    fn empty_pinned_cache() -> PyResult<()> =
        device::detached_for(py, Purpose::Free, memory::empty_pinned_cache).map(drop);
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

fn of_stream<'py>(py: Python<'py>, stream: &StreamStats) -> PyResult<Bound<'py, PyDict>> {
    Ok(with_items!(PyDict::new(py), {
        "stream": stream.stream,
        "is_feed": stream.is_feed,
        "is_ranges": stream.is_ranges,
        "live_bytes": stream.live_bytes,
        "requested_bytes": stream.requested_bytes,
        "cached_bytes": stream.cached_bytes,
        "live_blocks": stream.live_blocks,
    }))
}

fn of_pool<'py>(py: Python<'py>, pool: &PoolSummary) -> PyResult<Bound<'py, PyDict>> {
    Ok(with_items!(PyPoolStats::from(pool.stats).as_dict(py)?, {
        "id": pool.id,
        "given_name": pool.name.as_deref(),
        "is_closed": pool.is_closed,
        "is_asleep": pool.is_asleep,
        "sleeps": pool.sleeps,
        "sleep_seconds": pool.sleep_took.as_secs_f64(),
        "wake_seconds": pool.wake_took.as_secs_f64(),
        "limit": pool.limit,
        "streams": pool.streams.iter().map(|stream| of_stream(py, stream)).collect::<PyResult<Vec<_>>>()?,
    }))
}

// As plain values, for Python to make its tree of.
#[doc = docstring!("summarize")]
#[pyfunction(signature = (device = None))]
pub(crate) fn summarize<'py>(py: Python<'py>, device: Option<Device>) -> PyResult<Bound<'py, PyDict>> {
    let device = device::or_current(py, device)?;
    let found = py.detach(|| summary::memory_summary(device))?;
    let shared = py.detach(|| memory::shared_blocks(device))?;
    let info = found.info.as_ref();
    let shared = shared.into_iter().map(|block| {
        Ok(with_items!(PyDict::new(py), {
            "ptr": block.address,
            "nbytes": block.nbytes,
            "is_freed": block.is_freed,
            "processes": block.processes,
        }))
    });
    let holders = found.holders.iter().map(|holder| of_holder(py, holder));
    let libraries = found
        .handles
        .iter()
        .map(|(name, stats)| Ok(with_items!(PyHandleStats::from(*stats).as_dict(py)?, { "library": name, })));
    Ok(with_items!(PyMemoryStats::from(found.memory).as_dict(py)?, {
        "device": device,
        "handle_bytes": found.handle_bytes(),
        "workspace_bytes": found.workspace_bytes(),
        "context_bytes": found.context_bytes(),
        "other_bytes": found.other_bytes(),
        "used_bytes": info.ok().map(|info| info.total.saturating_sub(info.free)),
        "free_bytes": info.ok().map(|info| info.free),
        "total_bytes": info.ok().map(|info| info.total),
        "driver_error": info.err().map(ToString::to_string),
        "pools": found.pools.iter().map(|pool| of_pool(py, pool)).collect::<PyResult<Vec<_>>>()?,
        "shared": shared.collect::<PyResult<Vec<_>>>()?,
        "holders": holders.collect::<PyResult<Vec<_>>>()?,
        "libraries": libraries.collect::<PyResult<Vec<_>>>()?,
    }))
}

#[doc = docstring!("warm_pinned")]
#[pyfunction(signature = (nbytes, numa = None, background = false))]
pub(crate) fn warm_pinned(
    py: Python<'_>,
    nbytes: Whole<Nbytes>,
    numa: Option<NumaNode>,
    background: bool,
) -> PyResult<()> {
    device::get(py)?;
    let warm = if background { memory::warm_pinned_in_background } else { memory::warm_pinned };
    Ok(py.detach(|| warm(nbytes.0, numa.map(NumaNode::number)))?)
}

#[doc = docstring!("summarize_pinned")]
#[pyfunction]
pub(crate) fn summarize_pinned(py: Python<'_>) -> PyResult<(Vec<Bound<'_, PyDict>>, Option<u64>)> {
    let found = py.detach(memory::pinned_stats_by_node)?;
    let of_node = |(node, stats)| Ok(with_items!(PyMemoryStats::from(stats).as_dict(py)?, { "numa": node, }));
    let nodes = found.into_iter().map(of_node).collect::<PyResult<_>>()?;
    Ok((nodes, memory::pinned_limit()?))
}

//! Settings and statistics of pinned memory.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::stats::PyMemoryStats;
use crate::error::Result;
use crate::memory::{self, host};
use crate::observe::recording::{Purpose, hold_stack};
use crate::python::device;
use crate::python::whole::{Address, Nbytes, Numa, Whole};
use crate::runtime::{nearest_host_node, no_host_node};

/// Returns the number of a NUMA node. Whether it exists is checked where it is used.
pub(in crate::python) fn number(numa: Option<Whole<Numa>>) -> Result<Option<u32>> {
    numa.map(|number| u32::try_from(number.0).map_err(|_| no_host_node(number.0))).transpose()
}

#[doc = docstring!("warm_pinned")]
#[pyfunction]
#[pyo3(signature = (nbytes, numa = None, background = true))]
pub(in crate::python) fn warm_pinned(
    py: Python<'_>,
    nbytes: Whole<Nbytes>,
    numa: Option<Whole<Numa>>,
    background: bool,
) -> PyResult<()> {
    device::get(py)?;
    let numa = number(numa)?;
    Ok(py.detach(|| memory::warm_pinned(nbytes.0, numa, background))?)
}

#[doc = docstring!("set_pinned_limit")]
#[pyfunction]
pub(in crate::python) fn set_pinned_limit(py: Python<'_>, nbytes: Option<Whole<Nbytes>>) -> PyResult<()> {
    Ok(py.detach(|| memory::set_pinned_limit(nbytes.map(|nbytes| nbytes.0)))?)
}

#[doc = docstring!("get_pinned_limit")]
#[pyfunction]
pub(in crate::python) fn get_pinned_limit() -> PyResult<Option<u64>> {
    Ok(memory::pinned_limit()?)
}

#[doc = docstring!("pinned_stats")]
#[pyfunction]
#[pyo3(signature = (numa = None))]
pub(in crate::python) fn pinned_stats(py: Python<'_>, numa: Option<Whole<Numa>>) -> PyResult<PyMemoryStats> {
    let numa = number(numa)?;
    Ok(py.detach(|| memory::pinned_stats(numa))?.into())
}

#[doc = docstring!("reset_peak_pinned_stats")]
#[pyfunction]
#[pyo3(signature = (numa = None))]
pub(in crate::python) fn reset_peak_pinned_stats(py: Python<'_>, numa: Option<Whole<Numa>>) -> PyResult<()> {
    let numa = number(numa)?;
    Ok(py.detach(|| memory::reset_peak_pinned_stats(numa))?)
}

#[doc = docstring!("pinned_times")]
#[pyfunction]
pub(in crate::python) fn pinned_times(py: Python<'_>) -> PyResult<(u64, u64)> {
    let [made, given_back] = py.detach(host::pinned_times)?;
    Ok((made.total, given_back.total))
}

#[doc = docstring!("summarize_pinned")]
#[pyfunction]
pub(in crate::python) fn summarize_pinned(py: Python<'_>) -> PyResult<(Vec<Bound<'_, PyDict>>, Option<u64>)> {
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
pub(in crate::python) fn nearest_numa_node(py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<u32> {
    let device = device::extract(py, device)?;
    Ok(py.detach(|| nearest_host_node(device))?.number())
}

#[doc = docstring!("empty_pinned_cache")]
#[pyfunction]
pub(in crate::python) fn empty_pinned_cache(py: Python<'_>) -> PyResult<()> {
    let _stack = hold_stack(Purpose::Free);
    Ok(py.detach(memory::empty_pinned_cache).map(drop)?)
}

#[doc = docstring!("owns")]
#[pyfunction]
pub(in crate::python) fn owns(address: Whole<Address>) -> bool {
    memory::owns(address.0)
}

//! What is set and asked of pinned memory.

use pyo3::prelude::*;

use super::stats::PyMemoryStats;
use crate::error::{Error, Result};
use crate::memory;
use crate::python::device;
use crate::python::whole::Whole;

/// The number of a NUMA node; which there are is known where it is used.
fn number(numa: Option<Whole>) -> Result<Option<u32>> {
    let wrong = |number: u64| Error::invalid_value(format!("the host has no NUMA node {number}"));
    numa.map(|number| u32::try_from(number.0).map_err(|_| wrong(number.0))).transpose()
}

#[pyfunction]
#[pyo3(signature = (nbytes, background = true, numa = None))]
pub(in crate::python) fn warm_pinned(
    py: Python<'_>,
    nbytes: Whole,
    background: bool,
    numa: Option<Whole>,
) -> PyResult<()> {
    device::get(py)?;
    let numa = number(numa)?;
    Ok(py.detach(|| memory::warm_pinned(nbytes.0, numa, background))?)
}

#[pyfunction]
pub(in crate::python) fn set_pinned_limit(py: Python<'_>, nbytes: Option<Whole>) -> PyResult<()> {
    Ok(py.detach(|| memory::set_pinned_limit(nbytes.map(|nbytes| nbytes.0)))?)
}

#[pyfunction]
#[pyo3(signature = (numa = None))]
pub(in crate::python) fn pinned_stats(py: Python<'_>, numa: Option<Whole>) -> PyResult<PyMemoryStats> {
    let numa = number(numa)?;
    Ok(py.detach(|| memory::pinned_stats(numa))?.into())
}

#[pyfunction]
#[pyo3(signature = (numa = None))]
pub(in crate::python) fn reset_peak_pinned_stats(py: Python<'_>, numa: Option<Whole>) -> PyResult<()> {
    let numa = number(numa)?;
    Ok(py.detach(|| memory::reset_peak_pinned_stats(numa))?)
}

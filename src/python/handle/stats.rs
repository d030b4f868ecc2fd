//! A pool's counts as a Python object.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::handle::{self, HandleStats, handle_counters};
use crate::python::counts::counts_class;
use crate::python::device;

handle_counters! { counts_class! { PyHandleStats = "HandleStats" from stats: HandleStats { stats } } }

#[doc = docstring!("handle_stats")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(in crate::python) fn handle_stats<'py>(
    py: Python<'py>,
    device: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let device = device.map(|device| device::extract(py, device)).transpose()?;
    let all = py.detach(|| handle::handle_stats(device))?;
    let dict = PyDict::new(py);
    for (name, stats) in all {
        dict.set_item(name, PyHandleStats::from(stats))?;
    }
    Ok(dict)
}

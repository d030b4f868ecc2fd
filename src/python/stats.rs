//! A pool's counts as a Python object.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::device;
use crate::handle::{self, HandleStats};

#[pyclass(name = "HandleStats", module = "gpupool", frozen, eq, get_all)]
#[derive(Debug, PartialEq)]
pub(super) struct PyHandleStats {
    created: u64,
    destroyed: u64,
    retired: u64,
    idle: u64,
    held: u64,
    leased: u64,
    hits: u64,
    misses: u64,
    hand_overs: u64,
    waits: u64,
    failures: u64,
    create_seconds: f64,
    device_bytes: u64,
    workspace_bytes: u64,
}

impl From<HandleStats> for PyHandleStats {
    fn from(stats: HandleStats) -> Self {
        Self {
            created: stats.created,
            destroyed: stats.destroyed,
            retired: stats.retired,
            idle: stats.idle,
            held: stats.held,
            leased: stats.leased,
            hits: stats.hits,
            misses: stats.misses,
            hand_overs: stats.hand_overs,
            waits: stats.waits,
            failures: stats.failures,
            create_seconds: stats.create_time.as_secs_f64(),
            device_bytes: stats.device_bytes,
            workspace_bytes: stats.workspace_bytes,
        }
    }
}

#[pymethods]
impl PyHandleStats {
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("created", self.created)?;
        dict.set_item("destroyed", self.destroyed)?;
        dict.set_item("retired", self.retired)?;
        dict.set_item("idle", self.idle)?;
        dict.set_item("held", self.held)?;
        dict.set_item("leased", self.leased)?;
        dict.set_item("hits", self.hits)?;
        dict.set_item("misses", self.misses)?;
        dict.set_item("hand_overs", self.hand_overs)?;
        dict.set_item("waits", self.waits)?;
        dict.set_item("failures", self.failures)?;
        dict.set_item("create_seconds", self.create_seconds)?;
        dict.set_item("device_bytes", self.device_bytes)?;
        dict.set_item("workspace_bytes", self.workspace_bytes)?;
        Ok(dict)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let counts = self.as_dict(py)?;
        let counts: Vec<String> = counts.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Ok(format!("HandleStats({})", counts.join(", ")))
    }
}

#[pyfunction]
#[pyo3(signature = (device = None))]
pub(super) fn handle_stats<'py>(py: Python<'py>, device: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyDict>> {
    let device = device.map(|device| device::extract(py, device)).transpose()?;
    let all = py.detach(|| handle::handle_stats(device))?;
    let dict = PyDict::new(py);
    for (name, stats) in all {
        dict.set_item(name, PyHandleStats::from(stats))?;
    }
    Ok(dict)
}

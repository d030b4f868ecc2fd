//! What a handle of the simulated library costs, for the demo.

use std::time::Duration;

use pyo3::prelude::*;

use crate::error::Error;
use crate::library::simulated;

#[doc = docstring!("simulate_costly_handles")]
#[pyfunction]
pub(in crate::python) fn simulate_costly_handles(create_seconds: f64, nbytes: u64) -> PyResult<()> {
    let cost = Duration::try_from_secs_f64(create_seconds).map_err(|error| Error::invalid_value(error.to_string()))?;
    simulated::set_create_cost(cost);
    simulated::set_handle_bytes(nbytes);
    Ok(())
}

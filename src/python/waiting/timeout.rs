//! Timeouts as arguments.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::python::whole::{number_of, wrong_argument};

/// A timeout in seconds, of which there may be infinitely many.
#[derive(Clone, Copy, Debug)]
pub(in crate::python) struct Timeout(pub(in crate::python) Duration);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(timeout: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let wrong = || wrong_argument("timeout", &timeout, "a number of seconds of at least 0");
        let seconds: f64 = number_of(timeout, wrong)?;
        if seconds.is_nan() || seconds < 0.0 || timeout.is_exact_instance_of::<PyBool>() {
            return Err(wrong().into());
        }
        Ok(Self(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
    }
}

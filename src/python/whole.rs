//! Whole numbers as arguments: one out of range is an `InvalidValue`, as any other argument that cannot be right.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::error::Error;

/// A number from 0 to 2**64 - 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole(pub(super) u64);

impl<'py> FromPyObject<'_, 'py> for Whole {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        number.extract().map(Self).map_err(|error| {
            if !error.is_instance_of::<PyOverflowError>(number.py()) {
                return error;
            }
            Error::invalid_value(format!("{} is out of range: give 0 to 2**64 - 1", *number)).into()
        })
    }
}

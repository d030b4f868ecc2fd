//! Numbers as arguments: one out of range is an `InvalidValue`, as any other argument that cannot be right. So is a
//! bool, which Python takes for 0 or 1, and which stands where another argument was meant.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::error::{Error, Result};

/// A number from 0 to 2**64 - 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole(pub(super) u64);

/// Refuses an argument that is a bool and came out as this number. Only 0 and 1 can be one, so others take no time.
#[inline]
pub(super) fn refuse_bool(argument: &Bound<'_, PyAny>, number: u64) -> Result<()> {
    if number <= 1 && argument.is_exact_instance_of::<PyBool>() {
        return Err(Error::invalid_value(format!("{argument} is a bool, not a number")));
    }
    Ok(())
}

/// Returns a number as Rust has it: one that is too large for that is `wrong`, while what is no number is told by its type.
#[inline]
pub(super) fn number_of<'a, 'py, T>(argument: Borrowed<'a, 'py, PyAny>, wrong: impl FnOnce() -> Error) -> PyResult<T>
where
    T: FromPyObject<'a, 'py, Error = PyErr>,
{
    argument.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(argument.py()) { wrong().into() } else { error }
    })
}

impl<'py> FromPyObject<'_, 'py> for Whole {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let wrong = || Error::invalid_value(format!("{} is out of range: give 0 to 2**64 - 1", *number));
        let whole: u64 = number_of(number, wrong)?;
        refuse_bool(&number, whole)?;
        Ok(Self(whole))
    }
}

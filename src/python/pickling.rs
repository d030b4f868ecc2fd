//! How values are pickled and copied: by their class, whose constructor takes what their properties return.

use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// What `__reduce__` returns: a callable, and its arguments.
pub(super) type Reduced<'py> = (Bound<'py, PyType>, Bound<'py, PyTuple>);

/// Reduces a value to the properties that its constructor takes, in that order.
pub(super) fn reduce<'py>(value: &Bound<'py, PyAny>, properties: &[&str]) -> PyResult<Reduced<'py>> {
    let arguments = properties.iter().map(|name| value.getattr(*name)).collect::<PyResult<Vec<_>>>()?;
    Ok((value.get_type(), PyTuple::new(value.py(), arguments)?))
}

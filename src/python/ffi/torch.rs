//! PyTorch's symbols, whose addresses Python looks up.

use pyo3::prelude::*;

use crate::memory;

/// Returns the addresses of the functions for PyTorch, by the names of the setters that take them.
///
/// # Errors
/// What `address_of` raises; `ErrorKind::InvalidValue` if a symbol that is needed has no address.
pub(in crate::python) fn torch_functions(address_of: &Bound<'_, PyAny>) -> PyResult<[(&'static str, usize); 8]> {
    // SAFETY: `gpupool.torch` looks each symbol up, by its name, in PyTorch's libraries, which stay loaded.
    unsafe { memory::torch_functions(|symbol| address_of.call1((symbol,))?.extract::<usize>()) }
}

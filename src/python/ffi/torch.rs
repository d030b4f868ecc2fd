//! PyTorch's symbols and objects, whose addresses Python looks up.

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

/// Makes a supplier of memory of an allocator of PyTorch's, whose address and those of its functions Python looked up. The
/// caller keeps the object as long as this.
///
/// # Errors
/// `ErrorKind::InvalidValue` if one is null.
pub(in crate::python) fn torch_allocator(addresses: [usize; 3]) -> crate::error::Result<memory::TorchAllocator> {
    // SAFETY: `gpupool._frameworks.torch_allocator` was told the object's address by PyTorch, for this very class, and
    // looked the functions up by their names in PyTorch's library, which stays loaded.
    unsafe { memory::TorchAllocator::new(addresses) }
}

//! CuPy's allocators. CuPy calls them directly, so that a request that is served at once runs no Python.

mod allocator;
mod pinned;

pub(in crate::python) use allocator::PyCupyAllocator;
pub(in crate::python) use pinned::{PyCupyPinnedAllocator, PyCupyPinnedMemory};

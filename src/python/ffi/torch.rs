//! PyTorch's objects, whose addresses and functions Python looks up.

use crate::memory;

/// Makes a supplier of memory of an allocator of PyTorch's, whose address and those of its functions Python looked up. The
/// caller keeps the object as long as this.
///
/// # Errors
/// `ErrorKind::InvalidValue` if one is null.
pub(in crate::python) fn torch_allocator(addresses: [usize; 3]) -> crate::error::Result<memory::TorchAllocator> {
    // SAFETY: `gpupool._frameworks.torch_allocator` got the object's address from PyTorch, for this very class, and looked
    // the functions up by their names in PyTorch's library, which stays loaded.
    unsafe { memory::TorchAllocator::new(addresses) }
}

//! Segments of the host's pinned memory, whose pages several threads bring in before the driver registers them.
//!
//! On an H100 a GiB takes 114 ms this way and 217 ms in extents (`benches/results/h100-pinned`). But the driver waits for
//! kernels that are running before it lets a segment go, which it does not for extents, and a segment cannot be moved: so
//! they are for large needs, and go only when they are asked to, by a thread of gpupool's own where the caller need not
//! have the memory back.

use crate::error::{Error, Result};
use crate::ids::{MemoryLocation, NumaNode};
use crate::memory::device::address_range::with_device;
use crate::runtime::locking_limits;

/// Adds to a refusal what limits the memory that this process can lock.
pub(in crate::memory::device) fn with_limits(error: Error, location: MemoryLocation) -> Error {
    match locking_limits().filter(|_| location.device().is_none()) {
        Some(limits) => error.advised(limits),
        None => error,
    }
}

/// Makes a segment on the node.
pub(super) fn allocate(node: NumaNode, bytes: u64) -> Result<u64> {
    let made = with_device(node, |runtime| runtime.host_allocate(node, bytes));
    made.map_err(|error| with_limits(error, node.into()))
}

/// Gives a segment back. Where the driver refuses it is still there, and can be given back later.
///
/// # Safety
/// [`allocate`] made it there, so long, and its owner gives it up.
pub(super) unsafe fn free(node: NumaNode, address: u64, bytes: u64) -> Result<()> {
    // SAFETY: the memory came from `host_allocate`, and the caller gives it up.
    with_device(node, |runtime| unsafe { runtime.host_free(node, address, bytes) })
}

//! The NUMA node that pinned memory is allocated on.

use crate::error::Result;
use crate::ids::NumaNode;
use crate::runtime::{self, Stream};

/// Returns the node nearest to the device of this stream, else to the calling thread's current device.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the stream's device does not exist; `ErrorKind::Library` if the driver refuses.
#[inline]
pub(in crate::memory) fn nearest_node(stream: Option<&Stream>) -> Result<NumaNode> {
    let runtime = runtime::get()?;
    let device = match (stream, runtime::only_host_node()) {
        (Some(stream), _) => stream.device(),
        (None, Some(node)) => return Ok(node),
        (None, None) => runtime.current_device()?,
    };
    runtime::nearest_host_node(device)
}

/// Returns the node with this number; without one as [`nearest_node`].
///
/// # Errors
/// `ErrorKind::InvalidValue` if the host has no such node; as [`nearest_node`].
#[inline]
pub(crate) fn node_of(numa: Option<i64>, stream: Option<&Stream>) -> Result<NumaNode> {
    numa.map_or_else(|| nearest_node(stream), runtime::host_node)
}

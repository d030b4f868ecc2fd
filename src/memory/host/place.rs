//! The NUMA node that pinned memory is allocated on.

use crate::error::Result;
use crate::ids::NumaNode;
use crate::runtime::{self, Stream};

/// Returns the node with this number; without one the nearest to the stream's device, else to the thread's current
/// device.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the host has no such node, or the stream's device does not exist; `ErrorKind::Library`
/// if the driver refuses.
#[inline]
pub(crate) fn node_of(numa: Option<i64>, stream: Option<&Stream>) -> Result<NumaNode> {
    if let Some(number) = numa {
        return runtime::host_node(number);
    }
    let runtime = runtime::get()?;
    let device = match (stream, runtime::only_host_node()) {
        (Some(stream), _) => stream.device(),
        (None, Some(node)) => return Ok(node),
        (None, None) => runtime.current_device()?,
    };
    runtime::nearest_host_node(device)
}

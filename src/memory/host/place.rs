//! The order that pinned memory is allocated in: a stream that is none, of a NUMA node of the host.

use crate::error::Result;
use crate::runtime::{self, Stream};

/// Returns the order of the node nearest to the device of this stream, else to the calling thread's current device.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the stream's device does not exist; `ErrorKind::Library` if the driver refuses.
#[inline]
pub(in crate::memory) fn nearest_order(stream: Option<&Stream>) -> Result<Stream> {
    let runtime = runtime::get()?;
    let device = match (stream, runtime::only_host_node()) {
        (Some(stream), _) => stream.device(),
        (None, Some(node)) => return Ok(Stream::default_of(node)),
        (None, None) => runtime.current_device()?,
    };
    runtime::nearest_host_node(device).map(Stream::default_of)
}

/// Returns the order of the node with this number; without one as [`nearest_order`].
///
/// # Errors
/// `ErrorKind::InvalidValue` if the host has no such node; as [`nearest_order`].
#[inline]
pub(crate) fn order_of(numa: Option<i64>, stream: Option<&Stream>) -> Result<Stream> {
    match numa {
        Some(number) => runtime::host_node(number).map(Stream::default_of),
        None => nearest_order(stream),
    }
}

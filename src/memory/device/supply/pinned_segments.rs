//! Segments of the host's pinned memory, whose pages several threads bring in before the driver registers them.
//!
//! On an H100 a GiB takes 114 ms this way and 217 ms in extents (`benches/results/h100-pinned`). But the driver waits for
//! kernels that are running before it lets a segment go, which it does not for extents, and a segment cannot be moved: so
//! they are for large needs, and go only when they are asked to, by a thread of gpupool's own where the caller need not
//! have the memory back.

use super::SegmentSource;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::address_range::with_device;
use crate::runtime::{Runtime, Stream, locking_limits};

/// Makes segments on the NUMA node whose order the stream is.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct PinnedSegments;

/// Runs a call for the host's memory of the place that a stream is of.
fn on_node<R>(stream: &Stream, call: impl FnOnce(&'static dyn Runtime, u32) -> Result<R>) -> Result<R> {
    let place = stream.device();
    with_device(place, |runtime| call(runtime, place.host_node().unwrap_or(0)))
}

/// Adds to a refusal what limits the memory that this process can lock.
pub(in crate::memory::device) fn with_limits(error: Error, place: Device) -> Error {
    match locking_limits().filter(|_| place.host_node().is_some()) {
        Some(limits) => error.advised(limits),
        None => error,
    }
}

// SAFETY: the driver's memory is as long as was asked for, and this process's alone.
unsafe impl SegmentSource for PinnedSegments {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let made = on_node(stream, |runtime, node| runtime.host_allocate(node, bytes));
        made.map_err(|error| with_limits(error, stream.device()))
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        // SAFETY: the memory came from `host_allocate`, and the caller gives it up.
        on_node(stream, |runtime, node| unsafe { runtime.host_free(node, address, bytes) })
    }

    fn frees_again(&self) -> bool {
        true
    }
}

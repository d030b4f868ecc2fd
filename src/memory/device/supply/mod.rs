//! Where a pool's memory comes from, and how much it has and may have.
//!
//! Several threads bring in the pages of a segment of pinned memory before the driver registers them: on an H100 a GiB takes
//! 114 ms this way and 217 ms in extents (`benches/results/h100-pinned`). But the driver waits for kernels that are running
//! before it lets a segment go, which it does not for extents, and a segment cannot be moved: so they are for large needs, and go
//! only when they are asked to, by a thread of gpupool's own where the caller need not have the memory back.

mod budget;
mod reserve;
mod segment_source;
mod times;

use std::sync::{Arc, OnceLock};

use super::address_range::{with_device, with_limits};
use crate::error::{Error, Result};
use crate::ids::NumaNode;
use crate::runtime::Stream;

pub(in crate::memory) use budget::{Budget, PINNED};
pub(in crate::memory) use reserve::Reserve;
pub(in crate::memory) use segment_source::DriverSegments;
pub use segment_source::{AllocateFunction, FreeFunction, SegmentFunctions, SegmentSource};
pub(crate) use times::CallTimes;
pub(in crate::memory) use times::{PINNED_GONE, PINNED_MADE};

/// Where a pool's memory comes from.
#[derive(Clone, Debug, Default)]
pub(crate) enum Source {
    /// Pages of the device's address range, moved where they are needed.
    #[default]
    Pages,
    /// Segments that stay where they are.
    Segments(Arc<dyn SegmentSource>),
    /// Pinned memory of the host on this node: segments, and pages for smaller needs where the node has them.
    Pinned { node: NumaNode, has_pages: bool },
}

impl Source {
    pub(in crate::memory) const fn is_pages(&self) -> bool {
        matches!(self, Self::Pages | Self::Pinned { has_pages: true, .. })
    }

    pub(in crate::memory) const fn has_segments(&self) -> bool {
        !matches!(self, Self::Pages)
    }

    /// Allocates a segment, to be used first on the stream; pinned memory has none.
    ///
    /// # Errors
    /// As [`SegmentSource::allocate`].
    pub(in crate::memory) fn allocate(&self, bytes: u64, stream: Option<&Stream>) -> Result<u64> {
        match (self, stream) {
            (Self::Segments(source), Some(stream)) => source.allocate(bytes, stream),
            (&Self::Pinned { node, .. }, _) => {
                let made = with_device(node, |runtime| runtime.host_allocate(node, bytes));
                made.map_err(|error| with_limits(error, node.into()))
            }
            _ => Err(Error::internal(NO_SEGMENTS)),
        }
    }

    /// Frees a segment. All work that uses it is done.
    ///
    /// # Errors
    /// As [`SegmentSource::free`].
    ///
    /// # Safety
    /// [`Source::allocate`] gave it, so long and for that stream, and its owner gives it up.
    pub(in crate::memory) unsafe fn free(&self, address: u64, bytes: u64, stream: Option<&Stream>) -> Result<()> {
        match (self, stream) {
            // SAFETY: as the caller promises.
            (Self::Segments(source), Some(stream)) => unsafe { source.free(address, bytes, stream) },
            (&Self::Pinned { node, .. }, _) => {
                // SAFETY: the memory came from `host_allocate`, and the caller gives it up.
                with_device(node, |runtime| unsafe { runtime.host_free(node, address, bytes) })
            }
            _ => Err(Error::internal(NO_SEGMENTS)),
        }
    }

    /// As [`SegmentSource::frees_again`].
    pub(super) fn frees_again(&self) -> bool {
        if let Self::Segments(source) = self { source.frees_again() } else { true }
    }
}

const NO_SEGMENTS: &str = "a segment was asked for where there are none";

/// A pool's source and budget: what memory on its way back to the driver needs of the pool, which may be gone by then.
#[derive(Debug)]
pub(in crate::memory) struct Supply {
    pub(in crate::memory) source: Source,
    /// The pool's physical bytes.
    pub(in crate::memory) budget: Budget,
    pub(in crate::memory) reserve: OnceLock<Reserve>,
}

impl Supply {
    /// Makes a supply from the source, of at most `limit` bytes if there is a limit.
    pub(in crate::memory) fn new(source: Source, limit: Option<u64>) -> Self {
        let budget = Budget::new();
        budget.set_limit(limit);
        Self { source, budget, reserve: OnceLock::new() }
    }

    /// Returns what the pool keeps from its birth to its end, if anything.
    pub(in crate::memory) fn reserve(&self) -> Option<&Reserve> {
        self.reserve.get()
    }
}

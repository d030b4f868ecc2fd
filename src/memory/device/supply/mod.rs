//! Where a pool's memory comes from, and how much it has and may have. Several threads touch the pages of a pinned
//! segment before the driver registers it: an H100 takes 114 ms a GiB this way and 217 ms in extents
//! (`benches/results/h100-pinned`). But a segment cannot be moved, and the driver releases it only after running
//! kernels, unlike extents. So segments serve large needs, and go only when asked to, by a thread of gpupool's own
//! where the caller does not need the memory.

mod budget;
mod ready;
mod reserve;
mod segment_source;
mod times;

use std::mem;
use std::sync::{Arc, OnceLock};

use super::address_range::{with_device, with_limits};
use super::under_way::call_out;
use crate::error::{Error, Result};
use crate::ids::NumaNode;
use crate::runtime::Stream;
use crate::sync::CallbackKind;

pub(in crate::memory) use budget::{Budget, BudgetClaim, PINNED};
use ready::Ready;
pub(in crate::memory) use reserve::Reserve;
pub(in crate::memory) use segment_source::DriverSegments;
pub use segment_source::{AllocateFunction, FreeFunction, SegmentFunctions, SegmentSource};
pub(crate) use times::CallTimes;
pub(in crate::memory) use times::{PINNED_GONE, PINNED_MADE};

#[derive(Clone, Debug, Default)]
pub(crate) enum Source {
    /// Pages of the device's address range, moved where they are needed.
    #[default]
    Pages,
    /// Segments, which stay where they are.
    Segments(Arc<dyn SegmentSource>),
    /// Pinned memory of the host on this node: segments, and pages for smaller needs if the node has them.
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

    pub(super) fn frees_again(&self) -> bool {
        if let Self::Segments(source) = self { source.frees_again() } else { true }
    }
}

const NO_SEGMENTS: &str = "a segment was asked for where there are none";

/// A pool's source and budget: what memory needs on its way back to the driver, when the pool may be gone.
#[derive(Debug)]
pub(in crate::memory) struct Supply {
    pub(in crate::memory) source: Source,
    pub(in crate::memory) budget: Budget,
    pub(in crate::memory) reserve: OnceLock<Reserve>,
    pub(in crate::memory) ready: Ready,
}

impl Supply {
    pub(in crate::memory) fn new(source: Source, limit: Option<u64>) -> Self {
        let budget = Budget::new();
        budget.set_limit(limit);
        Self { source, budget, reserve: OnceLock::new(), ready: Ready::default() }
    }

    pub(in crate::memory) fn reserve(&self) -> Option<&Reserve> {
        self.reserve.get()
    }
}

impl Drop for Supply {
    /// The end of a pool's own source is the program's code, and often comes with the last memory on its way back.
    fn drop(&mut self) {
        let source = mem::take(&mut self.source);
        call_out(CallbackKind::Allocator, || drop(source));
    }
}

//! Where a pool's memory comes from, and how much it has and may have.

mod budget;
mod pinned_segments;
mod reserve;
mod segment_source;
mod times;

use std::sync::{Arc, OnceLock};

pub(in crate::memory) use budget::{Budget, PINNED};
pub(in crate::memory) use pinned_segments::PinnedSegments;
pub(super) use pinned_segments::with_limits;
pub(in crate::memory) use reserve::Reserve;
pub(in crate::memory) use segment_source::DriverSegments;
pub use segment_source::{AllocateFunction, FreeFunction, SegmentFunctions, SegmentSource};
pub(crate) use times::Durations;
pub(in crate::memory) use times::{PINNED_GONE, PINNED_MADE};

/// Where a pool's memory comes from.
#[derive(Clone, Debug, Default)]
pub(crate) enum Source {
    /// Pages of the device's address range, moved where they are needed.
    #[default]
    Pages,
    /// The same, and segments that stay where they are for large needs.
    PagesAndSegments(Arc<dyn SegmentSource>),
    /// Segments that stay where they are.
    Segments(Arc<dyn SegmentSource>),
}

impl Source {
    pub(in crate::memory) const fn is_pages(&self) -> bool {
        matches!(self, Self::Pages | Self::PagesAndSegments(_))
    }

    /// Returns where segments come from, if there are any.
    pub(in crate::memory) fn segments(&self) -> Option<&Arc<dyn SegmentSource>> {
        match self {
            Self::Pages => None,
            Self::PagesAndSegments(source) | Self::Segments(source) => Some(source),
        }
    }
}

/// A pool's source and budget: what memory on its way back to the driver needs of the pool, which may be gone by then.
#[derive(Debug)]
pub(in crate::memory) struct Supply {
    pub(in crate::memory) source: Source,
    /// The pool's physical bytes.
    pub(in crate::memory) budget: Budget,
    reserve: OnceLock<Reserve>,
}

impl Supply {
    /// Makes a supply from the source, of at most `limit` bytes if there is a limit.
    pub(in crate::memory) const fn new(source: Source, limit: Option<u64>) -> Self {
        Self { source, budget: Budget::new(limit), reserve: OnceLock::new() }
    }

    /// Returns what the pool keeps from its birth to its end, if anything.
    pub(in crate::memory) fn reserve(&self) -> Option<&Reserve> {
        self.reserve.get()
    }

    /// Gives a new pool what it is to keep.
    pub(in crate::memory) fn set_reserve(&self, reserve: Reserve) {
        // A pool is given one reserve, before any other thread sees it.
        let _ = self.reserve.set(reserve);
    }
}

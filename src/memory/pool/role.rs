//! What a heap's memory is for, which decides which requests may use its free memory, and when.

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::memory) enum Role {
    /// Requests on a stream, in whose order it is reused.
    Requests,
    /// The graphs of captures, which use it whenever they run.
    Graphs,
    /// Another allocator, which cuts it further; with `is_captured` for graphs.
    Feed { is_captured: bool },
    /// Slabs for the pool's other heaps: of no stream, so free memory waits for nothing.
    Lender,
    /// Committed pages of memory ranges: of no stream, since each page is freed once the streams that used it are done.
    /// What is free there moves to requests, which are never served from it in place.
    Ranges,
}

impl Role {
    pub(in crate::memory) const fn is_captured(self) -> bool {
        matches!(self, Self::Graphs | Self::Feed { is_captured: true })
    }

    /// Returns whether free memory of device memory in this role waits for no stream.
    pub(in crate::memory) const fn is_of_no_stream(self) -> bool {
        matches!(self, Self::Lender | Self::Ranges)
    }

    pub(in crate::memory) const fn is_feed(self) -> bool {
        matches!(self, Self::Feed { .. })
    }

    /// Returns the same role, for memory that becomes part of a graph.
    pub(in crate::memory) const fn captured(self) -> Self {
        match self {
            Self::Requests | Self::Graphs => Self::Graphs,
            Self::Feed { .. } => Self::Feed { is_captured: true },
            Self::Lender | Self::Ranges => self,
        }
    }
}

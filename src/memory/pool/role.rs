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
}

impl Role {
    pub(in crate::memory) const fn is_captured(self) -> bool {
        matches!(self, Self::Graphs | Self::Feed { is_captured: true })
    }

    pub(in crate::memory) const fn is_feed(self) -> bool {
        matches!(self, Self::Feed { .. })
    }

    /// Returns the same role, for memory that becomes part of a graph.
    pub(in crate::memory) const fn captured(self) -> Self {
        match self {
            Self::Requests | Self::Graphs => Self::Graphs,
            Self::Feed { .. } => Self::Feed { is_captured: true },
            Self::Lender => Self::Lender,
        }
    }
}

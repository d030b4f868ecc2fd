//! What the memory of a heap is for. It tells who may use what is free there, and when.

/// What the memory of a heap is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::memory) enum Role {
    /// Requests on a stream, in whose order it is used again.
    Requests,
    /// The graphs of captures, which use it whenever they run.
    Graphs,
    /// Another allocator, which cuts it further; with `is_captured` for graphs.
    Feed { is_captured: bool },
    /// Slabs for the pool's other heaps: it is of no stream, and what is free waits for nothing.
    Lender,
}

impl Role {
    /// Returns whether its blocks are parts of captured graphs.
    pub(in crate::memory) const fn is_captured(self) -> bool {
        matches!(self, Self::Graphs | Self::Feed { is_captured: true })
    }

    /// Returns whether its blocks are another allocator's.
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

//! What a cache serves from its birth to its end: one pool, one stream or the host, and one role.

use crate::error::Result;
use crate::ids::{MemoryLocation, NumaNode};
use crate::memory::device::{EventPool, Until};
use crate::memory::pool::Pool;
use crate::runtime::{Stream, StreamIdentity};
use crate::sync::ThisThread;
use std::sync::Arc;

/// What a cache serves.
#[derive(Clone, Debug)]
pub(in crate::memory) struct Service {
    pub(in crate::memory) pool: Arc<Pool>,
    /// The stream in whose order the memory is used; none where free memory waits for no stream: pinned memory, which
    /// the host writes next, a lender's, and that of ranges.
    pub(in crate::memory) stream: Option<Stream>,
    /// Its stream's, with the number 0 for a lasting one, which this keeps, and for graphs.
    pub(in crate::memory) identity: Option<StreamIdentity>,
    pub(in crate::memory) role: Role,
}

/// What a request names: the stream in whose order device memory is used, or a NUMA node for pinned memory.
pub(crate) trait Order {
    fn named(&self) -> (MemoryLocation, Option<&Stream>);

    /// Returns the number that caches are found by: the stream's address, one for both names of the legacy stream; 0
    /// for pinned memory.
    #[inline]
    fn address(&self) -> usize {
        self.named().1.map_or(0, |stream| stream.raw().by_one_name().address())
    }
}

impl Order for Stream {
    #[inline]
    fn named(&self) -> (MemoryLocation, Option<&Stream>) {
        (self.device().into(), Some(self))
    }
}

impl Order for NumaNode {
    #[inline]
    fn named(&self) -> (MemoryLocation, Option<&Stream>) {
        ((*self).into(), None)
    }
}

impl Service {
    pub(in crate::memory) fn of_lender(pool: &Arc<Pool>) -> Self {
        Self::without_stream(pool, Role::Lender)
    }

    pub(in crate::memory) fn of_ranges(pool: &Arc<Pool>) -> Self {
        Self::without_stream(pool, Role::Ranges)
    }

    fn without_stream(pool: &Arc<Pool>, role: Role) -> Self {
        Self { pool: Arc::clone(pool), stream: None, identity: None, role }
    }

    pub(in crate::memory) fn address(&self) -> usize {
        self.stream.as_ref().map_or(0, Order::address)
    }

    /// Returns whether its stream, if any, can be used at any time.
    pub(in crate::memory) fn lasts(&self) -> bool {
        self.stream.as_ref().is_none_or(Stream::is_lasting)
    }

    /// Returns whether it can borrow slabs: its stream can be used at any time, and no graph replays its work.
    pub(in crate::memory) fn may_borrow(&self) -> bool {
        self.role == Role::Requests && self.lasts() && !self.identity.is_some_and(|own| own.is_per_thread())
    }

    /// Returns whether both are of one stream, or of none.
    pub(in crate::memory) fn is_of_stream_of(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Returns whether a stream that a caller names is the served one, not another at its address.
    pub(in crate::memory) fn is_of(&self, named: &Stream) -> bool {
        self.identity.is_some_and(|own| own.is_named_by(named))
    }

    /// Returns whether work of one is ordered with work of the other: both are of one stream.
    pub(in crate::memory) fn is_in_order_with(&self, other: &Self) -> bool {
        self.is_of_stream_of(other) && ![self.role, other.role].iter().any(|role| role.is_of_no_stream())
    }

    pub(in crate::memory) fn is_as(&self, other: &Self) -> bool {
        self.pool.number == other.pool.number && self.is_in_order_with(other) && self.role == other.role
    }

    /// Returns whether a live graph may use what is free at any time. Under the heap's lock the answer lasts until the
    /// unlock: a capture's blocks are taken out of the heap after it begins.
    pub(in crate::memory) fn is_of_live_graph(&self) -> bool {
        self.role.is_captured() && self.pool.life.has_graphs()
    }

    /// Returns whether this thread may use the stream: it lasts, or is the stream of `alive`, which a caller has just
    /// named. A captured role has none: its graph ran on whatever streams replayed it.
    pub(in crate::memory) fn is_stream_usable(&self, thread: ThisThread, alive: Option<&Self>) -> bool {
        if self.role.is_captured() {
            return false;
        }
        match &self.identity {
            Some(own) if own.is_per_thread() => own.is_nameable_by(thread),
            _ => self.lasts() || alive.is_some_and(|alive| self.is_of_stream_of(alive)),
        }
    }

    /// Waits for the work so far on the service's stream; for all work on the device if that is a foreign stream, which
    /// may be destroyed and so is not touched, unless it is that of `alive`.
    pub(in crate::memory) fn work_so_far(
        &self,
        events: &EventPool,
        thread: ThisThread,
        alive: Option<&Self>,
    ) -> Result<Until> {
        match &self.stream {
            None => Ok(Until::at_once()),
            Some(stream) if self.is_stream_usable(thread, alive) => Until::work_on(events, vec![stream.clone()]),
            Some(_) => Until::all_work(events, events.location.device().as_slice()),
        }
    }
}

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

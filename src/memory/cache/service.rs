//! What a cache serves: one pool, one stream, and whether for graphs or for another allocator.

use std::sync::Arc;

use crate::error::Result;
use crate::ids::RawStream;
use crate::memory::device::{EventPool, Until};
use crate::memory::pool::{Pool, Role};
use crate::runtime::Stream;
use crate::sync::{ThisThread, ThreadNumber};

/// What a cache serves.
#[derive(Clone, Debug)]
pub(in crate::memory) struct Service {
    /// Which of its cache's services it is, as [`Heap::service`](super::heap::Heap::service); 0 before it begins.
    pub(in crate::memory) number: u64,
    pub(in crate::memory) pool: Arc<Pool>,
    pub(in crate::memory) stream: Stream,
    /// The [`Stream::id`] of a stream that may be gone one day, and leave its address to another one; 0 of one that lasts, and
    /// of graphs.
    pub(in crate::memory) stream_id: u64,
    /// The thread whose per-thread default stream this is; none for any other stream.
    pub(in crate::memory) per_thread_of: Option<ThreadNumber>,
    pub(in crate::memory) role: Role,
}

/// Returns the stream by which a cache is found: the two names of the legacy stream are one.
#[inline]
pub(in crate::memory) const fn normalized(stream: RawStream) -> usize {
    if stream.address() == 1 { 0 } else { stream.address() }
}

impl Service {
    /// Returns what a pool's lender of slabs serves.
    pub(in crate::memory) fn of_lender(pool: &Arc<Pool>) -> Self {
        let stream = Stream::default_of(pool.memory.device);
        Self { number: 0, pool: Arc::clone(pool), stream, stream_id: 0, per_thread_of: None, role: Role::Lender }
    }

    /// Returns whether it can borrow slabs: its stream can be asked at any time, and nothing replays its work.
    pub(in crate::memory) fn may_borrow(&self) -> bool {
        self.role == Role::Requests && self.per_thread_of.is_none() && self.stream.is_lasting()
    }

    /// Returns whether both are of one stream.
    pub(in crate::memory) fn is_of_stream_of(&self, other: &Self) -> bool {
        normalized(self.stream.raw()) == normalized(other.stream.raw()) && self.stream_id == other.stream_id
    }

    /// Returns whether a stream that a caller names is the one that is served, not another one at its address.
    pub(in crate::memory) fn is_of(&self, named: &Stream) -> bool {
        normalized(self.stream.raw()) == normalized(named.raw())
            && (self.stream_id == 0 || named.id().is_ok_and(|id| id == Some(self.stream_id)))
    }

    /// Returns whether work of one is in order with work of the other: both are of one stream.
    pub(in crate::memory) fn is_in_order_with(&self, other: &Self) -> bool {
        self.is_of_stream_of(other)
            && self.per_thread_of == other.per_thread_of
            && ![self.role, other.role].contains(&Role::Lender)
    }

    /// Returns whether a cache that serves one can serve the other.
    pub(in crate::memory) fn is_as(&self, other: &Self) -> bool {
        self.pool.number == other.pool.number && self.is_in_order_with(other) && self.role == other.role
    }

    /// Returns whether graphs that live may use what is free, at any time. Asked with the heap locked, that holds until it is
    /// unlocked: what a capture uses was taken out of the heap after it began.
    pub(in crate::memory) fn is_of_live_graph(&self) -> bool {
        self.role.is_captured() && self.pool.has_captures()
    }

    /// Returns whether the stream can be asked and recorded on by this thread: it lasts, or is that of `alive`, which a
    /// caller has just given. That of a capture says nothing: its graph ran on whatever streams replayed it.
    pub(in crate::memory) fn is_stream_usable(&self, thread: ThisThread, alive: Option<&Self>) -> bool {
        if self.role.is_captured() {
            return false;
        }
        match self.per_thread_of {
            Some(number) => number == thread.number(),
            None => self.stream.is_lasting() || alive.is_some_and(|alive| self.is_of_stream_of(alive)),
        }
    }

    /// Waits for the work so far on the stream that is served. A foreign stream may have been destroyed by now, unless
    /// it is that of `alive`, and is not touched: all work on the device stands for its.
    pub(in crate::memory) fn work_so_far(
        &self,
        events: &EventPool,
        thread: ThisThread,
        alive: Option<&Self>,
    ) -> Result<Until> {
        if self.role == Role::Lender {
            Ok(Until::at_once())
        } else if self.is_stream_usable(thread, alive) {
            Until::work_on(events, vec![self.stream.clone()])
        } else {
            Until::all_work(events, &[events.device])
        }
    }
}

//! A request that its cache could not serve at once, and the block that it gets.

use std::cell::Cell;
use std::ops::Deref;

use crate::error::Result;
use crate::memory::cache::{HeapSearch, Service, ServingCache, StreamCache};
use crate::runtime::Stream;

/// A block that a caller holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(in crate::memory) cache: &'static StreamCache,
    pub(in crate::memory) offset: u64,
}

impl Allocation {
    #[inline]
    pub(in crate::memory) fn address(self) -> u64 {
        self.cache.memory.address(self.offset)
    }
}

/// A request of a cache in its service.
#[derive(Debug)]
pub(super) struct AllocationRequest {
    of: ServingCache,
    pub(super) bytes: u64,
    refused: Cell<Option<RefusedPages>>,
}

/// Pages that could not be created for a request. To find that out again takes as long as to create all that the driver has
/// left, which may be milliseconds.
#[derive(Clone, Copy, Debug)]
struct RefusedPages {
    pages: u32,
    /// The bytes that this process had given back by then.
    went: u64,
}

impl Deref for AllocationRequest {
    type Target = ServingCache;

    fn deref(&self) -> &ServingCache {
        &self.of
    }
}

impl AllocationRequest {
    pub(super) fn new(of: ServingCache, bytes: u64) -> Self {
        Self { of, bytes, refused: Cell::new(None) }
    }

    /// Notes that so many pages could not be created.
    pub(super) fn note_refusal(&self, pages: u32) {
        self.refused.set((pages > 0).then(|| RefusedPages { pages, went: self.given_back() }));
    }

    /// Returns whether as many pages, or fewer, could not be created before, and this process has given nothing back since.
    pub(super) fn would_be_refused(&self, pages: u32) -> bool {
        self.refused.get().is_some_and(|refused| pages >= refused.pages && self.given_back() == refused.went)
    }

    /// Has the driver asked again, since others may have given memory back.
    pub(super) fn ask_again(&self) {
        self.refused.set(None);
    }

    /// Returns the bytes that this process has given back to the driver so far.
    fn given_back(&self) -> u64 {
        self.memory().pieces.get()[0][1].went
    }

    /// Returns how many bytes must be free in one piece for it.
    pub(super) fn needed(&self) -> u64 {
        self.cache.lock(self.thread).needed_for(self.bytes)
    }

    /// Returns whether pages may move for it. Not for a captured stream, whose work runs whenever its graph does and so
    /// is never known to be done; nor segments that may be registered, which stay where they are.
    pub(super) fn may_move(&self) -> Result<bool> {
        let pool = self.pool();
        Ok(pool.source().is_pages() && !pool.no_split() && !self.is_captured()?)
    }

    /// Returns whether it is for a captured stream.
    pub(super) fn is_captured(&self) -> Result<bool> {
        let Service { role, stream, .. } = &self.service;
        Ok(role.is_captured() || stream.as_ref().map_or(Ok(false), Stream::is_captured)?)
    }

    /// Returns the block at an offset that the cache handed out.
    pub(super) fn allocation(&self, offset: u64) -> Allocation {
        Allocation { cache: self.cache, offset }
    }

    /// Searches the cache's heap once for a free block, if it is still in the service.
    pub(super) fn search(&self, search: HeapSearch) -> Option<Allocation> {
        let mut heap = self.lock()?;
        if search == HeapSearch::Whole {
            heap.drop_empty_slabs(&self.memory().pages);
        }
        let offset = self.cache.allocate_locked(&mut heap, self.bytes, search)?;
        Some(self.allocation(offset))
    }
}

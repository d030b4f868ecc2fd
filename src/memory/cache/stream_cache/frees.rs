//! Frees of a cache's blocks, from any thread.

use super::{Asked, StreamCache};
use crate::memory::cache::heap::Heap;
use crate::memory::device::Invalid;
use crate::sync::ThisThread;

impl StreamCache {
    /// Frees a block of this cache, which was just looked up, from any thread.
    #[inline]
    pub(in crate::memory) fn free(&self, thread: ThisThread, offset: u64) -> Result<(), Invalid> {
        match self.lock_fast(thread) {
            Some(mut heap) => heap.free(&self.memory.pages, offset),
            None => self.free_beside_others(thread, offset),
        }
    }

    #[cold]
    fn free_beside_others(&self, thread: ThisThread, offset: u64) -> Result<(), Invalid> {
        match self.serve_beside_others(thread, Asked::Free { offset }) {
            Some(FREED) => Ok(()),
            Some(NO_BLOCK) => Err(Invalid::NotABlock),
            _ => Err(Invalid::Freed),
        }
    }

    /// Frees a block with the heap locked. Returns the answer.
    pub(super) fn free_locked(&self, heap: &mut Heap, offset: u64) -> Option<u64> {
        // For a wrong second free, the page may be another cache's by now.
        let freed = if self.has_block_at(offset) { heap.free(&self.memory.pages, offset) } else { Err(Invalid::Freed) };
        match freed {
            Ok(()) => Some(FREED),
            Err(Invalid::NotABlock) => Some(NO_BLOCK),
            Err(Invalid::Freed) => None,
        }
    }

    /// Makes a block wait for streams before it is free.
    pub(in crate::memory) fn begin_waiting(&self, thread: ThisThread, offset: u64) -> Result<(), Invalid> {
        let mut heap = self.lock(thread);
        if self.has_block_at(offset) { heap.begin_waiting(&self.memory.pages, offset) } else { Err(Invalid::Freed) }
    }

    /// Removes the cache from the ledger's list of those with free pages, if it has none. Returns whether it was on it.
    pub(in crate::memory) fn withdraw_if_no_pages(&self, heap: &mut Heap) -> bool {
        heap.withdraw_pages().is_some_and(|ledger| ledger.remove_with_pages(self.number))
    }

    /// Refuses an offset at which no block starts that a caller holds.
    pub(in crate::memory) fn check_live(&self, offset: u64) -> Result<(), Invalid> {
        self.memory.pages.entry(offset).check_live()
    }
}

/// Answers to a free: the block is free, or there is none; no answer: it was freed before.
const FREED: u64 = 0;
const NO_BLOCK: u64 = 1;

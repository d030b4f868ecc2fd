//! Blocks that come back to a cache: to the heap where no other thread is at work, else to the inbox, which the next look at
//! the heap empties.

use super::StreamCache;
use crate::memory::cache::heap::Heap;
use crate::memory::device::{Invalid, Slab};
use crate::sync::ThisThread;

impl StreamCache {
    /// Takes in what other threads have freed.
    #[cold]
    pub(super) fn collect(&self, heap: &mut Heap) {
        for offset in self.inbox.change(|inbox| std::mem::take(&mut inbox.freed)) {
            self.collect_block(heap, offset);
        }
    }

    /// Frees a block that was marked as freed.
    fn collect_block(&self, heap: &mut Heap, offset: u64) {
        // What a wrong second free tells may come when the page is another cache's.
        if self.has_block_at(offset) {
            heap.collect(&self.memory.pages, offset);
        }
    }

    /// Frees a block of this cache from any thread.
    ///
    /// # Errors
    /// [`Invalid`] if there is none at the offset.
    #[inline]
    pub(in crate::memory) fn free(&self, thread: ThisThread, offset: u64) -> Result<(), Invalid> {
        match self.lock_shortly(thread) {
            Some(mut heap) => heap.free(&self.memory.pages, offset),
            None => self.free_beside_others(thread, offset),
        }
    }

    /// Frees at once where no other thread is at work: threads that take turns so leave the heap as one thread would. Else leaves
    /// the block in the inbox.
    #[cold]
    fn free_beside_others(&self, thread: ThisThread, offset: u64) -> Result<(), Invalid> {
        let Some(mut heap) = self.try_lock(thread) else { return self.leave(offset) };
        heap.free(&self.memory.pages, offset)?;
        self.answer_requests(&mut heap);
        Ok(())
    }

    /// Leaves a block in the inbox, for any thread. The pages that it makes free are found by others also if nobody comes for the
    /// stream.
    pub(super) fn leave(&self, offset: u64) -> Result<(), Invalid> {
        // Marked and told in one step: else a thread whose slot is told by another one's free could ask before that is.
        self.inbox.change(|inbox| {
            if !self.mark_freed(offset)? {
                return Ok(());
            }
            inbox.freed.push(offset);
            if !std::mem::replace(&mut inbox.is_told, true)
                && let Some(service) = self.service()
            {
                service.pool.ledger.add_with_pages(self.number);
            }
            Ok(())
        })
    }

    /// Marks a block as freed; false for a slot that comes to the heap with others, which were freed before it.
    fn mark_freed(&self, offset: u64) -> Result<bool, Invalid> {
        let pages = &self.memory.pages;
        let block = |number| pages.mark_freed(offset, number).then_some(true);
        pages.entry(offset).live(block, Slab::mark_freed)
    }

    /// Has the pool's ledger forget that the cache may have free pages, if it has none, nor blocks in the inbox. Returns
    /// whether it had told of some.
    pub(in crate::memory) fn tell_if_no_pages(&self, heap: &mut Heap) -> bool {
        let Some(ledger) = heap.end_telling_of_pages() else { return false };
        self.inbox.change(|inbox| {
            inbox.is_told &= !inbox.freed.is_empty();
            !inbox.is_told && ledger.remove_with_pages(self.number)
        })
    }

    /// Marks a block as freed though it cannot be used again yet.
    ///
    /// # Errors
    /// [`Invalid`] if there is none at the offset.
    pub(in crate::memory) fn mark_waiting(&self, offset: u64) -> Result<(), Invalid> {
        let pages = &self.memory.pages;
        let block = |number| pages.mark_freed(offset, number).then_some(());
        pages.entry(offset).live(block, |slab, slot| slab.mark_waiting(slot).then_some(()))
    }

    /// Refuses an offset at which no block starts that a caller holds.
    pub(in crate::memory) fn check_live(&self, offset: u64) -> Result<(), Invalid> {
        let is_live = |slab: &Slab, slot| slab.is_live(slot).then_some(());
        self.memory.pages.entry(offset).live(|_| Some(()), is_live)
    }
}

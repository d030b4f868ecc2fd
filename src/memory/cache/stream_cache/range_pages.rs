//! The pages of memory ranges in the cache that a pool has for them: committed ones are live blocks.

use super::{NotAdded, StreamCache};
use crate::memory::cache::block_user::{BlockUser, Waiting};
use crate::memory::cache::event::{To, is_recorded};
use crate::memory::cache::heap::Heap;
use crate::memory::cache::service::Service;
use crate::memory::device::{Invalid, Mapping};
use crate::sync::ThisThread;

/// No block starts there.
const NOWHERE: u64 = u64::MAX;

impl StreamCache {
    /// Notes that its blocks are pages of ranges, so that callers who name one by its address are refused: each look-up of
    /// a block asks for its further users first.
    pub(super) fn hold_for_ranges(&self) {
        self.add_use(NOWHERE, BlockUser::Gpupool);
    }

    pub(super) fn end_hold_for_ranges(&self) {
        if self.has_uses() {
            self.take_uses(NOWHERE);
        }
    }

    /// Returns whether its blocks are the pages of memory ranges.
    pub(in crate::memory) fn is_of_ranges(&self) -> bool {
        self.has_uses() && self.is_gpupools(NOWHERE)
    }

    /// Adds memory that is mapped at a range's addresses, of which `moved` bytes were moved there, as live blocks of
    /// `each` bytes.
    ///
    /// # Errors
    /// [`NotAdded`] if the service has ended or sleeps, or there are too many blocks. The cache has none of it then.
    pub(in crate::memory) fn add_live(
        &self,
        service: &Service,
        thread: ThisThread,
        (start, bytes): (u64, u64),
        each: u64,
    ) -> Result<(), NotAdded> {
        let mut heap = self.add_observed(service, thread, start, bytes)?;
        let places: Vec<_> = (0..bytes / each).map(|index| start + index * each).collect();
        let live = self.allocate_each(&mut heap, &places, each);
        self.withdraw_if_no_pages(&mut heap);
        if live.len() == places.len() {
            return Ok(());
        }
        // The pool was closed, or numbers have run out.
        for offset in live {
            let _ = heap.free(&self.memory.pages, offset);
        }
        heap.join_freed();
        drop(self.take_mappings_at(&mut heap, &places));
        Err(NotAdded)
    }

    /// Hands out those of these places that are free, and returns them.
    pub(in crate::memory) fn allocate_each(&self, heap: &mut Heap, places: &[u64], bytes: u64) -> Vec<u64> {
        let is_here = |offset: &u64| self.memory.pages.is_of(*offset, self.number);
        let places = places.iter().copied().filter(is_here);
        let live: Vec<_> = places.filter(|&at| heap.allocate_at(&self.memory.pages, at, bytes).is_some()).collect();
        if is_recorded() {
            live.iter().for_each(|&offset| self.record_alloc(offset, bytes));
        }
        live
    }

    /// Makes freed blocks live again that wait for streams, and returns them.
    pub(in crate::memory) fn resume_each(
        &self,
        heap: &mut Heap,
        places: impl Iterator<Item = u64>,
        bytes: u64,
    ) -> Vec<u64> {
        let resumed: Vec<_> = places.filter(|&offset| heap.resume(&self.memory.pages, offset)).collect();
        if is_recorded() {
            for &offset in &resumed {
                self.note_completed(offset, To::Recording);
                self.record_alloc(offset, bytes);
            }
        }
        resumed
    }

    /// Makes live blocks wait for what `waiting` waits for, and those beside it.
    ///
    /// # Errors
    /// The first that is not live. Those before it wait all the same.
    pub(in crate::memory) fn begin_waiting_each(&self, thread: ThisThread, waiting: &Waiting) -> Result<(), Invalid> {
        let mut heap = self.lock(thread);
        waiting.offsets().try_for_each(|offset| {
            if self.has_block_at(offset) { heap.begin_waiting(&self.memory.pages, offset) } else { Err(Invalid::Freed) }
        })
    }

    /// Takes the free extents at these places out of the heap.
    pub(in crate::memory) fn take_mappings_at(&self, heap: &mut Heap, places: &[u64]) -> Vec<Mapping> {
        let taken = heap.take_mappings_at(&self.memory.pages, places);
        self.note_taken(heap, taken)
    }

    pub(in crate::memory) fn take_mappings_of(&self, heap: &mut Heap, most: u32, each: u32) -> Vec<Mapping> {
        let taken = heap.take_mappings_of(&self.memory.pages, most, each);
        self.note_taken(heap, taken)
    }
}

//! The pages of memory ranges in the cache that a pool has for them: committed ones are live blocks.

use super::StreamCache;
use crate::memory::cache::block_user::{BlockUser, Waiting};
use crate::memory::cache::event::{To, is_recorded};
use crate::memory::cache::heap::Heap;
use crate::memory::device::Invalid;
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
                self.note_completed(offset, To::Observer);
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
}

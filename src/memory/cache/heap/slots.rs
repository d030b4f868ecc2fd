//! Small blocks: slots of slabs, which are blocks that the heap cuts once for many.

use super::Heap;
use super::block::BlockState;
use super::counts::SMALL;
use crate::memory::device::Pages;
use crate::memory::device::Slab;
use crate::memory::device::{CLASSES, SizeClass};
use crate::memory::tuning::{EMPTY_SLABS_APART, SMALL_MAX};

/// The slabs in which a heap has slots.
#[derive(Debug)]
pub(super) struct HeapSlabs {
    /// For each small size those with a free slot; the last is tried first.
    pub(super) open: [Vec<&'static Slab>; CLASSES],
    /// Those among them, and full ones, that were borrowed.
    pub(super) borrowed: Vec<&'static Slab>,
    /// The allocations when empty ones were last dropped for a large block.
    dropped_at: u64,
}

impl Default for HeapSlabs {
    fn default() -> Self {
        Self { open: [const { Vec::new() }; CLASSES], borrowed: Vec::new(), dropped_at: 0 }
    }
}

impl Heap {
    #[inline]
    pub(super) fn take_slot(&mut self, pages: &'static Pages, bytes: u64) -> Option<u64> {
        let class = SizeClass::of(bytes);
        let slab = match self.slabs.open[class.index()].last() {
            Some(slab) => slab,
            None => self.new_slab(pages, class)?,
        };
        let slot = slab.take(bytes as u32)?;
        if slab.is_full() {
            self.slabs.open[class.index()].pop();
            slab.set_listed(false);
        }
        self.count_allocation(SMALL, u64::from(class.bytes()), bytes);
        Some(slab.offset_of(slot))
    }

    #[cold]
    fn new_slab(&mut self, pages: &'static Pages, class: SizeClass) -> Option<&'static Slab> {
        let bytes = class.slab_bytes();
        self.join_freed();
        let id = self.map.find_aligned(bytes)?;
        let slab = pages.slabs.acquire()?;
        let start = self.map.all[id as usize].start.next_multiple_of(SMALL_MAX);
        let Some(id) = self.map.cut(id, start, bytes) else {
            pages.slabs.release(slab);
            return None;
        };
        slab.reset(start, class, id);
        slab.set_listed(true);
        self.map.all[id as usize].set_state(BlockState::Slab);
        self.map.all[id as usize].set_number(slab.number());
        pages.set_slab(start, bytes, Some(slab.number()));
        self.slabs.open[class.index()].push(slab);
        Some(slab)
    }

    #[inline]
    pub(super) fn free_slot(&mut self, pages: &'static Pages, slab: &'static Slab, slot: usize) {
        let class = slab.class();
        let requested = slab.put_back(slot);
        self.counts.free(SMALL, u64::from(class.bytes()), requested.into());
        let listed = &mut self.slabs.open[class.index()];
        if !slab.is_listed() {
            slab.set_listed(true);
            listed.push(slab);
        }
        // One empty slab of each size stays, so that a pair of requests does not make and end one each time.
        if listed.len() > 1 && slab.is_empty() && slab.borrower().is_none() {
            listed.retain(|other| !std::ptr::eq(*other, slab));
            self.drop_slab(pages, slab);
        }
    }

    #[cold]
    fn drop_slab(&mut self, pages: &'static Pages, slab: &'static Slab) {
        let id = slab.block();
        let block = &self.map.all[id as usize];
        pages.set_slab(block.start, block.size(), None);
        pages.slabs.release(slab);
        self.join(id);
    }

    /// As [`Heap::drop_empty_slabs`], for a large block that would fit nowhere else; not again before some blocks were handed
    /// out, so that a program whose blocks just fit does not make and end slabs each time. Returns whether it did.
    pub(in crate::memory) fn drop_empty_slabs_at_times(&mut self, pages: &'static Pages) -> bool {
        let allocations = self.allocations();
        if allocations - self.slabs.dropped_at < EMPTY_SLABS_APART {
            return false;
        }
        self.slabs.dropped_at = allocations;
        self.drop_empty_slabs(pages);
        true
    }

    /// Gives every empty slab of its own back.
    pub(in crate::memory) fn drop_empty_slabs(&mut self, pages: &'static Pages) {
        for class in 0..CLASSES {
            let is_own = |slab: &&Slab| slab.is_empty() && slab.borrower().is_none();
            let (empty, kept) = self.slabs.open[class].drain(..).partition(is_own);
            let empty: Vec<_> = empty;
            self.slabs.open[class] = kept;
            for slab in empty {
                self.drop_slab(pages, slab);
            }
        }
    }
}

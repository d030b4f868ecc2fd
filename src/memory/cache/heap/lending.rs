//! Slabs that go from one heap to another, so that many streams which hold little share pages.
//!
//! The heap of a pool's lender cuts its pages into slabs for the heaps of caches that have no pages. A slab is one cache's
//! until it is empty and has been returned, and is lent again once the work on that cache's stream is done: so what is
//! free in a slab follows the order of one stream, as in any other.

use super::block::BlockState;
use super::{Cut, Heap};
use crate::memory::device::{Entry, Pages, SizeClass, Slab};
use crate::memory::tuning::{BORROWED_MAX, SMALL_MAX};

impl Heap {
    /// Makes its blocks slabs for other heaps from now on.
    pub(in crate::memory) fn begin_lending(&mut self) {
        self.is_lender = true;
    }

    /// Returns whether the heap is to borrow a slab for a request: it has no pages, and has borrowed little.
    pub(in crate::memory) fn borrows_for(&self, bytes: u64) -> bool {
        let is_small = self.serving.cut == Cut::ToSize && (1..=SMALL_MAX).contains(&bytes);
        let borrowed: u64 = self.slabs.borrowed.iter().map(|slab| slab.class().slab_bytes()).sum();
        is_small && self.mapped == borrowed && borrowed + SizeClass::of(bytes).slab_bytes() <= BORROWED_MAX
    }

    /// Makes a slab for requests like this one, for the heap of another cache. What its pages say is changed under the
    /// lender's lock alone. None while the heap is asleep.
    pub(in crate::memory) fn lend(
        &mut self,
        pages: &'static Pages,
        request: u64,
        borrower: u32,
    ) -> Option<&'static Slab> {
        self.service()?;
        let class = SizeClass::of(request);
        let bytes = class.slab_bytes();
        let id = self.map.find(bytes);
        let start = self.map.get(id)?.start;
        let slab = pages.slabs.acquire()?;
        let Some(id) = self.map.cut(id, start, bytes) else {
            pages.slabs.release(slab);
            return None;
        };
        self.map.all[id as usize].set_state(BlockState::Live);
        self.mapped -= bytes;
        slab.reset(start, class, id);
        slab.set_borrower(borrower);
        pages.set_slab(start, bytes, Some(slab.number()));
        Some(slab)
    }

    /// Takes in a slab that was lent.
    pub(in crate::memory) fn borrow(&mut self, slab: &'static Slab) {
        slab.set_listed(true);
        self.slabs.open[slab.class().index()].push(slab);
        self.slabs.borrowed.push(slab);
        self.mapped += slab.class().slab_bytes();
    }

    /// Returns whether it has borrowed slabs.
    pub(in crate::memory) fn has_borrowed(&self) -> bool {
        !self.slabs.borrowed.is_empty()
    }

    /// Takes the empty ones out of the slabs that it has borrowed.
    pub(in crate::memory) fn take_borrowed(&mut self) -> Vec<&'static Slab> {
        let (empty, kept): (Vec<&'static Slab>, _) = self.slabs.borrowed.drain(..).partition(|slab| slab.is_empty());
        self.slabs.borrowed = kept;
        for slab in &empty {
            self.slabs.open[slab.class().index()].retain(|other| !std::ptr::eq(*other, *slab));
            self.mapped -= slab.class().slab_bytes();
        }
        self.map.turnover += 1;
        self.tell_live();
        empty
    }

    /// Takes back an empty slab, which waits for the work of its borrower's stream.
    pub(in crate::memory) fn take_back(&mut self, pages: &'static Pages, slab: &'static Slab) {
        let (start, bytes) = (slab.start(), slab.class().slab_bytes());
        pages.set_slab(start, bytes, None);
        pages.set_freed(start, slab.block());
        pages.slabs.release(slab);
        self.mapped += bytes;
    }

    /// Makes what was taken back at the offset free: its stream is done.
    pub(in crate::memory) fn end_waiting(&mut self, pages: &'static Pages, offset: u64) {
        if let Entry::Freed(id) = pages.entry(offset) {
            pages.clear(offset);
            self.join(id);
        }
    }
}

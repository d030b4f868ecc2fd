//! The slabs of a heap, in which small blocks have slots, and slabs lent from one heap to another, so that many streams
//! that hold little share pages. The heap of a pool's lender cuts its pages into slabs for caches that have no pages. A
//! slab is one cache's until it is empty and returned, and is lent again once the work on that cache's stream is done:
//! so its free slots follow the order of one stream, as in any slab.

use super::block::BlockState;
use super::counts::SMALL;
use super::{Cut, Heap, HeapSearch};
use crate::memory::device::{CLASSES, PageEntry, Pages, SizeClass, Slab};
use crate::memory::tuning::{BORROWED_MAX, EMPTY_SLABS_APART, SMALL_MAX};

/// The slabs in which a heap has slots.
#[derive(Debug)]
pub(super) struct HeapSlabs {
    /// Slabs with a free slot, by size class; the last is tried first.
    pub(super) open: [Vec<&'static Slab>; CLASSES],
    /// All borrowed slabs, full ones too.
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
            None => self.find_slab(pages, class)?,
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
    fn find_slab(&mut self, pages: &'static Pages, class: SizeClass) -> Option<&'static Slab> {
        self.join_freed();
        let id = self.map.find_aligned(class.slab_bytes())?;
        self.new_slab(pages, class, id)
    }

    /// Makes a slab in a free block that has room for it.
    pub(super) fn new_slab(&mut self, pages: &'static Pages, class: SizeClass, id: u32) -> Option<&'static Slab> {
        let start = self.map.all[id as usize].start.next_multiple_of(SMALL_MAX);
        let slab = self.cut_slab(pages, class, id, start)?;
        self.add_slab(pages, slab);
        Some(slab)
    }

    /// Cuts a slab's block out of a free one; none if slabs or blocks run out.
    fn cut_slab(&mut self, pages: &'static Pages, class: SizeClass, id: u32, start: u64) -> Option<&'static Slab> {
        let slab = pages.slabs.acquire()?;
        let Some(id) = self.map.cut(id, start, class.slab_bytes()) else {
            pages.slabs.release(slab);
            return None;
        };
        slab.reset(start, class, id);
        Some(slab)
    }

    /// Serves small requests from a slab, whose block exists.
    pub(super) fn add_slab(&mut self, pages: &'static Pages, slab: &'static Slab) {
        let class = slab.class();
        let block = &mut self.map.all[slab.block() as usize];
        block.set_state(BlockState::Slab);
        block.set_number(slab.number());
        pages.set_slab(slab.start(), class.slab_bytes(), Some(slab.number()));
        self.counts.add_slab(class.slab_bytes());
        if !slab.is_full() {
            slab.set_listed(true);
            self.slabs.open[class.index()].push(slab);
        }
    }

    /// Takes the slot at an offset for a request of its size class, of the slab there, or of a new one.
    pub(super) fn take_slot_at(&mut self, pages: &'static Pages, offset: u64, bytes: u64) -> Option<u64> {
        let class = SizeClass::of(bytes);
        let slab = match pages.entry(offset) {
            PageEntry::Slot(slab, _) => pages.slabs.get(slab.number()),
            PageEntry::Nothing => {
                let firsts = (0..class.slab_bytes() / SMALL_MAX)
                    .map_while(|unit| (offset / SMALL_MAX).checked_sub(unit).map(|unit| unit * SMALL_MAX));
                let mut places = firsts.filter(|start| (offset - start).is_multiple_of(class.bytes().into()));
                let place = places.find_map(|start| Some((self.map.free_with(start, class.slab_bytes())?, start)));
                let (id, start) = place?;
                let slab = self.cut_slab(pages, class, id, start)?;
                self.add_slab(pages, slab);
                Some(slab)
            }
            PageEntry::Block(_) | PageEntry::Freed(_) => None,
        };
        let slab = slab.filter(|slab| slab.class() == class)?;
        let slot = slab.slot_at(offset).filter(|&slot| slab.is_free(slot))?;
        slab.take_at(slot, bytes as u32);
        if slab.is_full() {
            self.slabs.open[class.index()].retain(|other| !std::ptr::eq(*other, slab));
            slab.set_listed(false);
        }
        self.count_allocation(SMALL, u64::from(class.bytes()), bytes);
        Some(offset)
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
        // One empty slab of each size stays, so that pairs of requests do not make and drop one each time.
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
        self.counts.remove_slabs(block.size());
        self.join(id);
        if self.counts.live() < self.published.least {
            self.publish_fall();
        }
    }

    /// As [`Heap::drop_empty_slabs`], for a large block that fits nowhere else, but only after some more allocations,
    /// so that a program whose blocks just fit does not make and drop slabs each time. Returns whether it did.
    pub(in crate::memory) fn drop_empty_slabs_at_times(&mut self, pages: &'static Pages) -> bool {
        let allocations = self.counts.allocations();
        if allocations - self.slabs.dropped_at < EMPTY_SLABS_APART {
            return false;
        }
        self.slabs.dropped_at = allocations;
        self.drop_empty_slabs(pages);
        true
    }

    /// Drops every empty slab of its own.
    pub(in crate::memory) fn drop_empty_slabs(&mut self, pages: &'static Pages) {
        let is_own = |slab: &mut &Slab| slab.is_empty() && slab.borrower().is_none();
        let empty: Vec<_> = self.slabs.open.iter_mut().flat_map(|open| open.extract_if(.., is_own)).collect();
        for slab in empty {
            self.drop_slab(pages, slab);
        }
    }

    /// Returns whether to borrow a slab for a request: the heap has no pages and has borrowed little, or memory has run out.
    pub(in crate::memory) fn borrows_for(&self, bytes: u64, search: HeapSearch) -> bool {
        let is_small = self.serving.cut == Cut::ToSize && (1..=SMALL_MAX).contains(&bytes);
        let borrowed = self.borrowed();
        let has_little = || self.mapped == borrowed && borrowed + SizeClass::of(bytes).slab_bytes() <= BORROWED_MAX;
        is_small && (search == HeapSearch::Whole || has_little())
    }

    /// Returns the bytes of borrowed slabs.
    pub(super) fn borrowed(&self) -> u64 {
        self.slabs.borrowed.iter().map(|slab| slab.class().slab_bytes()).sum()
    }

    /// Cuts a slab for another cache's heap. Only the lender's lock guards changes of its pages. None while the heap is
    /// asleep.
    pub(in crate::memory) fn lend(
        &mut self,
        pages: &'static Pages,
        request: u64,
        borrower: u32,
    ) -> Option<&'static Slab> {
        if !self.is_awake() {
            return None;
        }
        let class = SizeClass::of(request);
        let bytes = class.slab_bytes();
        let id = self.map.find(bytes);
        let start = self.map.get(id)?.start;
        let slab = self.cut_slab(pages, class, id, start)?;
        self.map.all[slab.block() as usize].set_state(BlockState::Live);
        self.mapped -= bytes;
        slab.set_borrower(borrower);
        pages.set_slab(start, bytes, Some(slab.number()));
        Some(slab)
    }

    pub(in crate::memory) fn borrow(&mut self, slab: &'static Slab) {
        slab.set_listed(true);
        self.slabs.open[slab.class().index()].push(slab);
        self.slabs.borrowed.push(slab);
        self.counts.add_slab(slab.class().slab_bytes());
        self.mapped += slab.class().slab_bytes();
    }

    pub(in crate::memory) fn has_borrowed(&self) -> bool {
        !self.slabs.borrowed.is_empty()
    }

    pub(in crate::memory) fn take_borrowed(&mut self) -> Vec<&'static Slab> {
        let empty: Vec<_> = self.slabs.borrowed.extract_if(.., |slab| slab.is_empty()).collect();
        for slab in &empty {
            self.slabs.open[slab.class().index()].retain(|other| !std::ptr::eq(*other, *slab));
            self.counts.remove_slabs(slab.class().slab_bytes());
            self.mapped -= slab.class().slab_bytes();
        }
        self.map.turnover += 1;
        self.publish_live();
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

    /// Frees the returned slab at the offset, since its stream is done.
    pub(in crate::memory) fn end_waiting(&mut self, pages: &'static Pages, offset: u64) {
        if let PageEntry::Freed(id) = pages.entry(offset) {
            pages.clear(offset);
            self.join(id);
        }
    }
}

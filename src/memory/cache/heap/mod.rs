//! A heap cuts the memory of its spans into blocks, best fit, and joins blocks that become free.
//!
//! A heap works on offsets and makes no driver call: pages come by [`Heap::add_span`] and go by
//! [`Heap::take_mappings`]. Small blocks are slots of slabs; all others are cut to size. A heap belongs to one cache,
//! which locks it. While a heap's memory is away, the heap is asleep: its blocks stay and may be freed, and none is
//! handed out. A sleeping heap answers requests as a closed heap does, so requests need no check for sleep; a thread
//! that adds or takes memory treats it as an ended heap.

mod block;
mod block_map;
mod counts;
mod free_index;
mod moves;
mod published;
mod restore;
mod slabs;
#[cfg(test)]
mod tests;
mod transfer;
mod view;

use std::ops::Range;
use std::sync::Arc;

use super::service::Role;
use crate::memory::device::{Invalid, PageEntry, Pages, Run, SizeClass, Slab};
use crate::memory::pool::Pool;
use crate::memory::tuning::{ALIGNMENT, SMALL_MAX};
pub(in crate::memory) use block::BLOCK_BYTES_MAX;
use block::{BlockNode, BlockState, NONE};
use block_map::BlockMap;
pub(in crate::memory) use counts::{ALL, Amount, Amounts, Counts, most};
use counts::{LARGE, RunningCounts, SMALL};
use moves::Moves;
pub(in crate::memory) use moves::{Company, Moved, MovedPages};
use published::{HeapLedger, Published};
pub(in crate::memory) use restore::{LivePiece, Misfit, Restoration};
use slabs::HeapSlabs;
pub(in crate::memory) use transfer::Portion;
pub(in crate::memory) use view::HeapBlock;

/// The least that is cut out of a free block: a page's table tells two blocks apart that start farther apart than this.
const CUT_LEAST: u64 = SMALL_MAX + ALIGNMENT;

/// How a heap serves requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum Cut {
    /// By blocks of the size asked for.
    ToSize,
    Whole,
    Nothing,
}

/// How many free blocks a request looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum HeapSearch {
    /// A few of each size, so that it takes constant time.
    AFew,
    /// All of them, since memory has run out.
    Whole,
}

/// Where a heap is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Awake,
    /// Its memory is away; with how it cuts once it is awake again.
    Asleep(Cut),
    /// It has no memory, and gets none.
    Ended,
}

/// How a heap serves requests, and whether it gets memory.
#[derive(Debug)]
struct Serving {
    cut: Cut,
    life: Life,
}

/// The blocks of one cache.
#[derive(Debug)]
pub(in crate::memory) struct Heap {
    map: BlockMap,
    /// The block that was freed last, not yet joined with its neighbours, or [`NONE`]. A request of the same size takes
    /// it as it is.
    unjoined: u32,
    slabs: HeapSlabs,
    /// Bytes of its pages and borrowed slabs, less those of lent slabs.
    mapped: u64,
    /// Whether its blocks are slabs for other heaps.
    is_lender: bool,
    serving: Serving,
    counts: RunningCounts,
    published: Published,
    moves: Moves,
}

impl Heap {
    pub(in crate::memory) fn new(cut: Cut) -> Self {
        Self {
            map: BlockMap::new(0),
            unjoined: NONE,
            slabs: HeapSlabs::default(),
            mapped: 0,
            is_lender: false,
            serving: Serving { cut, life: Life::Awake },
            counts: RunningCounts::new(),
            published: Published::default(),
            moves: Moves::default(),
        }
    }

    /// Makes the heap of a cache that is born, which publishes in its pool's ledger.
    pub(in crate::memory) fn born(pool: &Pool, role: Role, birth: u64) -> Self {
        let cut = if pool.begin_cutting() { Cut::ToSize } else { Cut::Whole };
        let mut heap = Self { is_lender: role == Role::Lender, ..Self::new(cut) };
        heap.begin_publishing(HeapLedger { ledger: Arc::clone(&pool.ledger), birth });
        heap
    }

    /// Returns whether it gets memory: it is neither asleep nor at its end.
    pub(in crate::memory) fn is_awake(&self) -> bool {
        self.serving.life == Life::Awake
    }

    /// Ends the heap if it has no memory, and returns whether it is at its end. It gets none afterwards.
    pub(in crate::memory) fn end_if_empty(&mut self) -> bool {
        if self.has_memory() {
            return false;
        }
        self.serving.life = Life::Ended;
        self.set_needed(0);
        true
    }

    /// Serves no more requests, whatever is or becomes free.
    pub(in crate::memory) fn close(&mut self) {
        self.serving.cut = Cut::Nothing;
        if self.is_asleep() {
            self.serving.life = Life::Asleep(Cut::Nothing);
        }
    }

    /// Returns a number that changes unless free pages stay as they are or are only taken out.
    pub(in crate::memory) fn turnover(&self) -> u64 {
        self.map.turnover
    }

    pub(in crate::memory) fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Returns the bytes of blocks that callers hold, as cut.
    pub(in crate::memory) fn live(&self) -> u64 {
        self.counts.live()
    }

    pub(in crate::memory) fn reset_peak(&mut self) {
        self.counts.reset_peak();
        self.publish_live();
    }

    pub(in crate::memory) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Returns whether it has pages, including lent ones, or borrowed slabs.
    pub(in crate::memory) fn has_memory(&self) -> bool {
        self.mapped > 0 || self.map.spans.count() > 0
    }

    /// Returns the bytes of memory that is not live.
    pub(in crate::memory) fn unused(&self) -> u64 {
        self.mapped - self.counts.live()
    }

    /// Returns what a request takes: its size class if it is small, else a multiple of 512 bytes.
    pub(in crate::memory) fn round(&self, bytes: u64) -> u64 {
        if self.serving.cut == Cut::ToSize && bytes <= SMALL_MAX {
            u64::from(SizeClass::of(bytes.max(1)).bytes())
        } else {
            bytes.max(1).div_ceil(ALIGNMENT) * ALIGNMENT
        }
    }

    /// Returns the bytes that must be free in one piece to serve a request of this size.
    pub(in crate::memory) fn needed_for(&self, bytes: u64) -> u64 {
        if self.serving.cut == Cut::ToSize && bytes <= SMALL_MAX {
            // A slab starts at a multiple of 64 KiB.
            SizeClass::of(bytes.max(1)).slab_bytes() + SMALL_MAX
        } else {
            self.round(bytes)
        }
    }

    /// Returns a block of at least this many bytes; none if nothing that the search looks at fits, and for 0 bytes. Always
    /// inlined, since the search of a hit is a constant.
    #[inline(always)]
    pub(in crate::memory) fn allocate(&mut self, pages: &'static Pages, bytes: u64, search: HeapSearch) -> Option<u64> {
        // 0 wraps, and so is not small.
        let found = if bytes.wrapping_sub(1) < SMALL_MAX && self.serving.cut == Cut::ToSize {
            self.take_slot(pages, bytes)
        } else {
            self.take_block(pages, bytes)
        };
        match search {
            HeapSearch::Whole if found.is_none() => self.take_any(pages, bytes),
            _ => found,
        }
    }

    /// Returns a block from any free one that has room, where none of the few that are compared has. A small one for
    /// which there is no room for a slab is cut like a large one.
    #[cold]
    fn take_any(&mut self, pages: &'static Pages, bytes: u64) -> Option<u64> {
        let mut size = bytes.checked_next_multiple_of(ALIGNMENT).filter(|&size| size > 0)?;
        if self.serving.cut == Cut::ToSize && bytes <= SMALL_MAX {
            let slab = SizeClass::of(bytes).slab_bytes();
            let has_room = |block: &BlockNode| block.start.next_multiple_of(SMALL_MAX) + slab <= block.end();
            if let Some(id) = self.map.smallest(slab, has_room) {
                self.new_slab(pages, SizeClass::of(bytes), id)?;
                return self.take_slot(pages, bytes);
            }
            size = CUT_LEAST;
        }
        let id = self.map.smallest(size, |_| true)?;
        self.take_from(pages, id, size, bytes)
    }

    /// Returns a block at this offset for a request of so many bytes; none if its memory is not free there, or is
    /// handed out whole.
    pub(in crate::memory) fn allocate_at(&mut self, pages: &'static Pages, offset: u64, bytes: u64) -> Option<u64> {
        self.join_freed();
        if self.serving.cut != Cut::ToSize || !offset.is_multiple_of(ALIGNMENT) {
            return None;
        }
        if (1..=SMALL_MAX).contains(&bytes)
            && let Some(offset) = self.take_slot_at(pages, offset, bytes)
        {
            return Some(offset);
        }
        // A small one that was no slot was cut like a large one.
        let size = bytes.checked_next_multiple_of(ALIGNMENT).filter(|&size| size > 0)?.max(CUT_LEAST);
        let id = self.map.free_with(offset, size)?;
        let id = self.map.cut(id, offset, size)?;
        Some(self.hand_out(pages, id, offset, size, bytes))
    }

    /// Allocates as [`Heap::allocate`], for the request that memory was just added for.
    pub(in crate::memory) fn allocate_grown(&mut self, pages: &'static Pages, bytes: u64) -> Option<u64> {
        self.published.is_growing = true;
        let offset = self.allocate(pages, bytes, HeapSearch::Whole);
        self.published.is_growing = false;
        offset
    }

    #[inline]
    fn count_allocation(&mut self, kind: usize, bytes: u64, requested: u64) {
        if self.counts.allocate(kind, bytes, requested) {
            self.publish_rise();
        }
    }

    #[inline]
    fn take_block(&mut self, pages: &'static Pages, bytes: u64) -> Option<u64> {
        let size = bytes.checked_next_multiple_of(ALIGNMENT).filter(|&size| size > 0)?;
        if let Some(block) = self.map.get(self.unjoined) {
            let is_best = || self.map.best == self.unjoined || self.map.is_best(block);
            if block.size() == size && self.serving.cut == Cut::ToSize && is_best() {
                let (start, id) = (block.start, std::mem::replace(&mut self.unjoined, NONE));
                self.map.best = id;
                return Some(self.hand_out(pages, id, start, size, bytes));
            }
            self.join_freed();
        }
        let id = self.map.place_for(size);
        self.take_from(pages, id, size, bytes)
    }

    /// Hands out `size` bytes at the start of a free block, or all of it.
    #[inline]
    fn take_from(&mut self, pages: &'static Pages, id: u32, size: u64, bytes: u64) -> Option<u64> {
        let block = self.map.get(id)?;
        let (start, whole) = (block.start, block.size());
        let size = match self.serving.cut {
            Cut::ToSize => size,
            Cut::Whole => whole,
            Cut::Nothing => return None,
        };
        let id = self.map.cut(id, start, size)?;
        Some(self.hand_out(pages, id, start, size, bytes))
    }

    /// Makes a block live, and returns its start.
    #[inline]
    fn hand_out(&mut self, pages: &'static Pages, id: u32, start: u64, size: u64, requested: u64) -> u64 {
        let block = &mut self.map.all[id as usize];
        block.set_state(BlockState::Live);
        block.set_requested(requested);
        pages.set_block(start, id);
        self.count_allocation(LARGE, size, requested);
        start
    }

    /// Frees the block that starts at the offset, which may stay apart until [`Heap::join_freed`]. One that waits for
    /// streams is freed by [`Heap::release`].
    #[inline]
    pub(in crate::memory) fn free(&mut self, pages: &'static Pages, offset: u64) -> Result<(), Invalid> {
        match pages.entry(offset) {
            PageEntry::Block(id) => self.free_block(pages, id),
            PageEntry::Slot(slab, slot) if slab.is_live(slot) => self.free_slot(pages, slab, slot),
            PageEntry::Slot(..) | PageEntry::Freed(_) => return Err(Invalid::Freed),
            PageEntry::Nothing => return Err(Invalid::NotABlock),
        }
        Ok(())
    }

    /// Makes a live block wait for streams, until [`Heap::release`].
    pub(in crate::memory) fn begin_waiting(&mut self, pages: &'static Pages, offset: u64) -> Result<(), Invalid> {
        let entry = pages.entry(offset);
        entry.check_live()?;
        match entry {
            PageEntry::Block(id) => pages.set_freed(offset, id),
            PageEntry::Slot(slab, slot) => slab.begin_waiting(slot),
            PageEntry::Freed(_) | PageEntry::Nothing => {}
        }
        if let Some((kind, bytes, requested)) = self.freed_block(pages, offset) {
            self.counts.begin_waiting(kind, bytes, requested);
        }
        Ok(())
    }

    /// Returns the kind, the size and the requested bytes of a waiting block or a slot.
    fn freed_block(&self, pages: &'static Pages, offset: u64) -> Option<(usize, u64, u64)> {
        match pages.entry(offset) {
            PageEntry::Freed(id) => {
                let block = self.map.get(id)?;
                Some((LARGE, block.size(), block.requested()))
            }
            PageEntry::Slot(slab, slot) => Some((SMALL, slab.class().bytes().into(), slab.requested(slot).into())),
            PageEntry::Block(_) | PageEntry::Nothing => None,
        }
    }

    /// Frees a block that waited for streams, after [`Heap::begin_waiting`].
    pub(in crate::memory) fn release(&mut self, pages: &'static Pages, offset: u64) {
        let Some((kind, bytes, requested)) = self.freed_block(pages, offset) else { return };
        match pages.entry(offset) {
            PageEntry::Freed(id) => self.free_block(pages, id),
            PageEntry::Slot(slab, slot) => {
                slab.end_waiting(slot);
                self.free_slot(pages, slab, slot);
            }
            PageEntry::Block(_) | PageEntry::Nothing => return,
        }
        self.counts.end_waiting(kind, bytes, requested);
    }

    /// Makes a block live again that was freed and waits for streams. Returns whether it was.
    pub(in crate::memory) fn resume(&mut self, pages: &'static Pages, offset: u64) -> bool {
        let PageEntry::Freed(id) = pages.entry(offset) else { return false };
        let Some((kind, bytes, requested)) = self.freed_block(pages, offset) else { return false };
        pages.set_block(offset, id);
        // For the counts it is free for a moment, and handed out anew.
        self.counts.free(kind, bytes, requested);
        self.counts.end_waiting(kind, bytes, requested);
        self.count_allocation(kind, bytes, requested);
        true
    }

    #[inline]
    fn free_block(&mut self, pages: &'static Pages, id: u32) {
        let block = &self.map.all[id as usize];
        pages.clear(block.start);
        let size = block.size();
        self.counts.free(LARGE, size, block.requested());
        if self.unjoined != NONE {
            self.join_freed();
        }
        self.unjoined = id;
        // Published before it is joined: a thread that takes its pages locks the heap and joins it.
        if size >= self.published.from {
            self.publish_pages();
        }
        if self.counts.live() < self.published.least {
            self.publish_fall();
        }
    }

    /// Joins the block that was freed last with its free neighbours. Call this before free blocks are read for anything
    /// but a request or a free.
    #[inline]
    pub(in crate::memory) fn join_freed(&mut self) {
        let id = std::mem::replace(&mut self.unjoined, NONE);
        if id != NONE {
            self.join(id);
        }
    }

    /// Frees a block and joins it with its free neighbours.
    #[inline]
    fn join(&mut self, id: u32) {
        let size = self.map.join(id);
        if size >= self.published.from {
            self.publish_pages();
        }
    }
}

impl Heap {
    pub(in crate::memory) fn fall_asleep(&mut self) {
        if self.is_awake() {
            self.serving.life = Life::Asleep(self.serving.cut);
            self.serving.cut = Cut::Nothing;
        }
    }

    pub(in crate::memory) fn wake(&mut self) {
        if let Life::Asleep(cut) = self.serving.life {
            self.serving = Serving { cut, life: Life::Awake };
        }
    }

    pub(in crate::memory) fn is_asleep(&self) -> bool {
        matches!(self.serving.life, Life::Asleep(_))
    }

    /// Takes whole free pages below an offset out of the sleeping heap.
    pub(in crate::memory) fn take_pages_asleep(&mut self, pages: &'static Pages, below: u64) -> Vec<Run> {
        self.drop_empty_slabs(pages);
        let taken = self.take_pages(pages, 0..below);
        if !taken.is_empty() {
            self.publish_live();
        }
        taken
    }

    /// Returns the live ranges by address: large blocks, slots of slabs, and lent slabs as a whole.
    pub(in crate::memory) fn live_ranges(&self, pages: &'static Pages) -> Vec<Range<u64>> {
        let mut live = Vec::new();
        for block in self.map.blocks() {
            match block.state() {
                BlockState::Live => live.push(block.start..block.end()),
                BlockState::Slab => {
                    let slots = pages.slabs.get(block.number()).into_iter().flat_map(Slab::live_slots);
                    live.extend(slots.map(|(start, bytes, ..)| start..start + bytes));
                }
                BlockState::Free | BlockState::Vacant => {}
            }
        }
        live
    }

    /// Returns the whole pages inside each live block that has at least `least` of them.
    pub(in crate::memory) fn large_blocks(&self, pages: &'static Pages, least: u32) -> Vec<Run> {
        let inside = self.live_ranges(pages).into_iter().filter_map(|block| Run::between(block.start, block.end));
        inside.filter(|run| run.pages >= least).collect()
    }
}

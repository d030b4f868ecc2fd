//! A heap: cuts the memory of its spans into blocks, best fit, and joins what becomes free.
//!
//! Works on offsets and knows no driver: pages come by [`Heap::add_span`] and go by [`Heap::take_mappings`]. Small
//! blocks are slots of slabs, every other is cut to size. One heap belongs to one cache, which also locks it.

mod asleep;
mod block;
mod counts;
mod free_index;
mod lending;
mod moves;
mod restore;
mod slots;
mod span;
mod telling;
#[cfg(test)]
mod tests;
mod transfer;
mod view;

use crate::memory::device::{BLOCKS_MAX, CLASSES, Entry, Invalid, Pages, SizeClass, Slab};
use crate::memory::tuning::{ALIGNMENT, LOWEST_BELOW, PAGE, SMALL_MAX};
pub(in crate::memory) use block::BLOCK_BYTES_MAX;
use block::{Block, BlockState, EDGE, NONE};
pub(crate) use counts::SMALL_BLOCK_BYTES;
pub(in crate::memory) use counts::{ALL, Amount, Amounts, Counts, most};
use counts::{RunningCounts, kind_of};
use free_index::FreeIndex;
use moves::Moves;
pub(in crate::memory) use restore::{Misfit, Piece, Restoration};
use span::Spans;
pub(in crate::memory) use telling::HeapLedger;
pub(in crate::memory) use view::HeapBlock;

/// How a heap serves requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    /// By blocks of the size asked for.
    ToSize,
    /// By whole spans.
    Whole,
    /// Not at all any more.
    Nothing,
}

/// The blocks of one cache.
#[derive(Debug)]
pub(in crate::memory) struct Heap {
    blocks: Vec<Block>,
    /// The first vacant number.
    vacant: u32,
    free: FreeIndex,
    /// The block that was freed last, as long as it is not joined with what is free beside it; [`NONE`] if there is none.
    /// A request of the same size takes it as it is.
    unjoined: u32,
    /// The block for which [`Heap::is_best`] was true, and is as long as no memory becomes free; [`NONE`] if there is none.
    best: u32,
    /// For each small size the slabs with a free slot; the last is tried first.
    slabs: [Vec<&'static Slab>; CLASSES],
    /// The slabs among them, and full ones, that were borrowed.
    borrowed: Vec<&'static Slab>,
    spans: Spans,
    /// Bytes of pages that are mapped here, and of borrowed slabs, less those of slabs that were lent.
    mapped: u64,
    /// Whether its blocks are slabs for other heaps.
    is_lender: bool,
    cut: Cut,
    counts: RunningCounts,
    /// How often memory was cut off what is free, or joined it.
    turnover: u64,
    /// How many services have begun.
    services: u64,
    /// Whether the last of them has ended, so that no memory is added.
    has_ended: bool,
    /// How it cuts blocks once it is awake again; none if it is awake.
    asleep: Option<Cut>,
    /// Who is told what is live here, and that there are free pages.
    ledger: Option<HeapLedger>,
    /// The least size of a free block that is told as free pages; none is while that is told already.
    told_from: u64,
    /// The turnover at which it is looked next whether much less is live than was told.
    next_look: u64,
    /// Whether the block under way is the one that memory was just added for.
    is_growing: bool,
    /// The allocations when empty slabs were last dropped for a large block.
    slabs_dropped_at: u64,
    moves: Moves,
}

impl Heap {
    /// Makes a heap that cuts blocks to size, or hands out each span whole.
    pub(in crate::memory) fn new(is_split: bool) -> Self {
        Self {
            blocks: Vec::new(),
            vacant: NONE,
            free: FreeIndex::new(),
            unjoined: NONE,
            best: NONE,
            slabs: [const { Vec::new() }; CLASSES],
            borrowed: Vec::new(),
            spans: Spans::default(),
            mapped: 0,
            is_lender: false,
            cut: if is_split { Cut::ToSize } else { Cut::Whole },
            counts: RunningCounts::new(),
            turnover: 0,
            services: 0,
            has_ended: false,
            asleep: None,
            ledger: None,
            told_from: PAGE,
            next_look: 0,
            is_growing: false,
            slabs_dropped_at: 0,
            moves: Moves::default(),
        }
    }

    /// Makes it a new heap, but for the turnover, which is never the same twice. Returns the number of the service that
    /// begins.
    pub(in crate::memory) fn restart(&mut self, is_split: bool, ledger: Option<HeapLedger>) -> u64 {
        let services = self.services + 1;
        *self = Self { turnover: self.turnover + 1, services, ..Self::new(is_split) };
        self.begin_telling(ledger);
        services
    }

    /// Returns the number of the service that it is in; none once that has ended, or while it is asleep.
    pub(in crate::memory) fn service(&self) -> Option<u64> {
        (!self.has_ended && self.asleep.is_none()).then_some(self.services)
    }

    /// Returns whether it is in the service with this number, asleep or not.
    pub(in crate::memory) fn is_in(&self, service: u64) -> bool {
        !self.has_ended && self.services == service
    }

    /// Ends its service if it has no memory, after which none is added; false if it has some.
    pub(in crate::memory) fn end_if_empty(&mut self) -> bool {
        if self.has_memory() {
            return false;
        }
        self.has_ended = true;
        true
    }

    /// Serves no more requests, whatever is free or becomes so.
    pub(in crate::memory) fn close(&mut self) {
        self.cut = Cut::Nothing;
        self.asleep = self.asleep.map(|_| Cut::Nothing);
    }

    /// Returns a number that stays as long as free pages stay as they are, or are taken out.
    pub(in crate::memory) fn turnover(&self) -> u64 {
        self.turnover
    }

    pub(in crate::memory) fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Bytes of blocks that callers hold, as cut.
    pub(in crate::memory) fn live(&self) -> u64 {
        self.counts.live()
    }

    /// Blocks handed out so far.
    pub(in crate::memory) fn allocations(&self) -> u64 {
        self.counts.allocations()
    }

    pub(in crate::memory) fn reset_peak(&mut self) {
        self.counts.reset_peak();
        self.tell_live();
    }

    pub(in crate::memory) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Returns whether it has pages, lent ones too, or borrowed slabs.
    pub(in crate::memory) fn has_memory(&self) -> bool {
        self.mapped > 0 || self.spans.count() > 0
    }

    /// Bytes of pages in which nothing is live.
    pub(in crate::memory) fn unused(&self) -> u64 {
        self.mapped - self.counts.live()
    }

    /// Returns what a request really takes: a multiple of 512 bytes, for small ones that of their class.
    pub(in crate::memory) fn round(&self, bytes: u64) -> u64 {
        if self.cut == Cut::ToSize && bytes <= SMALL_MAX {
            u64::from(SizeClass::of(bytes.max(1)).bytes())
        } else {
            bytes.max(1).div_ceil(ALIGNMENT) * ALIGNMENT
        }
    }

    /// Returns what must be free in one piece for a request of this size to be served.
    pub(in crate::memory) fn needed_for(&self, bytes: u64) -> u64 {
        if self.cut == Cut::ToSize && bytes <= SMALL_MAX {
            // A slab starts at a multiple of 64 KiB.
            SizeClass::of(bytes.max(1)).slab_bytes() + SMALL_MAX
        } else {
            self.round(bytes)
        }
    }

    /// Returns a block of at least this many bytes; none if nothing fits, and for 0 bytes.
    #[inline]
    pub(in crate::memory) fn allocate(&mut self, pages: &'static Pages, bytes: u64) -> Option<u64> {
        // 0 is not small here: it wraps.
        if bytes.wrapping_sub(1) < SMALL_MAX && self.cut == Cut::ToSize {
            self.take_slot(pages, bytes)
        } else {
            self.take_block(pages, bytes)
        }
    }

    /// [`Heap::allocate`], for the request that memory was just added for.
    pub(in crate::memory) fn allocate_grown(&mut self, pages: &'static Pages, bytes: u64) -> Option<u64> {
        self.is_growing = true;
        let offset = self.allocate(pages, bytes);
        self.is_growing = false;
        offset
    }

    #[inline]
    fn count_allocation(&mut self, kind: usize, bytes: u64, requested: u64) {
        if self.counts.allocate(kind, bytes, requested) {
            self.tell_rise();
        }
    }

    /// Returns a free block with room for `bytes` at a multiple of 64 KiB.
    fn find_aligned(&self, bytes: u64) -> Option<u32> {
        let fits = |id: u32| {
            let block = self.blocks.get(id as usize)?;
            (block.start.next_multiple_of(SMALL_MAX) + bytes <= block.end()).then_some(id)
        };
        let exact = self.free.find(&self.blocks, bytes);
        fits(exact).or_else(|| fits(self.free.find(&self.blocks, bytes + SMALL_MAX)))
    }

    #[inline]
    fn take_block(&mut self, pages: &'static Pages, bytes: u64) -> Option<u64> {
        let size = bytes.checked_next_multiple_of(ALIGNMENT).filter(|&size| size > 0)?;
        if let Some(block) = self.blocks.get(self.unjoined as usize) {
            let is_best = || self.best == self.unjoined || self.is_best(block);
            if block.size() == size && self.cut == Cut::ToSize && is_best() {
                let (start, id) = (block.start, std::mem::replace(&mut self.unjoined, NONE));
                self.best = id;
                return Some(self.hand_out(pages, id, start, size, bytes));
            }
            self.join_freed();
        }
        let id = self.place_for(size);
        let block = self.blocks.get(id as usize)?;
        let (start, whole) = (block.start, block.size());
        let size = match self.cut {
            Cut::ToSize => size,
            Cut::Whole => whole,
            Cut::Nothing => return None,
        };
        let id = self.cut(id, start, size)?;
        Some(self.hand_out(pages, id, start, size, bytes))
    }

    /// Returns the free block that a request of this size is cut from: one of less than [`LOWEST_BELOW`] goes where the lowest
    /// is, so that pages further up become free as a whole; a larger one where it leaves the least.
    #[inline]
    fn place_for(&self, size: u64) -> u32 {
        if size < LOWEST_BELOW { self.free.find_lowest(&self.blocks, size) } else { self.free.find(&self.blocks, size) }
    }

    /// Returns whether a request of its size would get the memory of the block that was freed last, were it joined.
    #[inline]
    fn is_best(&self, block: &Block) -> bool {
        let free = |id: u32| self.blocks.get(id as usize).filter(|other| other.state() == BlockState::Free);
        if free(block.previous).is_some() {
            return false;
        }
        let best = self.place_for(block.size());
        if block.size() < LOWEST_BELOW {
            return self.blocks.get(best as usize).is_none_or(|best| best.start > block.start);
        }
        let joined = block.size() + free(block.next).map_or(0, Block::size);
        best == block.next || self.blocks.get(best as usize).is_none_or(|best| best.size() >= joined)
    }

    /// Makes a block live, and returns where it starts.
    #[inline]
    fn hand_out(&mut self, pages: &'static Pages, id: u32, start: u64, size: u64, requested: u64) -> u64 {
        let block = &mut self.blocks[id as usize];
        block.set_state(BlockState::Live);
        block.set_requested(requested);
        pages.set_block(start, id);
        self.count_allocation(kind_of(size), size, requested);
        start
    }

    /// Takes `size` bytes at `start` out of a free block; what is left before and after stays free.
    #[inline]
    fn cut(&mut self, id: u32, start: u64, size: u64) -> Option<u32> {
        let whole = self.blocks[id as usize].clone();
        let (before, after) = (start - whole.start, whole.end() - (start + size));
        // So that running out of numbers leaves everything as it was.
        let mut spare = [NONE; 2];
        if before > 0 {
            spare[0] = self.new_number()?;
        }
        if after > 0 {
            spare[1] = match self.new_number() {
                Some(number) => number,
                None => {
                    if before > 0 {
                        self.drop_number(spare[0]);
                    }
                    return None;
                }
            };
        }
        self.turnover += 1;
        self.free.remove(&mut self.blocks, id);
        let block = &mut self.blocks[id as usize];
        block.start = start;
        block.set_size(size);
        if before > 0 {
            self.insert_beside(spare[0], Block::free(whole.start, before), whole.previous, id);
        }
        if after > 0 {
            self.insert_beside(spare[1], Block::free(start + size, after), id, whole.next);
        }
        Some(id)
    }

    /// Puts a free block between two neighbours, or at the edge of a span.
    #[inline]
    fn insert_beside(&mut self, id: u32, mut block: Block, previous: u32, next: u32) {
        block.previous = previous;
        block.next = next;
        self.set_next(previous, id);
        self.set_previous(next, id);
        self.blocks[id as usize] = block;
        self.free.insert(&mut self.blocks, id);
        self.best = NONE;
    }

    /// Tells a block, or a span, what comes after it, or first.
    #[inline]
    fn set_next(&mut self, id: u32, next: u32) {
        match self.blocks.get_mut(id as usize) {
            Some(block) => block.next = next,
            None => self.spans.set_first(id & !EDGE, next),
        }
    }

    /// Tells a block, or a span, what comes before it, or last.
    #[inline]
    fn set_previous(&mut self, id: u32, previous: u32) {
        match self.blocks.get_mut(id as usize) {
            Some(block) => block.previous = previous,
            None => self.spans.set_last(id & !EDGE, previous),
        }
    }

    #[inline]
    fn new_number(&mut self) -> Option<u32> {
        if let Some(block) = self.blocks.get(self.vacant as usize) {
            return Some(std::mem::replace(&mut self.vacant, block.number()));
        }
        let id = u32::try_from(self.blocks.len()).ok().filter(|&id| id < BLOCKS_MAX)?;
        if self.blocks.len() == self.blocks.capacity() {
            // By a quarter rather than by half: there is a number for each live block.
            self.blocks.reserve_exact(self.blocks.len() / 4 + 64);
        }
        self.blocks.push(Block::free(0, 0));
        Some(id)
    }

    #[inline]
    fn drop_number(&mut self, id: u32) {
        let vacant = std::mem::replace(&mut self.vacant, id);
        let block = &mut self.blocks[id as usize];
        block.set_state(BlockState::Vacant);
        block.set_number(vacant);
    }

    /// Frees the block that starts at the offset; one that was marked as freed is done with by [`Heap::release`]. It may
    /// be left for [`Heap::join_freed`] to make it part of what is free.
    ///
    /// # Errors
    /// [`Invalid`] if there is none.
    #[inline]
    pub(in crate::memory) fn free(&mut self, pages: &'static Pages, offset: u64) -> Result<(), Invalid> {
        match pages.entry(offset) {
            Entry::Block(id) => self.free_block(pages, id),
            Entry::Slot(slab, slot) if slab.is_live(slot) => self.free_slot(pages, slab, slot),
            Entry::Slot(..) | Entry::Freed(_) => return Err(Invalid::Freed),
            Entry::Nothing => return Err(Invalid::NotABlock),
        }
        Ok(())
    }

    /// Frees a block that was marked as freed, or a slot and those that were freed since.
    pub(in crate::memory) fn collect(&mut self, pages: &'static Pages, offset: u64) {
        match pages.entry(offset) {
            Entry::Freed(id) => self.free_block(pages, id),
            Entry::Slot(slab, slot) => slab.collect(slot).for_each(|slot| self.free_slot(pages, slab, slot)),
            Entry::Block(_) | Entry::Nothing => {}
        }
    }

    /// Counts a block that was marked as waiting for streams.
    pub(in crate::memory) fn begin_waiting(&mut self, pages: &'static Pages, offset: u64) {
        if let Some((bytes, requested)) = self.freed_block(pages, offset) {
            self.counts.begin_waiting(bytes, requested);
        }
    }

    /// Returns the bytes of a block that was marked as freed, or of a slot, and the bytes that were asked for.
    fn freed_block(&self, pages: &'static Pages, offset: u64) -> Option<(u64, u64)> {
        match pages.entry(offset) {
            Entry::Freed(id) => {
                let block = self.blocks.get(id as usize)?;
                Some((block.size(), block.requested()))
            }
            Entry::Slot(slab, slot) => Some((slab.class().bytes().into(), slab.requested(slot).into())),
            Entry::Block(_) | Entry::Nothing => None,
        }
    }

    /// Frees a block that waited for streams, as [`Heap::begin_waiting`] has counted.
    pub(in crate::memory) fn release(&mut self, pages: &'static Pages, offset: u64) {
        let Some((bytes, requested)) = self.freed_block(pages, offset) else { return };
        match pages.entry(offset) {
            Entry::Freed(id) => self.free_block(pages, id),
            Entry::Slot(slab, slot) => {
                slab.end_waiting(slot);
                self.free_slot(pages, slab, slot);
            }
            Entry::Block(_) | Entry::Nothing => return,
        }
        self.counts.end_waiting(bytes, requested);
    }

    #[inline]
    fn free_block(&mut self, pages: &'static Pages, id: u32) {
        let block = &self.blocks[id as usize];
        pages.clear(block.start);
        let size = block.size();
        self.counts.free(kind_of(size), size, block.requested());
        if self.unjoined != NONE {
            self.join_freed();
        }
        self.unjoined = id;
        // What is told leads others here, who join it.
        if size >= self.told_from {
            self.tell_pages();
        }
    }

    /// Joins the block that was freed last with what is free beside it. To be called before what is free is looked at by
    /// any other than a request or a free.
    #[inline]
    pub(in crate::memory) fn join_freed(&mut self) {
        let id = std::mem::replace(&mut self.unjoined, NONE);
        if id != NONE {
            self.join(id);
        }
    }

    /// Makes a block free and joins it with free neighbours.
    #[inline]
    fn join(&mut self, id: u32) {
        self.turnover += 1;
        let mut block = self.blocks[id as usize].clone();
        let mut keep = id;
        if let Some(next) = self.blocks.get(block.next as usize).filter(|next| next.state() == BlockState::Free) {
            let (gone, size, beyond) = (block.next, next.size(), next.next);
            self.free.remove(&mut self.blocks, gone);
            self.drop_number(gone);
            block.set_size(block.size() + size);
            block.next = beyond;
            self.set_previous(block.next, keep);
        }
        if let Some(previous) =
            self.blocks.get(block.previous as usize).filter(|other| other.state() == BlockState::Free)
        {
            let (kept, start, size, before) = (block.previous, previous.start, previous.size(), previous.previous);
            self.free.remove(&mut self.blocks, kept);
            self.drop_number(keep);
            block.start = start;
            block.set_size(block.size() + size);
            block.previous = before;
            keep = kept;
            self.set_previous(block.next, keep);
        }
        block.set_state(BlockState::Free);
        let size = block.size();
        self.blocks[keep as usize] = block;
        self.free.insert(&mut self.blocks, keep);
        self.best = NONE;
        if size >= self.told_from || self.turnover >= self.next_look {
            self.tell_after_free(size);
        }
    }
}

//! A heap: cuts the memory of its spans into blocks, best fit, and joins what becomes free.
//!
//! Works on offsets and knows no driver: pages come by [`Heap::add_span`] and go by [`Heap::take_mappings`]. Small blocks
//! are slots of slabs, every other is cut to size. One heap belongs to one thread cache, which also locks it.

mod block;
mod free_index;
mod size_class;
pub(super) mod slab;

use std::collections::HashMap;

use super::pages::{BLOCKS_MAX, Entry, Mapping, PAGE, Pages};
use block::{Block, NONE, State};
use free_index::FreeIndex;
pub(super) use size_class::ALIGNMENT;
use size_class::{CLASSES, SMALL_MAX, SizeClass};
use slab::Slab;

/// Why an address cannot be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Invalid {
    /// No block starts there.
    NotABlock,
    /// It was freed already.
    Freed,
}

/// What a heap holds and has done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    /// Bytes of blocks that callers hold, as cut.
    pub(super) live: u64,
    /// The most they ever were.
    pub(super) peak: u64,
    /// Bytes that callers asked for, of the same blocks.
    pub(super) requested: u64,
    /// Blocks handed out so far.
    pub(super) allocations: u64,
    /// Blocks that came back.
    pub(super) frees: u64,
}

impl Counts {
    #[inline]
    fn allocate(&mut self, bytes: u64, requested: u64) {
        self.live += bytes;
        self.requested += requested;
        self.allocations += 1;
        if self.live > self.peak {
            self.peak = self.live;
        }
    }

    #[inline]
    fn free(&mut self, bytes: u64, requested: u64) {
        self.live -= bytes;
        self.requested -= requested;
        self.frees += 1;
    }
}

/// A block as the snapshot shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockView {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) is_live: bool,
}

/// The blocks of one thread cache.
#[derive(Debug)]
pub(super) struct Heap {
    blocks: Vec<Block>,
    /// The first vacant record.
    vacant: u32,
    free: FreeIndex,
    /// For each small size the slabs with a free slot; the last is tried first.
    slabs: [Vec<u32>; CLASSES],
    /// The first block of each span, by its start.
    firsts: HashMap<u64, u32>,
    /// The last block of each span, by its end.
    lasts: HashMap<u64, u32>,
    /// Bytes of pages that are mapped here.
    mapped: u64,
    is_split: bool,
    counts: Counts,
}

impl Heap {
    /// A heap that cuts blocks to size, or hands out each span whole.
    pub(super) fn new(is_split: bool) -> Self {
        Self {
            blocks: Vec::new(),
            vacant: NONE,
            free: FreeIndex::new(),
            slabs: [const { Vec::new() }; CLASSES],
            firsts: HashMap::new(),
            lasts: HashMap::new(),
            mapped: 0,
            is_split,
            counts: Counts::default(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn reset_peak(&mut self) {
        self.counts.peak = self.counts.live;
    }

    pub(super) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// What a request really takes: a multiple of 512 bytes, for small ones that of their class.
    pub(super) fn round(&self, bytes: u64) -> u64 {
        if self.is_split && bytes <= SMALL_MAX {
            u64::from(SizeClass::of(bytes.max(1)).bytes())
        } else {
            bytes.max(1).div_ceil(ALIGNMENT) * ALIGNMENT
        }
    }

    /// What must be free in one piece for a request of this size to be served.
    pub(super) fn needed_for(&self, bytes: u64) -> u64 {
        if self.is_split && bytes <= SMALL_MAX {
            // A slab starts at a multiple of 64 KiB.
            SizeClass::of(bytes.max(1)).slab_bytes() + SMALL_MAX
        } else {
            self.round(bytes)
        }
    }

    /// A block of at least this many bytes, 1 or more; none if nothing fits.
    #[inline]
    pub(super) fn allocate(&mut self, pages: &Pages, bytes: u64) -> Option<u64> {
        if bytes <= SMALL_MAX && self.is_split { self.take_slot(pages, bytes) } else { self.take_block(pages, bytes) }
    }

    #[inline]
    fn take_slot(&mut self, pages: &Pages, bytes: u64) -> Option<u64> {
        let class = SizeClass::of(bytes);
        let number = match self.slabs[class.index()].last() {
            Some(&number) => number,
            None => self.new_slab(pages, class)?,
        };
        let slab = pages.slabs.get(number)?;
        let slot = slab.take(bytes as u32)?;
        if slab.is_full() {
            self.slabs[class.index()].pop();
            slab.set_listed(false);
        }
        self.counts.allocate(u64::from(class.bytes()), bytes);
        Some(slab.offset_of(slot))
    }

    #[cold]
    fn new_slab(&mut self, pages: &Pages, class: SizeClass) -> Option<u32> {
        let bytes = class.slab_bytes();
        let id = self.find_aligned(bytes)?;
        let number = pages.slabs.acquire()?;
        let start = self.blocks[id as usize].start.next_multiple_of(SMALL_MAX);
        let Some(id) = self.cut(id, start, bytes) else {
            pages.slabs.release(number);
            return None;
        };
        let slab = pages.slabs.get(number)?;
        slab.reset(start, class, id);
        slab.set_listed(true);
        self.blocks[id as usize].state = State::Slab;
        self.blocks[id as usize].set_payload(number.into());
        pages.set_slab(start, bytes, Some(number));
        self.slabs[class.index()].push(number);
        Some(number)
    }

    /// A free block with room for `bytes` at a multiple of 64 KiB.
    fn find_aligned(&self, bytes: u64) -> Option<u32> {
        let fits = |id: u32| {
            let block = self.blocks.get(id as usize)?;
            (block.start.next_multiple_of(SMALL_MAX) + bytes <= block.end()).then_some(id)
        };
        let exact = self.free.find(&self.blocks, bytes);
        fits(exact).or_else(|| fits(self.free.find(&self.blocks, bytes + SMALL_MAX)))
    }

    #[inline]
    fn take_block(&mut self, pages: &Pages, bytes: u64) -> Option<u64> {
        let size = bytes.checked_next_multiple_of(ALIGNMENT)?;
        let id = self.free.find(&self.blocks, size);
        let block = self.blocks.get(id as usize)?;
        let (start, whole) = (block.start, block.size);
        let size = if self.is_split { size } else { whole };
        let id = self.cut(id, start, size)?;
        let block = &mut self.blocks[id as usize];
        block.state = State::Live;
        block.set_payload(bytes);
        pages.set_block(start, id);
        self.counts.allocate(size, bytes);
        Some(start)
    }

    /// Takes `size` bytes at `start` out of a free block; what is left before and after stays free.
    #[inline]
    fn cut(&mut self, id: u32, start: u64, size: u64) -> Option<u32> {
        let whole = self.blocks[id as usize].clone();
        let (before, after) = (start - whole.start, whole.end() - (start + size));
        // So that running out of records leaves everything as it was.
        let mut spare = [NONE; 2];
        if before > 0 {
            spare[0] = self.new_record()?;
        }
        if after > 0 {
            spare[1] = match self.new_record() {
                Some(record) => record,
                None => {
                    if before > 0 {
                        self.drop_record(spare[0]);
                    }
                    return None;
                }
            };
        }
        self.free.remove(&mut self.blocks, id);
        let block = &mut self.blocks[id as usize];
        block.start = start;
        block.size = size;
        if before > 0 {
            self.insert_beside(spare[0], Block::free(whole.start, before), whole.previous, id);
        }
        if after > 0 {
            self.insert_beside(spare[1], Block::free(start + size, after), id, whole.next);
        }
        Some(id)
    }

    /// Puts a free block between two neighbours, either of which may be missing.
    fn insert_beside(&mut self, id: u32, mut block: Block, previous: u32, next: u32) {
        block.previous = previous;
        block.next = next;
        match self.blocks.get_mut(previous as usize) {
            Some(neighbour) => neighbour.next = id,
            None => {
                self.firsts.insert(block.start, id);
            }
        }
        match self.blocks.get_mut(next as usize) {
            Some(neighbour) => neighbour.previous = id,
            None => {
                self.lasts.insert(block.end(), id);
            }
        }
        self.blocks[id as usize] = block;
        self.free.insert(&mut self.blocks, id);
    }

    #[inline]
    fn new_record(&mut self) -> Option<u32> {
        if let Some(record) = self.blocks.get(self.vacant as usize) {
            return Some(std::mem::replace(&mut self.vacant, record.payload() as u32));
        }
        let id = u32::try_from(self.blocks.len()).ok().filter(|&id| id < BLOCKS_MAX)?;
        self.blocks.push(Block::free(0, 0));
        Some(id)
    }

    #[inline]
    fn drop_record(&mut self, id: u32) {
        let vacant = std::mem::replace(&mut self.vacant, id);
        let record = &mut self.blocks[id as usize];
        record.state = State::Vacant;
        record.set_payload(vacant.into());
    }

    /// Frees the block that starts at the offset; one that was marked as freed is done with by [`Heap::release`].
    ///
    /// # Errors
    /// [`Invalid`] if there is none.
    #[inline]
    pub(super) fn free(&mut self, pages: &Pages, offset: u64) -> Result<(), Invalid> {
        match pages.entry(offset) {
            Entry::Block(id) => {
                self.free_block(pages, id);
                Ok(())
            }
            Entry::Slab(number) => {
                let slab = pages.slabs.get(number).ok_or(Invalid::NotABlock)?;
                let slot = slab.slot_at(offset).ok_or(Invalid::NotABlock)?;
                if !slab.is_live(slot) {
                    return Err(Invalid::Freed);
                }
                self.free_slot(pages, number, slab, slot);
                Ok(())
            }
            Entry::Freed(_) => Err(Invalid::Freed),
            Entry::Nothing => Err(Invalid::NotABlock),
        }
    }

    /// Frees a block that was marked as freed, or every such slot of the slab at the offset.
    pub(super) fn collect(&mut self, pages: &Pages, offset: u64) {
        match pages.entry(offset) {
            Entry::Freed(id) => self.free_block(pages, id),
            Entry::Slab(number) => {
                let Some(slab) = pages.slabs.get(number) else { return };
                while let Some(slot) = slab.collect() {
                    self.free_slot(pages, number, slab, slot);
                }
            }
            Entry::Block(_) | Entry::Nothing => {}
        }
    }

    /// Frees a block that waited for streams.
    pub(super) fn release(&mut self, pages: &Pages, offset: u64) {
        match pages.entry(offset) {
            Entry::Freed(id) => self.free_block(pages, id),
            Entry::Slab(number) => {
                let Some(slab) = pages.slabs.get(number) else { return };
                let Some(slot) = slab.slot_at(offset) else { return };
                slab.end_waiting(slot);
                self.free_slot(pages, number, slab, slot);
            }
            Entry::Block(_) | Entry::Nothing => {}
        }
    }

    #[inline]
    fn free_slot(&mut self, pages: &Pages, number: u32, slab: &Slab, slot: usize) {
        let class = slab.class();
        let requested = slab.put_back(slot);
        self.counts.free(u64::from(class.bytes()), requested.into());
        if !slab.is_listed() {
            slab.set_listed(true);
            self.slabs[class.index()].push(number);
        }
        if slab.is_empty() {
            self.drop_slab_if_spare(pages, class, number);
        }
    }

    /// Gives an empty slab back, unless it is the only one of its size with room.
    fn drop_slab_if_spare(&mut self, pages: &Pages, class: SizeClass, number: u32) {
        let listed = &mut self.slabs[class.index()];
        if listed.len() > 1 {
            listed.retain(|&other| other != number);
            self.drop_slab(pages, number);
        }
    }

    fn drop_slab(&mut self, pages: &Pages, number: u32) {
        let Some(slab) = pages.slabs.get(number) else { return };
        let id = slab.block();
        let block = &self.blocks[id as usize];
        pages.set_slab(block.start, block.size, None);
        pages.slabs.release(number);
        self.join(id);
    }

    /// Gives every empty slab back.
    pub(super) fn drop_empty_slabs(&mut self, pages: &Pages) {
        for class in 0..CLASSES {
            let mut empty = Vec::new();
            self.slabs[class].retain(|&number| {
                let is_empty = pages.slabs.get(number).is_some_and(Slab::is_empty);
                if is_empty {
                    empty.push(number);
                }
                !is_empty
            });
            for number in empty {
                self.drop_slab(pages, number);
            }
        }
    }

    #[inline]
    fn free_block(&mut self, pages: &Pages, id: u32) {
        let block = &self.blocks[id as usize];
        pages.clear(block.start);
        self.counts.free(block.size, block.payload());
        self.join(id);
    }

    /// Makes a block free and joins it with free neighbours.
    #[inline]
    fn join(&mut self, id: u32) {
        let mut block = self.blocks[id as usize].clone();
        let mut keep = id;
        if let Some(next) = self.blocks.get(block.next as usize).filter(|next| next.state == State::Free) {
            let (gone, size, beyond) = (block.next, next.size, next.next);
            self.free.remove(&mut self.blocks, gone);
            self.drop_record(gone);
            block.size += size;
            block.next = beyond;
            self.relink_after(&block, keep);
        }
        if let Some(previous) = self.blocks.get(block.previous as usize).filter(|other| other.state == State::Free) {
            let (kept, start, size, before) = (block.previous, previous.start, previous.size, previous.previous);
            self.free.remove(&mut self.blocks, kept);
            self.drop_record(keep);
            block.start = start;
            block.size += size;
            block.previous = before;
            keep = kept;
            self.relink_after(&block, keep);
        }
        block.state = State::Free;
        self.blocks[keep as usize] = block;
        self.free.insert(&mut self.blocks, keep);
    }

    /// Tells what follows the block that its previous neighbour has this number now.
    #[inline]
    fn relink_after(&mut self, block: &Block, id: u32) {
        match self.blocks.get_mut(block.next as usize) {
            Some(next) => next.previous = id,
            None => {
                self.lasts.insert(block.end(), id);
            }
        }
    }

    /// The bytes free just before the offset, up to which a span of this heap reaches.
    pub(super) fn free_before(&self, offset: u64) -> u64 {
        let last = self.lasts.get(&offset).and_then(|&id| self.blocks.get(id as usize));
        last.filter(|block| block.state == State::Free).map_or(0, |block| block.size)
    }

    /// Where each span ends.
    pub(super) fn ends(&self) -> impl Iterator<Item = u64> {
        self.lasts.keys().copied()
    }

    /// Each span that starts below an offset: start and bytes.
    pub(super) fn spans_below(&self, limit: u64) -> Vec<(u64, u64)> {
        let ranges = self.firsts.iter().filter(|(start, _)| **start < limit);
        ranges.map(|(&start, &first)| (start, self.span_end(first) - start)).collect()
    }

    fn span_end(&self, first: u32) -> u64 {
        let mut end = 0;
        let mut id = first;
        while let Some(block) = self.blocks.get(id as usize) {
            end = block.end();
            id = block.next;
        }
        end
    }

    /// Takes spans that are wholly free out of the heap: start and bytes of each.
    pub(super) fn take_free_spans(&mut self, pages: &Pages) -> Vec<(u64, u64)> {
        let is_whole = |id: u32| {
            let block = self.blocks.get(id as usize)?;
            (block.state == State::Free && block.next == NONE).then_some((id, block.start, block.size))
        };
        let whole: Vec<_> = self.firsts.values().filter_map(|&id| is_whole(id)).collect();
        for &(id, start, size) in &whole {
            self.cut_out(id, start, start + size);
            pages.set_cache(start, start + size, None);
        }
        whole.into_iter().map(|(_, start, size)| (start, size)).collect()
    }

    /// Adds free memory, joined with what is free beside it. False if there are too many blocks.
    pub(super) fn add_span(&mut self, start: u64, size: u64) -> bool {
        let Some(id) = self.new_record() else { return false };
        let (mut previous, mut next) = (NONE, NONE);
        // Memory handed out whole is not joined.
        if self.is_split {
            previous = self.lasts.remove(&start).unwrap_or(NONE);
            next = self.firsts.remove(&(start + size)).unwrap_or(NONE);
        }
        self.insert_beside(id, Block::free(start, size), previous, next);
        self.free.remove(&mut self.blocks, id);
        self.join(id);
        self.mapped += size;
        true
    }

    /// Takes mappings that are wholly free out of the heap: `wanted` bytes of them, at most `slack` more, or all there are.
    /// The block that ends at `kept` is left alone.
    pub(super) fn take_mappings(&mut self, pages: &Pages, wanted: u64, slack: u64, kept: u64) -> Vec<Mapping> {
        let mut taken: Vec<(u32, Mapping)> = Vec::new();
        let mut spare: Vec<(u32, Mapping)> = Vec::new();
        let mut left = wanted;
        for id in self.free.largest_first(&self.blocks, PAGE) {
            let block = &self.blocks[id as usize];
            let mut at = if block.end() == kept { kept } else { block.start.next_multiple_of(PAGE) };
            while at < block.end() {
                let Some(mapping) = pages.mapping(at) else { break };
                if mapping.start() >= block.start && mapping.end() <= block.end() {
                    if mapping.bytes() <= left {
                        left -= mapping.bytes();
                        taken.push((id, mapping));
                    } else {
                        spare.push((id, mapping));
                    }
                }
                at = mapping.end();
            }
            if left == 0 {
                break;
            }
        }
        if left > 0
            && let Some(smallest) = spare.into_iter().min_by_key(|(_, mapping)| mapping.pages)
            && smallest.1.bytes() <= left.saturating_add(slack)
        {
            taken.push(smallest);
        }
        taken.sort_unstable_by_key(|(id, mapping)| (*id, mapping.first));
        let mut index = 0;
        while index < taken.len() {
            // Mappings in a row are cut out together.
            let (id, first) = taken[index];
            let mut end = first.end();
            index += 1;
            while index < taken.len() && taken[index].0 == id && taken[index].1.start() == end {
                end = taken[index].1.end();
                index += 1;
            }
            // What is left after the cut has a number of its own.
            let rest = self.cut_out(id, first.start(), end);
            for (id_of_later, _) in &mut taken[index..] {
                if *id_of_later == id {
                    *id_of_later = rest;
                }
            }
            pages.set_cache(first.start(), end, None);
        }
        taken.into_iter().map(|(_, mapping)| mapping).collect()
    }

    /// Takes `start..end` out of a free block, so that the span ends before and begins again after. Answers the number of
    /// the free block after it.
    fn cut_out(&mut self, id: u32, start: u64, end: u64) -> u32 {
        let whole = self.blocks[id as usize].clone();
        self.free.remove(&mut self.blocks, id);
        self.mapped -= end - start;
        let (previous, next) = (whole.previous, whole.next);
        let mut rest = NONE;
        // The later part first: it may need a record, the earlier one keeps this one.
        let mut record = Some(id);
        if start > whole.start {
            record = None;
            self.insert_beside(id, Block::free(whole.start, start - whole.start), previous, NONE);
        } else if let Some(block) = self.blocks.get_mut(previous as usize) {
            block.next = NONE;
            self.lasts.insert(start, previous);
        } else {
            self.firsts.remove(&whole.start);
        }
        if end < whole.end() {
            // Records run out at eight million blocks; the rest of the page is then lost to use, not to giving back.
            if let Some(id) = record.take().or_else(|| self.new_record()) {
                self.insert_beside(id, Block::free(end, whole.end() - end), NONE, next);
                rest = id;
            } else if let Some(block) = self.blocks.get_mut(next as usize) {
                block.previous = NONE;
                let start = block.start;
                self.firsts.insert(start, next);
            } else {
                self.lasts.remove(&whole.end());
            }
        } else if let Some(block) = self.blocks.get_mut(next as usize) {
            block.previous = NONE;
            self.firsts.insert(end, next);
        } else {
            self.lasts.remove(&whole.end());
        }
        if let Some(id) = record {
            self.drop_record(id);
        }
        rest
    }

    /// Every span with its blocks, by address.
    pub(super) fn spans(&self, pages: &Pages) -> Vec<Vec<BlockView>> {
        let mut firsts: Vec<_> = self.firsts.iter().map(|(&start, &id)| (start, id)).collect();
        firsts.sort_unstable();
        let mut spans = Vec::new();
        for (_, mut id) in firsts {
            let mut span = Vec::new();
            while let Some(block) = self.blocks.get(id as usize) {
                match block.state {
                    State::Slab => push_slots(&mut span, block, pages.slabs.get(block.payload() as u32)),
                    state => span.push(BlockView {
                        start: block.start,
                        size: block.size,
                        requested: if state == State::Live { block.payload() } else { 0 },
                        is_live: state == State::Live,
                    }),
                }
                id = block.next;
            }
            spans.push(span);
        }
        spans
    }
}

/// The slots of a slab, and the gaps between those that are held.
fn push_slots(span: &mut Vec<BlockView>, block: &Block, slab: Option<&Slab>) {
    let mut at = block.start;
    let gap = |start: u64, end: u64| BlockView { start, size: end - start, requested: 0, is_live: false };
    for (start, size, requested) in slab.into_iter().flat_map(Slab::live_slots) {
        if start > at {
            span.push(gap(at, start));
        }
        span.push(BlockView { start, size, requested, is_live: true });
        at = start + size;
    }
    if block.end() > at {
        span.push(gap(at, block.end()));
    }
}

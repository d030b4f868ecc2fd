//! A heap: cuts the memory of its spans into blocks, best fit, and joins what becomes free.
//!
//! Works on offsets and knows no driver: pages come by [`Heap::add_span`] and go by [`Heap::take_mappings`]. Small blocks
//! are slots of slabs, every other is cut to size. One heap belongs to one thread cache, which also locks it.

mod block;
mod free_index;
mod size_class;
pub(super) mod slab;
mod span;

use super::pages::{BLOCKS_MAX, Entry, Mapping, PAGE, Pages};
pub(super) use block::BLOCK_BYTES_MAX;
use block::{Block, EDGE, NONE, State};
use free_index::FreeIndex;
pub(super) use size_class::ALIGNMENT;
use size_class::{CLASSES, SMALL_MAX, SizeClass};
use slab::Slab;
use span::{Span, Spans};

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
    slabs: [Vec<&'static Slab>; CLASSES],
    spans: Spans,
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
            spans: Spans::default(),
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

    /// Bytes of pages in which nothing is live.
    pub(super) fn unused(&self) -> u64 {
        self.mapped - self.counts.live
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

    /// A block of at least this many bytes; none if nothing fits, and for 0 bytes.
    #[inline]
    pub(super) fn allocate(&mut self, pages: &'static Pages, bytes: u64) -> Option<u64> {
        // 0 is not small here: it wraps.
        if bytes.wrapping_sub(1) < SMALL_MAX && self.is_split {
            self.take_slot(pages, bytes)
        } else {
            self.take_block(pages, bytes)
        }
    }

    #[inline]
    fn take_slot(&mut self, pages: &'static Pages, bytes: u64) -> Option<u64> {
        let class = SizeClass::of(bytes);
        let slab = match self.slabs[class.index()].last() {
            Some(slab) => slab,
            None => self.new_slab(pages, class)?,
        };
        let slot = slab.take(bytes as u32)?;
        if slab.is_full() {
            self.slabs[class.index()].pop();
            slab.set_listed(false);
        }
        self.counts.allocate(u64::from(class.bytes()), bytes);
        Some(slab.offset_of(slot))
    }

    #[cold]
    fn new_slab(&mut self, pages: &'static Pages, class: SizeClass) -> Option<&'static Slab> {
        let bytes = class.slab_bytes();
        let id = self.find_aligned(bytes)?;
        let slab = pages.slabs.acquire()?;
        let start = self.blocks[id as usize].start.next_multiple_of(SMALL_MAX);
        let Some(id) = self.cut(id, start, bytes) else {
            pages.slabs.release(slab);
            return None;
        };
        slab.reset(start, class, id);
        slab.set_listed(true);
        self.blocks[id as usize].state = State::Slab;
        self.blocks[id as usize].set_number(slab.number());
        pages.set_slab(start, bytes, Some(slab.number()));
        self.slabs[class.index()].push(slab);
        Some(slab)
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
    fn take_block(&mut self, pages: &'static Pages, bytes: u64) -> Option<u64> {
        let size = bytes.checked_next_multiple_of(ALIGNMENT).filter(|&size| size > 0)?;
        let id = self.free.find(&self.blocks, size);
        let block = self.blocks.get(id as usize)?;
        let (start, whole) = (block.start, block.size());
        let size = if self.is_split { size } else { whole };
        let id = self.cut(id, start, size)?;
        let block = &mut self.blocks[id as usize];
        block.state = State::Live;
        block.set_requested(bytes);
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
    }

    /// Tells a block, or a span, what comes after it, or first.
    #[inline]
    fn set_next(&mut self, id: u32, next: u32) {
        match self.blocks.get_mut(id as usize) {
            Some(block) => block.next = next,
            None => self.spans.get_mut(id & !EDGE).first = next,
        }
    }

    /// Tells a block, or a span, what comes before it, or last.
    #[inline]
    fn set_previous(&mut self, id: u32, previous: u32) {
        match self.blocks.get_mut(id as usize) {
            Some(block) => block.previous = previous,
            None => self.spans.get_mut(id & !EDGE).last = previous,
        }
    }

    #[inline]
    fn new_record(&mut self) -> Option<u32> {
        if let Some(record) = self.blocks.get(self.vacant as usize) {
            return Some(std::mem::replace(&mut self.vacant, record.number()));
        }
        let id = u32::try_from(self.blocks.len()).ok().filter(|&id| id < BLOCKS_MAX)?;
        if self.blocks.len() == self.blocks.capacity() {
            // By a quarter rather than by half: there is a record for each live block.
            self.blocks.reserve_exact(self.blocks.len() / 4 + 64);
        }
        self.blocks.push(Block::free(0, 0));
        Some(id)
    }

    #[inline]
    fn drop_record(&mut self, id: u32) {
        let vacant = std::mem::replace(&mut self.vacant, id);
        let record = &mut self.blocks[id as usize];
        record.state = State::Vacant;
        record.set_number(vacant);
    }

    /// Frees the block that starts at the offset; one that was marked as freed is done with by [`Heap::release`].
    ///
    /// # Errors
    /// [`Invalid`] if there is none.
    #[inline]
    pub(super) fn free(&mut self, pages: &'static Pages, offset: u64) -> Result<(), Invalid> {
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
                self.free_slot(pages, slab, slot);
                Ok(())
            }
            Entry::Freed(_) => Err(Invalid::Freed),
            Entry::Nothing => Err(Invalid::NotABlock),
        }
    }

    /// Frees a block that was marked as freed, or a slot and those that were freed since.
    pub(super) fn collect(&mut self, pages: &'static Pages, offset: u64) {
        match pages.entry(offset) {
            Entry::Freed(id) => self.free_block(pages, id),
            Entry::Slab(number) => {
                let Some(slab) = pages.slabs.get(number) else { return };
                let Some(slot) = slab.slot_at(offset) else { return };
                for slot in slab.collect(slot) {
                    self.free_slot(pages, slab, slot);
                }
            }
            Entry::Block(_) | Entry::Nothing => {}
        }
    }

    /// Frees a block that waited for streams.
    pub(super) fn release(&mut self, pages: &'static Pages, offset: u64) {
        match pages.entry(offset) {
            Entry::Freed(id) => self.free_block(pages, id),
            Entry::Slab(number) => {
                let Some(slab) = pages.slabs.get(number) else { return };
                let Some(slot) = slab.slot_at(offset) else { return };
                slab.end_waiting(slot);
                self.free_slot(pages, slab, slot);
            }
            Entry::Block(_) | Entry::Nothing => {}
        }
    }

    #[inline]
    fn free_slot(&mut self, pages: &'static Pages, slab: &'static Slab, slot: usize) {
        let class = slab.class();
        let requested = slab.put_back(slot);
        self.counts.free(u64::from(class.bytes()), requested.into());
        let listed = &mut self.slabs[class.index()];
        if !slab.is_listed() {
            slab.set_listed(true);
            listed.push(slab);
        }
        // One empty slab of each size stays, so that a pair of requests does not make and end one each time.
        if listed.len() > 1 && slab.is_empty() {
            listed.retain(|other| !std::ptr::eq(*other, slab));
            self.drop_slab(pages, slab);
        }
    }

    #[cold]
    fn drop_slab(&mut self, pages: &'static Pages, slab: &'static Slab) {
        let id = slab.block();
        let block = &self.blocks[id as usize];
        pages.set_slab(block.start, block.size(), None);
        pages.slabs.release(slab);
        self.join(id);
    }

    /// Gives every empty slab back.
    pub(super) fn drop_empty_slabs(&mut self, pages: &'static Pages) {
        for class in 0..CLASSES {
            let (empty, kept) = self.slabs[class].drain(..).partition(|slab| slab.is_empty());
            let empty: Vec<_> = empty;
            self.slabs[class] = kept;
            for slab in empty {
                self.drop_slab(pages, slab);
            }
        }
    }

    #[inline]
    fn free_block(&mut self, pages: &'static Pages, id: u32) {
        let block = &self.blocks[id as usize];
        pages.clear(block.start);
        self.counts.free(block.size(), block.requested());
        self.join(id);
    }

    /// Makes a block free and joins it with free neighbours.
    #[inline]
    fn join(&mut self, id: u32) {
        let mut block = self.blocks[id as usize].clone();
        let mut keep = id;
        if let Some(next) = self.blocks.get(block.next as usize).filter(|next| next.state == State::Free) {
            let (gone, size, beyond) = (block.next, next.size(), next.next);
            self.free.remove(&mut self.blocks, gone);
            self.drop_record(gone);
            block.set_size(block.size() + size);
            block.next = beyond;
            self.set_previous(block.next, keep);
        }
        if let Some(previous) = self.blocks.get(block.previous as usize).filter(|other| other.state == State::Free) {
            let (kept, start, size, before) = (block.previous, previous.start, previous.size(), previous.previous);
            self.free.remove(&mut self.blocks, kept);
            self.drop_record(keep);
            block.start = start;
            block.set_size(block.size() + size);
            block.previous = before;
            keep = kept;
            self.set_previous(block.next, keep);
        }
        block.state = State::Free;
        self.blocks[keep as usize] = block;
        self.free.insert(&mut self.blocks, keep);
    }

    /// Where each span ends, and the bytes before its end that join what is added there; by address.
    pub(super) fn tails(&self) -> Vec<(u64, u64)> {
        // Memory handed out whole is not joined.
        let free =
            |last: u32| self.blocks.get(last as usize).filter(|block| block.state == State::Free && self.is_split);
        let tail = |(_, span): (u32, Span)| (span.end, free(span.last).map_or(0, |block| block.size()));
        let mut tails: Vec<_> = self.spans.iter().map(tail).collect();
        tails.sort_unstable();
        tails
    }

    /// Each span that starts below an offset: start and bytes.
    pub(super) fn spans_below(&self, limit: u64) -> Vec<(u64, u64)> {
        let spans = self.spans.iter().filter(|(_, span)| span.start < limit);
        spans.map(|(_, span)| (span.start, span.end - span.start)).collect()
    }

    /// Takes spans that are wholly free out of the heap: start and bytes of each.
    pub(super) fn take_free_spans(&mut self, pages: &'static Pages) -> Vec<(u64, u64)> {
        let is_whole = |(_, span): (u32, Span)| {
            let block = self.blocks.get(span.first as usize)?;
            let is_free = block.state == State::Free && span.first == span.last;
            is_free.then_some((span.first, block.start, block.size()))
        };
        let whole: Vec<_> = self.spans.iter().filter_map(is_whole).collect();
        for &(id, start, size) in &whole {
            self.cut_out(id, start, start + size);
            pages.set_cache(start, start + size, None);
        }
        whole.into_iter().map(|(_, start, size)| (start, size)).collect()
    }

    /// Adds free memory, joined with what is free beside it. False if there are too many blocks.
    pub(super) fn add_span(&mut self, start: u64, size: u64) -> bool {
        let Some(id) = self.new_record() else { return false };
        let end = start + size;
        // Memory handed out whole is not joined.
        let left = self.spans.ending_at(start).filter(|_| self.is_split);
        let right = self.spans.starting_at(end).filter(|_| self.is_split);
        let (previous, next) = match (left, right) {
            (None, None) => {
                let edge = EDGE | self.spans.add(Span { start, end, first: id, last: id });
                (edge, edge)
            }
            (Some(left), None) => {
                let span = self.spans.get_mut(left);
                span.end = end;
                (span.last, EDGE | left)
            }
            (None, Some(right)) => {
                let span = self.spans.get_mut(right);
                span.start = start;
                (EDGE | right, span.first)
            }
            (Some(left), Some(right)) => {
                let gone = *self.spans.get_mut(right);
                self.spans.remove(right);
                let span = self.spans.get_mut(left);
                let previous = span.last;
                span.end = gone.end;
                span.last = gone.last;
                self.set_next(gone.last, EDGE | left);
                (previous, gone.first)
            }
        };
        self.insert_beside(id, Block::free(start, size), previous, next);
        self.free.remove(&mut self.blocks, id);
        self.join(id);
        self.mapped += size;
        true
    }

    /// Takes mappings that are wholly free out of the heap: `wanted` bytes of them, at most `slack` more, or all there are.
    /// The block that ends at `kept` is left alone.
    pub(super) fn take_mappings(&mut self, pages: &'static Pages, wanted: u64, slack: u64, kept: u64) -> Vec<Mapping> {
        let mut taken: Vec<(u32, Mapping)> = Vec::new();
        let mut spare: Vec<(u32, Mapping)> = Vec::new();
        let mut left = wanted;
        let mut candidates = self.free.at_least(&self.blocks, PAGE);
        // The lowest first, so that what is left stays together.
        candidates.sort_unstable_by_key(|&id| self.blocks[id as usize].start);
        for id in candidates {
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

    /// Takes `start..end` out of a free block, so that the span ends before and another begins after. Answers the number of
    /// the free block after it.
    fn cut_out(&mut self, id: u32, start: u64, end: u64) -> u32 {
        let Some(number) = self.spans.with(start) else { return NONE };
        let whole = self.blocks[id as usize].clone();
        let old = *self.spans.get_mut(number);
        self.free.remove(&mut self.blocks, id);
        self.mapped -= end - start;
        // The part before keeps the span, if there is one.
        let mut span = Some(number);
        let mut record = Some(id);
        if start > old.start {
            span = None;
            self.spans.get_mut(number).end = start;
            self.spans.get_mut(number).last = whole.previous;
            if start > whole.start {
                record = None;
                self.insert_beside(id, Block::free(whole.start, start - whole.start), whole.previous, EDGE | number);
            } else {
                self.set_next(whole.previous, EDGE | number);
            }
        }
        let mut rest = NONE;
        if end < old.end {
            let after = Span { start: end, end: old.end, first: whole.next, last: old.last };
            let number = match span.take() {
                Some(number) => {
                    *self.spans.get_mut(number) = after;
                    number
                }
                None => self.spans.add(after),
            };
            let edge = EDGE | number;
            let next = if whole.next & EDGE == 0 { whole.next } else { edge };
            if next != edge {
                self.set_next(old.last, edge);
                self.set_previous(next, edge);
            }
            if end < whole.end() {
                match record.take().or_else(|| self.new_record()) {
                    Some(id) => {
                        self.insert_beside(id, Block::free(end, whole.end() - end), edge, next);
                        rest = id;
                    }
                    // Records run out at eight million blocks; what is left of the block is then lost to use.
                    None => self.spans.get_mut(number).start = whole.end(),
                }
            }
        }
        if let Some(number) = span {
            self.spans.remove(number);
        }
        if let Some(id) = record {
            self.drop_record(id);
        }
        rest
    }

    /// Every span with its blocks, by address.
    pub(super) fn views(&self, pages: &'static Pages) -> Vec<Vec<BlockView>> {
        let mut firsts: Vec<_> = self.spans.iter().map(|(_, span)| (span.start, span.first)).collect();
        firsts.sort_unstable();
        let mut spans = Vec::new();
        for (_, mut id) in firsts {
            let mut span = Vec::new();
            while let Some(block) = self.blocks.get(id as usize) {
                match block.state {
                    State::Slab => push_slots(&mut span, block, pages.slabs.get(block.number())),
                    state => span.push(BlockView {
                        start: block.start,
                        size: block.size(),
                        requested: if state == State::Live { block.requested() } else { 0 },
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

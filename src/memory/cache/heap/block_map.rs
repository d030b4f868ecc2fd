//! The blocks of a heap's memory: by number, by address, and the free ones by size, and the spans that they fill. It
//! cuts and joins blocks, but knows no pages and counts nothing.

use std::collections::BTreeMap;
use std::iter::successors;

use super::block::{BlockNode, BlockState, EDGE, NONE};
use super::free_index::FreeIndex;
use crate::memory::device::BLOCKS_MAX;
use crate::memory::tuning::{LOWEST_BELOW, SMALL_MAX};

#[derive(Debug)]
pub(super) struct BlockMap {
    pub(super) all: Vec<BlockNode>,
    /// The first vacant number.
    vacant: u32,
    free: FreeIndex,
    /// The block that fulfilled [`BlockMap::is_best`], until memory becomes free; else [`NONE`].
    pub(super) best: u32,
    pub(super) spans: Spans,
    /// How often memory was cut from free blocks or joined to them.
    pub(super) turnover: u64,
}

impl BlockMap {
    pub(super) fn new(turnover: u64) -> Self {
        let (all, free, spans) = (Vec::new(), FreeIndex::new(), Spans::default());
        Self { all, vacant: NONE, free, best: NONE, spans, turnover }
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&BlockNode> {
        self.all.get(id as usize)
    }

    /// Returns every block by address, span by span.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &BlockNode> {
        self.spans.iter().flat_map(|(_, span)| span.blocks(&self.all))
    }

    /// Returns the best free block of at least this size, or [`NONE`].
    #[inline]
    pub(super) fn find(&self, size: u64) -> u32 {
        self.free.find(&self.all, size)
    }

    pub(super) fn at_least(&self, size: u64) -> Vec<u32> {
        self.free.at_least(&self.all, size)
    }

    /// Adds a block, which is not listed as free, with the next new number.
    pub(super) fn push(&mut self, block: BlockNode) -> u32 {
        let id = self.all.len() as u32;
        let previous = block.previous;
        self.all.push(block);
        self.set_next(previous, id);
        id
    }

    pub(super) fn list_free(&mut self, id: u32) {
        self.free.insert(&mut self.all, id);
    }

    /// Removes all blocks. The spans stay, empty until each is filled anew.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.vacant = NONE;
        self.free = FreeIndex::new();
        self.best = NONE;
        self.turnover += 1;
    }

    /// Returns the free block that contains all of these bytes.
    pub(super) fn free_with(&self, start: u64, bytes: u64) -> Option<u32> {
        let has =
            |block: &BlockNode| block.start <= start && start.checked_add(bytes).is_some_and(|end| end <= block.end());
        self.at_least(bytes).into_iter().find(|&id| has(&self.all[id as usize]))
    }

    /// Returns the smallest free block of at least this size that has room, the lowest of equals.
    pub(super) fn smallest(&self, size: u64, has_room: impl Fn(&BlockNode) -> bool) -> Option<u32> {
        let all = self.at_least(size).into_iter().filter(|&id| has_room(&self.all[id as usize]));
        all.min_by_key(|&id| (self.all[id as usize].size(), self.all[id as usize].start))
    }

    /// Returns a free block with room for `bytes` at a multiple of 64 KiB, among the few that are compared.
    pub(super) fn find_aligned(&self, bytes: u64) -> Option<u32> {
        let fits = |id: u32| {
            let block = self.get(id)?;
            (block.start.next_multiple_of(SMALL_MAX) + bytes <= block.end()).then_some(id)
        };
        let exact = self.find(bytes);
        fits(exact).or_else(|| fits(self.find(bytes + SMALL_MAX)))
    }

    /// Returns the free block to cut a request of this size from: the lowest for one of less than [`LOWEST_BELOW`], so
    /// that pages further up become free as a whole; the one with the least left over for a larger one.
    #[inline]
    pub(super) fn place_for(&self, size: u64) -> u32 {
        if size < LOWEST_BELOW { self.free.find_lowest(&self.all, size) } else { self.find(size) }
    }

    /// Returns whether the block that was freed last, once joined, is where a request of its size would go.
    #[inline]
    pub(super) fn is_best(&self, block: &BlockNode) -> bool {
        let free = |id: u32| self.get(id).filter(|other| other.state() == BlockState::Free);
        if free(block.previous).is_some() {
            return false;
        }
        let best = self.place_for(block.size());
        if block.size() < LOWEST_BELOW {
            return self.get(best).is_none_or(|best| best.start > block.start);
        }
        let joined = block.size() + free(block.next).map_or(0, BlockNode::size);
        best == block.next || self.get(best).is_none_or(|best| best.size() >= joined)
    }

    /// Cuts `size` bytes at `start` out of a free block; the parts before and after stay free.
    #[inline]
    pub(super) fn cut(&mut self, id: u32, start: u64, size: u64) -> Option<u32> {
        let whole = self.all[id as usize].clone();
        let (before, after) = (start - whole.start, whole.end() - (start + size));
        // Numbers are taken first, so that running out of them changes nothing.
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
        self.free.remove(&mut self.all, id);
        let block = &mut self.all[id as usize];
        block.start = start;
        block.set_size(size);
        if before > 0 {
            self.insert_beside(spare[0], BlockNode::free(whole.start, before), whole.previous, id);
        }
        if after > 0 {
            self.insert_beside(spare[1], BlockNode::free(start + size, after), id, whole.next);
        }
        Some(id)
    }

    /// Inserts a free block between two neighbours, or at the edge of a span.
    #[inline]
    fn insert_beside(&mut self, id: u32, mut block: BlockNode, previous: u32, next: u32) {
        block.previous = previous;
        block.next = next;
        self.set_next(previous, id);
        self.set_previous(next, id);
        self.all[id as usize] = block;
        self.free.insert(&mut self.all, id);
        self.best = NONE;
    }

    /// Sets what follows a block, or what a span begins with.
    #[inline]
    pub(super) fn set_next(&mut self, id: u32, next: u32) {
        match self.all.get_mut(id as usize) {
            Some(block) => block.next = next,
            None => self.spans.get_mut(id & !EDGE).first = next,
        }
    }

    /// Sets what precedes a block, or what a span ends with.
    #[inline]
    pub(super) fn set_previous(&mut self, id: u32, previous: u32) {
        match self.all.get_mut(id as usize) {
            Some(block) => block.previous = previous,
            None => self.spans.get_mut(id & !EDGE).last = previous,
        }
    }

    #[inline]
    fn new_number(&mut self) -> Option<u32> {
        if let Some(next) = self.get(self.vacant).map(BlockNode::number) {
            return Some(std::mem::replace(&mut self.vacant, next));
        }
        let id = u32::try_from(self.all.len()).ok().filter(|&id| id < BLOCKS_MAX)?;
        if self.all.len() == self.all.capacity() {
            // Grows by a quarter rather than by half, since there is a number for each live block.
            self.all.reserve_exact(self.all.len() / 4 + 64);
        }
        self.all.push(BlockNode::free(0, 0));
        Some(id)
    }

    #[inline]
    fn drop_number(&mut self, id: u32) {
        let vacant = std::mem::replace(&mut self.vacant, id);
        let block = &mut self.all[id as usize];
        block.set_state(BlockState::Vacant);
        block.set_number(vacant);
    }

    /// Frees a block and joins it with its free neighbours. Returns the bytes of the joined block.
    #[inline]
    pub(super) fn join(&mut self, id: u32) -> u64 {
        self.turnover += 1;
        let mut block = self.all[id as usize].clone();
        let mut keep = id;
        if let Some(next) = self.get(block.next).filter(|next| next.state() == BlockState::Free) {
            let (gone, size, beyond) = (block.next, next.size(), next.next);
            self.free.remove(&mut self.all, gone);
            self.drop_number(gone);
            block.set_size(block.size() + size);
            block.next = beyond;
            self.set_previous(block.next, keep);
        }
        if let Some(previous) = self.get(block.previous).filter(|other| other.state() == BlockState::Free) {
            let (kept, start, size, before) = (block.previous, previous.start, previous.size(), previous.previous);
            self.free.remove(&mut self.all, kept);
            self.drop_number(keep);
            block.start = start;
            block.set_size(block.size() + size);
            block.previous = before;
            keep = kept;
            self.set_previous(block.next, keep);
        }
        block.set_state(BlockState::Free);
        let size = block.size();
        self.all[keep as usize] = block;
        self.free.insert(&mut self.all, keep);
        self.best = NONE;
        size
    }

    /// Adds memory as a block to be joined by [`BlockMap::join`]; with `joins` its span joins the adjacent ones. None
    /// if numbers run out.
    pub(super) fn add(&mut self, start: u64, size: u64, joins: bool) -> Option<u32> {
        let id = self.new_number()?;
        let end = start + size;
        // Memory handed out whole is not joined.
        let left = self.spans.ending_at(start).filter(|_| joins);
        let right = self.spans.starting_at(end).filter(|_| joins);
        let (previous, next) = match (left, right) {
            (None, None) => {
                let edge = EDGE | self.spans.add(Span { start, end, first: id, last: id });
                (edge, edge)
            }
            (Some(left), None) => {
                self.spans.get_mut(left).end = end;
                (self.spans.get(left).last, EDGE | left)
            }
            (None, Some(right)) => {
                self.spans.set_start(right, start);
                (EDGE | right, self.spans.get(right).first)
            }
            (Some(left), Some(right)) => {
                let gone = self.spans.get(right);
                self.spans.remove(right);
                let left_span = self.spans.get_mut(left);
                left_span.end = gone.end;
                let previous = std::mem::replace(&mut left_span.last, gone.last);
                self.set_next(gone.last, EDGE | left);
                (previous, gone.first)
            }
        };
        self.insert_beside(id, BlockNode::free(start, size), previous, next);
        self.free.remove(&mut self.all, id);
        Some(id)
    }

    /// Cuts `start..end` out of a free block and splits its span there. Returns the number of the free block after it.
    pub(super) fn cut_out(&mut self, id: u32, start: u64, end: u64) -> u32 {
        let Some(number) = self.spans.with(start) else { return NONE };
        let whole = self.all[id as usize].clone();
        let old = self.spans.get(number);
        self.free.remove(&mut self.all, id);
        // The part before keeps the span, if there is one.
        let mut span = Some(number);
        let mut unused = Some(id);
        if start > old.start {
            span = None;
            let before = self.spans.get_mut(number);
            (before.end, before.last) = (start, whole.previous);
            if start > whole.start {
                unused = None;
                self.insert_beside(
                    id,
                    BlockNode::free(whole.start, start - whole.start),
                    whole.previous,
                    EDGE | number,
                );
            } else {
                self.set_next(whole.previous, EDGE | number);
            }
        }
        let mut rest = NONE;
        if end < old.end {
            let after = Span { start: end, end: old.end, first: whole.next, last: old.last };
            if let Some(number) = span.take() {
                self.spans.remove(number);
            }
            let number = self.spans.add(after);
            let edge = EDGE | number;
            let next = if whole.next & EDGE == 0 { whole.next } else { edge };
            if next != edge {
                self.set_next(old.last, edge);
                self.set_previous(next, edge);
            }
            if end < whole.end() {
                match unused.take().or_else(|| self.new_number()) {
                    Some(id) => {
                        self.insert_beside(id, BlockNode::free(end, whole.end() - end), edge, next);
                        rest = id;
                    }
                    // Numbers run out at eight million blocks: the rest of the block is lost.
                    None => self.spans.set_start(number, whole.end()),
                }
            }
        }
        if let Some(number) = span {
            self.spans.remove(number);
        }
        if let Some(id) = unused {
            self.drop_number(id);
        }
        rest
    }
}

/// A heap's memory without a gap: a span, and its first and last block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Span {
    pub(super) fn blocks(self, all: &[BlockNode]) -> impl Iterator<Item = &BlockNode> {
        // The last block's next number is a span's, which no block has.
        successors(all.get(self.first as usize), |block| all.get(block.next as usize))
    }
}

/// The spans of a heap, by number and by address.
#[derive(Debug, Default)]
pub(super) struct Spans {
    spans: Vec<Span>,
    vacant: Vec<u32>,
    by_start: BTreeMap<u64, u32>,
}

impl Spans {
    pub(super) fn add(&mut self, span: Span) -> u32 {
        let number = self.vacant.pop().unwrap_or(self.spans.len() as u32);
        self.by_start.insert(span.start, number);
        match self.spans.get_mut(number as usize) {
            Some(vacant) => *vacant = span,
            None => self.spans.push(span),
        }
        number
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.by_start.remove(&self.spans[number as usize].start);
        self.vacant.push(number);
    }

    pub(super) fn get(&self, number: u32) -> Span {
        self.spans[number as usize]
    }

    pub(super) fn set_start(&mut self, number: u32, start: u64) {
        let span = &mut self.spans[number as usize];
        self.by_start.remove(&span.start);
        span.start = start;
        self.by_start.insert(start, number);
    }

    /// Returns a span to change, but for where it starts, by which it is found.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Span {
        &mut self.spans[number as usize]
    }

    pub(super) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Returns every span with its number, by address.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Span)> {
        self.by_start.values().map(|&number| (number, self.get(number)))
    }

    fn before(&self, offset: u64) -> Option<u32> {
        self.by_start.range(..offset).next_back().map(|(_, &number)| number)
    }

    pub(super) fn ending_at(&self, end: u64) -> Option<u32> {
        self.before(end).filter(|&number| self.get(number).end == end)
    }

    pub(super) fn starting_at(&self, start: u64) -> Option<u32> {
        self.by_start.get(&start).copied()
    }

    pub(super) fn with(&self, offset: u64) -> Option<u32> {
        self.before(offset + 1).filter(|&number| offset < self.get(number).end)
    }
}

//! A heap as snapshots show it: every span, block by block.

use std::ops::Range;

use super::Heap;
use super::block::{BlockState, EDGE};
use crate::memory::device::{PageEntry, Pages, Run, Slab};
use crate::memory::tuning::{ALIGNMENT, PAGE};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct HeapBlock {
    pub(in crate::memory) start: u64,
    pub(in crate::memory) size: u64,
    pub(in crate::memory) requested: u64,
    pub(in crate::memory) is_live: bool,
    /// Whether it was freed and waits for streams; it is live then, too.
    pub(in crate::memory) is_waiting: bool,
    /// Whether it is a slot of a slab, or free in one.
    pub(in crate::memory) is_small: bool,
}

impl Heap {
    /// Returns the block that a caller holds at the offset, and the gapless memory around it.
    pub(in crate::memory) fn live_block(&self, pages: &'static Pages, offset: u64) -> Option<(HeapBlock, Range<u64>)> {
        let (block, borrowed) = match pages.entry(offset) {
            PageEntry::Block(id) => {
                let block = self.map.get(id)?;
                (HeapBlock::large(block.start, block.size(), block.requested(), false), None)
            }
            PageEntry::Slot(slab, _) => {
                let (start, size, requested, _) = slab.live_slots().find(|(start, ..)| *start == offset)?;
                let bytes = slab.class().slab_bytes();
                (
                    HeapBlock::slot(start, size, requested, false),
                    slab.borrower().map(|_| slab.start()..slab.start() + bytes),
                )
            }
            PageEntry::Freed(_) | PageEntry::Nothing => return None,
        };
        let span = || self.map.spans.with(offset).map(|number| self.map.spans.get(number));
        Some((block, borrowed.or_else(|| span().map(|span| span.start..span.end))?))
    }

    /// Returns the number and bytes of free blocks beside held ones, in slabs and elsewhere. Whole free pages do not
    /// count, since they can move; a slab's free slots count as one.
    pub(in crate::memory) fn free_beside_held(&self, pages: &'static Pages) -> [(u64, u64); 2] {
        let (mut large, mut whole) = ((0, 0), 0);
        for id in self.map.at_least(ALIGNMENT) {
            let block = &self.map.all[id as usize];
            let is_span = block.previous & EDGE != 0 && block.next & EDGE != 0;
            let in_pages = match pages.mapping(block.start) {
                _ if is_span => block.size(),
                Some(_) => Run::between(block.start, block.end()).map_or(0, Run::bytes),
                None => 0,
            };
            whole += in_pages;
            let beside = block.size() - in_pages;
            large = (large.0 + u64::from(beside > 0), large.1 + beside);
        }
        let slabs = self.slabs.open.iter().flatten().filter(|slab| slab.unused_bytes() > 0);
        [(slabs.count() as u64, self.unused() - whole - large.1), large]
    }

    /// Returns the bytes of the largest free block, and of all whole free pages.
    pub(in crate::memory) fn free_bytes(&self) -> (u64, u64) {
        let largest = self.map.at_least(ALIGNMENT).into_iter().map(|id| self.map.all[id as usize].size());
        let pages = self.map.at_least(PAGE).into_iter().filter_map(|id| {
            let block = &self.map.all[id as usize];
            Run::between(block.start, block.end())
        });
        (largest.max().unwrap_or(0), pages.map(Run::bytes).sum())
    }

    /// Returns every span with its blocks, by address, then each borrowed slab. Lent slabs are missing in the spans:
    /// they are in the heap that borrowed them.
    pub(in crate::memory) fn views(&self, pages: &'static Pages) -> Vec<Vec<HeapBlock>> {
        let mut spans = Vec::new();
        for (_, of_span) in self.map.spans.iter() {
            let mut span = Vec::new();
            for block in of_span.blocks(&self.map.all) {
                match block.state() {
                    BlockState::Live if self.is_lender => match pages.entry(block.start) {
                        PageEntry::Freed(_) => span.push(HeapBlock::gap(block.start, block.end())),
                        _ => spans.push(std::mem::take(&mut span)),
                    },
                    BlockState::Slab => {
                        push_slots(&mut span, block.start, block.end(), pages.slabs.get(block.number()));
                    }
                    BlockState::Live => {
                        let is_waiting = matches!(pages.entry(block.start), PageEntry::Freed(_));
                        span.push(HeapBlock::large(block.start, block.size(), block.requested(), is_waiting));
                    }
                    BlockState::Free | BlockState::Vacant => {
                        span.push(HeapBlock::gap(block.start, block.end()));
                    }
                }
            }
            spans.push(span);
        }
        for &slab in &self.slabs.borrowed {
            let mut span = Vec::new();
            push_slots(&mut span, slab.start(), slab.start() + slab.class().slab_bytes(), Some(slab));
            spans.push(span);
        }
        spans
    }
}

impl HeapBlock {
    const fn large(start: u64, size: u64, requested: u64, is_waiting: bool) -> Self {
        Self { start, size, requested, is_live: true, is_waiting, is_small: false }
    }

    const fn slot(start: u64, size: u64, requested: u64, is_waiting: bool) -> Self {
        Self { is_small: true, ..Self::large(start, size, requested, is_waiting) }
    }

    /// Bytes that no caller holds.
    const fn gap(start: u64, end: u64) -> Self {
        Self { start, size: end - start, requested: 0, is_live: false, is_waiting: false, is_small: false }
    }

    const fn gap_in_slab(start: u64, end: u64) -> Self {
        Self { is_small: true, ..Self::gap(start, end) }
    }
}

/// Adds the slots of a slab, and the gaps between held ones.
fn push_slots(span: &mut Vec<HeapBlock>, mut at: u64, end: u64, slab: Option<&Slab>) {
    for (start, size, requested, is_waiting) in slab.into_iter().flat_map(Slab::live_slots) {
        if start > at {
            span.push(HeapBlock::gap_in_slab(at, start));
        }
        span.push(HeapBlock::slot(start, size, requested, is_waiting));
        at = start + size;
    }
    if end > at {
        span.push(HeapBlock::gap_in_slab(at, end));
    }
}

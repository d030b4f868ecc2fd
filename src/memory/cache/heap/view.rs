//! A heap as a snapshot sees it: every span, block by block.

use super::Heap;
use super::block::{Block, BlockState};
use crate::memory::device::Slab;
use crate::memory::device::{Entry, Pages};

/// A block as a snapshot finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct HeapBlock {
    pub(in crate::memory) start: u64,
    pub(in crate::memory) size: u64,
    pub(in crate::memory) requested: u64,
    pub(in crate::memory) is_live: bool,
    /// Whether it was freed and waits for streams; then it is live too.
    pub(in crate::memory) is_waiting: bool,
}

impl Heap {
    /// Returns every span with its blocks, by address.
    pub(in crate::memory) fn views(&self, pages: &'static Pages) -> Vec<Vec<HeapBlock>> {
        let mut firsts: Vec<_> = self.spans.iter().map(|(_, span)| (span.start, span.first)).collect();
        firsts.sort_unstable();
        let mut spans = Vec::new();
        for (_, mut id) in firsts {
            let mut span = Vec::new();
            while let Some(block) = self.blocks.get(id as usize) {
                match block.state {
                    BlockState::Slab => push_slots(&mut span, block, pages.slabs.get(block.number())),
                    state => span.push(HeapBlock {
                        start: block.start,
                        size: block.size(),
                        requested: if state == BlockState::Live { block.requested() } else { 0 },
                        is_live: state == BlockState::Live,
                        is_waiting: matches!(pages.entry(block.start), Entry::Freed(_)),
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
fn push_slots(span: &mut Vec<HeapBlock>, block: &Block, slab: Option<&Slab>) {
    let mut at = block.start;
    let gap =
        |start: u64, end: u64| HeapBlock { start, size: end - start, requested: 0, is_live: false, is_waiting: false };
    for (start, size, requested, is_waiting) in slab.into_iter().flat_map(Slab::live_slots) {
        if start > at {
            span.push(gap(at, start));
        }
        span.push(HeapBlock { start, size, requested, is_live: true, is_waiting });
        at = start + size;
    }
    if block.end() > at {
        span.push(gap(at, block.end()));
    }
}

//! A heap as somebody sees it who wants to know where everything is.

use super::Heap;
use super::block::{Block, State};
use crate::memory::device::pages::{Entry, Pages};
use crate::memory::device::slab::Slab;

/// A block as the snapshot shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct BlockView {
    pub(in crate::memory) start: u64,
    pub(in crate::memory) size: u64,
    pub(in crate::memory) requested: u64,
    pub(in crate::memory) is_live: bool,
    /// Whether it was freed and waits for streams; then it is live too.
    pub(in crate::memory) is_waiting: bool,
}

impl Heap {
    /// Every span with its blocks, by address.
    pub(in crate::memory) fn views(&self, pages: &'static Pages) -> Vec<Vec<BlockView>> {
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
fn push_slots(span: &mut Vec<BlockView>, block: &Block, slab: Option<&Slab>) {
    let mut at = block.start;
    let gap =
        |start: u64, end: u64| BlockView { start, size: end - start, requested: 0, is_live: false, is_waiting: false };
    for (start, size, requested, is_waiting) in slab.into_iter().flat_map(Slab::live_slots) {
        if start > at {
            span.push(gap(at, start));
        }
        span.push(BlockView { start, size, requested, is_live: true, is_waiting });
        at = start + size;
    }
    if block.end() > at {
        span.push(gap(at, block.end()));
    }
}

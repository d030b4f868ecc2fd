//! Rebuilds a heap with blocks at given places, to restore a checkpoint of a pool for graphs. A checkpoint lists live
//! blocks and slabs. To restore it, all blocks are removed and made again within the heap's present spans, which
//! contain those of the checkpoint.

use super::Heap;
use super::block::{BlockNode, BlockState, EDGE};
use super::counts::{LARGE, SMALL};
use crate::memory::device::{BLOCKS_MAX, PageEntry, Pages, SizeClass, Slab};
use crate::memory::tuning::{ALIGNMENT, PAGE};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::memory) enum LivePiece {
    /// A block: its start, size and requested bytes.
    Block { start: u64, size: u64, requested: u64 },
    /// A slab with live slots: the place and the requested bytes of each.
    Slab { start: u64, class: SizeClass, slots: Vec<(usize, u32)> },
}

impl LivePiece {
    pub(in crate::memory) fn start(&self) -> u64 {
        match self {
            Self::Block { start, .. } | Self::Slab { start, .. } => *start,
        }
    }

    fn end(&self) -> u64 {
        match self {
            Self::Block { start, size, .. } => start + size,
            Self::Slab { start, class, .. } => start + class.slab_bytes(),
        }
    }

    /// Returns the start and the requested bytes of each block that callers hold.
    pub(in crate::memory) fn blocks(&self) -> Vec<(u64, u64)> {
        match self {
            Self::Block { start, requested, .. } => vec![(*start, *requested)],
            Self::Slab { start, class, slots } => {
                let offset = |slot: usize| start + slot as u64 * u64::from(class.bytes());
                slots.iter().map(|&(slot, requested)| (offset(slot), requested.into())).collect()
            }
        }
    }
}

/// Why a heap cannot have these pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum Misfit {
    /// The heap no longer has the memory at this offset.
    Gone(u64),
    /// There are more blocks or slabs than numbers.
    TooMany,
}

/// What is prepared before a restoration begins, so that it cannot fail half-way.
#[derive(Debug)]
pub(in crate::memory) struct Restoration {
    /// By address.
    pieces: Vec<LivePiece>,
    /// One for each slab among them.
    slabs: Vec<&'static Slab>,
}

impl Restoration {
    /// Gives back what was prepared.
    pub(in crate::memory) fn give_up(self, pages: &'static Pages) {
        self.slabs.into_iter().for_each(|slab| pages.slabs.release(slab));
    }
}

impl Heap {
    /// Returns what is live, by address, including blocks that wait for streams.
    pub(in crate::memory) fn pieces(&self, pages: &'static Pages) -> Vec<LivePiece> {
        let piece = |block: &BlockNode| match block.state() {
            BlockState::Live => {
                Some(LivePiece::Block { start: block.start, size: block.size(), requested: block.requested() })
            }
            BlockState::Slab => pages.slabs.get(block.number()).and_then(piece_of),
            BlockState::Free | BlockState::Vacant => None,
        };
        self.map.blocks().filter_map(piece).collect()
    }

    /// Returns whether a freed block still waits for streams.
    pub(in crate::memory) fn has_waiting(&self, pages: &'static Pages) -> bool {
        self.pieces(pages).iter().any(|piece| match piece {
            LivePiece::Block { start, .. } => matches!(pages.entry(*start), PageEntry::Freed(_)),
            LivePiece::Slab { start, slots, .. } => match pages.entry(*start) {
                PageEntry::Slot(slab, _) => slots.iter().any(|&(slot, _)| !slab.is_live(slot)),
                _ => false,
            },
        })
    }

    /// Prepares to make exactly these pieces live, which are ordered by address.
    pub(in crate::memory) fn prepare(
        &self,
        pages: &'static Pages,
        pieces: Vec<LivePiece>,
    ) -> Result<Restoration, Misfit> {
        // Blocks are needed for each piece, a gap before each, and one at the end of each span.
        if 2 * pieces.len() + self.map.spans.count() >= BLOCKS_MAX as usize {
            return Err(Misfit::TooMany);
        }
        let has_room = |piece: &&LivePiece| {
            self.map.spans.with(piece.start()).is_some_and(|number| piece.end() <= self.map.spans.get(number).end)
        };
        if let Some(piece) = pieces.iter().find(|piece| !has_room(piece)) {
            return Err(Misfit::Gone(piece.start()));
        }
        let mut restoration = Restoration { pieces, slabs: Vec::new() };
        let wanted = restoration.pieces.iter().filter(|piece| matches!(piece, LivePiece::Slab { .. })).count();
        for _ in 0..wanted {
            let Some(slab) = pages.slabs.acquire() else {
                restoration.give_up(pages);
                return Err(Misfit::TooMany);
            };
            restoration.slabs.push(slab);
        }
        Ok(restoration)
    }

    /// Frees everything and makes the prepared pieces live.
    pub(in crate::memory) fn restore(&mut self, pages: &'static Pages, restoration: Restoration) {
        self.free_all(pages);
        let mut slabs = restoration.slabs.into_iter();
        let mut pieces = restoration.pieces.into_iter().peekable();
        let spans: Vec<_> = self.map.spans.iter().collect();
        for (number, span) in spans {
            let edge = EDGE | number;
            let mut builder = SpanBuilder { at: span.start, last: edge };
            while let Some(piece) = pieces.next_if(|piece| piece.end() <= span.end) {
                builder.add_gap(self, piece.start());
                let id = builder.add(self, piece.end());
                match piece {
                    LivePiece::Block { start, size, requested } => {
                        self.hand_out(pages, id, start, size, requested);
                    }
                    LivePiece::Slab { start, class, slots } => {
                        let Some(slab) = slabs.next() else { continue };
                        slab.reset(start, class, id);
                        for (slot, requested) in slots {
                            slab.take_at(slot, requested);
                            self.count_allocation(SMALL, class.bytes().into(), requested.into());
                        }
                        self.add_slab(pages, slab);
                    }
                }
            }
            builder.add_gap(self, span.end);
            self.map.set_next(builder.last, edge);
            self.map.set_previous(edge, builder.last);
        }
        self.publish_live();
        if self.published.from <= PAGE && self.has_free_page() {
            self.publish_pages();
        }
    }

    /// Frees every block and forgets that memory was cut.
    fn free_all(&mut self, pages: &'static Pages) {
        for block in self.map.blocks() {
            match block.state() {
                BlockState::Live => {
                    pages.clear(block.start);
                    self.counts.free(LARGE, block.size(), block.requested());
                }
                BlockState::Slab => {
                    pages.set_slab(block.start, block.size(), None);
                    if let Some(slab) = pages.slabs.get(block.number()) {
                        for (_, size, requested, _) in slab.live_slots() {
                            self.counts.free(SMALL, size, requested);
                        }
                        pages.slabs.release(slab);
                    }
                    self.counts.remove_slabs(block.size());
                }
                BlockState::Free | BlockState::Vacant => {}
            }
        }
        self.map.clear();
        self.slabs.open.iter_mut().for_each(Vec::clear);
    }
}

/// Returns the live slots of a slab, if it has any.
fn piece_of(slab: &Slab) -> Option<LivePiece> {
    let slots: Vec<_> = slab
        .live_slots()
        .filter_map(|(offset, _, requested, _)| Some((slab.slot_at(offset)?, requested as u32)))
        .collect();
    (!slots.is_empty()).then(|| LivePiece::Slab { start: slab.start(), class: slab.class(), slots })
}

/// Builds the blocks of a span in a row.
struct SpanBuilder {
    /// Where the next block starts.
    at: u64,
    /// The last block, or the edge that the span begins with.
    last: u32,
}

impl SpanBuilder {
    /// Adds a block from the current offset to `end`.
    fn add(&mut self, heap: &mut Heap, end: u64) -> u32 {
        let mut block = BlockNode::free(self.at, end - self.at);
        block.previous = self.last;
        self.last = heap.map.push(block);
        self.at = end;
        self.last
    }

    /// Adds a free block up to `end`, if there is room.
    fn add_gap(&mut self, heap: &mut Heap, end: u64) {
        debug_assert!(end.is_multiple_of(ALIGNMENT));
        if end > self.at {
            let id = self.add(heap, end);
            heap.map.list_free(id);
        }
    }
}

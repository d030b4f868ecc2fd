//! Memory that enters and leaves a heap: spans, and the mappings in them.

use std::iter;
use std::ops::Range;

use super::block::{BlockNode, BlockState, EDGE, NONE};
use super::block_map::Span;
use super::{Cut, Heap};
use crate::memory::device::{Mapping, Pages, Run};
use crate::memory::tuning::PAGE;

/// Which wholly free mappings are taken out of a heap.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) enum Portion<'a> {
    /// Some in a row, out of the smallest free block with so many bytes: all that the block has if that is no more than `most`.
    Row { bytes: u64, most: u64 },
    /// So many bytes, or, as mappings go whole, at most `slack` more; or all there are. The block that ends at `kept` stays.
    Bytes { wanted: u64, slack: u64, kept: Option<u64> },
    /// Up to so many of exactly so many pages each.
    Each { most: u32, pages: u32 },
    /// Those that start at these places.
    At(&'a [u64]),
}

/// Returns the mappings that a block has part in, in their order, and none for each page without one, as of a reserve.
fn mappings_of(pages: &'static Pages, block: &BlockNode) -> impl Iterator<Item = Option<Mapping>> + use<> {
    let (mut at, end) = (block.start.next_multiple_of(PAGE), block.end());
    iter::from_fn(move || {
        let mapping = (at < end).then(|| pages.mapping(at))?;
        at = mapping.map_or(at + PAGE, |mapping| mapping.end());
        Some(mapping)
    })
}

fn is_within(mapping: &Mapping, block: &BlockNode) -> bool {
    mapping.start() >= block.start && mapping.end() <= block.end()
}

impl Heap {
    /// Returns the end of each span whose last block is free and has at least so many bytes, with that block's bytes.
    /// Memory added there joins it.
    pub(in crate::memory) fn tails(&self, least: u64) -> impl Iterator<Item = (u64, u64)> {
        // Memory handed out whole is not joined.
        let free = if self.serving.cut == Cut::ToSize { self.map.at_least(least) } else { Vec::new() };
        let tail = |block: &BlockNode| (block.next & EDGE != 0).then(|| (block.end(), block.size()));
        free.into_iter().filter_map(move |id| tail(&self.map.all[id as usize]))
    }

    pub(in crate::memory) fn ends_at(&self, end: u64) -> bool {
        self.map.spans.ending_at(end).is_some()
    }

    pub(in crate::memory) fn spans_below(&self, limit: u64) -> Vec<Run> {
        let spans = self.map.spans.iter().filter(|(_, span)| span.start < limit);
        spans.filter_map(|(_, span)| Run::between(span.start, span.end)).collect()
    }

    /// Adds free memory and joins it with its free neighbours. False if the heap has ended or is asleep, or blocks
    /// run out.
    #[must_use]
    pub(in crate::memory) fn add_span(&mut self, start: u64, size: u64) -> bool {
        if !self.is_awake() {
            return false;
        }
        let Some(id) = self.map.add(start, size, self.serving.cut == Cut::ToSize) else { return false };
        self.join(id);
        self.mapped += size;
        true
    }

    /// Takes wholly free spans, from this offset on, out of the heap: start and bytes of each.
    pub(in crate::memory) fn take_free_spans(&mut self, pages: &'static Pages, from: u64) -> Vec<(u64, u64)> {
        let is_whole = |(_, span): (u32, Span)| {
            let block = self.map.get(span.first)?;
            let is_free = span.start >= from && block.state() == BlockState::Free && span.first == span.last;
            is_free.then_some((span.first, block.start, block.size()))
        };
        let whole: Vec<_> = self.map.spans.iter().filter_map(is_whole).collect();
        for &(id, start, size) in &whole {
            self.cut_out(pages, id, start, start + size);
        }
        self.publish_live();
        whole.into_iter().map(|(_, start, size)| (start, size)).collect()
    }

    /// Takes whole free pages between two offsets out of the heap.
    pub(in crate::memory) fn take_pages(&mut self, pages: &'static Pages, range: Range<u64>) -> Vec<Run> {
        let mut taken = Vec::new();
        for id in self.map.at_least(PAGE) {
            let block = &self.map.all[id as usize];
            if let Some(run) = Run::between(block.start.max(range.start), block.end().min(range.end)) {
                self.cut_out(pages, id, run.start(), run.end());
                taken.push(run);
            }
        }
        taken
    }

    /// Takes wholly free mappings out of the heap.
    pub(in crate::memory) fn take_mappings(&mut self, pages: &'static Pages, portion: Portion<'_>) -> Vec<Mapping> {
        let taken = match portion {
            Portion::Row { bytes, most } => self.smallest_row(pages, bytes, most),
            Portion::Bytes { wanted, slack, kept } => self.lowest(pages, wanted, slack, kept),
            Portion::Each { most, pages: each } => {
                let free = self.free_mappings(pages, u64::from(each) * PAGE, None);
                free.filter(|(_, mapping)| mapping.run.pages == each).take(most as usize).collect()
            }
            Portion::At(places) => {
                let free = |&at: &u64| {
                    let mapping = pages.mapping(at).filter(|mapping| mapping.start() == at)?;
                    Some((self.map.free_with(at, mapping.bytes())?, mapping))
                };
                places.iter().filter_map(free).collect()
            }
        };
        self.cut_out_mappings(pages, taken)
    }

    /// Returns mappings in a row of the smallest free block with enough, each with the block.
    fn smallest_row(&self, pages: &'static Pages, bytes: u64, most: u64) -> Vec<(u32, Mapping)> {
        let mut candidates = self.map.at_least(bytes);
        candidates.sort_unstable_by_key(|&id| self.map.all[id as usize].size());
        for id in candidates {
            let block = &self.map.all[id as usize];
            let in_a_row = mappings_of(pages, block).map_while(|mapping| mapping);
            let mut row: Vec<_> =
                in_a_row.filter(|mapping| is_within(mapping, block)).map(|mapping| (id, mapping)).collect();
            let first = row.first().map_or(0, |(_, mapping)| mapping.start());
            let bytes_to = |(_, mapping): &(u32, Mapping)| mapping.end() - first;
            let needed = row.partition_point(|one| bytes_to(one) < bytes) + 1;
            if needed > row.len() {
                continue;
            }
            if row.last().is_some_and(|last| bytes_to(last) > most) {
                row.truncate(needed);
            }
            return row;
        }
        Vec::new()
    }

    /// Returns the lowest free mappings, so that the rest stays together, each with its block.
    fn lowest(&self, pages: &'static Pages, wanted: u64, slack: u64, kept: Option<u64>) -> Vec<(u32, Mapping)> {
        let (mut left, mut taken, mut spare) = (wanted, Vec::new(), None::<(u32, Mapping)>);
        for (id, mapping) in self.free_mappings(pages, PAGE, kept) {
            if mapping.bytes() <= left {
                left -= mapping.bytes();
                taken.push((id, mapping));
            } else if left == 0 {
                break;
            } else if spare.is_none_or(|(_, spare)| mapping.run.pages < spare.run.pages) {
                spare = Some((id, mapping));
            }
        }
        let is_enough = |(_, spare): &(u32, Mapping)| left > 0 && spare.bytes() <= left.saturating_add(slack);
        taken.extend(spare.filter(is_enough));
        taken
    }

    /// Returns the wholly free mappings of the free blocks with at least so many bytes, the lowest first, each with its block;
    /// not those of the block that ends at `kept`.
    fn free_mappings(
        &self,
        pages: &'static Pages,
        least: u64,
        kept: Option<u64>,
    ) -> impl Iterator<Item = (u32, Mapping)> {
        let mut candidates = self.map.at_least(least);
        candidates.sort_unstable_by_key(|&id| self.map.all[id as usize].start);
        candidates.retain(|&id| kept != Some(self.map.all[id as usize].end()));
        candidates.into_iter().flat_map(move |id| {
            let block = &self.map.all[id as usize];
            mappings_of(pages, block)
                .flatten()
                .filter(|mapping| is_within(mapping, block))
                .map(move |mapping| (id, mapping))
        })
    }

    /// Cuts mappings out of the heap, each given with its free block.
    fn cut_out_mappings(&mut self, pages: &'static Pages, mut taken: Vec<(u32, Mapping)>) -> Vec<Mapping> {
        taken.sort_unstable_by_key(|(id, mapping)| (*id, mapping.run.first));
        // Mappings in a row are cut out together. The rest of their block after them gets a number of its own.
        let is_row = |(id, mapping): &(u32, Mapping), (of_next, next): &(u32, Mapping)| {
            id == of_next && mapping.end() == next.start()
        };
        let (mut of, mut left_of_it) = (NONE, NONE);
        for row in taken.chunk_by(is_row) {
            let id = if row[0].0 == of { left_of_it } else { row[0].0 };
            (of, left_of_it) = (row[0].0, self.cut_out(pages, id, row[0].1.start(), row[row.len() - 1].1.end()));
        }
        self.publish_live();
        taken.into_iter().map(|(_, mapping)| mapping).collect()
    }

    /// Cuts `start..end` out of a free block of the map and out of the heap.
    fn cut_out(&mut self, pages: &'static Pages, id: u32, start: u64, end: u64) -> u32 {
        self.mapped -= end - start;
        pages.set_cache(start, end, None);
        self.map.cut_out(id, start, end)
    }
}

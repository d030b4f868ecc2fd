//! Memory that enters and leaves a heap: spans, and the mappings in them.

use std::ops::Range;

use super::block::{BlockNode, BlockState, EDGE, NONE};
use super::span::Span;
use super::{Cut, Heap};
use crate::memory::device::{Mapping, Pages, Run};
use crate::memory::tuning::PAGE;

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

    /// Adds free memory and joins it with its free neighbours. False if the service has ended, the heap is asleep, or
    /// blocks run out.
    #[must_use]
    pub(in crate::memory) fn add_span(&mut self, start: u64, size: u64) -> bool {
        if self.service().is_none() {
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

    /// Takes mappings in a row out of the smallest free block with enough: at least so many bytes, and all of the
    /// block's if that is no more than `most`.
    pub(in crate::memory) fn take_row(&mut self, pages: &'static Pages, bytes: u64, most: u64) -> Vec<Mapping> {
        let mut candidates = self.map.at_least(bytes);
        candidates.sort_unstable_by_key(|&id| self.map.all[id as usize].size());
        for id in candidates {
            let block = &self.map.all[id as usize];
            let (start, end) = (block.start, block.end());
            let mut row: Vec<Mapping> = Vec::new();
            let mut at = start.next_multiple_of(PAGE);
            while at < end
                && let Some(mapping) = pages.mapping(at)
            {
                at = mapping.end();
                if mapping.start() >= start && at <= end {
                    row.push(mapping);
                }
            }
            let Some(first) = row.first().map(|mapping| mapping.start()) else { continue };
            let needed = row.partition_point(|mapping| mapping.end() - first < bytes) + 1;
            if needed > row.len() {
                continue;
            }
            if row[row.len() - 1].end() - first > most {
                row.truncate(needed);
            }
            let end = row[row.len() - 1].end();
            self.cut_out(pages, id, first, end);
            self.publish_live();
            return row;
        }
        Vec::new()
    }

    /// Takes wholly free mappings out of the heap: `wanted` bytes, at most `slack` more, or all there are. The block
    /// that ends at `kept` stays.
    pub(in crate::memory) fn take_mappings(
        &mut self,
        pages: &'static Pages,
        wanted: u64,
        slack: u64,
        kept: u64,
    ) -> Vec<Mapping> {
        let mut taken: Vec<(u32, Mapping)> = Vec::new();
        let mut spare: Vec<(u32, Mapping)> = Vec::new();
        let mut left = wanted;
        let mut candidates = self.map.at_least(PAGE);
        // The lowest first, so that the rest stays together.
        candidates.sort_unstable_by_key(|&id| self.map.all[id as usize].start);
        for id in candidates {
            let block = &self.map.all[id as usize];
            let mut at = if block.end() == kept { kept } else { block.start.next_multiple_of(PAGE) };
            while at < block.end() {
                let Some(mapping) = pages.mapping(at) else {
                    at += PAGE;
                    continue;
                };
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
            && let Some(smallest) = spare.into_iter().min_by_key(|(_, mapping)| mapping.run.pages)
            && smallest.1.bytes() <= left.saturating_add(slack)
        {
            taken.push(smallest);
        }
        self.cut_out_mappings(pages, taken)
    }

    /// Takes up to `most` wholly free mappings of exactly so many pages each out of the heap.
    pub(in crate::memory) fn take_mappings_of(&mut self, pages: &'static Pages, most: u32, each: u32) -> Vec<Mapping> {
        let mut taken = Vec::new();
        let mut candidates = self.map.at_least(u64::from(each) * PAGE);
        candidates.sort_unstable_by_key(|&id| self.map.all[id as usize].start);
        'enough: for id in candidates {
            let block = &self.map.all[id as usize];
            let mut at = block.start.next_multiple_of(PAGE);
            while at < block.end() {
                if taken.len() == most as usize {
                    break 'enough;
                }
                let Some(mapping) = pages.mapping(at) else {
                    at += PAGE;
                    continue;
                };
                if mapping.run.pages == each && mapping.start() >= block.start && mapping.end() <= block.end() {
                    taken.push((id, mapping));
                }
                at = mapping.end();
            }
        }
        self.cut_out_mappings(pages, taken)
    }

    /// Takes the wholly free mappings that start at these places out of the heap.
    pub(in crate::memory) fn take_mappings_at(&mut self, pages: &'static Pages, places: &[u64]) -> Vec<Mapping> {
        let free = |&at: &u64| {
            let mapping = pages.mapping(at).filter(|mapping| mapping.start() == at)?;
            Some((self.map.free_with(at, mapping.bytes())?, mapping))
        };
        let taken = places.iter().filter_map(free).collect();
        self.cut_out_mappings(pages, taken)
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

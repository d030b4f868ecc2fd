//! Spans: a heap's memory without a gap.

use std::collections::BTreeMap;
use std::iter::successors;

use super::block::BlockNode;

/// A span, and its first and last block.
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

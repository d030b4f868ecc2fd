//! Spans: where a heap's memory goes on without a gap.

use super::block::NONE;

/// One span, and the blocks at its ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) first: u32,
    pub(super) last: u32,
}

/// The spans of a heap, by number. Searched only where pages come and go.
#[derive(Debug, Default)]
pub(super) struct Spans {
    spans: Vec<Span>,
    vacant: Vec<u32>,
}

impl Spans {
    pub(super) fn add(&mut self, span: Span) -> u32 {
        match self.vacant.pop() {
            Some(number) => {
                self.spans[number as usize] = span;
                number
            }
            None => {
                self.spans.push(span);
                self.spans.len() as u32 - 1
            }
        }
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.spans[number as usize] = Span { start: 0, end: 0, first: NONE, last: NONE };
        self.vacant.push(number);
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Span {
        &mut self.spans[number as usize]
    }

    /// Returns every span, with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Span)> {
        (0..).zip(self.spans.iter().copied()).filter(|(_, span)| span.end > span.start)
    }

    pub(super) fn ending_at(&self, end: u64) -> Option<u32> {
        self.iter().find(|(_, span)| span.end == end).map(|(number, _)| number)
    }

    pub(super) fn starting_at(&self, start: u64) -> Option<u32> {
        self.iter().find(|(_, span)| span.start == start).map(|(number, _)| number)
    }

    pub(super) fn with(&self, offset: u64) -> Option<u32> {
        self.iter().find(|(_, span)| span.start <= offset && offset < span.end).map(|(number, _)| number)
    }
}

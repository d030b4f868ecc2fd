//! How much a heap moves: a request gets free pages moved rather than new ones created, as long as that is rare. For a
//! program with large blocks of random sizes the heap stops: most requests would move pages.

use super::Heap;
use crate::memory::tuning::MOVED_PARTS;

/// The bytes that were moved for a heap's requests.
#[derive(Debug, Default)]
pub(super) struct MovedBytes {
    /// Bytes moved beyond the allowed part of those handed out.
    beyond: u64,
    /// Bytes handed out at the last count.
    handed_out: u64,
    has_ended: bool,
}

impl Heap {
    /// Counts bytes that were moved here for a request.
    pub(in crate::memory) fn count_moved(&mut self, bytes: u64) {
        let handed_out = self.counts.handed_out();
        let since = handed_out - self.moves.handed_out;
        let beyond = self.moves.beyond.saturating_sub(since / MOVED_PARTS) + bytes;
        let has_ended = self.moves.has_ended || beyond > self.mapped;
        self.moves = MovedBytes { beyond, handed_out, has_ended };
    }

    /// Returns whether pages are moved to its requests even where new ones can be created: until the bytes moved beyond
    /// the allowed part reach the bytes that the heap has.
    pub(in crate::memory) fn moves_pages(&self) -> bool {
        !self.moves.has_ended
    }

    /// Allows moves again, since no new pages can be had or free ones were given back.
    pub(in crate::memory) fn move_again(&mut self) {
        self.moves = MovedBytes { handed_out: self.counts.handed_out(), ..MovedBytes::default() };
    }
}

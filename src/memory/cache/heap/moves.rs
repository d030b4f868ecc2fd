//! How much a heap moves: free pages are moved to a request rather than taken anew, as long as that is seldom. A program
//! with large blocks of random sizes would move most of what it asks for, again and again, and ends that here.

use super::Heap;
use crate::memory::tuning::MOVED_PARTS;

/// What was moved to a heap's requests.
#[derive(Debug, Default)]
pub(super) struct MovedBytes {
    /// Bytes that were moved beyond the part of those handed out that may be.
    beyond: u64,
    /// Bytes handed out when they were counted last.
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

    /// Returns whether pages are moved to its requests also where new ones can be had: until more was moved than may be, by as
    /// much as it has.
    pub(in crate::memory) fn moves_pages(&self) -> bool {
        !self.moves.has_ended
    }

    /// Has pages moved to its requests again, since no new ones can be had, or free ones were given back.
    pub(in crate::memory) fn move_again(&mut self) {
        self.moves = MovedBytes { handed_out: self.counts.handed_out(), ..MovedBytes::default() };
    }
}

//! Where a heap gets pages for a request that found no block. Until it has the most that it has needed at once, others' free
//! pages serve it where they are. From there on its own free pages are moved together first, and it takes what these lack:
//! so heaps have no more together than if none took from others. A heap for large blocks of random sizes, most of whose
//! requests would move pages, gets new ones instead; if others of its pool have pages, until it has what it has needed.

use super::Heap;
use crate::memory::pool::Pool;
use crate::memory::tuning::{MOVED_PARTS, PAGE};

/// What a heap has needed, and the bytes that were moved for its requests.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// The most bytes that were live together with a request that found no block, in whole pages.
    needed: u64,
    /// Bytes moved beyond the allowed part of those handed out.
    beyond: u64,
    /// Bytes handed out at the last count.
    handed_out: u64,
    has_ended: bool,
}

impl Heap {
    /// Notes that so many bytes more are needed than are live, and returns how many it lacks to have as much as it has needed
    /// at its most.
    pub(in crate::memory) fn note_need(&mut self, bytes: u64) -> u64 {
        let needed = self.counts.live() + bytes;
        self.moves.needed = self.moves.needed.max(needed.next_multiple_of(PAGE));
        self.lacking()
    }

    fn lacking(&self) -> u64 {
        self.moves.needed.saturating_sub(self.mapped)
    }

    /// Counts bytes that were moved here for a request.
    pub(in crate::memory) fn count_moved(&mut self, bytes: u64) {
        let handed_out = self.counts.handed_out();
        let since = handed_out - self.moves.handed_out;
        self.moves.beyond = self.moves.beyond.saturating_sub(since / MOVED_PARTS) + bytes;
        self.moves.handed_out = handed_out;
        self.moves.has_ended |= self.moves.beyond > self.mapped;
    }

    /// Returns whether pages are moved to a request of it even where new ones can be created: until the bytes moved beyond
    /// the allowed part reach the bytes that it has, and where others of its pool have pages while it has what it has needed.
    pub(in crate::memory) fn moves_pages(&self, pool: &Pool, bytes: u64) -> bool {
        let shares_pool = || pool.budget().reserved() > self.mapped;
        !self.moves.has_ended || (self.lacking() < self.needed_for(bytes) && shares_pool())
    }

    /// Allows moves again, since no new pages can be had or free ones were given back, and forgets what was needed before.
    pub(in crate::memory) fn move_again(&mut self) {
        let (needed, handed_out) = (self.counts.live().next_multiple_of(PAGE), self.counts.handed_out());
        self.moves = Moves { needed, handed_out, ..Moves::default() };
    }
}

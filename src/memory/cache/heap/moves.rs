//! Where a heap gets the pages for a request that found no block. Until it has the most that it has needed at once, others' free
//! pages serve it where they are. Free pages are moved to it, its own first, as long as those of others are rare; from then on it
//! gets new ones until it has what it has needed, and then what its own free pages lack. So heaps have no more together than if
//! none took from others. A heap that has moved its own again and again, as sizes are random, may have half more than it has
//! needed, and in the end twice as much, and gets new ones while it has less.

use super::Heap;
use crate::memory::pool::Pool;
use crate::memory::tuning::{MOVED_PARTS, PAGE, SPARED_PARTS};

/// What a heap has needed, and the bytes that were moved for its requests.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// The most bytes that were occupied together with a request that found no block, in whole pages.
    needed: u64,
    /// Bytes that it may have beyond those, before any are moved.
    spare: u64,
    /// Bytes moved beyond the allowed parts of those handed out.
    beyond: Moved,
    /// Bytes handed out at the last count.
    handed_out: u64,
    /// Whether others' pages are moved to it too often.
    are_frequent: bool,
}

/// Bytes of pages that are moved to a request: of its own heap, and of others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::memory) struct Moved {
    pub(in crate::memory) own: u64,
    pub(in crate::memory) others: u64,
}

/// What other heaps of a heap's pool have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum Company {
    /// They have no pages.
    Alone,
    /// They have fewer together than it has.
    WithFew,
    WithMany,
}

/// The free pages that are moved to a request before new ones are created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum MovedPages {
    None,
    /// Its own heap's.
    Own,
    /// Its own heap's, and then others'.
    All,
}

impl Heap {
    /// Notes that so many bytes more are needed than are occupied, and returns how many it lacks to have as much as it has
    /// needed at its most.
    pub(in crate::memory) fn note_need(&mut self, bytes: u64) -> u64 {
        if self.is_lender {
            // What it lends is the borrowers', and what it has free has no room for the next slab.
            return bytes;
        }
        self.set_needed(self.moves.needed.max(self.occupied(bytes)));
        self.lacking()
    }

    fn lacking(&self) -> u64 {
        self.moves.needed.saturating_sub(self.mapped - self.borrowed())
    }

    /// Returns the bytes of its pages that are occupied, and so many more, in whole pages.
    fn occupied(&self, more: u64) -> u64 {
        (self.counts.occupied() - self.borrowed() + more).next_multiple_of(PAGE)
    }

    pub(super) fn set_needed(&mut self, needed: u64) {
        let before = std::mem::replace(&mut self.moves.needed, needed);
        self.publish_needed(before, needed);
    }

    /// Returns what others have beside it, once it has so many bytes more.
    pub(in crate::memory) fn company(&self, pool: &Pool, bytes: u64) -> Company {
        // A pool has pages of ranges, of its reserve and on their way back, too, and heaps to which none are left.
        let others_have = pool.budget().reserved().saturating_sub(self.mapped);
        let others_need = pool.ledger.needed().saturating_sub(self.moves.needed);
        match others_have.min(others_need) {
            0 => Company::Alone,
            others if others < self.mapped + bytes => Company::WithFew,
            _ => Company::WithMany,
        }
    }

    /// Counts bytes that were moved here for a request. Its own are no matter while the pool does with much less than its heaps
    /// have needed, since streams take turns.
    pub(in crate::memory) fn count_moved(&mut self, pool: &Pool, moved: Moved) {
        let handed_out = self.counts.handed_out();
        let since = handed_out - std::mem::replace(&mut self.moves.handed_out, handed_out);
        let is_alone = self.company(pool, 0) == Company::Alone;
        let (parts, most) = if is_alone { (MOVED_PARTS, self.mapped) } else { (SPARED_PARTS, 2 * self.mapped) };
        let own = if is_alone || !spares_much(pool, 0) { moved.own } else { 0 };
        let beyond = &mut self.moves.beyond;
        beyond.own = beyond.own.saturating_sub(since / parts) + own;
        beyond.others = beyond.others.saturating_sub(since / MOVED_PARTS) + moved.others;
        self.moves.are_frequent |= beyond.others > self.mapped;
        if beyond.own > most {
            beyond.own = 0;
            self.moves.spare = (self.moves.spare + self.moves.needed / 2).min(self.moves.needed);
        }
    }

    /// Returns which free pages are moved to a request of it, even where new ones can be created.
    pub(in crate::memory) fn moved_pages(&self, pool: &Pool, bytes: u64) -> MovedPages {
        let needed = self.needed_for(bytes);
        let most = self.moves.needed + self.moves.spare;
        let gets_new = self.moves.are_frequent || self.moves.spare > 0;
        if gets_new && self.mapped - self.borrowed() + needed <= most {
            MovedPages::None
        } else if !self.moves.are_frequent || spares_much(pool, needed) {
            MovedPages::All
        } else {
            MovedPages::Own
        }
    }

    /// Allows moves again, since no new pages can be had or free ones were given back, and forgets what was needed before.
    pub(in crate::memory) fn move_again(&mut self) {
        self.set_needed(self.moves.needed.min(self.occupied(0)));
        self.moves = Moves { needed: self.moves.needed, handed_out: self.counts.handed_out(), ..Moves::default() };
    }
}

/// Returns whether a pool, with so many bytes more, has much less than its heaps have needed.
fn spares_much(pool: &Pool, more: u64) -> bool {
    pool.budget().reserved() + more <= pool.ledger.needed() / SPARED_PARTS * (SPARED_PARTS - 1)
}

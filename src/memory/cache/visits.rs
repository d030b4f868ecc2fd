//! Visits of a cache by other threads of its stream, which look for a free block there before they grow their own.
//!
//! A program whose threads take turns on a stream, as PyTorch's forward and backward passes do, needs no more memory than
//! one thread would: each finds the other's cache at rest. Such threads free each other's blocks, so that is what visits
//! are allowed by; threads that keep to their own blocks stay apart, whether they run at once or are switched by the
//! system. A visit of a thread at work costs a barrier and some locks, and soon becomes rare.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How many visits a block allows that another thread than its own has freed: of one for many the threads still take
/// turns, as where a backward pass computes much of the forward one again.
const VISITS_PER_BLOCK: u32 = 256;
/// The most visits that are allowed at a time. Once a thread that has passed its blocks on stays away, those that go on
/// have its pages moved to their own caches, which are quicker.
const VISITS_MOST: u32 = 1 << 14;
/// How many are allowed from the start, before any block was freed: more than the large blocks that a backward pass takes
/// before it frees one.
const VISITS_FIRST: u32 = 64;
/// A visitor that allocated so often since its last visit may have done so while the owner was away.
const TURN: u64 = 64;
/// From so many on, in a row, a clash means that the owner is at work: there is one whenever threads take turns.
const CLASHES_AT_WORK: u32 = 2;
/// After so many in a row 62 requests pass by before the next one, so that barriers cost far less than growth.
const CLASHES_MOST: u32 = 6;

/// The visits of one cache. Two visitors at once may lose a count.
#[derive(Debug, Default)]
pub(super) struct Visits {
    /// How many are allowed.
    allowed: AtomicU32,
    /// How many of the last ones found that the owner had been there since one shortly before: clashes.
    clashes: AtomicU32,
    /// How often the last visitor had allocated from its own cache.
    allocations: AtomicU64,
    /// How many requests pass by before one that may clash.
    to_skip: AtomicU32,
    /// Whether the last request found an owner that takes turns.
    takes_turns: AtomicBool,
}

impl Visits {
    /// Allows more visits for so many of the owner's blocks that others have freed.
    pub(super) fn allow_for(&self, blocks: u32) {
        let allowed = self.allowed.load(Ordering::Relaxed);
        let more = blocks.saturating_mul(VISITS_PER_BLOCK);
        self.allowed.store(allowed.saturating_add(more).min(VISITS_MOST), Ordering::Relaxed);
    }

    /// Uses one up that is allowed; false if there is none.
    pub(super) fn spend(&self) -> bool {
        let allowed = self.allowed.load(Ordering::Relaxed);
        self.allowed.store(allowed.saturating_sub(1), Ordering::Relaxed);
        allowed > 0
    }

    /// Returns whether a request may visit the cache, of a visitor that has allocated so often from its own; `is_as_left`
    /// says that the owner was not there since the last visit.
    pub(super) fn begin(&self, is_as_left: bool, allocations: u64) -> bool {
        let is_clash = !is_as_left && allocations.wrapping_sub(self.allocations.load(Ordering::Relaxed)) < TURN;
        let to_skip = self.to_skip.load(Ordering::Relaxed);
        if is_clash && to_skip > 0 {
            self.to_skip.store(to_skip - 1, Ordering::Relaxed);
            return false;
        }
        let clashes = if is_clash { (self.clashes.load(Ordering::Relaxed) + 1).min(CLASHES_MOST) } else { 0 };
        self.allocations.store(allocations, Ordering::Relaxed);
        self.clashes.store(clashes, Ordering::Relaxed);
        self.to_skip.store((1_u32 << clashes).saturating_sub(2), Ordering::Relaxed);
        self.takes_turns.store(clashes < CLASHES_AT_WORK, Ordering::Relaxed);
        true
    }

    /// Returns whether the last visit found an owner that takes turns.
    pub(super) fn takes_turns(&self) -> bool {
        self.takes_turns.load(Ordering::Relaxed)
    }

    /// Begins anew, for a cache that is to serve another stream.
    pub(super) fn reset(&self) {
        self.allowed.store(VISITS_FIRST, Ordering::Relaxed);
        self.clashes.store(0, Ordering::Relaxed);
        self.to_skip.store(0, Ordering::Relaxed);
        self.takes_turns.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_at_work_is_visited_ever_less_until_it_rests() {
        let visits = Visits::default();
        assert!(!visits.takes_turns());
        assert!(visits.begin(false, 0));
        assert!(visits.takes_turns());
        assert_eq!((0..1000).filter(|_| visits.begin(false, 0)).count(), 19);
        assert!(!visits.takes_turns());
        assert!((1000..1100).all(|request| visits.begin(true, request)));
        assert!(visits.takes_turns());
        assert!(visits.begin(false, 1100));
    }

    #[test]
    fn an_owner_that_was_there_between_two_turns_takes_turns() {
        let visits = Visits::default();
        assert!((0..100).all(|turn| visits.begin(false, turn * TURN) && visits.takes_turns()));
    }

    #[test]
    fn visits_are_allowed_by_blocks_that_others_free() {
        let visits = Visits::default();
        assert!(!visits.spend());
        visits.allow_for(2);
        assert_eq!((0..1000).filter(|_| visits.spend()).count(), 512);
        visits.allow_for(u32::MAX);
        visits.reset();
        assert_eq!((0..1000).filter(|_| visits.spend()).count(), 64);
    }
}

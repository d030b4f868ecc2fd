//! The use of a block by other processes: it is used again only once all of them have let go.

use crate::sync::{AtomicU64, Ordering};

/// Set once the block is freed here.
const FREED: u64 = 0x8000_0000_0000_0000;

/// The use of one block by other processes. Without a lock, since freed blocks are checked under their cache's lock.
#[derive(Debug, Default)]
pub(in crate::memory) struct Sharing {
    /// The holders, and whether the block was freed.
    state: AtomicU64,
    /// The number under which the block is shared; 0 before that.
    number: AtomicU64,
}

impl Sharing {
    /// Adds a holder; false if the block was freed.
    pub(in crate::memory) fn hold(&self) -> bool {
        let more = |state: u64| (state & FREED == 0).then_some(state + 1);
        // Sequentially consistent: a pool that falls asleep marks itself so and then looks for holders; a holder does
        // both in the other order.
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// As [`Sharing::hold`], for a process that got the block from a holder: also if it was freed, while there is a holder.
    pub(in crate::memory) fn hold_again(&self) -> bool {
        let more = |state: u64| (state & !FREED > 0).then_some(state + 1);
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    pub(in crate::memory) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub(in crate::memory) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Removes a holder, whose last work with the block is done.
    pub(in crate::memory) fn let_go(&self) {
        let fewer = |state: u64| (state & !FREED > 0).then(|| state - 1);
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
    }

    /// Allows no new holder, since the block was freed.
    pub(in crate::memory) fn end(&self) {
        self.state.fetch_or(FREED, Ordering::SeqCst);
    }

    pub(in crate::memory) fn holders(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & !FREED
    }

    pub(in crate::memory) fn is_freed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & FREED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::Sharing;

    #[test]
    fn a_freed_block_gets_no_new_holder_and_is_there_until_the_last_lets_go() {
        let sharing = Sharing::default();
        assert!(sharing.hold() && sharing.hold());
        sharing.end();
        assert!(!sharing.hold());
        assert!(sharing.hold_again());
        sharing.let_go();
        assert!((sharing.holders(), sharing.is_freed()) == (2, true));
        sharing.let_go();
        sharing.let_go();
        // One too many changes nothing.
        sharing.let_go();
        assert!((sharing.holders(), sharing.is_freed()) == (0, true));
        assert!(!sharing.hold_again());
    }
}

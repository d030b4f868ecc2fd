//! Whether other processes use a block: it is used again only once all of them have let go.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set once the block is freed here.
const FREED: u64 = 1 << 63;
/// Set once a process has let go that keeps the block mapped.
const MAPPED: u64 = 1 << 62;
const HOLDERS: u64 = MAPPED - 1;

/// Told the number of a block that is freed and let go by all, and that a process has kept mapped. It calls no driver.
static GONE: OnceLock<fn(u64)> = OnceLock::new();

/// Sets who is told of blocks that are gone.
pub(in crate::memory) fn on_gone(tell: fn(u64)) {
    let _ = GONE.set(tell);
}

/// The use of one block by other processes. Without a lock, for a freed block is asked about under its cache's.
#[derive(Debug, Default)]
pub(in crate::memory) struct Sharing {
    /// The holders, whether the block was freed, and whether any process has kept it mapped.
    state: AtomicU64,
    /// The number under which the block is shared; 0 before it is.
    number: AtomicU64,
}

impl Sharing {
    /// Adds a holder; false if the block was freed.
    pub(in crate::memory) fn hold(&self) -> bool {
        let more = |state: u64| (state & FREED == 0).then_some(state + 1);
        // Sequentially consistent, as a pool that falls asleep asks for holders after it says that it does, and who holds
        // asks for that after.
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// As [`Sharing::hold`] for one who was sent the block by a holder: also where it was freed, as long as there is one.
    pub(in crate::memory) fn hold_again(&self) -> bool {
        let more = |state: u64| (state & HOLDERS > 0).then_some(state + 1);
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    pub(in crate::memory) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub(in crate::memory) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Takes a holder away, whose last work with the block is done.
    pub(in crate::memory) fn let_go(&self) {
        let fewer = |state: u64| (state & HOLDERS > 0).then(|| state - 1);
        if self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer) == Ok(FREED | MAPPED | 1) {
            self.tell_gone();
        }
    }

    /// Notes that a holder, which is about to let go, keeps the block mapped.
    pub(in crate::memory) fn stay_mapped(&self) {
        self.state.fetch_or(MAPPED, Ordering::SeqCst);
    }

    #[cold]
    fn tell_gone(&self) {
        if let Some(tell) = GONE.get() {
            tell(self.number());
        }
    }

    /// Allows no new holder, for the block was freed.
    pub(in crate::memory) fn end(&self) {
        if self.state.fetch_or(FREED, Ordering::SeqCst) == MAPPED {
            self.tell_gone();
        }
    }

    /// Returns how many holders there are.
    pub(in crate::memory) fn holders(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & HOLDERS
    }

    pub(in crate::memory) fn is_freed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & FREED != 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::{Sharing, on_gone};
    use crate::sync::lock;

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

    static TOLD: Mutex<Vec<u64>> = Mutex::new(Vec::new());

    #[test]
    fn a_block_that_stays_mapped_is_told_of_once_it_is_freed_and_let_go_by_all() {
        on_gone(|number| lock(&TOLD).push(number));
        let [kept, held, plain] = [7, 8, 9].map(|number| {
            let sharing = Sharing::default();
            sharing.set_number(number);
            assert!(sharing.hold());
            sharing
        });
        kept.stay_mapped();
        kept.let_go();
        assert!(lock(&TOLD).is_empty() && kept.hold());
        kept.let_go();
        kept.end();
        kept.end();
        assert_eq!(*lock(&TOLD), [7]);
        held.stay_mapped();
        assert!(held.hold());
        held.let_go();
        held.end();
        assert_eq!((lock(&TOLD).len(), held.holders()), (1, 1));
        held.let_go();
        held.let_go();
        plain.let_go();
        plain.end();
        assert_eq!(*lock(&TOLD), [7, 8]);
    }
}

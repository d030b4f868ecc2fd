//! Whether a pool was offered to other processes: it may be put to sleep when one of them has no memory. It is not while
//! a thread has a scope of it, or copies or commits what is the pool's, since that may be about to use what it holds.

use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// A pool's offer. Set once, when the pool is made.
#[derive(Debug, Default)]
pub(in crate::memory) struct Offer {
    pub(in crate::memory) is_made: bool,
    /// Whether the pool wakes by its next request, scope, copy or commit.
    pub(in crate::memory) wakes_on_use: bool,
    /// Whether it is taken up: the pool sleeps for another process, or is about to.
    is_taken: AtomicBool,
    /// The scopes of the pool, and the calls that use it.
    scopes: AtomicU32,
}

impl Offer {
    pub(super) fn new(is_made: bool, wakes_on_use: bool) -> Self {
        Self { is_made, wakes_on_use, ..Self::default() }
    }

    /// Notes a use, and returns whether the offer is taken up, which is then to be waited for. Sequentially consistent
    /// like [`Offer::take`]: either this sees that it is taken, or that one sees the use.
    pub(in crate::memory) fn begin_use(&self) -> bool {
        self.scopes.fetch_add(1, Ordering::SeqCst);
        self.is_taken()
    }

    pub(in crate::memory) fn end_use(&self) {
        self.scopes.fetch_sub(1, Ordering::SeqCst);
    }

    pub(in crate::memory) fn is_in_use(&self) -> bool {
        self.scopes.load(Ordering::SeqCst) > 0
    }

    /// Takes the offer up, unless the pool is in use.
    pub(in crate::memory) fn take(&self) -> bool {
        self.is_taken.store(true, Ordering::SeqCst);
        let is_free = !self.is_in_use();
        if !is_free {
            self.let_go();
        }
        is_free
    }

    pub(in crate::memory) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::SeqCst)
    }

    /// Ends what [`Offer::take`] began, since the pool is awake.
    pub(in crate::memory) fn let_go(&self) {
        self.is_taken.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_in_use_is_not_taken_and_one_that_is_taken_says_so() {
        let offer = Offer::new(true, false);
        assert!(!offer.begin_use() && offer.is_in_use());
        assert!(!offer.take() && !offer.is_taken());
        offer.end_use();
        assert!(offer.take() && offer.begin_use());
        offer.let_go();
        assert!(!offer.is_taken());
    }
}

//! Memory under way: taken out of one place by a thread, and not yet in another.
//!
//! No search finds it, so a request that finds nothing may not say that there is none: it waits for what was under way and
//! searches again. Who has memory in hand keeps a [`Moving`] as long.

use std::cell::Cell;

use crate::sync::{AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, lock, wait};

thread_local! {
    /// How many moves the calling thread has begun, on any device, and how many of those it is in.
    static OWN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// The moves of one device's memory.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    begun: AtomicU64,
    ended: AtomicU64,
    waiting: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

/// A thread has memory in hand as long as this lives.
#[derive(Debug)]
pub(crate) struct Moving<'a>(&'a UnderWay);

/// What was under way at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// By others, begun so far.
    begun: u64,
    is_quiet: bool,
}

impl UnderWay {
    /// Begins a move.
    pub(crate) fn begin(&self) -> Moving<'_> {
        let (begun, active) = OWN.get();
        OWN.set((begun + 1, active + 1));
        self.begun.fetch_add(1, Ordering::SeqCst);
        Moving(self)
    }

    fn are_left(&self, begun: u64) -> bool {
        self.ended.load(Ordering::SeqCst) < begun
    }

    /// Waits until all moves have ended that other threads have begun by now; none where the calling thread is itself in one,
    /// as what others are in may wait for that.
    pub(crate) fn wait(&self) -> Option<Moment> {
        let (own, active) = OWN.get();
        if active > 0 {
            return None;
        }
        let begun = self.begun.load(Ordering::SeqCst);
        if self.are_left(begun) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let mut guard = lock(&self.lock);
            while self.are_left(begun) {
                guard = wait(&self.changed, &self.lock, guard);
            }
            drop(guard);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        let begun = self.begun.load(Ordering::SeqCst);
        // Ended moves are read last: none that is on is taken for ended.
        Some(Moment { begun: begun.wrapping_sub(own), is_quiet: !self.are_left(begun) })
    }

    /// Returns whether nothing has been under way in other threads since a moment.
    pub(crate) fn was_quiet_since(&self, moment: Moment) -> bool {
        moment.is_quiet && self.begun.load(Ordering::SeqCst).wrapping_sub(OWN.get().0) == moment.begun
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let (begun, active) = OWN.get();
        OWN.set((begun, active - 1));
        self.0.ended.fetch_add(1, Ordering::SeqCst);
        if self.0.waiting.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.0.lock));
            self.0.changed.notify_all();
        }
    }
}

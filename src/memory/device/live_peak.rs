//! How much is live at most, and the most that it ever was, as heaps tell it.
//!
//! A heap tells of more than is live in it before a caller has the block, and of less after the free: so what is counted
//! is never less than what callers hold. While there is one heap, its own count is exact, and it need not tell of less.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// A sum of what heaps tell, and its peak.
#[derive(Debug, Default)]
pub(in crate::memory) struct LivePeak {
    now: AtomicU64,
    peak: AtomicU64,
    /// How many heaps have begun to tell.
    heaps: AtomicU64,
    /// Whether the first ones know that they are several.
    is_known: AtomicBool,
}

impl LivePeak {
    /// Begins with another heap.
    pub(in crate::memory) fn begin_heap(&self) {
        self.heaps.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether several heaps tell, or did.
    pub(in crate::memory) fn is_of_several(&self) -> bool {
        self.heaps.load(Ordering::Relaxed) > 1
    }

    /// Returns whether several heaps tell and it is the caller who has to have each tell anew: once.
    pub(in crate::memory) fn begins_to_be_of_several(&self) -> bool {
        self.is_of_several() && !self.is_known.swap(true, Ordering::Relaxed)
    }

    /// Counts a change in one heap. Returns whether another thread counted one at the same time.
    pub(in crate::memory) fn change(&self, before: u64, now: u64) -> bool {
        let change = now.wrapping_sub(before);
        let seen = self.now.load(Ordering::Relaxed);
        let sum = seen.wrapping_add(change);
        let counted = self.now.compare_exchange(seen, sum, Ordering::Relaxed, Ordering::Relaxed);
        let sum = counted.map_or_else(|_| self.now.fetch_add(change, Ordering::Relaxed).wrapping_add(change), |_| sum);
        if sum > self.peak() {
            self.peak.fetch_max(sum, Ordering::Relaxed);
        }
        counted.is_err()
    }

    /// Returns the most that was counted at once.
    pub(in crate::memory) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Starts the peak anew.
    pub(in crate::memory) fn reset(&self) {
        self.peak.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

//! The sum of the live bytes that heaps publish, and its peak. A heap publishes a rise before a caller has the block,
//! and a fall after the free: so the sum is never less than what callers hold. A single heap's own count is exact, so
//! it need not publish falls.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// The sum of what heaps publish, and its peak.
#[derive(Debug, Default)]
pub(in crate::memory) struct LivePeak {
    now: AtomicU64,
    peak: AtomicU64,
    /// How many heaps publish or did.
    heaps: AtomicU64,
    /// Whether the first ones know that they are several.
    is_known: AtomicBool,
}

impl LivePeak {
    pub(in crate::memory) fn begin_heap(&self) {
        self.heaps.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether several heaps publish, or did.
    pub(in crate::memory) fn is_of_several(&self) -> bool {
        self.heaps.load(Ordering::Relaxed) > 1
    }

    /// Returns, to one caller only, whether there are now several heaps, so that it has each publish anew.
    pub(in crate::memory) fn begins_to_be_of_several(&self) -> bool {
        self.is_of_several() && !self.is_known.swap(true, Ordering::Relaxed)
    }

    /// Adds a change in one heap. Returns whether another thread added one at the same time.
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

    pub(in crate::memory) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub(in crate::memory) fn reset(&self) {
        self.peak.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

//! How much is live at most, and the most that it ever was, as caches tell it.
//!
//! A cache tells of more than is live in it before a caller has the block, and of less now and then: so what is counted
//! is never less than what callers hold.

use crate::sync::{AtomicU64, Ordering};

/// A sum of what caches tell, and its peak.
#[derive(Debug, Default)]
pub(in crate::memory) struct LivePeak {
    now: AtomicU64,
    peak: AtomicU64,
}

impl LivePeak {
    /// Counts a change in one cache.
    pub(in crate::memory) fn change(&self, before: u64, now: u64) {
        let change = now.wrapping_sub(before);
        let sum = self.now.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        self.peak.fetch_max(sum, Ordering::Relaxed);
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

//! Pages that go to and fro between the streams of a pool.
//!
//! A stream that lacks pages takes those that are free on another. Where the other soon needs them back, and so on,
//! each time costs driver calls, and the program would be quicker with pages for both. So a cache counts the pages that
//! it lost and took back; once those are many, for the memory that it has and for what it allocated meanwhile, it takes
//! new ones. Streams that only ever take, as those of a program with a stream for each piece of work, are not
//! concerned.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often a page is taken back before a new one is worth its memory. With 2, CuPy's 200 requests on four streams
/// (`benches/results/h200-frameworks/run.txt`) take new pages after a while, and no recorded trace ever does.
const ROUNDS: u64 = 2;

/// The pages that one cache lost to others and took back.
#[derive(Debug, Default)]
pub(in crate::memory) struct PageTraffic {
    /// Pages that others took, and that were not taken back.
    lost: AtomicU64,
    /// Pages that were taken back, less those that new pages have paid for.
    returned: AtomicU64,
    /// The allocations that the cache had made before the first of them.
    allocations: AtomicU64,
}

impl PageTraffic {
    /// Another cache has taken pages.
    pub(in crate::memory) fn lose(&self, pages: u64) {
        self.lost.fetch_add(pages, Ordering::Relaxed);
    }

    /// Pages were taken from another cache, after so many allocations.
    pub(in crate::memory) fn take(&self, pages: u64, allocations: u64) {
        let lost = subtract(&self.lost, pages);
        if self.returned.fetch_add(lost, Ordering::Relaxed) == 0 {
            self.allocations.store(allocations, Ordering::Relaxed);
        }
    }

    /// New pages were created.
    pub(in crate::memory) fn create(&self, pages: u64) {
        subtract(&self.returned, ROUNDS * pages);
    }

    /// Returns whether new pages are worth their memory for a cache that will have so many, after so many allocations.
    pub(in crate::memory) fn is_worth_new_pages(&self, pages: u64, allocations: u64) -> bool {
        let returned = self.returned.load(Ordering::Relaxed);
        returned > ROUNDS * pages && returned > allocations.saturating_sub(self.allocations.load(Ordering::Relaxed))
    }

    /// Forgets what was counted, for a cache that is to serve another stream.
    pub(in crate::memory) fn reset(&self) {
        self.lost.store(0, Ordering::Relaxed);
        self.returned.store(0, Ordering::Relaxed);
    }
}

/// Takes so much off a count, or what there is, and returns how much that was.
fn subtract(count: &AtomicU64, amount: u64) -> u64 {
    let less = |count: u64| Some(count.saturating_sub(amount));
    let before = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default();
    before.min(amount)
}

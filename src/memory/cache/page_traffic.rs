//! Pages that are moved again and again.
//!
//! A stream that lacks pages in a row has its own free ones moved together, and takes those that are free on others. Where
//! that goes on, each time costs driver calls, and the program would be quicker with some pages more. So a cache counts the
//! pages that were moved within it, and those that it lost to others and took back; once they are many, for the memory that
//! it has and for what it allocated meanwhile, it takes new ones. Streams that only ever take, as those of a program with a
//! stream for each piece of work, are not concerned.

use crate::sync::{AtomicU64, Ordering};

/// So many new pages a moved one pays for. Until a cache has moved a twelfth of what it has, it takes none. With an eighth
/// RMM's random allocations of up to 64 MiB move pages in four rounds of a thousand, with a twelfth in two; with a sixteenth
/// a recorded trace peaks at 1.015 of what is live instead of 1.010.
const MOVES_PER_PAGE: (u64, u64) = (1, 12);
/// The most allocations for each page moved: fewer moves than these cost little, and no recorded trace has more for long.
const ALLOCATIONS: u64 = 6;

/// The pages of one cache that were moved.
#[derive(Debug, Default)]
pub(in crate::memory) struct PageTraffic {
    /// Pages that others took, and that were not taken back.
    lost: AtomicU64,
    /// Pages that were moved within the cache or taken back, less those that new pages have paid for.
    moved: AtomicU64,
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
        self.shift(subtract(&self.lost, pages), allocations);
    }

    /// Pages were moved within the cache, after so many allocations. Where few were moved before, for all that was allocated
    /// since, the count begins anew: what is moved now is not less for that.
    pub(in crate::memory) fn shift(&self, pages: u64, allocations: u64) {
        let moved = self.moved.load(Ordering::Relaxed);
        if moved == 0 || !self.are_many(moved, allocations) {
            self.moved.store(pages, Ordering::Relaxed);
            self.allocations.store(allocations, Ordering::Relaxed);
        } else {
            self.moved.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// Returns whether so many moved pages are many for what was allocated meanwhile.
    fn are_many(&self, moved: u64, allocations: u64) -> bool {
        moved * ALLOCATIONS > allocations.saturating_sub(self.allocations.load(Ordering::Relaxed))
    }

    /// New pages were created.
    pub(in crate::memory) fn create(&self, pages: u64) {
        subtract(&self.moved, MOVES_PER_PAGE.0 * pages / MOVES_PER_PAGE.1);
    }

    /// Returns whether new pages are worth their memory for a cache that will have so many, after so many allocations.
    pub(in crate::memory) fn is_worth_new_pages(&self, pages: u64, allocations: u64) -> bool {
        let moved = self.moved.load(Ordering::Relaxed);
        moved * MOVES_PER_PAGE.1 > MOVES_PER_PAGE.0 * pages && self.are_many(moved, allocations)
    }

    /// Forgets what was counted, for a cache that is to serve another stream.
    pub(in crate::memory) fn reset(&self) {
        self.lost.store(0, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
    }
}

/// Takes so much off a count, or what there is, and returns how much that was.
fn subtract(count: &AtomicU64, amount: u64) -> u64 {
    let less = |count: u64| Some(count.saturating_sub(amount));
    let before = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default();
    before.min(amount)
}

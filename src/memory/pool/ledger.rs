//! What a pool's caches tell of themselves, so that a look at all of them need not lock each: how much is live, and which
//! may have free pages.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Mutex;

use crate::memory::device::{DeviceMemory, LivePeak};
use crate::sync::lock;

/// What the caches of one pool tell.
#[derive(Debug)]
pub(in crate::memory) struct Ledger {
    memory: &'static DeviceMemory,
    pub(in crate::memory) live: LivePeak,
    with_pages: Mutex<WithPages>,
}

/// The numbers of caches that may have free pages.
#[derive(Debug, Default)]
struct WithPages {
    caches: BTreeSet<u32>,
    /// The one that was returned last, where not all were.
    last: u32,
}

impl Ledger {
    pub(super) fn new(memory: &'static DeviceMemory) -> Self {
        Self { memory, live: LivePeak::default(), with_pages: Mutex::default() }
    }

    /// Begins with another heap, which has told nothing yet.
    pub(in crate::memory) fn begin_heap(&self) {
        self.memory.live.begin_heap();
    }

    /// Returns whether several heaps of the device tell what is live, or did.
    pub(in crate::memory) fn is_of_several(&self) -> bool {
        self.memory.live.is_of_several()
    }

    /// Counts a change of what is live at most in one heap, for the pool and the device. Returns whether another thread
    /// counted one at the same time.
    pub(in crate::memory) fn change_live(&self, before: u64, now: u64) -> bool {
        self.live.change(before, now);
        self.memory.live.change(before, now)
    }

    /// Notes that a cache may have free pages.
    pub(in crate::memory) fn add_with_pages(&self, cache: u32) {
        lock(&self.with_pages).caches.insert(cache);
    }

    /// Notes that a cache has no free pages; returns whether it may have had some.
    pub(in crate::memory) fn remove_with_pages(&self, cache: u32) -> bool {
        lock(&self.with_pages).caches.remove(&cache)
    }

    /// Returns the numbers of caches that may have free pages: all of them in order, or `most`, beginning after those
    /// that were returned last.
    pub(in crate::memory) fn with_pages(&self, most: usize) -> Vec<u32> {
        let mut with_pages = lock(&self.with_pages);
        if with_pages.caches.len() <= most {
            return with_pages.caches.iter().copied().collect();
        }
        let last = with_pages.last;
        let after = with_pages.caches.range((Bound::Excluded(last), Bound::Unbounded));
        let next: Vec<_> = after.chain(with_pages.caches.range(..=last)).take(most).copied().collect();
        with_pages.last = next.last().copied().unwrap_or_default();
        next
    }
}

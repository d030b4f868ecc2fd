//! What a pool's caches publish, so that readers need not lock each of them: how much is live, and which may have free
//! pages.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Mutex;

use crate::memory::device::{DeviceMemory, LivePeak};
use crate::sync::{AtomicU64, Ordering, lock};

/// What the caches of one pool publish.
#[derive(Debug)]
pub(in crate::memory) struct Ledger {
    memory: &'static DeviceMemory,
    pub(in crate::memory) live: LivePeak,
    /// The sum of what the heaps have needed, each at its most.
    needed: AtomicU64,
    with_pages: Mutex<WithPages>,
}

/// The caches that may have free pages, by their births.
#[derive(Debug, Default)]
struct WithPages {
    caches: BTreeSet<u64>,
    /// The one returned last, if not all were.
    last: u64,
}

impl Ledger {
    pub(super) fn new(memory: &'static DeviceMemory) -> Self {
        Self { memory, live: LivePeak::default(), needed: AtomicU64::new(0), with_pages: Mutex::default() }
    }

    /// Adds a heap, which has published nothing yet.
    pub(in crate::memory) fn begin_heap(&self) {
        self.memory.live.begin_heap();
    }

    /// Returns whether several heaps of the device publish live bytes, or did.
    pub(in crate::memory) fn is_of_several(&self) -> bool {
        self.memory.live.is_of_several()
    }

    /// Adds a change of the live bytes of a heap to the sums of the pool and the device. Returns whether another thread
    /// added one at the same time.
    pub(in crate::memory) fn change_live(&self, before: u64, now: u64) -> bool {
        self.live.change(before, now);
        self.memory.live.change(before, now)
    }

    /// Changes what a heap has needed at its most.
    pub(in crate::memory) fn change_needed(&self, before: u64, now: u64) {
        // Wraps where it falls.
        self.needed.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Returns the bytes that the heaps would have together if each kept what it has needed at its most.
    pub(in crate::memory) fn needed(&self) -> u64 {
        self.needed.load(Ordering::Relaxed)
    }

    pub(in crate::memory) fn add_with_pages(&self, birth: u64) {
        lock(&self.with_pages).caches.insert(birth);
    }

    /// Notes that a cache has no free pages; returns whether it was listed.
    pub(in crate::memory) fn remove_with_pages(&self, birth: u64) -> bool {
        lock(&self.with_pages).caches.remove(&birth)
    }

    /// Returns the births of caches that may have free pages: all in order, or `most`, after those returned last.
    pub(in crate::memory) fn with_pages(&self, most: usize) -> Vec<u64> {
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

//! What was reported of a device's memory: counts that only grow, peaks that only looking finds, and what other processes gave
//! for this one and this one for them, which the module of neighbours counts, above this one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::memory::cache::heap::{Amounts, most};
use crate::memory::cache::stream_cache::ServingCache;
use crate::memory::device::Flow;
use crate::sync::{AtomicU64, Ordering, ThisThread, lock};

/// What was reported of a device's memory.
#[derive(Debug, Default)]
pub(in crate::memory) struct Reports {
    /// The most blocks, of all pools, ever reported as handed out and as come back.
    flows: Mutex<(Amounts, Amounts)>,
    /// Free blocks beside held ones, and their bytes, as far as found.
    free_beside_held: Mutex<[(Flow, Flow); 3]>,
}

impl Reports {
    /// Returns how many blocks to report as handed out and as come back. Neither falls, though a cache that changed its
    /// stream between two looks is missing in one of them.
    pub(in crate::memory) fn grow(&self, out: Amounts, back: Amounts) -> (Amounts, Amounts) {
        let mut reported = lock(&self.flows);
        *reported = (most(reported.0, out), most(reported.1, back));
        *reported
    }

    /// Looks for free blocks beside held ones, and returns those found so far: all, small ones, large ones.
    pub(in crate::memory) fn find_free_beside_held(
        &self,
        caches: Vec<Arc<ServingCache>>,
        thread: ThisThread,
    ) -> [(Flow, Flow); 3] {
        let mut found = [(0, 0); 3];
        for cache in caches {
            let [small, large] = cache.lock(thread).free_beside_held(&cache.memory.pages);
            for (sum, more) in found.iter_mut().zip([(small.0 + large.0, small.1 + large.1), small, large]) {
                *sum = (sum.0 + more.0, sum.1 + more.1);
            }
        }
        let mut known = lock(&self.free_beside_held);
        for (known, found) in known.iter_mut().zip(found) {
            known.0.find(found.0);
            known.1.find(found.1);
        }
        *known
    }

    /// Resets the peaks of free blocks beside held ones.
    pub(in crate::memory) fn reset_free_beside_held(&self) {
        for (blocks, bytes) in &mut *lock(&self.free_beside_held) {
            blocks.reset_peak();
            bytes.reset_peak();
        }
    }
}

/// The counts so far.
#[derive(Debug, Default)]
pub(in crate::memory) struct NeighbourCounts {
    asked: AtomicU64,
    received: AtomicU64,
    asking_ns: AtomicU64,
    asked_by: AtomicU64,
    given: AtomicU64,
}

impl NeighbourCounts {
    /// Counts that this process asked, what came, and how long it took.
    pub(in crate::memory) fn ask(&self, received: u64, took: Duration) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.received.fetch_add(received, Ordering::Relaxed);
        self.asking_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Counts that another process asked this one, and what it was given.
    pub(in crate::memory) fn give(&self, given: u64) {
        self.asked_by.fetch_add(1, Ordering::Relaxed);
        self.given.fetch_add(given, Ordering::Relaxed);
    }

    /// Returns how often this process asked, what came, and how long that took.
    pub(in crate::memory) fn of_asking(&self) -> (u64, u64, Duration) {
        let [asked, received, ns] =
            [&self.asked, &self.received, &self.asking_ns].map(|count| count.load(Ordering::Relaxed));
        (asked, received, Duration::from_nanos(ns))
    }

    /// Returns how often this process was asked, and what it gave.
    pub(in crate::memory) fn of_giving(&self) -> (u64, u64) {
        (self.asked_by.load(Ordering::Relaxed), self.given.load(Ordering::Relaxed))
    }
}

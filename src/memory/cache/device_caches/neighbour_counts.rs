//! Counts of what other processes gave for this one and this one gave for them, on one device. The module of neighbours,
//! which is above this one, counts; statistics read.

use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};

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

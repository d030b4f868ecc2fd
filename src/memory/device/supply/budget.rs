//! The bytes of physical memory that a pool or a device has reserved, and their limit. A request claims its bytes
//! before the driver is asked, so that requests together stay within the limit. Only what the driver gives counts as
//! reserved, so that a refused request leaves the peak as it was.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(in crate::memory) struct Budget {
    limit: AtomicU64,
    /// Reserved bytes, and those being asked for.
    claimed: AtomicU64,
    reserved: AtomicU64,
    peak: AtomicU64,
}

/// The pinned memory of the process, on all NUMA nodes of the host.
pub(in crate::memory) static PINNED: Budget = Budget::new();

impl Budget {
    pub(in crate::memory) const fn new() -> Self {
        Self {
            limit: AtomicU64::new(u64::MAX),
            claimed: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    pub(in crate::memory) fn limit(&self) -> Option<u64> {
        let limit = self.limit.load(Ordering::Relaxed);
        (limit != u64::MAX).then_some(limit)
    }

    pub(in crate::memory) fn set_limit(&self, limit: Option<u64>) {
        self.limit.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(in crate::memory) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Returns whether so many more bytes are within the limit.
    pub(in crate::memory) fn has_room_for(&self, bytes: u64) -> bool {
        self.limit().is_none_or(|limit| self.reserved().saturating_add(bytes) <= limit)
    }

    /// Returns whether a block of so many bytes can be within the limit, or within what was reserved before that was
    /// lowered.
    pub(in crate::memory) fn can_hold(&self, bytes: u64) -> bool {
        self.limit().is_none_or(|limit| bytes <= limit.max(self.reserved()))
    }

    pub(in crate::memory) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub(in crate::memory) fn reset_peak(&self) {
        self.peak.store(self.reserved(), Ordering::Relaxed);
    }

    pub(in crate::memory) fn release(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        self.claimed.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes of a budget that the driver is asked for, within the limit. Unless they are settled they are returned.
#[derive(Debug)]
pub(in crate::memory) struct BudgetClaim<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl<'a> BudgetClaim<'a> {
    /// Claims bytes; none if the limit forbids it.
    pub(in crate::memory) fn new(budget: &'a Budget, bytes: u64) -> Option<Self> {
        let limit = budget.limit.load(Ordering::Relaxed);
        let add = |claimed: u64| claimed.checked_add(bytes).filter(|&sum| sum <= limit);
        let claimed = budget.claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        claimed.is_ok().then(|| Self { budget, bytes })
    }

    /// Counts the bytes, which the driver gave, as reserved.
    pub(in crate::memory) fn settle(self) {
        let Self { budget, bytes } = *ManuallyDrop::new(self);
        let before = budget.reserved.fetch_add(bytes, Ordering::Relaxed);
        budget.peak.fetch_max(before + bytes, Ordering::Relaxed);
    }
}

impl Drop for BudgetClaim<'_> {
    fn drop(&mut self) {
        self.budget.claimed.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

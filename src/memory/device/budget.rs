//! What is counted of memory: the bytes that a pool or a device has reserved, and their limit; the pieces of physical memory
//! that come and go, and how long the calls for pinned ones take; the live bytes that heaps publish.

use std::mem::ManuallyDrop;
use std::sync::Mutex;
use std::time::Instant;

use crate::error::Result;
use crate::memory::tuning::PAGE;
use crate::sync::{AtomicBool, AtomicU64, Ordering, lock};

/// The bytes of physical memory that a pool or a device has reserved, and their limit. A request claims its bytes before the
/// driver is asked, so that requests together stay within the limit. Only what the driver gives counts as reserved, so that
/// a refused request leaves the peak as it was.
#[derive(Debug)]
pub(in crate::memory) struct Budget(Mutex<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    limit: Option<u64>,
    /// Reserved bytes, and those being asked for.
    claimed: u64,
    reserved: u64,
    peak: u64,
}

/// The pinned memory of the process, on all NUMA nodes of the host.
pub(in crate::memory) static PINNED: Budget = Budget::new();

impl Budget {
    pub(in crate::memory) const fn new() -> Self {
        Self(Mutex::new(BudgetState { limit: None, claimed: 0, reserved: 0, peak: 0 }))
    }

    pub(in crate::memory) fn limit(&self) -> Option<u64> {
        lock(&self.0).limit
    }

    pub(in crate::memory) fn set_limit(&self, limit: Option<u64>) {
        lock(&self.0).limit = limit.filter(|bytes| *bytes < u64::MAX);
    }

    pub(in crate::memory) fn reserved(&self) -> u64 {
        lock(&self.0).reserved
    }

    /// Returns whether so many more bytes are within the limit.
    pub(in crate::memory) fn has_room_for(&self, bytes: u64) -> bool {
        let state = lock(&self.0);
        state.limit.is_none_or(|limit| state.reserved.saturating_add(bytes) <= limit)
    }

    /// Returns whether a block of so many bytes can be within the limit, or within what was reserved before that was
    /// lowered.
    pub(in crate::memory) fn can_hold(&self, bytes: u64) -> bool {
        let state = lock(&self.0);
        state.limit.is_none_or(|limit| bytes <= limit.max(state.reserved))
    }

    pub(in crate::memory) fn peak(&self) -> u64 {
        lock(&self.0).peak
    }

    pub(in crate::memory) fn reset_peak(&self) {
        let mut state = lock(&self.0);
        state.peak = state.reserved;
    }

    pub(in crate::memory) fn release(&self, bytes: u64) {
        let mut state = lock(&self.0);
        state.reserved -= bytes;
        state.claimed -= bytes;
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
        let mut state = lock(&budget.0);
        state.claimed = state.claimed.checked_add(bytes).filter(|&sum| state.limit.is_none_or(|limit| sum <= limit))?;
        Some(Self { budget, bytes })
    }

    /// Counts the bytes, which the driver gave, as reserved.
    pub(in crate::memory) fn settle(self) {
        let Self { budget, bytes } = *ManuallyDrop::new(self);
        let mut state = lock(&budget.0);
        state.reserved += bytes;
        state.peak = state.peak.max(state.reserved);
    }
}

impl Drop for BudgetClaim<'_> {
    fn drop(&mut self) {
        lock(&self.budget.0).claimed -= self.bytes;
    }
}

/// What came, what went, and the most that there was at once.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::memory) struct Flow {
    pub(in crate::memory) came: u64,
    pub(in crate::memory) went: u64,
    pub(in crate::memory) peak: u64,
}

impl Flow {
    const fn come(&mut self, many: u64) {
        self.came += many;
        if self.now() > self.peak {
            self.peak = self.now();
        }
    }

    const fn go(&mut self, many: u64) {
        self.went += many;
    }

    /// Sets the present amount, for what is not counted as it comes and goes.
    pub(in crate::memory) const fn find(&mut self, now: u64) {
        self.go(self.now().saturating_sub(now));
        self.come(now.saturating_sub(self.now()));
    }

    pub(in crate::memory) const fn reset_peak(&mut self) {
        self.peak = self.now();
    }

    /// Returns the sum, as if both peaked at the same time.
    pub(in crate::memory) const fn plus(self, other: Self) -> Self {
        Self { came: self.came + other.came, went: self.went + other.went, peak: self.peak + other.peak }
    }

    /// Returns this without `part`: what leaves the part joins the rest.
    pub(in crate::memory) const fn without(self, part: Self) -> Self {
        Self { came: self.came + part.went, went: self.went + part.came, peak: self.peak }
    }

    pub(in crate::memory) const fn now(self) -> u64 {
        self.came.saturating_sub(self.went)
    }
}

/// The pieces of physical memory that the driver or a pool's source gives, and their bytes: all, those of one page, larger
/// ones. A piece of one page counts as small, as PyTorch's segments for small blocks do; here, any blocks may be in it,
/// since pages go where they are needed.
#[derive(Debug, Default)]
pub(in crate::memory) struct PieceCounters(Mutex<[[Flow; 2]; 3]>);

impl PieceCounters {
    fn count(&self, bytes: u64, count: fn(&mut Flow, u64)) {
        let mut kinds = lock(&self.0);
        for kind in [0, if bytes <= PAGE { 1 } else { 2 }] {
            let [of_pieces, of_bytes] = &mut kinds[kind];
            count(of_pieces, 1);
            count(of_bytes, bytes);
        }
    }

    pub(in crate::memory) fn come(&self, bytes: u64) {
        self.count(bytes, Flow::come);
    }

    pub(in crate::memory) fn go(&self, bytes: u64) {
        self.count(bytes, Flow::go);
    }

    /// Returns the numbers and bytes of all, of those of one page, and of larger ones.
    pub(in crate::memory) fn get(&self) -> [[Flow; 2]; 3] {
        *lock(&self.0)
    }

    /// Returns the bytes of all.
    pub(in crate::memory) fn bytes(&self) -> Flow {
        let [[_, bytes], ..] = self.get();
        bytes
    }

    pub(in crate::memory) fn reset_peaks(&self) {
        lock(&self.0).iter_mut().flatten().for_each(Flow::reset_peak);
    }
}

/// How long calls took that did what they should, in microseconds, as in PyTorch's statistics.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct CallTimes {
    pub(crate) total: u64,
    /// Since peaks were last reset, as is `least`; 0 for none.
    pub(crate) most: u64,
    pub(crate) least: u64,
    pub(crate) count: u64,
}

#[derive(Debug)]
pub(in crate::memory) struct Times(Mutex<CallTimes>);

/// Calls that made a piece of pinned memory.
pub(in crate::memory) static PINNED_MADE: Times = Times::new();
/// Calls that gave a piece back.
pub(in crate::memory) static PINNED_GONE: Times = Times::new();

impl Times {
    const fn new() -> Self {
        Self(Mutex::new(CallTimes { total: 0, most: 0, least: 0, count: 0 }))
    }

    /// Runs a call, and counts how long it took unless it fails.
    pub(in crate::memory) fn time<R>(&self, call: impl FnOnce() -> Result<R>) -> Result<R> {
        let began = Instant::now();
        let done = call()?;
        self.note(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
        Ok(done)
    }

    fn note(&self, micros: u64) {
        let mut durations = lock(&self.0);
        durations.least = if durations.most == 0 { micros } else { durations.least.min(micros) };
        durations.most = durations.most.max(micros);
        durations.total = durations.total.saturating_add(micros);
        durations.count += 1;
    }

    pub(in crate::memory) fn get(&self) -> CallTimes {
        *lock(&self.0)
    }

    /// Resets the most and the least.
    pub(in crate::memory) fn reset_peaks(&self) {
        let mut durations = lock(&self.0);
        durations.most = 0;
        durations.least = 0;
    }
}

/// The sum of the live bytes that heaps publish, and its peak. A heap publishes a rise before a caller has the block, and a
/// fall after the free: so the sum is never less than what callers hold. A single heap's own count is exact, so it need not
/// publish falls.
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
        let found = self.now.fetch_add(change, Ordering::Relaxed);
        let sum = found.wrapping_add(change);
        if sum > self.peak() {
            self.peak.fetch_max(sum, Ordering::Relaxed);
        }
        found != seen
    }

    pub(in crate::memory) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub(in crate::memory) fn reset(&self) {
        self.peak.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn the_most_and_the_least_begin_anew_and_the_sums_stay() {
        let times = Times::new();
        for micros in [30, 10, 20] {
            times.note(micros);
        }
        assert_eq!(times.get(), CallTimes { total: 60, most: 30, least: 10, count: 3 });
        times.reset_peaks();
        assert_eq!(times.get(), CallTimes { total: 60, most: 0, least: 0, count: 3 });
        times.note(15);
        assert_eq!(times.get(), CallTimes { total: 75, most: 15, least: 15, count: 4 });
    }

    #[test]
    fn what_failed_is_not_counted() {
        let times = Times::new();
        assert!(times.time(|| Err::<(), _>(Error::invalid_value("no"))).is_err());
        assert_eq!(times.get().count, 0);
        assert_eq!(times.time(|| Ok(7)).ok(), Some(7));
        assert_eq!(times.get().count, 1);
    }
}

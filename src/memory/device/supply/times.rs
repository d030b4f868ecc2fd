//! How long pinned memory takes to allocate and free, as in PyTorch's statistics.

use std::sync::Mutex;
use std::time::Instant;

use crate::error::Result;
use crate::sync::lock;

/// How long calls took that did what they should, in microseconds.
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

#[cfg(test)]
mod tests {
    use super::{CallTimes, Times};
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

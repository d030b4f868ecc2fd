//! Memory of a device that stands in several processes: what others still map of this one's, which the driver has not
//! back before they unmap it, and what this one keeps mapped of theirs without using it.
//!
//! The room of shared blocks counts; who gives memory back waits, which costs one load where nothing is shared.

mod regions;
mod signal;

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use log::Level;

use super::under_way::log_out;
use crate::ids::MemoryLocation;
use crate::memory::tuning::WAIT_ASLEEP;
use crate::sync::{AtomicU64, Ordering, lock};

pub(super) use regions::end_with;
pub(in crate::memory) use regions::{DescribedExtent, KeptMapping, Region, regions_ended};
pub(in crate::memory) use signal::{end_where_asked, wake, wakeup};

#[derive(Debug, Default)]
struct Counts {
    /// The mappings that other processes were asked to end.
    asked: u64,
    /// How many of them are not waited for any more: they took too long.
    given_up: u64,
}

/// The memory of one device that stands in several processes.
#[derive(Debug)]
pub(in crate::memory) struct Elsewhere {
    pub(in crate::memory) location: MemoryLocation,
    counts: Mutex<Counts>,
    /// How many mappings are waited for, to be read without the lock.
    awaited: AtomicU64,
    /// Told when mappings have ended.
    ended: Condvar,
    /// The mappings of other processes' blocks that this process keeps and does not use.
    pub(in crate::memory) idle: AtomicU64,
}

impl Elsewhere {
    pub(super) fn new(location: MemoryLocation) -> Self {
        let (counts, ended) = (Mutex::default(), Condvar::new());
        Self { location, counts, awaited: AtomicU64::new(0), ended, idle: AtomicU64::new(0) }
    }

    /// Notes that other processes were asked to end so many mappings.
    fn ask(&self, mappings: u64) {
        self.change(|counts| counts.asked += mappings);
    }

    /// Notes that so many of these have ended.
    fn end(&self, mappings: u64) {
        self.change(|counts| counts.asked -= mappings.min(counts.asked));
        self.ended.notify_all();
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = lock(&self.counts);
        change(&mut counts);
        counts.given_up = counts.given_up.min(counts.asked);
        self.awaited.store(counts.asked - counts.given_up, Ordering::SeqCst);
    }

    /// Returns whether there is anything to wait for.
    fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::SeqCst) > 0
    }

    /// Waits until those that were asked have ended their mappings, but not for ever; returns how many are left. What
    /// was waited for in vain is not waited for again, so that a process that is stopped delays this one once.
    fn wait(&self, patience: Duration) -> u64 {
        let is_open = |counts: &mut Counts| counts.asked > counts.given_up;
        let waited = self.ended.wait_timeout_while(lock(&self.counts), patience, is_open);
        let mut counts = waited.unwrap_or_else(PoisonError::into_inner).0;
        let late = counts.asked - counts.given_up;
        counts.given_up = counts.asked;
        self.awaited.store(0, Ordering::SeqCst);
        late
    }

    /// Waits a while for other processes that still map what this one has given back.
    pub(in crate::memory) fn wait_for_processes(&self, patience: Duration) {
        if !self.is_awaited() {
            return;
        }
        let (late, location) = (self.wait(patience), self.location);
        if late > 0 {
            log_out(
                Level::Info,
                format_args!(
                    "shared memory on {location}: other processes still have {late} mappings of memory that was given back: the \
                     driver has it when they go on, or end"
                ),
            );
        }
    }

    /// Ends what this process keeps mapped of others' blocks and does not use: the memory is the driver's then, unless
    /// it refuses.
    pub(in crate::memory) fn end_idle(&self) {
        if self.idle.load(Ordering::Relaxed) > 0 {
            // As long as the most that is kept idle may take.
            signal::end_idle(self.location, WAIT_ASLEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Device;

    #[test]
    fn what_was_waited_for_in_vain_is_not_waited_for_again() {
        let elsewhere = Elsewhere::new(Device::from_ordinal(0).into());
        assert_eq!((elsewhere.is_awaited(), elsewhere.wait(WAIT_ASLEEP)), (false, 0));
        elsewhere.ask(3);
        assert!(elsewhere.is_awaited());
        assert_eq!(elsewhere.wait(Duration::ZERO), 3);
        assert!(!elsewhere.is_awaited());
        elsewhere.ask(2);
        assert_eq!(elsewhere.wait(Duration::ZERO), 2);
        // One that is late comes back after all; what is asked then is waited for.
        elsewhere.end(4);
        elsewhere.ask(1);
        assert!(elsewhere.is_awaited());
        elsewhere.end(9);
        assert!(!elsewhere.is_awaited());
    }

    #[test]
    fn one_that_waits_goes_on_when_the_last_has_ended() {
        let elsewhere = Elsewhere::new(Device::from_ordinal(0).into());
        elsewhere.ask(2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| elsewhere.wait(Duration::from_secs(600)));
            elsewhere.end(1);
            elsewhere.end(1);
            assert_eq!(waiting.join().ok(), Some(0));
        });
    }
}

//! A device's memory that several processes map: others map this process's, which the driver then gets back only once
//! they unmap it; and this process keeps idle mappings of theirs. The module of shared blocks counts them. Giving
//! memory back waits for them, which is one load if nothing is shared.

mod regions;
mod signal;

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use log::Level;

use super::under_way::log_out;
use crate::ids::MemoryLocation;
use crate::memory::tuning::WAIT_ASLEEP;
use crate::sync::{AtomicU64, Ordering, lock};

pub(super) use regions::end_with;
pub(in crate::memory) use regions::{DescribedExtent, KeptMapping, Region, regions_ended};
pub(in crate::memory) use signal::{be_thread_for_others, end_where_asked, is_thread_for_others, wake, wakeup};

/// The memory of one device that several processes map.
#[derive(Debug)]
pub(in crate::memory) struct Elsewhere {
    pub(in crate::memory) location: MemoryLocation,
    /// How many mappings other processes were asked to end, less those that took too long. Read without the lock.
    awaited: AtomicU64,
    /// Held to change the count, and to wait.
    changing: Mutex<()>,
    /// Notified when mappings have ended.
    ended: Condvar,
    /// The idle mappings by this process of other processes' blocks.
    pub(in crate::memory) idle: AtomicU64,
}

impl Elsewhere {
    pub(super) fn new(location: MemoryLocation) -> Self {
        let (changing, ended) = (Mutex::default(), Condvar::new());
        Self { location, awaited: AtomicU64::new(0), changing, ended, idle: AtomicU64::new(0) }
    }

    /// Notes that other processes were asked to end so many mappings.
    fn ask(&self, mappings: u64) {
        let _changing = lock(&self.changing);
        self.awaited.fetch_add(mappings, Ordering::SeqCst);
    }

    /// Notes that such a mapping has ended, perhaps too late to be counted.
    fn end(&self) {
        let _changing = lock(&self.changing);
        let _ = self.awaited.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |awaited| awaited.checked_sub(1));
        self.ended.notify_all();
    }

    fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::SeqCst) > 0
    }

    /// Waits, for a limited time, until the mappings that were asked for have ended; returns how many are left. Those
    /// are not waited for again, so that a stopped process delays this one only once.
    fn wait(&self, patience: Duration) -> u64 {
        let is_open = |(): &mut ()| self.is_awaited();
        let _changing = self.ended.wait_timeout_while(lock(&self.changing), patience, is_open);
        self.awaited.swap(0, Ordering::SeqCst)
    }

    /// Waits a while for other processes that still map what this one has given back.
    pub(in crate::memory) fn wait_for_processes(&self, patience: Duration) {
        // The thread that hears of their ends cannot wait for them.
        if !self.is_awaited() || is_thread_for_others() {
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

    /// Ends this process's idle mappings of others' blocks: the driver has the memory then, unless it refuses.
    pub(in crate::memory) fn end_idle(&self) {
        if self.idle.load(Ordering::Relaxed) > 0 && !is_thread_for_others() {
            // As long as the most idle mappings may take.
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
        // A late answer still counts; mappings asked for from then on are waited for.
        (0..4).for_each(|_| elsewhere.end());
        elsewhere.ask(1);
        assert!(elsewhere.is_awaited());
        (0..9).for_each(|_| elsewhere.end());
        assert!(!elsewhere.is_awaited());
    }

    #[test]
    fn one_that_waits_goes_on_when_the_last_has_ended() {
        let elsewhere = Elsewhere::new(Device::from_ordinal(0).into());
        elsewhere.ask(2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| elsewhere.wait(Duration::from_secs(600)));
            elsewhere.end();
            elsewhere.end();
            assert_eq!(waiting.join().ok(), Some(0));
        });
    }
}

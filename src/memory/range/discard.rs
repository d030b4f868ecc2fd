//! Discardable pages: those committed with a priority go back to the driver when memory is short, the lowest first.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, Weak};

use log::Level;

use super::decommit::{by_users, depart_after, waits as waits_of};
use super::held_range::HeldRange;
use super::page_table::{PagePhase, RangeLife};
use crate::error::Result;
use crate::memory::cache::{DeviceCaches, Discardable, Waiting};
use crate::memory::device::{Until, call_out, is_thread_for_others, log_out};
use crate::memory::serve::{Patience, release_places, settle};
use crate::process;
use crate::sync::{AtomicBool, CallbackKind, MayWait, Ordering, ThisThread, ThreadNumber, lock, take_last, wait};

/// Called with the numbers of the pages that were taken.
pub(super) type DiscardCallback = Box<dyn Fn(&[u32]) + Send + Sync>;

/// The callbacks of a range.
#[derive(Default)]
pub(super) struct DiscardListeners {
    registered: Mutex<ListedCallbacks>,
    /// Notified when a thread has called all.
    called: Condvar,
    /// Pages that the thread for other processes took, which calls nobody: they are told by the range's next call.
    untold: Mutex<Vec<u32>>,
    /// Whether there are some, so that a call that has nothing to tell takes no lock.
    has_untold: AtomicBool,
}

#[derive(Default)]
struct ListedCallbacks {
    callbacks: Vec<Arc<DiscardCallback>>,
    /// The threads that are just calling them.
    callers: Vec<ThreadNumber>,
}

impl fmt::Debug for DiscardListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DiscardListeners").field(&lock(&self.registered).callbacks.len()).finish()
    }
}

impl DiscardListeners {
    /// Waits until no other thread calls one of the callbacks of a range that has ended, for which none is called any more,
    /// and removes all.
    ///
    /// # Errors
    /// As [`DiscardListeners::refuse_to_wait`].
    pub(super) fn end(&self) -> Result<()> {
        let (thread, may_wait) = (ThisThread::get().number(), until_called());
        let mut registered = lock(&self.registered);
        while registered.is_called_by_others(thread) {
            registered = wait(&self.called, &self.registered, registered, may_wait)?;
        }
        let ended = std::mem::take(&mut registered.callbacks);
        drop(registered);
        // Without the lock: a callback may hold anything.
        drop(ended);
        Ok(())
    }

    /// # Errors
    /// `ErrorKind::InvalidValue` in a callback while another thread calls one of these: [`DiscardListeners::end`] would
    /// wait for it.
    pub(super) fn refuse_to_wait(&self) -> Result<()> {
        let is_called = lock(&self.registered).is_called_by_others(ThisThread::get().number());
        if is_called { until_called().check() } else { Ok(()) }
    }
}

fn until_called() -> MayWait {
    MayWait::until_callbacks_end("another thread's call of a callback of the range has returned")
}

impl ListedCallbacks {
    fn is_called_by_others(&self, thread: ThreadNumber) -> bool {
        self.callers.iter().any(|caller| *caller != thread)
    }
}

/// A callback for discarded pages, registered until this is dropped.
#[must_use = "the callback is removed when this is dropped"]
pub struct DiscardGuard {
    range: Weak<HeldRange>,
    /// The range's, so that this keeps nothing of the callback's.
    callback: Weak<DiscardCallback>,
}

impl fmt::Debug for DiscardGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiscardGuard").finish_non_exhaustive()
    }
}

impl DiscardGuard {
    pub(super) fn register(range: &Arc<HeldRange>, callback: DiscardCallback) -> Self {
        let callback = Arc::new(callback);
        let known = Arc::downgrade(&callback);
        // A forked child calls no callback, and the lock may be held for ever.
        if !process::is_forked() {
            lock(&range.listeners.registered).callbacks.push(callback);
        }
        Self { range: Arc::downgrade(range), callback: known }
    }

    /// Keeps the callback registered as long as the range lives.
    pub fn keep(self) {
        let mut this = self;
        this.range = Weak::new();
    }
}

impl Drop for DiscardGuard {
    fn drop(&mut self) {
        // A forked child calls no callback, and the lock may be held for ever.
        if !process::is_forked()
            && let Some(range) = self.range.upgrade()
        {
            let is_meant = |known: &Arc<DiscardCallback>| self.callback.as_ptr() == Arc::as_ptr(known);
            // Dropped outside the lock: it may hold anything.
            let removed = take_last(&mut lock(&range.listeners.registered).callbacks, is_meant);
            drop(removed);
        }
    }
}

impl HeldRange {
    /// Tells of the pages that were taken for another process.
    pub(super) fn tell_untold(&self) {
        if !self.listeners.has_untold.load(Ordering::Relaxed) || process::is_forked() {
            return;
        }
        self.listeners.has_untold.store(false, Ordering::Relaxed);
        let mut untold = std::mem::take(&mut *lock(&self.listeners.untold));
        if !untold.is_empty() {
            untold.sort_unstable();
            untold.dedup();
            self.tell_discarded(&untold);
        }
    }

    fn tell_discarded(&self, pages: &[u32]) {
        let thread = ThisThread::get().number();
        let callbacks = {
            let table = lock(&self.table);
            // Who ends the range, with the table locked, waits for those that are called by then.
            if table.life != RangeLife::Held {
                return;
            }
            let mut registered = lock(&self.listeners.registered);
            registered.callers.push(thread);
            registered.callbacks.clone()
        };
        for callback in callbacks {
            // A callback is others' code.
            let called = call_out(CallbackKind::Discard, || catch_unwind(AssertUnwindSafe(|| callback(pages))));
            if called.is_err() {
                log_out(
                    Level::Error,
                    format_args!("a callback for discarded pages of a memory range panicked; the others are called"),
                );
            }
        }
        let mut registered = lock(&self.listeners.registered);
        if let Some(place) = registered.callers.iter().position(|caller| *caller == thread) {
            registered.callers.swap_remove(place);
        }
        drop(registered);
        self.listeners.called.notify_all();
    }
}

impl Discardable for HeldRange {
    fn pool_number(&self) -> u32 {
        self.pool.number
    }

    fn lowest(&self, above: Option<i32>) -> Option<i32> {
        // A callback may commit what was taken: nothing is taken for that, so that one does not cause the other for ever.
        if lock(&self.listeners.registered).callers.contains(&ThisThread::get().number()) {
            return None;
        }
        let table = lock(&self.table);
        if table.is_freed() || self.pool.sleep.is_asleep() {
            return None;
        }
        let priorities = table.pages.iter().filter(|page| page.is_discardable()).filter_map(|page| page.priority);
        priorities.filter(|&priority| above.is_none_or(|above| priority > above)).min()
    }

    fn bytes(&self) -> u64 {
        let table = lock(&self.table);
        if table.is_freed() || self.pool.sleep.is_asleep() {
            return 0;
        }
        table.pages.iter().filter(|page| page.is_discardable()).count() as u64 * self.page_bytes()
    }

    fn discard(&self, priority: i32, bytes: u64, most: u64, waits: bool) -> u64 {
        let wanted = bytes.div_ceil(self.page_bytes()).min(most / self.page_bytes());
        let (mut left, mut staying) = (wanted as usize, Vec::new());
        loop {
            let kept_before = staying.len();
            let pages = self.take_pages(priority, left, &mut staying, waits);
            left -= pages.len();
            if !pages.is_empty() {
                self.release(&pages, waits);
                if !is_thread_for_others() {
                    self.tell_discarded(&pages);
                }
            }
            // There may be others that can go.
            if left == 0 || staying.len() == kept_before {
                return (wanted - left as u64) * self.page_bytes();
            }
        }
    }
}

impl HeldRange {
    /// Takes at most so many pages of this priority that no work uses, or, if it `waits`, none that cannot be waited for.
    /// Those that were used by the streams of `staying` stay; adds to it what is found to stay.
    fn take_pages(&self, priority: i32, count: usize, staying: &mut Vec<u64>, waits: bool) -> Vec<u32> {
        let mut users = Vec::new();
        let busy = self.begin(&[], |table, _| {
            let is_meant = |page: &u32| {
                let state = table.pages[*page as usize];
                state.is_discardable() && state.priority == Some(priority) && !staying.contains(&state.users)
            };
            let chosen: Vec<_> = (0..self.count()).filter(is_meant).take(count).collect();
            users.extend(chosen.iter().map(|&page| (page, table.pages[page as usize].users)));
            Ok(chosen)
        });
        let Some((busy, cache)) = busy.ok().zip(DeviceCaches::ranges_of(&self.pool)) else { return Vec::new() };
        let mut taken = waits_of(self, &cache, by_users(self, users.iter().copied()), None);
        let may_go = |waiting: &mut Waiting| {
            // What is in use by a stream that cannot be asked now, beside a capture, stays.
            matches!(waiting.until, Until::Events(_))
                && (waits || waiting.is_done(&cache.memory.events, false).unwrap_or(false))
        };
        let gone: Vec<_> = taken.extract_if(.., may_go).collect();
        let kept = taken;
        let pages_of = |waits: &[Waiting]| -> Vec<u32> {
            waits.iter().flat_map(Waiting::offsets).map(|offset| self.page_at(offset)).collect()
        };
        let (mut pages, kept) = (pages_of(&gone), pages_of(&kept));
        pages.sort_unstable();
        depart_after(&cache, gone);
        let is_kept = |page: u32| kept.contains(&page);
        staying.extend(users.iter().filter(|(page, _)| is_kept(*page)).map(|(_, users)| users));
        let is_untold = is_thread_for_others();
        busy.end(
            PagePhase::Empty,
            |_| {
                // Before anybody finds the pages empty: a commit that does tells of them.
                if is_untold && !pages.is_empty() {
                    lock(&self.listeners.untold).extend(&pages);
                    self.listeners.has_untold.store(true, Ordering::Relaxed);
                }
            },
            |table, page| {
                if is_kept(page) {
                    table.pages[page as usize].phase = PagePhase::Committed;
                } else {
                    table.committed -= 1;
                }
            },
        );
        pages
    }

    /// Gives the driver what was decommitted at these pages, once the work that used it is done.
    fn release(&self, pages: &[u32], waits: bool) {
        let Some(cache) = DeviceCaches::ranges_of(&self.pool) else { return };
        let thread = ThisThread::get();
        let places: Vec<_> = pages.iter().map(|&page| self.offset(page)).collect();
        // What the driver refuses is tried again whenever memory is given back.
        let _ = settle(&cache, thread, if waits { Patience::Wait } else { Patience::Ask });
        let _ = release_places(&cache, &places);
    }
}

//! Discardable pages: those committed with a priority go back to the driver when memory is short, the lowest first.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::{fmt, mem};

use log::Level;

use super::commit::leave_after;
use super::held_range::HeldRange;
use super::page_table::PageState;
use crate::error::Result;
use crate::memory::cache::{Discardable, ServingCache, ToDiscard, Waiting};
use crate::memory::device::{Until, call_out, log_out, tells_later};
use crate::memory::serve::{Patience, release_places, settle};
use crate::process;
use crate::sync::{CallbackKind, MayWait, SharedList, ThisThread, ThreadNumber, lock, take_last, wait};

/// Called with the numbers of the pages that were taken.
pub(super) type DiscardCallback = Box<dyn Fn(&[u32]) + Send + Sync>;

/// The callbacks of a range.
#[derive(Default)]
pub(super) struct DiscardListeners {
    registered: Mutex<ListedCallbacks>,
    /// Notified when a thread has called all.
    called: Condvar,
    /// Pages that the thread for other processes took, which calls nobody: they are told by the range's next call.
    untold: SharedList<Vec<u32>>,
}

#[derive(Default)]
struct ListedCallbacks {
    callbacks: Vec<Arc<DiscardCallback>>,
    /// The threads that are just calling them.
    callers: Vec<ThreadNumber>,
}

impl DiscardListeners {
    /// Removes the callbacks of a range that ends. None is called from now on.
    pub(super) fn remove_all(&self) {
        let removed = mem::take(&mut lock(&self.registered).callbacks);
        // Without the lock: a callback may hold anything.
        drop(removed);
    }

    /// The same, and waits until no other thread calls one.
    ///
    /// # Errors
    /// As [`DiscardListeners::refuse_to_wait`].
    pub(super) fn end(&self) -> Result<()> {
        self.remove_all();
        let (thread, may_wait) = (ThisThread::get().number(), until_called());
        let mut registered = lock(&self.registered);
        while registered.is_called_by_others(thread) {
            registered = wait(&self.called, &self.registered, registered, may_wait)?;
        }
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
    /// Tells of the pages that were taken for another process, or in the middle of others' call of the driver.
    pub(super) fn tell_untold(&self) {
        if self.listeners.untold.is_empty() || process::is_forked() {
            return;
        }
        let mut untold = self.listeners.untold.change(mem::take);
        untold.sort_unstable();
        untold.dedup();
        self.tell_discarded(&untold);
    }

    fn tell_discarded(&self, pages: &[u32]) {
        let thread = ThisThread::get().number();
        let callbacks = {
            let table = lock(&self.table);
            // Who ends the range, with the table locked, waits for those that are called by then.
            if pages.is_empty() || table.is_freed() {
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
        self.priorities().into_iter().filter(|&priority| above.is_none_or(|above| priority > above)).min()
    }

    fn bytes(&self) -> u64 {
        self.priorities().len() as u64 * self.page_bytes()
    }

    fn discard(&self, priority: i32, what: ToDiscard) -> u64 {
        let wanted = what.wanted.div_ceil(self.page_bytes()).min(what.most / self.page_bytes());
        let (mut left, mut staying) = (wanted as usize, Vec::new());
        loop {
            let kept_before = staying.len();
            let pages = self.take_discardable(priority, left, &mut staying, what.patience);
            left -= pages.len();
            if !tells_later() {
                self.tell_discarded(&pages);
            }
            // There may be others that can go.
            if left == 0 || staying.len() == kept_before {
                return (wanted - left as u64) * self.page_bytes();
            }
        }
    }
}

impl HeldRange {
    /// Returns the priority of each page that may be taken now.
    fn priorities(&self) -> Vec<i32> {
        if self.pool.sleep.is_asleep() {
            return Vec::new();
        }
        lock(&self.table).pages.iter().filter_map(PageState::discardable).collect()
    }

    /// Gives the driver at most so many pages of this priority that no work uses, or, if it waits, none that cannot be
    /// waited for; returns them. Those that were used by the streams of `staying` stay; adds to it what is found to stay.
    fn take_discardable(&self, priority: i32, count: usize, staying: &mut Vec<u64>, patience: Patience) -> Vec<u32> {
        let Some((table, cache)) = self.open_table().ok().zip(self.cache()) else { return Vec::new() };
        let is_meant = |page: &u32| {
            let state = &table.pages[*page as usize];
            state.discardable() == Some(priority) && !staying.contains(&state.users)
        };
        let chosen: Vec<_> = (0..self.count()).filter(is_meant).take(count).collect();
        let mut busy = self.take(table, &chosen);
        let may_go = |waiting: &mut Waiting| {
            // What is in use by a stream that cannot be asked now, beside a capture, stays.
            matches!(waiting.until, Until::Events(_))
                && (patience == Patience::Wait || waiting.is_done(&cache.memory.events, patience).unwrap_or(false))
        };
        let mut waiting = self.waits(busy.pages.iter().map(|&(page, state)| (page, state.users)), None);
        let going: Vec<_> = waiting.extract_if(.., may_go).collect();
        let mut places: Vec<_> = going.iter().flat_map(Waiting::offsets).collect();
        places.sort_unstable();
        going.into_iter().for_each(|waiting| leave_after(&cache, waiting));
        for (page, state) in &mut busy.pages {
            if places.binary_search(&self.offset(*page)).is_ok() {
                *state = PageState::empty(state.users);
            } else {
                staying.push(state.users);
            }
        }
        let pages: Vec<_> = places.iter().filter_map(|&offset| self.page_at(offset)).collect();
        if tells_later() {
            // Before anybody finds the pages empty: a commit that does tells of them.
            self.listeners.untold.change(|untold| untold.extend(&pages));
        }
        drop(busy);
        Self::give_back(&cache, &places, patience);
        pages
    }

    /// Gives the driver what was decommitted at these places, once the work that used it is done.
    fn give_back(of: &ServingCache, places: &[u64], patience: Patience) {
        let thread = ThisThread::get();
        if places.is_empty() {
            return;
        }
        // What the driver refuses is tried again whenever memory is given back.
        let _ = settle(of, thread, patience);
        let _ = release_places(of, places);
    }
}

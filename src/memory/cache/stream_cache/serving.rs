//! A cache with what it serves, from its birth to its end, and the work so far on its stream, marked while that was alive: a
//! stream that gpupool did not make can be touched only in a call that names it; its mark serves when it may be gone.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use super::{CLOSING, ENDED, MARKS_WORK, StreamCache};
use crate::error::Result;
use crate::memory::cache::heap::{Counts, Heap};
use crate::memory::cache::service::Service;
use crate::memory::device::Until;
use crate::memory::pool::Pool;
use crate::process;
use crate::runtime::Event;
use crate::sync::{Ordering, OwnerGuard, ThisThread, lock, write};

/// Caches that have ended and that nothing names, for the next ones to be born.
#[derive(Debug, Default)]
pub(in crate::memory) struct UnnamedCaches(Mutex<Vec<&'static StreamCache>>);

impl UnnamedCaches {
    pub(in crate::memory) fn take(&self) -> Option<&'static StreamCache> {
        lock(&self.0).pop()
    }
}

/// Keeps a cache from being born again: the pool's list, threads that know it, and its `ServingCache` have one. It keeps
/// neither the pool nor the stream.
#[derive(Debug)]
pub(in crate::memory) struct CacheName {
    pub(in crate::memory) cache: &'static StreamCache,
    pub(super) unnamed: &'static UnnamedCaches,
}

impl Drop for CacheName {
    /// The cache has ended, and is born again when one is needed. It may be a thread's end that drops the last name.
    fn drop(&mut self) {
        // In a forked child a thread that is gone may have the lock, for ever.
        if !process::is_forked() {
            lock(&self.unnamed.0).push(self.cache);
        }
    }
}

/// A cache in its life, with the name that keeps it: at its end, which comes at any time that it has no memory, the pool
/// gives it up, and it is born again only once nothing names it.
#[derive(Debug)]
pub(in crate::memory) struct ServingCache {
    pub(in crate::memory) cache: &'static StreamCache,
    pub(in crate::memory) service: Service,
    pub(in crate::memory) name: Arc<CacheName>,
    /// Its place among all caches of the device, in the order of their births: the order in which they are asked for free
    /// memory, which must not depend on which storage was free.
    pub(in crate::memory) birth: u64,
}

impl Deref for ServingCache {
    type Target = StreamCache;

    fn deref(&self) -> &StreamCache {
        self.cache
    }
}

impl ServingCache {
    pub(in crate::memory) fn pool(&self) -> &Arc<Pool> {
        &self.service.pool
    }

    /// Returns whether a request for this service gets this cache.
    pub(in crate::memory) fn is_for(&self, wanted: &Service) -> bool {
        self.service.is_as(wanted) && !self.has_ended()
    }

    /// Locks the heap, if it gets memory and hands it out: not once it has ended, nor while it is asleep.
    pub(in crate::memory) fn lock_awake(&self) -> Option<OwnerGuard<'static, Heap>> {
        Some(self.cache.lock(ThisThread::get())).filter(|heap| heap.is_awake())
    }

    /// Locks the heap to take free memory out of the cache: none if live graphs may use it.
    pub(in crate::memory) fn lock_to_take(&self) -> Option<OwnerGuard<'static, Heap>> {
        self.lock_awake().filter(|_| !self.service.is_of_live_graph())
    }

    /// Closes the cache: it serves no more requests, and what is freed leaves at once.
    pub(in crate::memory) fn close(&self) {
        let mut heap = self.lock_by_mutex();
        self.duties.fetch_or(CLOSING, Ordering::Release);
        heap.close();
    }

    /// Ends the cache if it has no memory; its pool still lists it. Returns its counts if it has ended, now or before.
    pub(in crate::memory::cache) fn end(&self) -> Option<Counts> {
        let counts = {
            let mut heap = self.lock(ThisThread::get());
            if !heap.end_if_empty() {
                return None;
            }
            self.duties.fetch_or(ENDED, Ordering::Relaxed);
            heap.counts()
        };
        self.end_hold_for_ranges();
        let ended = write(&self.serving).take();
        // Outside the lock, though the caller has another one: the last one drops the stream, which is destroyed then.
        drop(ended);
        Some(counts)
    }

    /// Marks the work on its stream from now on, if that may end at any time.
    pub(in crate::memory) fn mark_work_if_foreign(&self) {
        if !self.service.lasts() && !self.service.role.is_captured() {
            self.duties.fetch_or(MARKS_WORK, Ordering::Relaxed);
        }
    }

    /// As [`Service::work_so_far`].
    pub(in crate::memory) fn work_so_far(&self, alive: Option<&Service>) -> Result<Until> {
        self.service.work_so_far(&self.memory.events, ThisThread::get(), alive)
    }

    /// As [`ServingCache::work_so_far`]; if the driver cannot record it, waits for all work on the device, recorded later.
    pub(in crate::memory) fn work_so_far_or_later(&self) -> Until {
        self.work_so_far(None).unwrap_or_else(|_| Until::recorded_later(self.memory.location.device()))
    }
}

/// A stream's work at a time when the cache's heap was as it was.
#[derive(Debug)]
pub(in crate::memory) struct WorkMark {
    pub(in crate::memory) event: Event,
    pub(in crate::memory) is_done: bool,
    /// The heap's turnover then.
    pub(in crate::memory) turnover: u64,
}

/// The last mark of one cache, taken out for work with it, so that no driver call is made under the lock.
#[derive(Debug, Default)]
pub(in crate::memory) struct LastWork(Mutex<Option<WorkMark>>);

impl LastWork {
    pub(in crate::memory) fn turnover(&self) -> Option<u64> {
        lock(&self.0).as_ref().map(|mark| mark.turnover)
    }

    pub(in crate::memory) fn take(&self) -> Option<WorkMark> {
        lock(&self.0).take()
    }

    /// Keeps the newer of two marks, and returns the other's event.
    pub(in crate::memory) fn put(&self, mark: WorkMark) -> Option<Event> {
        let mut last = lock(&self.0);
        let older = match &*last {
            Some(newer) if newer.turnover >= mark.turnover => Some(mark),
            _ => last.replace(mark),
        };
        older.map(|mark| mark.event)
    }
}

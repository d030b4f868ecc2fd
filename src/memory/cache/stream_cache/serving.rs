//! A cache with what it serves, from its birth to its end.

use std::ops::Deref;
use std::sync::Arc;

use super::{CLOSING, ENDED, MARKS_WORK, StreamCache};
use crate::error::Result;
use crate::memory::cache::device_caches::CacheName;
use crate::memory::cache::heap::{Counts, Heap};
use crate::memory::cache::known::{CacheKey, forget};
use crate::memory::cache::service::Service;
use crate::memory::device::Until;
use crate::memory::pool::Pool;
use crate::sync::{Ordering, OwnerGuard, ThisThread, write};

/// A cache in its life. Whoever has this names the cache: at its end, which comes at any time that it has no memory, it is
/// given up, and it is born again only once nobody names it.
#[derive(Debug)]
pub(in crate::memory) struct ServingCache {
    pub(in crate::memory) cache: &'static StreamCache,
    pub(in crate::memory) service: Service,
    pub(in crate::memory) name: Arc<CacheName>,
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

    /// Returns the key by which threads know it.
    pub(in crate::memory) fn key(&self) -> CacheKey {
        let Service { pool, identity, role, .. } = &self.service;
        CacheKey {
            location: self.memory.location,
            pool: pool.number,
            role: *role,
            stream: self.service.address(),
            stream_id: identity.and_then(|own| own.number()).unwrap_or(0),
        }
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
        forget(self);
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

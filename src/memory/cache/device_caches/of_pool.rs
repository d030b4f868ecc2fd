//! The caches that serve one pool, found on the pool's device.

use std::sync::Arc;

use super::DeviceCaches;
use super::pools::PoolCaches;
use crate::error::Result;
use crate::memory::cache::heap::{Counts, Heap};
use crate::memory::cache::service::Service;
use crate::memory::cache::stream_cache::StreamCache;
use crate::memory::pool::Pool;
use crate::runtime::Stream;
use crate::sync::ThisThread;

impl DeviceCaches {
    /// Returns what `f` does with the pool's caches; the default if the pool is gone.
    fn of_pool<R: Default>(pool: &Pool, f: impl FnOnce(&mut PoolCaches) -> R) -> R {
        let caches = Self::known(pool.memory.location);
        caches.and_then(|caches| caches.pools.with(pool, f)).unwrap_or_default()
    }

    pub(in crate::memory) fn caches_of(pool: &Pool) -> Vec<&'static StreamCache> {
        Self::caches_and_past_of(pool).0
    }

    /// Returns the pool's caches with their services. Lock each by [`StreamCache::lock_in`]: it may serve another pool
    /// by then.
    pub(in crate::memory) fn services_of(pool: &Pool) -> Vec<(&'static StreamCache, Service)> {
        let of_pool = |cache: &'static StreamCache| Some((cache, cache.service_of(pool)?));
        Self::caches_of(pool).into_iter().filter_map(of_pool).collect()
    }

    /// Returns the streams of the pool's caches that the calling thread can touch now.
    pub(in crate::memory) fn usable_streams_of(pool: &Pool, thread: ThisThread) -> Vec<Stream> {
        let usable =
            |(_, service): (_, Service)| service.stream.clone().filter(|_| service.is_stream_usable(thread, None));
        Self::services_of(pool).into_iter().filter_map(usable).collect()
    }

    /// Calls `f` with the heap of each cache that is asleep in the pool's service.
    pub(in crate::memory) fn each_asleep(pool: &Pool, thread: ThisThread, mut f: impl FnMut(&Service, &mut Heap)) {
        for (cache, service) in Self::services_of(pool) {
            let mut heap = cache.lock(thread);
            if heap.is_asleep_in(service.number) {
                f(&service, &mut heap);
            }
        }
    }

    /// Returns the pool's caches, and the counts of those that are gone.
    pub(in crate::memory) fn caches_and_past_of(pool: &Pool) -> (Vec<&'static StreamCache>, Counts) {
        Self::of_pool(pool, |entry| (entry.all().collect(), entry.past))
    }

    /// Returns the pool's caches for the streams at an address, of all threads.
    pub(in crate::memory) fn caches_on(pool: &Pool, address: usize) -> Vec<&'static StreamCache> {
        Self::of_pool(pool, |entry| entry.by_stream.get(&address).cloned().unwrap_or_default())
    }

    pub(in crate::memory) fn lender_of(pool: &Pool) -> Option<&'static StreamCache> {
        Self::of_pool(pool, |entry| entry.lender)
    }

    /// Returns the pool's lender; makes it once the pool has more than `many` other caches.
    pub(in crate::memory) fn lender_for_many(pool: &Arc<Pool>, many: usize) -> Result<Option<&'static StreamCache>> {
        let (count, lender) = Self::of_pool(pool, |entry| (entry.caches.len(), entry.lender));
        if count <= many || lender.is_some() {
            return Ok(lender);
        }
        Self::make_of_no_stream(pool, Service::of_lender(pool), |entry| &mut entry.lender)
    }

    /// Returns the cache of the pages of the pool's memory ranges, if it has one.
    pub(in crate::memory) fn ranges_of(pool: &Pool) -> Option<&'static StreamCache> {
        Self::of_pool(pool, |entry| entry.ranges)
    }

    /// Returns the cache of the pages of the pool's memory ranges; makes it when first needed. None if the pool is gone.
    pub(in crate::memory) fn make_ranges_of(pool: &Arc<Pool>) -> Result<Option<&'static StreamCache>> {
        match Self::ranges_of(pool) {
            None => Self::make_of_no_stream(pool, Service::of_ranges(pool), |entry| &mut entry.ranges),
            found => Ok(found),
        }
    }

    fn make_of_no_stream(
        pool: &Pool,
        service: Service,
        place: impl FnOnce(&mut PoolCaches) -> &mut Option<&'static StreamCache>,
    ) -> Result<Option<&'static StreamCache>> {
        let Some(caches) = Self::known(pool.memory.location) else { return Ok(None) };
        let (made, _) = caches.table.begin(&caches.memory, service)?;
        let found = Self::of_pool(pool, |entry| Some(*place(entry).get_or_insert(made)));
        if found.is_none_or(|found| !std::ptr::eq(found, made)) {
            caches.table.end(made);
        }
        Ok(found)
    }

    /// Returns the pool's caches with these numbers. Drops the other numbers from its ledger.
    pub(in crate::memory) fn numbered(pool: &Pool, numbers: &[u32]) -> Vec<&'static StreamCache> {
        let of_number = |entry: &mut PoolCaches, number: u32| {
            let of_no_stream = || [entry.lender, entry.ranges].into_iter().flatten().find(|one| one.number == number);
            let cache = entry.caches.get(&number).copied().or_else(of_no_stream);
            if cache.is_none() {
                pool.ledger.remove_with_pages(number);
            }
            cache
        };
        Self::of_pool(pool, |entry| numbers.iter().filter_map(|&number| of_number(entry, number)).collect())
    }

    /// Returns the counts of all caches of the pool, including those that are gone.
    pub(in crate::memory) fn counts_of(pool: &Pool, thread: ThisThread) -> Counts {
        let (caches, mut counts) = Self::caches_and_past_of(pool);
        caches.iter().for_each(|cache| counts.add(cache.lock(thread).counts()));
        counts
    }

    /// Removes a pool without live blocks, but keeps its counts. Its caches serve other pools then.
    pub(in crate::memory) fn remove_pool(pool: &Pool, thread: ThisThread) {
        let Some(caches) = Self::known(pool.memory.location) else { return };
        if let Some(removed) = caches.pools.remove(pool, Self::counts_of(pool, thread)) {
            removed.all().for_each(|cache| caches.table.end(cache));
        }
    }

    /// Resets the peak of the pool's caches that are gone.
    pub(in crate::memory) fn reset_past_peak(pool: &Pool) {
        Self::of_pool(pool, |entry| entry.past.forget_peaks());
    }
}

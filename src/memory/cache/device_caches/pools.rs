//! The pools of a device and the caches that serve them, with an index for each question of requests, reports and
//! ending streams, so that no answer takes longer with more pools and caches. The lock is held only for a look-up.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use super::DeviceCaches;
use crate::error::Result;
use crate::memory::cache::heap::{Counts, Heap};
use crate::memory::cache::known::forget;
use crate::memory::cache::service::{Order, Service};
use crate::memory::cache::stream_cache::ServingCache;
use crate::memory::pool::{Pool, PoolId, Stage};
use crate::runtime::Stream;
use crate::sync::{ThisThread, lock};

#[derive(Debug, Default)]
pub(in crate::memory) struct PoolList(Mutex<Pools>);

/// Pools by number, the default one first, and the counts of those that are gone.
#[derive(Debug, Default)]
struct Pools {
    all: BTreeMap<u32, PoolCaches>,
    /// The number of the newest pool with an id.
    by_id: FxHashMap<PoolId, u32>,
    past: Counts,
    /// Every cache that serves a pool, by its birth.
    serving: BTreeMap<u64, Arc<ServingCache>>,
    /// How many of them serve the streams at an address.
    on_stream: FxHashMap<usize, usize>,
    /// The number of the last stream seen at each address.
    last_ids: FxHashMap<usize, u64>,
    /// The birth of the cache that [`PoolList::next_serving`] returned last.
    last_seen: u64,
}

/// A pool, its caches, and the counts of those that are gone.
#[derive(Debug)]
pub(super) struct PoolCaches {
    pool: Arc<Pool>,
    /// By their births.
    pub(super) caches: BTreeMap<u64, Arc<ServingCache>>,
    /// The same caches by their stream's [`Order::address`].
    pub(super) by_stream: FxHashMap<usize, Vec<Arc<ServingCache>>>,
    /// The cache that lends slabs to the others, if they are many.
    pub(super) lender: Option<Arc<ServingCache>>,
    /// The cache of the pages of its memory ranges, if it has any.
    pub(super) ranges: Option<Arc<ServingCache>>,
    pub(super) past: Counts,
}

impl PoolCaches {
    /// Returns every cache, the lender last, since the others return slabs to it.
    pub(super) fn all(&self) -> impl Iterator<Item = Arc<ServingCache>> {
        self.caches.values().chain(&self.ranges).chain(&self.lender).cloned()
    }

    /// Removes a cache; false if it is not there.
    fn remove(&mut self, cache: &ServingCache) -> bool {
        let is_it = |one: &mut Arc<ServingCache>| std::ptr::eq(&raw const **one, cache);
        if self.ranges.take_if(is_it).is_some() || self.lender.take_if(is_it).is_some() {
            return true;
        }
        let stream = cache.stream_address();
        if let Some(same) = self.by_stream.get_mut(&stream) {
            same.retain(|other| other.birth != cache.birth);
            if same.is_empty() {
                self.by_stream.remove(&stream);
            }
        }
        self.caches.remove(&cache.birth).is_some()
    }
}

impl PoolList {
    /// Returns every pool that has, or can have, memory. The default pool is the first.
    pub(in crate::memory) fn all(&self) -> Vec<Arc<Pool>> {
        lock(&self.0).all.values().map(|entry| Arc::clone(&entry.pool)).collect()
    }

    pub(in crate::memory) fn in_use(&self, id: PoolId) -> Option<Arc<Pool>> {
        let pools = lock(&self.0);
        let pool = &pools.all.get(pools.by_id.get(&id)?)?.pool;
        (!pool.is_default() && pool.life.stage() != Stage::Ended).then(|| Arc::clone(pool))
    }

    /// Returns the pools, and the counts of those that are gone.
    pub(in crate::memory) fn all_and_past(&self) -> (Vec<Arc<Pool>>, Counts) {
        let pools = lock(&self.0);
        (pools.all.values().map(|entry| Arc::clone(&entry.pool)).collect(), pools.past)
    }

    pub(in crate::memory) fn add(&self, pool: &Arc<Pool>) {
        let entry = PoolCaches {
            pool: Arc::clone(pool),
            caches: BTreeMap::new(),
            by_stream: FxHashMap::default(),
            lender: None,
            ranges: None,
            past: Counts::default(),
        };
        let mut pools = lock(&self.0);
        pools.all.insert(pool.number, entry);
        pools.by_id.insert(pool.id, pool.number);
    }

    /// Removes a pool whose caches have ended, but keeps its counts. Returns it, to be dropped without locks: this may be
    /// the last reference to the pool and to what its allocator holds.
    #[must_use]
    pub(super) fn remove(&self, pool: &Pool) -> Option<PoolCaches> {
        let mut pools = lock(&self.0);
        let removed = pools.all.remove(&pool.number)?;
        pools.past.add(removed.past);
        if pools.by_id.get(&pool.id) == Some(&pool.number) {
            pools.by_id.remove(&pool.id);
        }
        Some(removed)
    }

    pub(in crate::memory) fn serving(&self) -> Vec<Arc<ServingCache>> {
        lock(&self.0).all.values().flat_map(PoolCaches::all).collect()
    }

    /// Returns the next few caches of any pool: those after the ones returned last.
    pub(in crate::memory) fn next_serving(&self, most: usize) -> Vec<Arc<ServingCache>> {
        let mut pools = lock(&self.0);
        let last = pools.last_seen;
        let (after, before) =
            (pools.serving.range((Bound::Excluded(last), Bound::Unbounded)), pools.serving.range(..=last));
        let next: Vec<_> = after.chain(before).take(most).map(|(_, cache)| Arc::clone(cache)).collect();
        pools.last_seen = next.last().map_or(0, |cache| cache.birth);
        next
    }

    pub(in crate::memory) fn count_on(&self, service: &Service) -> usize {
        lock(&self.0).on_stream.get(&service.address()).copied().unwrap_or(0)
    }

    /// Notes that the stream of a request is alive, so that earlier streams at its address are known to be gone.
    pub(in crate::memory) fn note_stream(&self, stream: &Stream, id: u64) {
        if !stream.raw().is_default() {
            lock(&self.0).last_ids.insert(stream.address(), id);
        }
    }

    /// Returns the number of the last stream seen at an address, or 0.
    pub(in crate::memory) fn last_id(&self, address: usize) -> u64 {
        lock(&self.0).last_ids.get(&address).copied().unwrap_or(0)
    }

    /// Returns whether the service's stream is known to be gone because another one has its address.
    pub(in crate::memory) fn is_stream_gone(&self, service: &Service) -> bool {
        let number = service.identity.and_then(|own| own.number()).unwrap_or(0);
        number != 0 && self.last_id(service.address()) != number
    }

    pub(super) fn with<R>(&self, pool: &Pool, f: impl FnOnce(&mut PoolCaches) -> R) -> Option<R> {
        lock(&self.0).all.get_mut(&pool.number).map(f)
    }

    /// Adds a cache to its pool, and returns it, or an existing one that serves the same. None if the pool is gone.
    pub(in crate::memory) fn add_cache(&self, cache: &Arc<ServingCache>) -> Option<Arc<ServingCache>> {
        let mut pools = lock(&self.0);
        let entry = pools.all.get_mut(&cache.pool().number)?;
        let stream = cache.stream_address();
        let same = entry.by_stream.entry(stream).or_default();
        if let Some(first) = same.iter().find(|other| other.is_for(&cache.service)) {
            return Some(Arc::clone(first));
        }
        same.push(Arc::clone(cache));
        entry.caches.insert(cache.birth, Arc::clone(cache));
        pools.serving.insert(cache.birth, Arc::clone(cache));
        *pools.on_stream.entry(stream).or_default() += 1;
        Some(Arc::clone(cache))
    }

    /// Removes a cache that has ended from its pool, which keeps its counts.
    pub(super) fn remove_cache(&self, cache: &ServingCache, counts: Counts) {
        let mut pools = lock(&self.0);
        if let Some(entry) = pools.all.get_mut(&cache.pool().number)
            && entry.remove(cache)
        {
            entry.past.add(counts);
        }
        if pools.serving.remove(&cache.birth).is_none() {
            return;
        }
        let stream = cache.stream_address();
        if let Some(count) = pools.on_stream.get_mut(&stream) {
            *count -= 1;
            if *count == 0 {
                pools.on_stream.remove(&stream);
            }
        }
    }

    /// Resets the peak of the pools that are gone.
    pub(in crate::memory) fn reset_past_peaks(&self) {
        lock(&self.0).past.forget_peaks();
    }
}

impl DeviceCaches {
    /// Returns what `f` does with the pool's caches; the default if the pool is gone.
    fn of_pool<R: Default>(pool: &Pool, f: impl FnOnce(&mut PoolCaches) -> R) -> R {
        let caches = Self::known(pool.memory.location);
        caches.and_then(|caches| caches.pools.with(pool, f)).unwrap_or_default()
    }

    pub(in crate::memory) fn caches_of(pool: &Pool) -> Vec<Arc<ServingCache>> {
        Self::caches_and_past_of(pool).0
    }

    /// Returns the streams of the pool's caches that the calling thread can touch now.
    pub(in crate::memory) fn usable_streams_of(pool: &Pool, thread: ThisThread) -> Vec<Stream> {
        let usable = |cache: Arc<ServingCache>| {
            let service = &cache.service;
            service.stream.clone().filter(|_| service.is_stream_usable(thread, None))
        };
        Self::caches_of(pool).into_iter().filter_map(usable).collect()
    }

    /// Calls `f` with the heap of each cache of the pool that is asleep.
    pub(in crate::memory) fn each_asleep(pool: &Pool, thread: ThisThread, mut f: impl FnMut(&Service, &mut Heap)) {
        for cache in Self::caches_of(pool) {
            let mut heap = cache.lock(thread);
            if heap.is_asleep() {
                f(&cache.service, &mut heap);
            }
        }
    }

    /// Returns the pool's caches, and the counts of those that are gone.
    pub(in crate::memory) fn caches_and_past_of(pool: &Pool) -> (Vec<Arc<ServingCache>>, Counts) {
        Self::of_pool(pool, |entry| (entry.all().collect(), entry.past))
    }

    /// Returns the pool's caches for the streams at an address, of all threads.
    pub(in crate::memory) fn caches_on(pool: &Pool, address: usize) -> Vec<Arc<ServingCache>> {
        Self::of_pool(pool, |entry| entry.by_stream.get(&address).cloned().unwrap_or_default())
    }

    pub(in crate::memory) fn lender_of(pool: &Pool) -> Option<Arc<ServingCache>> {
        Self::of_pool(pool, |entry| entry.lender.clone())
    }

    /// Returns the pool's lender; makes it once the pool has more than `many` other caches.
    pub(in crate::memory) fn lender_for_many(pool: &Arc<Pool>, many: usize) -> Result<Option<Arc<ServingCache>>> {
        let (count, lender) = Self::of_pool(pool, |entry| (entry.caches.len(), entry.lender.clone()));
        if count <= many || lender.is_some() {
            return Ok(lender);
        }
        Self::make_of_no_stream(pool, Service::of_lender(pool), |entry| &mut entry.lender)
    }

    /// Returns the cache of the pages of the pool's memory ranges, if it has one.
    pub(in crate::memory) fn ranges_of(pool: &Pool) -> Option<Arc<ServingCache>> {
        Self::of_pool(pool, |entry| entry.ranges.clone())
    }

    /// Returns the cache of the pages of the pool's memory ranges; makes it when first needed. None if the pool is gone.
    pub(in crate::memory) fn make_ranges_of(pool: &Arc<Pool>) -> Result<Option<Arc<ServingCache>>> {
        match Self::ranges_of(pool) {
            None => Self::make_of_no_stream(pool, Service::of_ranges(pool), |entry| &mut entry.ranges),
            found => Ok(found),
        }
    }

    fn make_of_no_stream(
        pool: &Pool,
        service: Service,
        place: impl FnOnce(&mut PoolCaches) -> &mut Option<Arc<ServingCache>>,
    ) -> Result<Option<Arc<ServingCache>>> {
        let Some(caches) = Self::known(pool.memory.location) else { return Ok(None) };
        let made = caches.table.begin(&caches.memory, service)?;
        let found =
            Self::of_pool(pool, |entry| Some(Arc::clone(place(entry).get_or_insert_with(|| Arc::clone(&made)))));
        if found.as_ref().is_none_or(|found| !Arc::ptr_eq(found, &made)) {
            Self::end_if_empty(&made);
        }
        Ok(found)
    }

    /// Returns the pool's caches of these births. Drops the others from its ledger.
    pub(in crate::memory) fn of_births(pool: &Pool, births: &[u64]) -> Vec<Arc<ServingCache>> {
        let of_birth = |entry: &mut PoolCaches, birth: u64| {
            let of_no_stream = || [&entry.lender, &entry.ranges].into_iter().flatten().find(|one| one.birth == birth);
            let cache = entry.caches.get(&birth).or_else(of_no_stream).cloned();
            if cache.is_none() {
                pool.ledger.remove_with_pages(birth);
            }
            cache
        };
        Self::of_pool(pool, |entry| births.iter().filter_map(|&birth| of_birth(entry, birth)).collect())
    }

    /// Returns the counts of all caches of the pool, including those that are gone.
    pub(in crate::memory) fn counts_of(pool: &Pool, thread: ThisThread) -> Counts {
        let (caches, mut counts) = Self::caches_and_past_of(pool);
        caches.iter().for_each(|cache| counts.add(cache.lock(thread).counts()));
        counts
    }

    /// Ends a cache if it has no memory: its pool keeps its counts alone. Returns whether it has ended, now or before.
    pub(in crate::memory) fn end_if_empty(cache: &ServingCache) -> bool {
        let Some(counts) = cache.end() else { return false };
        forget(cache);
        if let Some(caches) = Self::known(cache.memory.location) {
            caches.pools.remove_cache(cache, counts);
        }
        true
    }

    /// Removes a pool whose caches have ended, but keeps its counts.
    pub(in crate::memory) fn remove_pool(pool: &Pool) {
        let removed = Self::known(pool.memory.location).and_then(|caches| caches.pools.remove(pool));
        drop(removed);
    }

    /// Resets the peak of the pool's caches that are gone.
    pub(in crate::memory) fn reset_past_peak(pool: &Pool) {
        Self::of_pool(pool, |entry| entry.past.forget_peaks());
    }
}

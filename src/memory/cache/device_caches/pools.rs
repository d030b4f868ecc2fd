//! The pools of a device and the caches that serve them, with an index for each question of requests, reports and
//! ending streams, so that no answer takes longer with more pools and caches. The lock is held only for a look-up.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use crate::memory::cache::heap::Counts;
use crate::memory::cache::service::{Order, Service};
use crate::memory::cache::stream_cache::StreamCache;
use crate::memory::pool::{Pool, PoolId, Stage};
use crate::runtime::Stream;
use crate::sync::lock;

#[derive(Debug, Default)]
pub(in crate::memory) struct PoolList(Mutex<Pools>);

/// Pools by number, the default one first, and the counts of those that are gone.
#[derive(Debug, Default)]
struct Pools {
    all: BTreeMap<u32, PoolCaches>,
    /// The number of the newest pool with an id.
    by_id: FxHashMap<PoolId, u32>,
    past: Counts,
    /// Every cache that serves a pool, by number.
    serving: BTreeMap<u32, &'static StreamCache>,
    /// How many of them serve the streams at an address.
    on_stream: FxHashMap<usize, usize>,
    /// The number of the last stream seen at each address.
    last_ids: FxHashMap<usize, u64>,
    /// The number of the cache that [`PoolList::next_serving`] returned last.
    last_seen: u32,
}

/// A pool, its caches, and the counts of those that are gone.
#[derive(Debug)]
pub(super) struct PoolCaches {
    pool: Arc<Pool>,
    /// By number.
    pub(super) caches: BTreeMap<u32, &'static StreamCache>,
    /// The same caches by their stream's [`Order::address`].
    pub(super) by_stream: FxHashMap<usize, Vec<&'static StreamCache>>,
    /// The cache that lends slabs to the others, if they are many.
    pub(super) lender: Option<&'static StreamCache>,
    /// The cache of the pages of its memory ranges, if it has any.
    pub(super) ranges: Option<&'static StreamCache>,
    pub(super) past: Counts,
}

impl PoolCaches {
    /// Returns every cache, the lender last, since the others return slabs to it.
    pub(super) fn all(&self) -> impl Iterator<Item = &'static StreamCache> {
        self.caches.values().copied().chain(self.ranges).chain(self.lender)
    }
}

impl Pools {
    /// Removes a cache of a pool from the indexes before its clone of the stream is dropped.
    fn forget(&mut self, cache: &StreamCache) {
        self.serving.remove(&cache.number);
        let stream = cache.stream_address();
        if let Some(count) = self.on_stream.get_mut(&stream) {
            *count -= 1;
            if *count == 0 {
                self.on_stream.remove(&stream);
            }
        }
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

    /// Removes a pool without live blocks, but keeps its counts. Returns it with its caches, which no longer serve it.
    pub(super) fn remove(&self, pool: &Pool, counts: Counts) -> Option<PoolCaches> {
        let mut pools = lock(&self.0);
        // Dropped after the lock: this may be the last reference to the pool and to what its allocator holds.
        let removed = pools.all.remove(&pool.number);
        if let Some(removed) = &removed {
            pools.past.add(counts);
            removed.caches.values().for_each(|cache| pools.forget(cache));
            if pools.by_id.get(&pool.id) == Some(&pool.number) {
                pools.by_id.remove(&pool.id);
            }
        }
        removed
    }

    pub(in crate::memory) fn serving(&self) -> Vec<&'static StreamCache> {
        lock(&self.0).all.values().flat_map(PoolCaches::all).collect()
    }

    /// Returns the next few caches of any pool: those after the ones returned last.
    pub(in crate::memory) fn next_serving(&self, most: usize) -> Vec<&'static StreamCache> {
        let mut pools = lock(&self.0);
        let last = pools.last_seen;
        let (after, before) =
            (pools.serving.range((Bound::Excluded(last), Bound::Unbounded)), pools.serving.range(..=last));
        let next: Vec<_> = after.chain(before).take(most).map(|(_, cache)| *cache).collect();
        pools.last_seen = next.last().map_or(0, |cache| cache.number);
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

    /// Adds a cache that serves the pool, and returns it, or an existing one with the same service. None if the pool is
    /// gone.
    pub(in crate::memory) fn add_cache(
        &self,
        pool: &Pool,
        cache: &'static StreamCache,
    ) -> Option<&'static StreamCache> {
        let mut pools = lock(&self.0);
        let entry = pools.all.get_mut(&pool.number)?;
        let stream = cache.stream_address();
        if let Some(same) = entry.by_stream.get(&stream)
            && let Some(service) = cache.service()
            && let Some(first) = same.iter().find(|other| other.number_of(&service).is_some())
        {
            return Some(first);
        }
        entry.caches.insert(cache.number, cache);
        entry.by_stream.entry(stream).or_default().push(cache);
        pools.serving.insert(cache.number, cache);
        *pools.on_stream.entry(stream).or_default() += 1;
        Some(cache)
    }

    /// Removes a cache without live blocks, but keeps its counts. False if the pool does not have it.
    pub(in crate::memory) fn remove_cache(&self, pool: &Pool, cache: &StreamCache, counts: Counts) -> bool {
        let mut pools = lock(&self.0);
        let Some(entry) = pools.all.get_mut(&pool.number) else { return false };
        if entry.caches.remove(&cache.number).is_none() {
            return false;
        }
        let stream = cache.stream_address();
        if let Some(same) = entry.by_stream.get_mut(&stream) {
            same.retain(|other| !std::ptr::eq(*other, cache));
            if same.is_empty() {
                entry.by_stream.remove(&stream);
            }
        }
        entry.past.add(counts);
        pools.forget(cache);
        true
    }

    /// Resets the peak of the pools that are gone.
    pub(in crate::memory) fn reset_past_peaks(&self) {
        lock(&self.0).past.forget_peaks();
    }
}

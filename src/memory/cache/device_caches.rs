//! A device's memory with all that shares it: its pools, and the caches that serve them.
//!
//! Made when first needed and never dropped. From an offset to the cache that holds the block there are two array
//! loads.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};

use rustc_hash::FxHashMap;

use super::heap::{Amounts, Counts, most};
use super::service::{Service, normalized};
use super::stream_cache::StreamCache;
use crate::error::{Error, Result};
use crate::ids::{Device, RawStream};
use crate::memory::device::{DeviceMemory, Flow, LENT};
use crate::memory::pool::{Pool, PoolId};
use crate::runtime::Stream;
use crate::sync::{AtomicU32, Ordering, Table, ThisThread, lock};

/// How many caches a device can have.
const CACHES_MAX: usize = 0x10_0000;

/// A device's memory, its pools and its caches.
#[derive(Debug)]
pub(in crate::memory) struct DeviceCaches {
    pub(in crate::memory) memory: DeviceMemory,
    default: OnceLock<Arc<Pool>>,
    pools: Mutex<Pools>,
    caches: Table<OnceLock<StreamCache>, 4>,
    cache_numbers: AtomicU32,
    /// Empty caches that have ended their service.
    spare: Mutex<Vec<&'static StreamCache>>,
    reported: Mutex<Reported>,
    /// Free blocks beside ones that are held, and their bytes, as far as they were found.
    free_beside_held: Mutex<[(Flow, Flow); 3]>,
}

/// The most blocks of all pools that were ever reported to have been handed out, and to have come back.
#[derive(Debug, Default)]
struct Reported {
    out: Amounts,
    back: Amounts,
}

/// A device's pools by number, the default one first, and what those that are gone have counted. Each question that a
/// request asks is answered in a time that hardly grows with the number of pools and caches.
#[derive(Debug, Default)]
struct Pools {
    all: BTreeMap<u32, PoolCaches>,
    /// The number of the pool that was made last with an id.
    by_id: FxHashMap<PoolId, u32>,
    past: Counts,
    /// Every cache that serves a pool, by number.
    serving: BTreeMap<u32, &'static StreamCache>,
    /// How many of them serve a stream, by the stream's address.
    on_stream: FxHashMap<usize, usize>,
    /// The number of the last stream that was seen at each address, as [`Service::stream_id`].
    last_ids: FxHashMap<usize, u64>,
    /// The number of the cache that [`DeviceCaches::next_serving`] returned last.
    last_seen: u32,
}

/// A pool, its caches, and what those that are gone have counted.
#[derive(Debug)]
struct PoolCaches {
    pool: Arc<Pool>,
    /// By number.
    caches: BTreeMap<u32, &'static StreamCache>,
    /// The same by the stream that they serve, as [`normalized`].
    by_stream: FxHashMap<usize, Vec<&'static StreamCache>>,
    /// The one that lends slabs to the others, once there are many.
    lender: Option<&'static StreamCache>,
    past: Counts,
}

impl PoolCaches {
    /// Returns every cache: the lender last, to which others return slabs.
    fn all(&self) -> impl Iterator<Item = &'static StreamCache> {
        self.caches.values().copied().chain(self.lender)
    }
}

impl Pools {
    /// Notes that a cache of a pool ends its service, before its clone of the stream goes.
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

/// Devices that a process can use memory of.
const DEVICES_MAX: usize = 0x100;
static DEVICES: [OnceLock<&'static DeviceCaches>; DEVICES_MAX] = [const { OnceLock::new() }; DEVICES_MAX];
/// One more than the highest ordinal among them.
static DEVICES_END: AtomicUsize = AtomicUsize::new(0);
/// NUMA nodes of the host that a process can have pinned memory on.
const NODES_MAX: usize = 0x40;
static NODES: [OnceLock<&'static DeviceCaches>; NODES_MAX] = [const { OnceLock::new() }; NODES_MAX];
/// One more than the highest number among them.
static NODES_END: AtomicUsize = AtomicUsize::new(0);

#[cold]
fn too_many(what: &str, most: usize) -> Error {
    Error::unavailable(format!("a process can have {most} {what}, and there are as many"))
}

impl DeviceCaches {
    /// Returns the caches of a device, or of a node of the host, if its memory was used.
    #[inline]
    pub(in crate::memory) fn known(device: Device) -> Option<&'static Self> {
        match device.host_node() {
            None => DEVICES.get(device.ordinal())?.get().copied(),
            Some(node) => NODES.get(node as usize)?.get().copied(),
        }
    }

    /// Returns the caches of every device whose memory was used, then those of the host's nodes.
    #[inline]
    pub(in crate::memory) fn all() -> impl Iterator<Item = &'static Self> {
        Self::of_devices().chain(Self::of_nodes())
    }

    /// Returns the caches of every device whose memory was used.
    #[inline]
    pub(in crate::memory) fn of_devices() -> impl Iterator<Item = &'static Self> {
        let used = DEVICES.iter().take(DEVICES_END.load(Ordering::Acquire));
        used.filter_map(|caches| caches.get().copied())
    }

    /// Returns the caches of every NUMA node of the host whose pinned memory was used.
    #[inline]
    pub(in crate::memory) fn of_nodes() -> impl Iterator<Item = &'static Self> {
        let used = NODES.iter().take(NODES_END.load(Ordering::Acquire));
        used.filter_map(|caches| caches.get().copied())
    }

    /// Makes the caches of this memory, with no pools yet, for as long as the process lives.
    pub(in crate::memory) fn new(memory: DeviceMemory) -> &'static Self {
        Box::leak(Box::new(Self {
            memory,
            default: OnceLock::new(),
            pools: Mutex::default(),
            caches: Table::new(CACHES_MAX),
            cache_numbers: AtomicU32::new(0),
            spare: Mutex::default(),
            reported: Mutex::default(),
            free_beside_held: Mutex::default(),
        }))
    }

    /// Makes this the device's, unless it has one already, which is returned.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` for a device beyond the 256th, or a node beyond the 64th.
    pub(in crate::memory) fn install(&'static self) -> Result<&'static Self> {
        let (number, place, end) = match self.memory.device.host_node() {
            None => {
                let ordinal = self.memory.device.ordinal();
                let place = DEVICES.get(ordinal).ok_or_else(|| too_many("devices", DEVICES_MAX))?;
                (ordinal, place, &DEVICES_END)
            }
            Some(node) => {
                let node = node as usize;
                let place = NODES.get(node).ok_or_else(|| too_many("NUMA nodes of the host", NODES_MAX))?;
                (node, place, &NODES_END)
            }
        };
        let installed = *place.get_or_init(|| self);
        end.fetch_max(number + 1, Ordering::AcqRel);
        Ok(installed)
    }

    /// Adds the default pool, before any other.
    pub(in crate::memory) fn set_default_pool(&self, pool: Arc<Pool>) {
        self.add_pool(self.default.get_or_init(|| pool));
    }

    /// Returns the default pool, which is there from the start.
    pub(in crate::memory) fn default_pool(&self) -> Result<&Arc<Pool>> {
        self.default.get().ok_or_else(|| Error::internal(format!("{} has no default pool", self.memory.device)))
    }

    /// Returns every pool that has, or can have, memory. The default pool is the first.
    pub(in crate::memory) fn pools(&self) -> Vec<Arc<Pool>> {
        lock(&self.pools).all.values().map(|entry| Arc::clone(&entry.pool)).collect()
    }

    /// Returns the pool with this id, if it is in use.
    pub(in crate::memory) fn pool_in_use(&self, id: PoolId) -> Option<Arc<Pool>> {
        let pools = lock(&self.pools);
        let pool = &pools.all.get(pools.by_id.get(&id)?)?.pool;
        (!pool.is_default() && pool.use_count() > 0).then(|| Arc::clone(pool))
    }

    /// Returns the pools, and what those that are gone have counted.
    pub(in crate::memory) fn pools_and_past(&self) -> (Vec<Arc<Pool>>, Counts) {
        let pools = lock(&self.pools);
        (pools.all.values().map(|entry| Arc::clone(&entry.pool)).collect(), pools.past)
    }

    pub(in crate::memory) fn add_pool(&self, pool: &Arc<Pool>) {
        let entry = PoolCaches {
            pool: Arc::clone(pool),
            caches: BTreeMap::new(),
            by_stream: FxHashMap::default(),
            lender: None,
            past: Counts::default(),
        };
        let mut pools = lock(&self.pools);
        pools.all.insert(pool.number, entry);
        pools.by_id.insert(pool.id, pool.number);
    }

    /// Forgets a pool in which nothing is live, but not what it has counted. Its caches serve others.
    pub(in crate::memory) fn remove_pool(&self, pool: &Pool, counts: Counts) {
        let removed = {
            let mut pools = lock(&self.pools);
            let removed = pools.all.remove(&pool.number);
            if let Some(removed) = &removed {
                pools.past.add(counts);
                removed.caches.values().for_each(|cache| pools.forget(cache));
                if pools.by_id.get(&pool.id) == Some(&pool.number) {
                    pools.by_id.remove(&pool.id);
                }
            }
            removed
        };
        let Some(removed) = removed else { return };
        // So that nothing keeps the pool, nor what its allocator holds.
        removed.all().for_each(StreamCache::end_service);
        self.put_spare(removed.all());
    }

    /// Returns every cache, whichever pool it serves.
    pub(in crate::memory) fn serving(&self) -> Vec<&'static StreamCache> {
        lock(&self.pools).all.values().flat_map(PoolCaches::all).collect()
    }

    /// Returns the next few caches, whichever pools they serve: those after the ones that were returned last.
    pub(in crate::memory) fn next_serving(&self, most: usize) -> Vec<&'static StreamCache> {
        let mut pools = lock(&self.pools);
        let last = pools.last_seen;
        let (after, before) =
            (pools.serving.range((Bound::Excluded(last), Bound::Unbounded)), pools.serving.range(..=last));
        let next: Vec<_> = after.chain(before).take(most).map(|(_, cache)| *cache).collect();
        pools.last_seen = next.last().map_or(0, |cache| cache.number);
        next
    }

    /// Returns how many caches serve a stream.
    pub(in crate::memory) fn count_on(&self, stream: &Stream) -> usize {
        lock(&self.pools).on_stream.get(&normalized(stream.raw())).copied().unwrap_or(0)
    }

    /// Notes that a stream that a request names is alive, so that others which had its address are known to be gone.
    pub(in crate::memory) fn note_stream(&self, stream: &Stream, id: u64) {
        if !stream.raw().is_default() {
            lock(&self.pools).last_ids.insert(normalized(stream.raw()), id);
        }
    }

    /// Returns the number of the last stream that was seen at this one's address; 0 if none was.
    pub(in crate::memory) fn last_id(&self, stream: &Stream) -> u64 {
        lock(&self.pools).last_ids.get(&normalized(stream.raw())).copied().unwrap_or(0)
    }

    /// Returns whether the stream that is served is known to be gone: another one has its address.
    pub(in crate::memory) fn is_stream_gone(&self, service: &Service) -> bool {
        service.stream_id != 0 && self.last_id(&service.stream) != service.stream_id
    }

    fn pool_caches<R>(&self, pool: &Pool, f: impl FnOnce(&mut PoolCaches) -> R) -> Option<R> {
        lock(&self.pools).all.get_mut(&pool.number).map(f)
    }

    /// As [`DeviceCaches::pool_caches`], on the pool's device; the default if the pool is gone.
    fn of_pool<R: Default>(pool: &Pool, f: impl FnOnce(&mut PoolCaches) -> R) -> R {
        let caches = Self::known(pool.memory.device);
        caches.and_then(|caches| caches.pool_caches(pool, f)).unwrap_or_default()
    }

    /// Returns the caches that serve the pool.
    pub(in crate::memory) fn caches_of(pool: &Pool) -> Vec<&'static StreamCache> {
        Self::caches_and_past_of(pool).0
    }

    /// Returns the caches that serve the pool, each with what it serves. A cache of the list may be another pool's by the time
    /// it is locked, so it is locked in its service: [`StreamCache::lock_in`].
    pub(in crate::memory) fn services_of(pool: &Pool) -> Vec<(&'static StreamCache, Service)> {
        let of_pool = |cache: &'static StreamCache| Some((cache, cache.service_of(pool)?));
        Self::caches_of(pool).into_iter().filter_map(of_pool).collect()
    }

    /// Returns the caches that serve the pool, and what those that are gone have counted.
    pub(in crate::memory) fn caches_and_past_of(pool: &Pool) -> (Vec<&'static StreamCache>, Counts) {
        Self::of_pool(pool, |entry| (entry.all().collect(), entry.past))
    }

    /// Returns the caches that serve the pool and the stream, whichever threads' they are.
    pub(in crate::memory) fn caches_on(pool: &Pool, stream: RawStream) -> Vec<&'static StreamCache> {
        Self::of_pool(pool, |entry| entry.by_stream.get(&normalized(stream)).cloned().unwrap_or_default())
    }

    /// Returns the pool's lender of slabs, if it has one.
    pub(in crate::memory) fn lender_of(pool: &Pool) -> Option<&'static StreamCache> {
        Self::of_pool(pool, |entry| entry.lender)
    }

    /// Returns the lender of a pool that has more than `many` other caches; made when it is first needed.
    ///
    /// # Errors
    /// As [`DeviceCaches::new_cache`].
    pub(in crate::memory) fn lender_for_many(pool: &Arc<Pool>, many: usize) -> Result<Option<&'static StreamCache>> {
        let (count, lender) = Self::of_pool(pool, |entry| (entry.caches.len(), entry.lender));
        if count <= many || lender.is_some() {
            return Ok(lender.filter(|_| count > many));
        }
        let Some(caches) = Self::known(pool.memory.device) else { return Ok(None) };
        let (made, _) = caches.new_cache(Service::of_lender(pool))?;
        let lender = Self::of_pool(pool, |entry| Some(*entry.lender.get_or_insert(made)));
        if lender.is_none_or(|lender| !std::ptr::eq(lender, made)) {
            made.end_service();
            caches.put_spare([made]);
        }
        Ok(lender)
    }

    /// Returns the caches with these numbers, as far as they serve the pool. Others are struck off its ledger.
    pub(in crate::memory) fn numbered(pool: &Pool, numbers: &[u32]) -> Vec<&'static StreamCache> {
        let of_number = |entry: &mut PoolCaches, number: u32| {
            let lender = entry.lender.filter(|lender| lender.number == number);
            let cache = entry.caches.get(&number).copied().or(lender);
            if cache.is_none() {
                pool.ledger.remove_with_pages(number);
            }
            cache
        };
        Self::of_pool(pool, |entry| numbers.iter().filter_map(|&number| of_number(entry, number)).collect())
    }

    /// Returns what all caches of the pool have counted, those that are gone too.
    pub(in crate::memory) fn counts_of(pool: &Pool, thread: ThisThread) -> Counts {
        let (caches, mut counts) = Self::caches_and_past_of(pool);
        caches.iter().for_each(|cache| counts.add(cache.lock(thread).counts()));
        counts
    }

    /// Returns how many blocks are to be reported as handed out so far, and as come back. Neither goes back: a cache that
    /// began to serve another stream between two looks is counted nowhere in one of them.
    pub(in crate::memory) fn report(&self, out: Amounts, back: Amounts) -> (Amounts, Amounts) {
        let mut reported = lock(&self.reported);
        *reported = Reported { out: most(reported.out, out), back: most(reported.back, back) };
        (reported.out, reported.back)
    }

    /// Looks for free blocks beside ones that are held, and returns what was found so far: of all, of small and of large
    /// ones.
    pub(in crate::memory) fn find_free_beside_held(&self, thread: ThisThread) -> [(Flow, Flow); 3] {
        let mut found = [(0, 0); 3];
        for cache in self.serving() {
            let [small, large] = cache.lock(thread).free_beside_held(&cache.memory.pages);
            for (sum, more) in found.iter_mut().zip([(small.0 + large.0, small.1 + large.1), small, large]) {
                *sum = (sum.0 + more.0, sum.1 + more.1);
            }
        }
        let mut known = lock(&self.free_beside_held);
        for (known, found) in known.iter_mut().zip(found) {
            known.0.find(found.0);
            known.1.find(found.1);
        }
        *known
    }

    /// Starts the peaks of what was found so anew.
    pub(in crate::memory) fn reset_free_beside_held(&self) {
        for (blocks, bytes) in &mut *lock(&self.free_beside_held) {
            blocks.reset_peak();
            bytes.reset_peak();
        }
    }

    /// Starts the peak of the pools that are gone anew.
    pub(in crate::memory) fn reset_past_peaks(&self) {
        lock(&self.pools).past.forget_peaks();
    }

    /// Starts the peak of the pool's caches that are gone anew.
    pub(in crate::memory) fn reset_past_peak(pool: &Pool) {
        Self::of_pool(pool, |entry| entry.past.forget_peaks());
    }

    /// Adds a cache that serves the pool, and returns it, or another that serves the same if there is one already. None if
    /// the pool is gone.
    pub(in crate::memory) fn add_cache(
        &self,
        pool: &Pool,
        cache: &'static StreamCache,
    ) -> Option<&'static StreamCache> {
        let mut pools = lock(&self.pools);
        let entry = pools.all.get_mut(&pool.number)?;
        let stream = cache.stream_address();
        if let Some(same) = entry.by_stream.get(&stream)
            && let Some(first) = same.iter().find(|other| other.serves_as(cache))
        {
            return Some(first);
        }
        entry.caches.insert(cache.number, cache);
        entry.by_stream.entry(stream).or_default().push(cache);
        pools.serving.insert(cache.number, cache);
        *pools.on_stream.entry(stream).or_default() += 1;
        Some(cache)
    }

    /// Forgets a cache in which nothing is live, but not what it has counted; false if the pool has not got it.
    pub(in crate::memory) fn remove_cache(&self, pool: &Pool, cache: &StreamCache, counts: Counts) -> bool {
        let mut pools = lock(&self.pools);
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

    /// Returns the cache with this number.
    #[inline]
    fn cache(&self, number: u32) -> Option<&StreamCache> {
        self.caches.get(number as usize)?.get()
    }

    /// Returns the cache that holds the block at the offset.
    #[inline]
    pub(in crate::memory) fn cache_at(&self, offset: u64) -> Option<&StreamCache> {
        let number = self.memory.pages.cache(offset)?;
        self.cache(number).or_else(|| self.lent_cache_at(offset, number))
    }

    /// Returns the cache that has borrowed the slab at the offset, of a page with this mark; else the page's.
    #[cold]
    fn lent_cache_at(&self, offset: u64, mark: u32) -> Option<&StreamCache> {
        self.cache(self.memory.pages.borrower(offset).unwrap_or(mark & !LENT))
    }

    /// Returns a cache that serves this from now on, and the number of the service.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if there are too many.
    pub(in crate::memory) fn new_cache(&'static self, service: Service) -> Result<(&'static StreamCache, u64)> {
        let spare = lock(&self.spare).pop();
        let cache = match spare {
            Some(cache) => cache,
            None => {
                let number = self.cache_numbers.fetch_add(1, Ordering::Relaxed);
                let place = self.caches.get_or_make(number as usize);
                let place = place.ok_or_else(|| too_many("pools and streams with memory", CACHES_MAX))?;
                place.get_or_init(|| StreamCache::new(number, &self.memory))
            }
        };
        let number = cache.serve(service);
        Ok((cache, number))
    }

    /// Takes empty caches that no pool knows any more. A thread that still knows one names a service that has ended.
    pub(in crate::memory) fn put_spare(&self, caches: impl IntoIterator<Item = &'static StreamCache>) {
        lock(&self.spare).extend(caches);
    }
}

//! A device's memory with all that shares it: its pools, and the caches that serve them.
//!
//! Made when first needed and never dropped. From an offset to the cache that holds the block there are two array
//! loads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::heap::Counts;
use super::service::Service;
use super::thread_cache::ThreadCache;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::DeviceMemory;
use crate::memory::pool::{Pool, PoolId};
use crate::sync::{Table, ThisThread, lock};

/// How many caches a device can have.
const CACHES_MAX: usize = 1 << 20;

/// A device's memory, its pools and its caches.
#[derive(Debug)]
pub(in crate::memory) struct DeviceCaches {
    pub(in crate::memory) memory: DeviceMemory,
    default: OnceLock<Arc<Pool>>,
    pools: Mutex<Pools>,
    caches: Table<OnceLock<ThreadCache>, 4>,
    cache_numbers: AtomicU32,
    /// Empty caches of pools that are gone; each is free for others once its thread has given it up.
    spare: Mutex<Vec<&'static ThreadCache>>,
    /// The most allocations and frees that were ever reported of all pools, for neither count goes back.
    pub(in crate::memory) reported_allocations: AtomicU64,
    pub(in crate::memory) reported_frees: AtomicU64,
}

/// A device's pools by number, the default one first, and what those that are gone have counted.
#[derive(Debug, Default)]
struct Pools {
    all: BTreeMap<u32, PoolCaches>,
    past: Counts,
}

/// A pool, its caches, and what those that are gone have counted.
#[derive(Debug)]
struct PoolCaches {
    pool: Arc<Pool>,
    caches: Vec<&'static ThreadCache>,
    past: Counts,
}

/// Devices that a process can use memory of.
const DEVICES_MAX: usize = 256;
static DEVICES: [OnceLock<&'static DeviceCaches>; DEVICES_MAX] = [const { OnceLock::new() }; DEVICES_MAX];
/// One more than the highest ordinal among them.
static DEVICES_END: AtomicUsize = AtomicUsize::new(0);

#[cold]
fn too_many(what: &str, most: usize) -> Error {
    Error::unavailable(format!("a process can have {most} {what}, and there are as many"))
}

impl DeviceCaches {
    /// Returns the caches of a device, if its memory was used.
    #[inline]
    pub(in crate::memory) fn known(device: Device) -> Option<&'static Self> {
        DEVICES.get(device.ordinal())?.get().copied()
    }

    /// Returns the caches of every device whose memory was used.
    pub(in crate::memory) fn all() -> impl Iterator<Item = &'static Self> {
        let used = DEVICES.iter().take(DEVICES_END.load(Ordering::Acquire));
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
            reported_allocations: AtomicU64::new(0),
            reported_frees: AtomicU64::new(0),
        }))
    }

    /// Makes this the device's, unless it has one already, which is returned.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` for a device beyond the 256th.
    pub(in crate::memory) fn install(&'static self) -> Result<&'static Self> {
        let ordinal = self.memory.device.ordinal();
        let place = DEVICES.get(ordinal).ok_or_else(|| too_many("devices", DEVICES_MAX))?;
        let installed = *place.get_or_init(|| self);
        DEVICES_END.fetch_max(ordinal + 1, Ordering::AcqRel);
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
        let is_meant = |pool: &&Arc<Pool>| pool.id == id && !pool.is_default() && pool.use_count() > 0;
        pools.all.values().map(|entry| &entry.pool).find(is_meant).cloned()
    }

    /// Returns the pools, and what those that are gone have counted.
    pub(in crate::memory) fn pools_and_past(&self) -> (Vec<Arc<Pool>>, Counts) {
        let pools = lock(&self.pools);
        (pools.all.values().map(|entry| Arc::clone(&entry.pool)).collect(), pools.past)
    }

    pub(in crate::memory) fn add_pool(&self, pool: &Arc<Pool>) {
        let entry = PoolCaches { pool: Arc::clone(pool), caches: Vec::new(), past: Counts::default() };
        lock(&self.pools).all.insert(pool.number, entry);
    }

    /// Forgets a pool in which nothing is live, but not what it has counted. Its caches serve others once their threads
    /// have given them up.
    pub(in crate::memory) fn remove_pool(&self, pool: &Pool, counts: Counts) {
        let removed = {
            let mut pools = lock(&self.pools);
            let removed = pools.all.remove(&pool.number);
            if removed.is_some() {
                pools.past.add(counts);
            }
            removed
        };
        let Some(removed) = removed else { return };
        // So that nothing keeps the pool, nor what its allocator holds.
        removed.caches.iter().for_each(|cache| cache.end_service());
        self.put_spare(removed.caches);
    }

    /// Returns every cache, whichever pool it serves.
    pub(in crate::memory) fn serving(&self) -> Vec<&'static ThreadCache> {
        lock(&self.pools).all.values().flat_map(|entry| &entry.caches).copied().collect()
    }

    fn pool_caches<R>(&self, pool: &Pool, f: impl FnOnce(&mut PoolCaches) -> R) -> Option<R> {
        lock(&self.pools).all.get_mut(&pool.number).map(f)
    }

    /// Returns the caches that serve the pool.
    pub(in crate::memory) fn caches_of(pool: &Pool) -> Vec<&'static ThreadCache> {
        Self::caches_and_past_of(pool).0
    }

    /// Returns the caches that serve the pool, and what those that are gone have counted.
    pub(in crate::memory) fn caches_and_past_of(pool: &Pool) -> (Vec<&'static ThreadCache>, Counts) {
        let caches = Self::known(pool.memory.device);
        let found = caches.and_then(|caches| caches.pool_caches(pool, |entry| (entry.caches.clone(), entry.past)));
        found.unwrap_or_default()
    }

    /// Returns what all caches of the pool have counted, those that are gone too.
    pub(in crate::memory) fn counts_of(pool: &Pool, thread: ThisThread) -> Counts {
        let (caches, mut counts) = Self::caches_and_past_of(pool);
        caches.iter().for_each(|cache| counts.add(cache.lock(thread).counts()));
        counts
    }

    /// Starts the peak of the pool's caches that are gone anew.
    pub(in crate::memory) fn reset_past_peak(pool: &Pool) {
        if let Some(caches) = Self::known(pool.memory.device) {
            caches.pool_caches(pool, |entry| entry.past.peak = 0);
        }
    }

    /// Adds a cache that serves the pool; false if the pool is gone.
    pub(in crate::memory) fn add_cache(&self, pool: &Pool, cache: &'static ThreadCache) -> bool {
        self.pool_caches(pool, |entry| entry.caches.push(cache)).is_some()
    }

    /// Forgets a cache in which nothing is live, but not what it has counted.
    pub(in crate::memory) fn remove_cache(&self, pool: &Pool, cache: &ThreadCache, counts: Counts) {
        self.pool_caches(pool, |entry| {
            entry.caches.retain(|other| !std::ptr::eq(*other, cache));
            entry.past.add(counts);
        });
    }

    /// Returns the cache with this number.
    #[inline]
    fn cache(&self, number: u32) -> Option<&ThreadCache> {
        self.caches.get(number as usize)?.get()
    }

    /// Returns the cache that holds the block at the offset.
    #[inline]
    pub(in crate::memory) fn cache_at(&self, offset: u64) -> Option<&ThreadCache> {
        self.cache(self.memory.pages.cache(offset)?)
    }

    /// Returns a cache that serves this from now on, owned by the calling thread.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if there are too many.
    pub(in crate::memory) fn new_cache(
        &'static self,
        service: Service,
        thread: ThisThread,
    ) -> Result<&'static ThreadCache> {
        let spare = {
            let mut spare = lock(&self.spare);
            let place = spare.iter().position(|cache| cache.adopt(thread));
            place.map(|place| spare.swap_remove(place))
        };
        let cache = match spare {
            Some(cache) => cache,
            None => {
                let number = self.cache_numbers.fetch_add(1, Ordering::Relaxed);
                let place = self.caches.get_or_make(number as usize);
                let place = place.ok_or_else(|| too_many("threads and streams with memory", CACHES_MAX))?;
                let cache = place.get_or_init(|| ThreadCache::new(number, &self.memory));
                cache.adopt(thread);
                cache
            }
        };
        cache.serve(service);
        Ok(cache)
    }

    /// Takes empty caches that no pool knows any more.
    pub(in crate::memory) fn put_spare(&self, caches: Vec<&'static ThreadCache>) {
        lock(&self.spare).extend(caches);
    }
}

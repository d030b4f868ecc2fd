//! The caches of a device by number: from an offset to the cache that holds the block there are two array loads.

use std::sync::{Mutex, OnceLock};

use super::too_many;
use crate::error::Result;
use crate::memory::cache::service::Service;
use crate::memory::cache::stream_cache::StreamCache;
use crate::memory::device::DeviceMemory;
use crate::sync::{AtomicU32, Ordering, Table, lock};

/// How many caches a device can have.
const CACHES_MAX: usize = 0x10_0000;

/// Every cache of a device, and those that serve nothing.
#[derive(Debug)]
pub(in crate::memory) struct CacheTable {
    caches: Table<OnceLock<StreamCache>, 4>,
    numbers: AtomicU32,
    /// Empty caches whose service has ended.
    idle: Mutex<Vec<&'static StreamCache>>,
}

impl CacheTable {
    pub(super) fn new() -> Self {
        Self { caches: Table::new(CACHES_MAX), numbers: AtomicU32::new(0), idle: Mutex::default() }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&StreamCache> {
        self.caches.get(number as usize)?.get()
    }

    /// Begins a service with an idle cache or a new one. Returns the cache and the service's number.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if there are too many.
    pub(in crate::memory) fn begin(
        &'static self,
        memory: &'static DeviceMemory,
        service: Service,
    ) -> Result<(&'static StreamCache, u64)> {
        let idle = lock(&self.idle).pop();
        let cache = match idle {
            Some(cache) => cache,
            None => {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                let place = self.caches.get_or_make(number as usize);
                let place = place.ok_or_else(|| too_many("pools and streams with memory", CACHES_MAX))?;
                place.get_or_init(|| StreamCache::new(number, memory))
            }
        };
        let number = cache.serve(service);
        Ok((cache, number))
    }

    /// Ends the service of an empty cache that no pool knows any more, and keeps it for another. A thread that still
    /// knows it names a service that has ended.
    pub(in crate::memory) fn end(&self, cache: &'static StreamCache) {
        cache.end_service();
        lock(&self.idle).push(cache);
    }
}

//! The caches of a device by number: from an offset to the cache that holds the block there are two array loads.

use std::sync::{Arc, OnceLock};

use super::too_many;
use crate::error::Result;
use crate::memory::cache::service::Service;
use crate::memory::cache::stream_cache::{ServingCache, StreamCache, UnnamedCaches};
use crate::memory::device::DeviceMemory;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Table};

/// How many caches a device can have.
const CACHES_MAX: usize = 0x10_0000;

/// Every cache of a device.
#[derive(Debug)]
pub(in crate::memory) struct CacheTable {
    caches: Table<OnceLock<StreamCache>, 4>,
    numbers: AtomicU32,
    births: AtomicU64,
    unnamed: UnnamedCaches,
}

impl CacheTable {
    pub(super) fn new() -> Self {
        Self {
            caches: Table::new(CACHES_MAX),
            numbers: AtomicU32::new(0),
            births: AtomicU64::new(1),
            unnamed: UnnamedCaches::default(),
        }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&StreamCache> {
        self.caches.get(number as usize)?.get()
    }

    /// Begins the life of a cache, of a new one or of one that nothing names any more.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if there are too many.
    pub(in crate::memory) fn begin(
        &'static self,
        memory: &'static DeviceMemory,
        service: Service,
    ) -> Result<Arc<ServingCache>> {
        let cache = match self.unnamed.take() {
            Some(cache) => cache,
            None => {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                let place = self.caches.get_or_make(number as usize);
                let place = place.ok_or_else(|| too_many("pools and streams with memory", CACHES_MAX))?;
                place.get_or_init(|| StreamCache::new(number, memory))
            }
        };
        Ok(cache.begin(service, &self.unnamed, self.births.fetch_add(1, Ordering::Relaxed)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::DeviceCaches;
    use super::*;
    use crate::ids::Device;
    use crate::memory::device::Supply;
    use crate::memory::pool::{Pool, PoolId, Rules, UseOf};

    #[test]
    fn a_name_keeps_a_cache_that_has_ended_from_being_born_again() -> Result<()> {
        let caches = DeviceCaches::new(DeviceMemory::for_model(Device::from_ordinal(0xc0).into())).install()?;
        let memory = &caches.memory;
        let pool = |number| {
            let supply = Supply::new(memory.default_source(), None);
            Arc::new(Pool::new(PoolId::NONE, number, memory, Rules::default(), None, supply, UseOf::Requests))
        };
        let born_for = |pool: &Arc<Pool>| caches.table.begin(memory, Service::of_lender(pool));
        let (one, other) = (pool(1), pool(2));
        let first = born_for(&one)?;
        let name = Arc::clone(&first.name);
        assert!(!first.has_ended() && first.end().is_some() && first.has_ended());
        assert!(
            first.cache.serving().is_none() && Arc::strong_count(&one) == 2,
            "what has the ended cache still has its pool"
        );
        drop(first);
        assert_eq!(Arc::strong_count(&one), 1, "a name keeps no pool");
        let second = born_for(&other)?;
        assert_ne!(second.number, name.cache.number);
        assert!(name.cache.has_ended() && name.cache.lock_by_mutex().counts().allocations() == 0);
        let number = name.cache.number;
        drop(name);
        let third = born_for(&other)?;
        assert!(third.number == number && !third.has_ended());
        assert_eq!(third.cache.serving().map(|of| of.pool().number), Some(2));
        Ok(())
    }
}

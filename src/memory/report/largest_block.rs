//! The largest block that could be had.

use crate::error::Result;
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::serve::device_caches;
use crate::memory::tuning::PAGE;
use crate::runtime;

/// Returns the largest block that the default pool could serve without giving anything back, as far as is known: free
/// pages together, and the rest from the driver. Other programs and busy streams can make it less.
pub(crate) fn largest_block(device: Device) -> Result<u64> {
    let caches = device_caches(device)?;
    let pool = caches.default_pool()?;
    let (mut largest, mut pages) = (0, 0);
    for cache in DeviceCaches::caches_of(pool) {
        let heap = cache.lock_by_mutex();
        // A sleeping heap's free memory does not exist.
        let (of_cache, in_pages) = if heap.is_asleep() { (0, 0) } else { heap.free_bytes() };
        drop(heap);
        largest = largest.max(of_cache);
        pages += in_pages;
    }
    let room =
        caches.memory.budget.limit().map_or(u64::MAX, |limit| limit.saturating_sub(caches.memory.budget.reserved()));
    let new = runtime::memory_info(device)?.free.min(room) / PAGE * PAGE;
    Ok(largest.max(if pool.source().is_pages() { pages + new } else { new }))
}

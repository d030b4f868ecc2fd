//! How large a block could be had.

use crate::error::Result;
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::serve::device_caches;
use crate::memory::tuning::PAGE;
use crate::runtime;

/// Returns the largest block of the default pool that could be had without giving anything back, as far as is known:
/// free pages are mapped together, and the rest comes from the driver. Other programs, and streams at work, can make it
/// less.
///
/// # Errors
/// As [`device`](crate::device); `ErrorKind::Library` if the driver refuses.
pub(crate) fn largest_block(device: Device) -> Result<u64> {
    let caches = device_caches(device)?;
    let pool = caches.default_pool()?;
    let (mut largest, mut pages) = (0, 0);
    for cache in DeviceCaches::caches_of(pool) {
        let heap = cache.visit();
        // What is free in one that is asleep is not there.
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

//! Abandoned caches: those of streams that only caches still hold, and of foreign streams that are known to be gone or
//! whose pages all serve others. They end when a thread needs a cache that it does not know, so that streams made and
//! dropped leave nothing behind.

use super::reserve::retire_reserve;
use super::settle::Patience;
use super::slabs::return_slabs;
use super::trim::retire_free;
use crate::error::Result;
use crate::memory::cache::{DeviceCaches, ServingCache, StreamCache};
use crate::memory::tuning::A_FEW;
use crate::runtime::Stream;
use crate::sync::ThisThread;

/// Ends the abandoned caches without live blocks among the next few, and goes on while half of them are abandoned.
pub(in crate::memory) fn end_abandoned(caches: &DeviceCaches, thread: ThisThread) {
    let ends = |&cache: &&'static StreamCache| {
        let Some(service) = cache.service() else { return false };
        let is_abandoned = match service.stream.as_ref().and_then(Stream::clones) {
            // Each cache holds one clone, and `service` another.
            Some(clones) => clones == caches.pools.count_on(&service) + 1,
            None => caches.pools.is_stream_gone(&service) || cache.marks_work() && is_bare(cache, thread),
        };
        is_abandoned && end(caches, &ServingCache { cache, service, thread })
    };
    loop {
        let ended = caches.pools.next_serving(A_FEW).into_iter().filter(ends).count();
        if ended < A_FEW / 2 {
            break;
        }
    }
}

fn is_bare(cache: &StreamCache, thread: ThisThread) -> bool {
    cache.lock(thread).mapped() == 0
}

/// Takes the free memory out of a cache; if its pool keeps memory, only borrowed slabs and pages of the reserve.
fn leave_memory(of: &ServingCache) -> Result<()> {
    if of.pool().gives_way() {
        return retire_free(of, Patience::Ask);
    }
    return_slabs(of)?;
    retire_reserve(of)
}

/// Takes a cache without memory out of its pool. False if it has live blocks or memory that the pool keeps.
fn end(caches: &DeviceCaches, of: &ServingCache) -> bool {
    let ServingCache { cache, ref service, thread } = *of;
    let is_idle = cache.waiting.is_empty() && cache.lock(thread).live() == 0;
    if !is_idle || !is_bare(cache, thread) && leave_memory(of).is_err() {
        return false;
    }
    let Some(counts) = cache.end_idle(service, thread) else { return false };
    let is_ended = caches.pools.remove_cache(&service.pool, cache, counts);
    if is_ended {
        caches.table.end(cache);
    }
    is_ended
}

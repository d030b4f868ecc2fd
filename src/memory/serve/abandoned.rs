//! Abandoned caches: those of streams that nothing but caches holds any more, and of foreign streams whose pages all
//! serve others. They end when a thread needs a new cache, so that streams made and dropped leave nothing behind.

use super::grow::{retire_reserve, return_slabs};
use super::trim::retire_free;
use crate::error::Result;
use crate::memory::cache::{CacheKey, DeviceCaches, Service, ThreadCache};
use crate::sync::ThisThread;

/// How many caches are looked at at a time, so that a thread which makes thousands takes a time in proportion to them. A
/// program with fewer streams and threads leaves nothing for the next call; of more, a part of the live ones can be
/// behind.
pub(super) const LOOKED_AT: usize = 16;

/// Ends the abandoned caches in which nothing is live among the next few, and goes on as long as half of them are
/// abandoned: of those that the thread owns and those without an owner. Returns the ended caches with their keys, which
/// the thread must give up.
pub(super) fn end_abandoned(caches: &DeviceCaches, thread: ThisThread) -> Vec<(CacheKey, &'static ThreadCache)> {
    let mut ended = Vec::new();
    loop {
        let before = ended.len();
        end_some(caches, thread, &mut ended);
        if ended.len() - before < LOOKED_AT / 2 {
            break;
        }
    }
    caches.put_spare(ended.iter().map(|(_, cache)| *cache));
    ended
}

/// Ends the abandoned caches among the next few.
fn end_some(caches: &DeviceCaches, thread: ThisThread, ended: &mut Vec<(CacheKey, &'static ThreadCache)>) {
    for cache in caches.next_serving(LOOKED_AT) {
        let Some(service) = cache.service() else { continue };
        let is_abandoned = match service.stream.clones() {
            // Each cache holds one clone, and `service` another.
            Some(clones) => clones == caches.count_on(&service.stream) + 1,
            None => cache.marks_work() && is_bare(cache, thread),
        };
        if !is_abandoned {
            continue;
        }
        let is_adopted = !cache.is_owned_by(thread);
        if is_adopted && !cache.adopt(thread) {
            continue;
        }
        if end(caches, cache, &service, thread) {
            ended.push((CacheKey::of(&service, caches.memory.device), cache));
        } else if is_adopted {
            cache.give_up(thread);
        }
    }
}

/// Returns whether the cache, which the thread owns or which has no owner, has no memory.
fn is_bare(cache: &ThreadCache, thread: ThisThread) -> bool {
    (cache.is_owned_by(thread) || cache.owner().is_none()) && cache.lock(thread).mapped() == 0
}

/// Takes what is free out of a cache; of a pool that keeps its memory only what the pool has for other streams.
fn leave_memory(cache: &ThreadCache, service: &Service, thread: ThisThread) -> Result<()> {
    if service.pool.gives_way() {
        retire_free(cache, thread, service)
    } else {
        return_slabs(cache, thread, service)?;
        retire_reserve(cache, thread, service)
    }
}

/// Takes a cache without memory out of its pool; false if something is live there, or is the pool's to keep.
fn end(caches: &DeviceCaches, cache: &'static ThreadCache, service: &Service, thread: ThisThread) -> bool {
    let is_idle = cache.waiting.is_empty() && cache.lock(thread).live() == 0;
    if !is_idle || !is_bare(cache, thread) && leave_memory(cache, service, thread).is_err() {
        return false;
    }
    let counts = {
        let mut heap = cache.lock(thread);
        if !heap.is_in(service.number) || !heap.end_if_empty() {
            return false;
        }
        heap.counts()
    };
    if !caches.remove_cache(&service.pool, cache, counts) {
        return false;
    }
    cache.end_service();
    true
}

//! Giving memory back: free pages and whole free segments leave at once, or as soon as their streams are done.

use std::sync::Arc;

use log::debug;

use crate::error::{Bytes, Result};
use crate::memory::cache::thread_cache::{Service, ThreadCache};
use crate::memory::device::device_memory::DeviceMemory;
use crate::memory::device::retired::Remains;
use crate::memory::pool::state::{Pool, Source};
use crate::memory::report::stats;
use crate::memory::serve::settle::{self as order, Until};
use crate::observe::{Activity, target::MEMORY};
use crate::runtime::Stream;

/// Takes all that is free out of a cache, to go once the stream is done.
fn retire_free(cache: &ThreadCache, thread: u64, service: &Service) -> Result<()> {
    if service.is_captured && service.pool.has_captures() {
        return Ok(());
    }
    let device = cache.device;
    // Recorded before anything is taken, so that a refusal changes nothing. What is taken was free before.
    let mut until = Some(Until::served(device, service, thread, None)?);
    let (mappings, spans) = {
        let mut heap = cache.lock(thread);
        heap.drop_empty_slabs(&device.pages);
        match service.pool.rules.source {
            Source::Pages => (cache.take_mappings(&mut heap, u64::MAX, 0, u64::MAX), Vec::new()),
            Source::Segments(_) => (Vec::new(), cache.take_free_spans(&mut heap)),
        }
    };
    if !mappings.is_empty() {
        let until = until.take().unwrap_or(Until::Events(Vec::new()));
        device.retired.push(Remains::Released { mapped: mappings, unmapped: Vec::new() }, until, &service.pool);
    }
    for (offset, bytes) in spans {
        let address = device.remove_segment(offset, bytes);
        let until = match until.take() {
            Some(until) => until,
            None => {
                Until::served(device, service, thread, None).unwrap_or_else(|_| Until::Devices(vec![device.device]))
            }
        };
        let remains = Remains::Segment { address, bytes, stream: service.stream.clone() };
        device.retired.push(remains, until, &service.pool);
    }
    if let Some(Until::Events(events)) = until {
        device.events.put_back(events);
    }
    Ok(())
}

/// Gives back what a pool holds and nobody uses, and answers the physical bytes that went; pages whose streams are still at
/// work go later, unless `wait`.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses; what it did not refuse has gone.
pub(in crate::memory) fn trim(pool: &Arc<Pool>, thread: u64, wait: bool) -> Result<u64> {
    let activity = Activity::begin(format_args!("trim memory pool"));
    let mut outcome = Ok(());
    for cache in pool.caches() {
        outcome = outcome.and(order::settle(cache, thread, wait));
        if let Some(service) = cache.service().filter(|service| Arc::ptr_eq(&service.pool, pool)) {
            outcome = outcome.and(retire_free(cache, thread, &service));
        }
    }
    forget_if_empty(pool, thread);
    let released = pool.device.end_retired(wait)?;
    if released > 0 {
        let (device, took) = (pool.device.device, activity.took());
        debug!(target: MEMORY, "pool {} on {device}: trimmed, {} given back in {took}", pool.id, Bytes(released));
    }
    outcome.map(|()| released)
}

/// [`trim`] for every pool of the device.
pub(in crate::memory) fn trim_device(device: &DeviceMemory, thread: u64, wait: bool) -> Result<u64> {
    let mut released = 0;
    let mut outcome = Ok(());
    for pool in device.pools() {
        match trim(&pool, thread, wait) {
            Ok(bytes) => released += bytes,
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome.map(|()| released)
}

/// Ends a pool that nobody holds any more: what is free goes, the rest when it is freed.
pub(in crate::memory) fn close(pool: &Arc<Pool>, thread: u64) -> Result<()> {
    mark_closed(pool);
    trim(pool, thread, false).map(drop)
}

/// [`close`] without a driver call: what is free goes when memory is next given back.
pub(in crate::memory) fn mark_closed(pool: &Pool) {
    pool.close();
    for cache in pool.caches() {
        cache.close();
    }
}

/// A block of a closed pool's cache was freed: its pages go too.
pub(in crate::memory) fn leave_closed(cache: &ThreadCache, thread: u64) -> Result<()> {
    let Some(service) = cache.service() else { return Ok(()) };
    order::settle(cache, thread, false)?;
    retire_free(cache, thread, &service)?;
    let outcome = cache.device.end_retired(false).map(drop);
    forget_if_empty(&service.pool, thread);
    outcome
}

/// Ends the caches of streams that nobody but caches holds any more, and of foreign streams whose pages all serve others, so
/// that streams made and dropped leave nothing behind: those that the thread owns, or nobody does, and in which nothing is
/// live. Answers those that the thread must give up.
pub(in crate::memory) fn end_abandoned(device: &DeviceMemory, thread: u64) -> Vec<&'static ThreadCache> {
    let serving: Vec<_> = device.serving().filter_map(|cache| Some((cache, cache.service()?))).collect();
    let of = |stream: &Stream| serving.iter().filter(|(_, other)| other.stream.raw() == stream.raw()).count();
    let mut ended = Vec::new();
    for (cache, service) in &serving {
        let is_abandoned = match service.stream.clones() {
            // Each cache holds one clone, and this list another.
            Some(clones) => clones == 2 * of(&service.stream),
            None => cache.is_lending() && is_bare(cache, thread),
        };
        if !is_abandoned {
            continue;
        }
        let is_adopted = !cache.is_owned_by(thread);
        if is_adopted && !cache.adopt(thread) {
            continue;
        }
        if end_cache(cache, service, thread) {
            ended.push(*cache);
        } else if is_adopted {
            cache.give_up(thread);
        }
    }
    device.let_go(ended.clone());
    ended
}

/// Whether the cache, which the thread owns or nobody does, has no memory.
fn is_bare(cache: &ThreadCache, thread: u64) -> bool {
    (cache.is_owned_by(thread) || cache.owner().is_none()) && cache.lock(thread).mapped() == 0
}

/// Takes a cache in which nothing is live out of its pool.
fn end_cache(cache: &'static ThreadCache, service: &Service, thread: u64) -> bool {
    let is_idle = cache.waiting.is_empty() && cache.lock(thread).counts().live == 0;
    if !is_idle || !is_bare(cache, thread) && retire_free(cache, thread, service).is_err() {
        return false;
    }
    let counts = {
        let heap = cache.lock(thread);
        if heap.mapped() > 0 {
            return false;
        }
        heap.counts()
    };
    service.pool.remove_cache(cache, counts);
    cache.end_telling(&service.pool);
    cache.end_service();
    true
}

/// Lets go of a closed pool that has nothing left. Its caches serve others once their threads have given them up.
fn forget_if_empty(pool: &Arc<Pool>, thread: u64) {
    let caches = pool.caches();
    if !pool.is_closed() || caches.iter().any(|cache| cache.lock(thread).mapped() > 0) {
        return;
    }
    pool.device.remove_pool(pool, stats::counts(pool));
    let caches = pool.take_caches();
    // So that nothing keeps the pool, nor what its allocator holds.
    caches.iter().for_each(|cache| cache.end_service());
    pool.device.let_go(caches);
}

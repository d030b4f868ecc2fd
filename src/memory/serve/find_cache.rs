//! The cache for a request: the one that served last, one that the thread has, one whose thread has ended, or a new
//! one.

use std::sync::Arc;

use super::abandoned::{LOOKED_AT, end_abandoned};
use super::devices::device_caches;
use crate::error::Result;
use crate::ids::RawStream;
use crate::memory::cache::{self, CacheKey, Counts, DeviceCaches, GivenKey, Service, ThreadCache, normalized};
use crate::memory::pool::{self, Destination, Given};
use crate::process;
use crate::runtime::Stream;
use crate::sync::ThisThread;

/// Returns this thread's cache for requests on the stream.
///
/// # Errors
/// As [`device_caches`]; `ErrorKind::InvalidValue` while the thread ends.
#[inline]
pub(super) fn cache_for(stream: &Stream) -> Result<(&'static ThreadCache, ThisThread)> {
    match cache::last(stream) {
        Some(last) => Ok(last),
        None => find(stream),
    }
}

/// As [`cache_for`], in calls that are no requests.
///
/// # Errors
/// As [`cache_for`].
pub(in crate::memory) fn cache_on(stream: &Stream) -> Result<&'static ThreadCache> {
    process::refuse_forked()?;
    cache_for(stream).map(|(cache, _)| cache)
}

#[cold]
fn find(stream: &Stream) -> Result<(&'static ThreadCache, ThisThread)> {
    let changes = pool::changes();
    let (key, cache, thread) = find_now(stream, None, false)?;
    cache::remember(key, changes, thread, cache);
    Ok((cache, thread))
}

/// As [`cache_for`], while the request may go where another thread or the context has routed it: what serves one request
/// may not serve the next.
pub(super) fn rerouted_cache_for(stream: &Stream) -> Result<(&'static ThreadCache, ThisThread)> {
    let (_, cache, thread) = find_now(stream, None, true)?;
    Ok((cache, thread))
}

/// Returns this thread's cache for requests of one pool on the stream; `is_rerouted` as for [`rerouted_cache_for`].
///
/// # Errors
/// As [`cache_for`].
pub(super) fn given_cache_for(
    given: &Given,
    stream: &Stream,
    is_rerouted: bool,
) -> Result<(&'static ThreadCache, ThisThread)> {
    let changes = pool::changes();
    let (key, cache, thread) = find_now(stream, Some(given), is_rerouted)?;
    // Of a pool for graphs it depends on the capture whether what an inner scope allocates is a graph's.
    if key.pool == given.pool.number {
        let Given { pool, ticket, is_captured, .. } = given;
        let given = GivenKey { pool: pool.number, ticket: *ticket, is_captured: *is_captured };
        cache::remember_given(given, key, changes, thread, cache);
    }
    Ok((cache, thread))
}

fn find_now(
    stream: &Stream,
    given: Option<&Given>,
    is_rerouted: bool,
) -> Result<(CacheKey, &'static ThreadCache, ThisThread)> {
    let (thread, device) = (ThisThread::get(), stream.device());
    let destination = pool::destination(stream, given, is_rerouted)?;
    let (pool, is_captured) = destination.as_ref().map_or((0, false), |to| (to.pool.number, to.is_captured));
    let key = CacheKey { device, pool, is_captured, stream: normalized(stream.raw()) };
    let cache = match cache::known(key)? {
        Some(cache) => cache,
        None => {
            let caches = device_caches(device)?;
            forget_unused(caches, thread)?;
            let cache = acquire(caches, thread, destination, stream)?;
            if let Err(error) = cache::add(key, cache) {
                cache.give_up(thread);
                return Err(error);
            }
            cache
        }
    };
    Ok((key, cache, thread))
}

/// Gives up the thread's caches of pools that are gone, and of streams that nothing else holds: a few each time.
fn forget_unused(caches: &'static DeviceCaches, thread: ThisThread) -> Result<()> {
    let mut outcome = Ok(());
    for (key, cache) in end_abandoned(caches, thread) {
        outcome = outcome.and(cache::forget(thread, key, cache));
        // One that was adopted just to be ended.
        cache.give_up(thread);
    }
    let is_gone = |key: CacheKey, cache: &'static ThreadCache| {
        // One that threads share may serve another pool by now.
        let is_another = cache.is_shared() && !cache.serves_pool(key.pool);
        is_another || (cache.is_closing() && cache.lock(thread).mapped() == 0)
    };
    outcome.and(cache::forget_some(thread, LOOKED_AT, is_gone))
}

/// Returns a cache without an owner that serves the same, else a new one; owned by the thread.
fn acquire(
    caches: &'static DeviceCaches,
    thread: ThisThread,
    destination: Option<Destination>,
    stream: &Stream,
) -> Result<&'static ThreadCache> {
    let (pool, is_captured, is_feed) = match destination {
        Some(Destination { pool, is_captured, is_feed }) => (pool, is_captured, is_feed),
        None => (Arc::clone(caches.default_pool()?), false, false),
    };
    let per_thread_of = (stream.raw() == RawStream::PER_THREAD).then(|| thread.number());
    let service =
        Service { number: 0, pool, stream: stream.kept(), per_thread_of, is_captured, is_feed, is_lender: false };
    for cache in DeviceCaches::caches_on(&service.pool, stream.raw()) {
        let serves = || cache.service().is_some_and(|other| other.is_as(&service));
        if !serves() {
            continue;
        }
        if cache.is_shared() {
            return Ok(cache);
        }
        if cache.adopt(thread) {
            // Another owner may have ended what it served meanwhile.
            if serves() {
                return Ok(cache);
            }
            cache.give_up(thread);
        }
    }
    let pool = Arc::clone(&service.pool);
    let cache = caches.new_cache(service, thread)?;
    let added = caches.add_cache(&pool, cache);
    if let Some(first) = added.filter(|first| !std::ptr::eq(*first, cache)) {
        cache.end_service();
        caches.put_spare_of(&pool, [cache]);
        return Ok(first);
    }
    if pool.marks_work() {
        cache.mark_work_if_foreign();
    }
    // Asked after the cache is known to the pool, so that the call that closes it sees the cache, or this one sees the end.
    if added.is_none() || pool.is_closed() {
        // Unless the end of the pool has done it, or is to: other threads may have added memory to it meanwhile.
        let is_over = || cache.end_if_empty(&pool, thread) && caches.remove_cache(&pool, cache, Counts::default());
        if added.is_none() || is_over() {
            cache.end_service();
            caches.put_spare_of(&pool, [cache]);
        }
        cache.give_up(thread);
        return Err(pool::closed(&pool));
    }
    Ok(cache)
}

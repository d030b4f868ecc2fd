//! Finds the cache for a request: the one that served last, one that the thread or its pool knows, or a new one.

use std::sync::Arc;

use super::routes::{Destination, GivenPool, destination};
use crate::error::Result;
use crate::memory::cache::{self, CacheKey, DeviceCaches, Found, GivenKey, Order, Service, ServingCache, StreamCache};
use crate::memory::pool::{self, Role};
use crate::memory::serve::{device_caches, end_abandoned};
use crate::process;
use crate::runtime::{Stream, StreamIdentity};
use crate::sync::ThisThread;

/// Returns the cache for this thread's requests in this order.
///
/// # Errors
/// As [`device_caches`]; `ErrorKind::InvalidValue` while the thread ends.
#[inline]
pub(super) fn cache_for(order: &impl Order) -> Result<Found> {
    match cache::last(order) {
        Some(last) => Ok(last),
        None => find(order),
    }
}

/// As [`cache_for`], in calls that are no requests.
pub(in crate::memory) fn cache_on(order: &impl Order) -> Result<&'static StreamCache> {
    process::refuse_forked()?;
    cache_for(order).map(|found| found.cache)
}

#[cold]
fn find(order: &impl Order) -> Result<Found> {
    let changes = pool::changes();
    let (key, found) = find_now(order, None, false)?;
    cache::remember(key, changes, found);
    Ok(found)
}

/// As [`cache_for`], while another thread or the context may have routed the request: each is looked up anew.
pub(super) fn rerouted_cache_for(order: &impl Order) -> Result<Found> {
    find_now(order, None, true).map(|(_, found)| found)
}

/// Returns the cache for this thread's requests of one pool on the stream; `is_rerouted` as for [`rerouted_cache_for`].
pub(super) fn given_cache_for(given: &GivenPool, stream: &Stream, is_rerouted: bool) -> Result<Found> {
    let changes = pool::changes();
    let (key, found) = find_now(stream, Some(given), is_rerouted)?;
    // For a pool for graphs, the capture decides whether an inner scope's memory is a graph's.
    if key.pool == given.pool.number {
        let GivenPool { pool, ticket, is_captured, .. } = given;
        let given = GivenKey { pool: pool.number, ticket: *ticket, is_captured: *is_captured };
        cache::remember_given(given, key, changes, found);
    }
    Ok(found)
}

fn find_now(order: &impl Order, given: Option<&GivenPool>, is_rerouted: bool) -> Result<(CacheKey, Found)> {
    let (thread, (location, stream)) = (ThisThread::get(), order.named());
    // Pinned memory has no pools of users.
    let destination = stream.map_or(Ok(None), |stream| destination(stream, given, is_rerouted))?;
    let (pool, role) = destination.as_ref().map_or((0, Role::Requests), |to| (to.pool.number, to.role));
    let named = stream.filter(|_| !role.is_captured());
    let stream_id = named.map_or(Ok(0), id_of)?;
    let key = CacheKey { location, pool, role, stream: order.address(), stream_id };
    let cache = match cache::known(key)? {
        Some(known) => known,
        None => {
            let caches = device_caches(location)?;
            if let Some(stream) = named {
                caches.pools.note_stream(stream, stream_id);
            }
            // Each time a few abandoned caches end, and a few ended ones are forgotten.
            end_abandoned(caches, thread);
            cache::forget_some(thread)?;
            let found = acquire(caches, thread, destination, stream, stream_id)?;
            cache::add(&found)?;
            found.cache
        }
    };
    // After the thread knows the cache, so that the thread's end gives it up.
    cache.adopt(thread);
    Ok((key, Found { cache, thread }))
}

/// Returns the number by which a stream's services are told from those of earlier ones at its address: 0 for a lasting one,
/// for a captured stream that of the last one seen there.
fn id_of(stream: &Stream) -> Result<u64> {
    if stream.raw().is_default() || stream.kept().is_lasting() {
        return Ok(0);
    }
    let last = || DeviceCaches::known(stream.device()).map_or(0, |caches| caches.pools.last_id(stream.address()));
    Ok(stream.id()?.unwrap_or_else(last))
}

/// Returns the cache for a destination and a stream, old or new.
fn acquire(
    caches: &'static DeviceCaches,
    thread: ThisThread,
    destination: Option<Destination>,
    stream: Option<&Stream>,
    stream_id: u64,
) -> Result<Arc<ServingCache>> {
    let (pool, role) = match destination {
        Some(Destination { pool, role }) => (pool, role),
        None => (Arc::clone(caches.default_pool()?), Role::Requests),
    };
    let identity = stream.map(|stream| StreamIdentity::numbered(stream, Some(stream_id)));
    let service = Service { pool, stream: stream.map(Stream::kept), identity, role };
    loop {
        let mut same = DeviceCaches::caches_on(&service.pool, service.address()).into_iter();
        if let Some(cache) = same.find(|cache| cache.is_for(&service)) {
            return Ok(cache);
        }
        if let Some(made) = make(caches, thread, &service)? {
            return Ok(made);
        }
    }
}

/// Makes a cache for this service; none if another thread has just made one.
fn make(caches: &'static DeviceCaches, thread: ThisThread, service: &Service) -> Result<Option<Arc<ServingCache>>> {
    let pool = &service.pool;
    let cache = caches.table.begin(&caches.memory, service.clone())?;
    let added = caches.pools.add_cache(&cache);
    if added.as_ref().is_some_and(|first| !Arc::ptr_eq(first, &cache)) {
        DeviceCaches::end_if_empty(&cache);
        return Ok(None);
    }
    if caches.memory.live.begins_to_be_of_several() {
        caches.pools.serving().iter().for_each(|cache| cache.lock(thread).publish_live());
    }
    if pool.marks_work() {
        cache.mark_work_if_foreign();
    }
    // Read once the pool knows the cache, so that the call that closes it sees the cache, or this one sees the end.
    if added.is_none() || pool.is_closed() {
        // Unless the pool's end will do it: other threads may have added memory to it meanwhile.
        DeviceCaches::end_if_empty(&cache);
        return Err(pool::closed(pool));
    }
    Ok(Some(cache))
}

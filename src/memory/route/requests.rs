//! Requests: a free block of the cache where the routes lead, or the miss to serve. The cache is the one that served last,
//! one that the thread or its pool knows, or a new one.

use std::sync::Arc;

use super::routes::{Destination, GivenPool, destination};
use crate::error::Result;
use crate::memory::cache::{
    self, CacheKey, DeviceCaches, Found, GivenKey, Order, Role, Service, ServingCache, StreamCache,
};
use crate::memory::pool;
use crate::memory::serve::{Allocation, Miss, device_caches, end_abandoned};
use crate::observe::delivery::Delivery;
use crate::observe::recording::{self, Purpose};
use crate::process::{self, ProcessState};
use crate::runtime::{Stream, StreamIdentity};
use crate::sync::ThisThread;

/// The result of trying a request.
#[derive(Debug)]
enum AllocationAttempt {
    Ready(Allocation),
    /// None was ready; serving the miss may call the driver, and may wait.
    Miss(Miss),
}

impl AllocationAttempt {
    /// Serves a miss; none if the request must be tried again, as for [`Miss::serve`].
    #[inline]
    fn serve(self) -> Result<Option<Allocation>> {
        match self {
            Self::Ready(block) => Ok(Some(block)),
            Self::Miss(miss) => miss.serve(),
        }
    }
}

/// Allocates in the order of a stream, from the pool of the calling thread's scope; or pinned memory.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough also after everything was tried; `ErrorKind::InvalidValue` for 0
/// bytes or an unknown device; `ErrorKind::Library` if the driver refuses.
#[inline]
pub(crate) fn allocate(bytes: u64, order: &impl Order) -> Result<Allocation> {
    loop {
        if let Some(block) = try_allocate(bytes, order)?.serve()? {
            return Ok(block);
        }
    }
}

/// Allocates on the stream from the cache of the thread's last request for one pool, if that matches, nothing is out of
/// the ordinary, and the cache has not ended.
#[inline]
pub(crate) fn allocate_as_last(bytes: u64, stream: &Stream, given: GivenKey) -> Option<Result<Allocation>> {
    let found = cache::last_given(stream, given).filter(|_| process::state().is_plain())?;
    take(found, bytes).serve().transpose()
}

/// Allocates on the stream from a pool, unless the calling thread has entered a scope since.
///
/// # Errors
/// As [`allocate`]; `ErrorKind::InvalidValue` if the pool is closed.
#[cold]
pub(crate) fn allocate_given(bytes: u64, stream: &Stream, given: &GivenPool) -> Result<Allocation> {
    process::refuse_forked()?;
    let state = process::state();
    let _delivery = Delivery::at_end();
    let _stack = recording::hold_stack(Purpose::Allocation);
    loop {
        if let Some(block) = take(find(stream, Some(given), state)?, bytes).serve()? {
            return Ok(block);
        }
    }
}

/// Takes a ready block of the order's cache.
///
/// # Errors
/// `ErrorKind::InvalidValue` for an unknown device; `ErrorKind::Library` if the driver refuses.
#[inline]
fn try_allocate(bytes: u64, order: &impl Order) -> Result<AllocationAttempt> {
    let state = process::state();
    if state.is_plain() { Ok(take(cache_for(order, state)?, bytes)) } else { take_slowly(bytes, order) }
}

/// Takes a block while events are recorded, or other threads or contexts may have routed requests.
#[cold]
fn take_slowly(bytes: u64, order: &impl Order) -> Result<AllocationAttempt> {
    process::refuse_forked()?;
    let state = process::state();
    let _delivery = Delivery::at_end();
    // No stack is held unless something is recorded.
    let _stack = recording::hold_stack(Purpose::Allocation);
    Ok(take(cache_for(order, state)?, bytes))
}

#[inline]
fn take(found: Found, bytes: u64) -> AllocationAttempt {
    match found.cache.allocate_block(found.thread, bytes) {
        Some(offset) => AllocationAttempt::Ready(Allocation { cache: found.cache, offset }),
        None => AllocationAttempt::Miss(Miss::new(found.cache, bytes)),
    }
}

/// Returns the cache for this thread's requests in this order.
///
/// # Errors
/// As [`device_caches`]; `ErrorKind::InvalidValue` while the thread ends.
#[inline]
fn cache_for(order: &impl Order, state: ProcessState) -> Result<Found> {
    // While another thread or the context may have routed the request, each is looked up anew.
    match cache::last(order).filter(|_| !state.is_rerouted()) {
        Some(last) => Ok(last),
        None => find(order, None, state),
    }
}

/// As [`cache_for`], in calls that are no requests.
pub(in crate::memory) fn cache_on(order: &impl Order) -> Result<&'static StreamCache> {
    process::refuse_forked()?;
    cache_for(order, process::state()).map(|found| found.cache)
}

/// Finds the cache for a request, with a given pool among the routes, and remembers it where the next request is likely to
/// be led there, too.
#[cold]
fn find(order: &impl Order, given: Option<&GivenPool>, state: ProcessState) -> Result<Found> {
    let changes = pool::changes();
    let (key, found) = find_now(order, given, state)?;
    match given {
        // For a pool for graphs, the capture decides whether an inner scope's memory is a graph's.
        Some(given) if key.pool == given.pool.number => cache::remember_given(given.key(), key, changes, found),
        None if !state.is_rerouted() => cache::remember(key, changes, found),
        Some(_) | None => {}
    }
    Ok(found)
}

fn find_now(order: &impl Order, given: Option<&GivenPool>, state: ProcessState) -> Result<(CacheKey, Found)> {
    let (thread, (location, stream)) = (ThisThread::get(), order.named());
    // Pinned memory has no pools of users.
    let destination = stream.map_or(Ok(None), |stream| destination(stream, given, state))?;
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

/// The rest of a request that found no free block.
#[cfg(feature = "python")]
pub(crate) type Rest<'a> = &'a mut (dyn FnMut() -> Result<Allocation> + Send);

/// Allocates a block in two parts, so that a caller can let others work during driver calls. What may call the driver or wait is left to `serve`, which runs it on the same thread.
#[cfg(feature = "python")]
#[inline]
pub(crate) fn allocate_in_parts(
    bytes: u64,
    order: &(impl Order + Sync),
    serve: impl FnOnce(Rest<'_>) -> Result<Allocation>,
) -> Result<Allocation> {
    match try_allocate(bytes, order)? {
        AllocationAttempt::Ready(block) => Ok(block),
        AllocationAttempt::Miss(miss) => serve(&mut || match miss.serve()? {
            Some(block) => Ok(block),
            None => allocate(bytes, order),
        }),
    }
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

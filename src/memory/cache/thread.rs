//! What a thread has of its own: its caches, and the scopes it is in.
//!
//! The cache for a request is one comparison away where the thread asks for the same stream in the same scope as the last
//! time.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::ids::{CaptureStatus, Device, RawStream};
use crate::memory::cache::heap::Counts;
use crate::memory::cache::thread_cache::{Service, ThreadCache, normalized};
use crate::memory::device::device_memory::DeviceMemory;
use crate::memory::pool::id::PoolId;
use crate::memory::pool::state::Pool;
use crate::memory::pool::uses::PoolUse;
use crate::memory::serve::trim as release;
use crate::runtime::Stream;

/// What a cache is found by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    device: u32,
    /// The pool's number, twice, plus one for captured memory.
    pool: u32,
    stream: usize,
}

/// A pool that the thread's requests on its device go to.
#[derive(Debug)]
struct Route {
    pool: Arc<Pool>,
    is_captured: bool,
    /// The stream that a capture is of.
    captured: Option<RawStream>,
    /// The pool's, and of a capture also those of pools in whose scopes it allocated, which its graph uses too. None for a
    /// route that is entered and left by the pool's id.
    uses: Vec<PoolUse>,
    /// What [`leave`] finds the route by.
    ticket: u64,
}

#[derive(Debug)]
struct Local {
    /// This thread's number; 0 is none.
    thread: u64,
    caches: RefCell<Vec<(Key, &'static ThreadCache)>>,
    routes: RefCell<Vec<Route>>,
    /// Routes with lower tickets are not followed for now.
    first_ticket: Cell<u64>,
    has_routes: Cell<bool>,
    /// The pools whose own allocators this thread is in.
    supplied: RefCell<Vec<u32>>,
}

static THREADS: AtomicU64 = AtomicU64::new(1);
static TICKETS: AtomicU64 = AtomicU64::new(1);

/// The cache that served last.
#[derive(Clone, Copy, Debug)]
struct Last {
    device: Device,
    stream: usize,
    cache: &'static ThreadCache,
}

thread_local! {
    // Two of their own, which need neither a first use nor an end, so that reading them is one memory access.
    static LAST: Cell<Option<Last>> = const { Cell::new(None) };
    static THREAD: Cell<u64> = const { Cell::new(0) };

    static LOCAL: Local = Local {
        thread: begin_thread(),
        caches: const { RefCell::new(Vec::new()) },
        routes: const { RefCell::new(Vec::new()) },
        first_ticket: const { Cell::new(0) },
        has_routes: const { Cell::new(false) },
        supplied: const { RefCell::new(Vec::new()) },
    };
}

/// A number for this thread.
fn begin_thread() -> u64 {
    let number = THREADS.fetch_add(1, Ordering::Relaxed);
    THREAD.set(number);
    number
}

impl Drop for Local {
    fn drop(&mut self) {
        LAST.set(None);
        THREAD.set(0);
        for (_, cache) in self.caches.get_mut() {
            cache.give_up(self.thread);
        }
        // Scopes that were never left end with their thread.
        self.routes.get_mut().drain(..).flat_map(|route| route.uses).for_each(PoolUse::abandon);
    }
}

/// This thread's number; 0 while its thread-locals are destroyed.
pub(in crate::memory) fn thread() -> u64 {
    LOCAL.try_with(|local| local.thread).unwrap_or(0)
}

/// This thread's number if it may own caches, else 0.
#[inline]
pub(in crate::memory) fn owner() -> u64 {
    THREAD.get()
}

fn ending() -> Error {
    Error::invalid_value("this thread is ending: allocate before its thread-locals are destroyed")
}

impl Local {
    /// The innermost scope's pool on the stream's device, and whether its memory becomes part of a graph.
    fn route(&self, stream: &Stream) -> Result<Option<(Arc<Pool>, bool)>> {
        if !self.has_routes.get() {
            return Ok(None);
        }
        let device = stream.device();
        let mut routes = self.routes.borrow_mut();
        let first = self.first_ticket.get();
        let is_followed = |route: &&mut Route| route.ticket >= first && route.pool.device.device == device;
        let mut followed = routes.iter_mut().rev().filter(is_followed);
        let Some(innermost) = followed.next() else { return Ok(None) };
        let pool = Arc::clone(&innermost.pool);
        if innermost.is_captured {
            return Ok(Some((pool, true)));
        }
        // On a captured stream the graph of a capture further out uses this pool as its own.
        let Some(capture) = followed.find(|route| route.captured.is_some()) else { return Ok(Some((pool, false))) };
        if capture.captured != Some(stream.raw()) && stream.capture_status()? == CaptureStatus::None {
            return Ok(Some((pool, false)));
        }
        if capture.uses.iter().all(|used| used.pool().number != pool.number) {
            capture.uses.push(PoolUse::new(&pool, true)?);
        }
        Ok(Some((pool, true)))
    }

    /// Notes whether any route is followed; after each change of them.
    fn note_routes(&self) {
        LAST.set(None);
        let first = self.first_ticket.get();
        self.has_routes.set(self.routes.borrow().last().is_some_and(|route| route.ticket >= first));
    }

    fn find(
        &self,
        key: Key,
        device: Device,
        route: Option<(Arc<Pool>, bool)>,
        stream: &Stream,
    ) -> Result<&'static ThreadCache> {
        let known = self.caches.borrow().iter().find(|(other, _)| *other == key).map(|(_, cache)| *cache);
        let cache = match known {
            Some(cache) => cache,
            None => {
                self.forget_unused(device)?;
                let cache = self.acquire(device, route, stream)?;
                self.caches.borrow_mut().push((key, cache));
                cache
            }
        };
        LAST.set(Some(Last { device, stream: key.stream, cache }));
        Ok(cache)
    }

    /// Gives up the caches of pools that are gone, and of streams that nobody else holds.
    fn forget_unused(&self, device: Device) -> Result<()> {
        let ended = release::end_abandoned(DeviceMemory::of(device)?, self.thread);
        let is_gone = |cache: &'static ThreadCache| {
            ended.iter().any(|other| std::ptr::eq(*other, cache))
                || (cache.is_closing() && cache.lock(self.thread).mapped() == 0)
        };
        LAST.set(None);
        self.caches.borrow_mut().retain(|(_, cache)| {
            !is_gone(cache) || {
                cache.give_up(self.thread);
                false
            }
        });
        // Those that were adopted just to end them.
        ended.into_iter().for_each(|cache| cache.give_up(self.thread));
        Ok(())
    }

    /// A cache without an owner that serves the same, else a new one.
    fn acquire(
        &self,
        device: Device,
        route: Option<(Arc<Pool>, bool)>,
        stream: &Stream,
    ) -> Result<&'static ThreadCache> {
        let memory = DeviceMemory::of(device)?;
        let (pool, is_captured) = match route {
            Some(route) => route,
            None => (Arc::clone(memory.default_pool()?), false),
        };
        let stream_of = if stream.raw() == RawStream::PER_THREAD { self.thread } else { 0 };
        for cache in pool.caches() {
            let serves = cache.service().is_some_and(|service| {
                normalized(service.stream.raw()) == normalized(stream.raw())
                    && service.is_captured == is_captured
                    && service.stream_of == stream_of
            });
            if serves && cache.adopt(self.thread) {
                return Ok(cache);
            }
        }
        let service = Service { pool: Arc::clone(&pool), stream: stream.kept(), is_captured, stream_of };
        let cache = memory.new_cache(service, self.thread)?;
        pool.add_cache(cache);
        if pool.is_lending() {
            cache.lend_if_foreign();
        }
        // Asked after the cache is known to the pool, so that whoever closes it sees the cache, or this sees the end.
        if pool.is_closed() {
            pool.remove_cache(cache, Counts::default());
            cache.end_service();
            cache.give_up(self.thread);
            memory.let_go(vec![cache]);
            return Err(Error::invalid_value(format!(
                "pool {} was released, and this thread still allocates to it; end that first, by end_allocate_to_pool",
                pool.id
            )));
        }
        Ok(cache)
    }
}

/// This thread's cache for requests on the stream, and the thread's number.
///
/// # Errors
/// As [`DeviceMemory::of`]; `ErrorKind::InvalidValue` while the thread ends.
#[inline]
pub(in crate::memory) fn cache_for(stream: &Stream) -> Result<(&'static ThreadCache, u64)> {
    match LAST.get() {
        Some(last) if last.stream == normalized(stream.raw()) && last.device == stream.device() => {
            Ok((last.cache, THREAD.get()))
        }
        _ => find_cache(stream),
    }
}

#[cold]
fn find_cache(stream: &Stream) -> Result<(&'static ThreadCache, u64)> {
    let found = LOCAL.try_with(|local| {
        let route = local.route(stream)?;
        let pool = route.as_ref().map_or(0, |(pool, is_captured)| pool.number * 2 + u32::from(*is_captured));
        let key = Key { device: stream.device().ordinal() as u32, pool, stream: normalized(stream.raw()) };
        local.find(key, stream.device(), route, stream).map(|cache| (cache, local.thread))
    });
    found.unwrap_or_else(|_| Err(ending()))
}

/// Routes this thread's requests on the pool's device into the pool, until [`leave`] with the number answered. The use is
/// the thread's until then.
pub(in crate::memory) fn enter(in_use: PoolUse) -> Result<u64> {
    add(Arc::clone(in_use.pool()), false, None, vec![in_use])
}

/// As [`enter`], for a capture of the stream.
pub(in crate::memory) fn enter_capture(in_use: PoolUse, stream: RawStream) -> Result<u64> {
    add(Arc::clone(in_use.pool()), true, Some(stream), vec![in_use])
}

/// As [`enter`], until [`leave_id`].
pub(in crate::memory) fn enter_by_id(pool: Arc<Pool>, is_captured: bool) -> Result<()> {
    add(pool, is_captured, None, Vec::new()).map(drop)
}

fn add(pool: Arc<Pool>, is_captured: bool, captured: Option<RawStream>, uses: Vec<PoolUse>) -> Result<u64> {
    let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
    let entered = LOCAL.try_with(|local| {
        local.routes.borrow_mut().push(Route { pool, is_captured, captured, uses, ticket });
        local.note_routes();
    });
    entered.map(|()| ticket).map_err(|_| ending())
}

/// Ends a route of this thread, wherever it stands among the others, and answers its uses. None if this thread has no such
/// route.
pub(in crate::memory) fn leave(ticket: u64) -> Option<Vec<PoolUse>> {
    take_last(|route| route.ticket == ticket).map(|route| route.uses)
}

/// Ends this thread's innermost route that was entered by this id; false if there is none.
pub(in crate::memory) fn leave_id(device: Device, id: PoolId) -> bool {
    let is_meant = |route: &Route| route.uses.is_empty() && route.pool.id == id && route.pool.device.device == device;
    take_last(is_meant).is_some()
}

fn take_last(is_meant: impl Fn(&Route) -> bool) -> Option<Route> {
    let taken = LOCAL.try_with(|local| {
        let taken = {
            let mut routes = local.routes.borrow_mut();
            let place = routes.iter().rposition(is_meant)?;
            routes.remove(place)
        };
        local.note_routes();
        Some(taken)
    });
    // The pool may be dropped with the route, outside the borrow.
    taken.ok().flatten()
}

/// Runs a pool's own allocator. What that allocates from gpupool itself does not follow this thread's scopes, so that the
/// pool is not asked to supply itself.
///
/// # Errors
/// `ErrorKind::InvalidValue` if it is asked all the same; what the allocator answers.
pub(in crate::memory) fn supply<R>(pool: &Pool, allocator: impl FnOnce() -> Result<R>) -> Result<R> {
    let first = LOCAL.try_with(|local| {
        let mut supplied = local.supplied.borrow_mut();
        if supplied.contains(&pool.number) {
            return None;
        }
        supplied.push(pool.number);
        let first = local.first_ticket.replace(TICKETS.fetch_add(1, Ordering::Relaxed));
        local.note_routes();
        Some(first)
    });
    let Some(first) = first.map_err(|_| ending())? else {
        return Err(Error::invalid_value(format!(
            "the allocator of pool {} asked for memory of pool {} itself; take it from elsewhere",
            pool.id, pool.id
        )));
    };
    let _supplying = Supplying;
    let _followed = Followed { first };
    allocator()
}

/// The pool is supplied no longer, also after a panic of the allocator.
struct Supplying;

impl Drop for Supplying {
    fn drop(&mut self) {
        let _ = LOCAL.try_with(|local| local.supplied.borrow_mut().pop());
    }
}

/// Follows the thread's scopes again, also after a panic.
struct Followed {
    first: u64,
}

impl Drop for Followed {
    fn drop(&mut self) {
        let _ = LOCAL.try_with(|local| {
            local.first_ticket.set(self.first);
            local.note_routes();
        });
    }
}

/// Runs an allocation from this pool, whatever scopes the thread is in.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends; what the allocation answers.
pub(in crate::memory) fn only_in<R>(
    pool: &Arc<Pool>,
    is_captured: bool,
    allocate: impl FnOnce() -> Result<R>,
) -> Result<R> {
    struct Left(u64);
    impl Drop for Left {
        fn drop(&mut self) {
            drop(leave(self.0));
        }
    }
    let first = LOCAL.try_with(|local| local.first_ticket.replace(TICKETS.fetch_add(1, Ordering::Relaxed)));
    let _followed = Followed { first: first.map_err(|_| ending())? };
    let _left = Left(add(Arc::clone(pool), is_captured, None, Vec::new())?);
    allocate()
}

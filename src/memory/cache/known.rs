//! The caches that the calling thread knows, and the one that served it last. A request for the same stream in the same
//! scope as the last one finds its cache with one comparison. Each is known with its service then, which another thread
//! may end.

use std::cell::{Cell, RefCell};

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::service::Order;
use super::stream_cache::StreamCache;
use crate::error::{Error, Result};
use crate::ids::MemoryLocation;
use crate::memory::pool::{self, Role, ending};
use crate::memory::tuning::A_FEW;
use crate::runtime::{Stream, is_still};
use crate::sync::ThisThread;

/// The key by which a thread finds its cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::memory) struct CacheKey {
    pub(in crate::memory) location: MemoryLocation,
    /// The pool's number.
    pub(in crate::memory) pool: u32,
    pub(in crate::memory) role: Role,
    /// As [`Order::address`].
    pub(in crate::memory) stream: usize,
    /// The stream's number, 0 for a lasting one and for graphs.
    pub(in crate::memory) stream_id: u64,
}

/// The key by which a thread finds the cache of its last request for one given pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GivenKey {
    /// The pool's number.
    pub(crate) pool: u32,
    /// The pool yields to scopes entered after this ticket.
    pub(crate) ticket: u64,
    /// Whether the request is for a graph; if not, its stream was just asked and is not captured.
    pub(crate) is_captured: bool,
}

/// A cache that was found for a request of the calling thread.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Found {
    pub(in crate::memory) cache: &'static StreamCache,
    /// The [`Service::number`] that it must have, which is compared under the heap's lock.
    pub(in crate::memory) service: u64,
    pub(in crate::memory) thread: ThisThread,
}

/// The cache that served last.
#[derive(Clone, Copy, Debug)]
struct Last {
    /// As [`MemoryLocation::packed`]. Whether there is a cache is in the pointer, so a hit compares once.
    location: u64,
    stream: usize,
    /// As in [`CacheKey`]: another stream may have the address by now.
    stream_id: u64,
    /// The thread's changes of routes until then.
    changes: u32,
    found: Found,
}

/// The caches that a thread knows. When it ends it gives up those that it owns.
#[derive(Debug)]
struct KnownCaches(RefCell<Known>);

/// A cache, and the number of the service that it was in.
type InService = (&'static StreamCache, u64);

#[derive(Debug)]
struct Known {
    caches: Vec<(CacheKey, InService)>,
    places: FxHashMap<CacheKey, usize>,
    /// Where [`forget_some`] goes on.
    next: usize,
}

impl Known {
    const fn new() -> Self {
        Self { caches: Vec::new(), places: FxHashMap::with_hasher(FxBuildHasher), next: 0 }
    }

    fn get(&self, key: CacheKey) -> Option<InService> {
        self.places.get(&key).map(|&place| self.caches[place].1)
    }

    fn add(&mut self, key: CacheKey, cache: InService) {
        if let Some(&place) = self.places.get(&key) {
            self.caches[place].1 = cache;
            return;
        }
        self.places.insert(key, self.caches.len());
        self.caches.push((key, cache));
    }

    /// Removes the cache at a place, which the last one of the list then takes.
    fn remove(&mut self, place: usize) -> &'static StreamCache {
        let (key, (cache, _)) = self.caches.swap_remove(place);
        self.places.remove(&key);
        if let Some((moved, _)) = self.caches.get(place) {
            self.places.insert(*moved, place);
        }
        cache
    }
}

thread_local! {
    // Separate and without a destructor, so that a hit reads one place.
    static LAST: Cell<Option<Last>> = const { Cell::new(None) };
    // The same for requests for one pool.
    static LAST_GIVEN: Cell<Option<(GivenKey, Last)>> = const { Cell::new(None) };
    static KNOWN: KnownCaches = const { KnownCaches(RefCell::new(Known::new())) };
}

impl Drop for KnownCaches {
    fn drop(&mut self) {
        forget_last();
        let thread = ThisThread::get();
        self.0.get_mut().caches.iter().for_each(|(_, (cache, _))| cache.give_up(thread));
    }
}

impl Last {
    fn new(key: CacheKey, changes: u32, found: Found) -> Self {
        let CacheKey { location, stream, stream_id, .. } = key;
        Self { location: location.packed(), stream, stream_id, changes, found }
    }

    /// Returns the cache if it serves the order, whose stream has the number that is asked for where that matters; if the
    /// driver refuses, the search for the stream's cache gets the same error. A thread has its own, so that this compares
    /// less than [`StreamIdentity`](crate::runtime::StreamIdentity) does, which a hit would feel.
    #[inline]
    fn serving(self, order: &impl Order, id: impl FnOnce(&Stream) -> Result<Option<u64>>) -> Option<Found> {
        let (location, stream) = order.named();
        let is_same = self.stream == order.address()
            && self.location == location.packed()
            && self.changes == pool::changes()
            && (self.stream_id == 0 || stream.is_none_or(|stream| is_still(Some(self.stream_id), || id(stream))));
        is_same.then_some(self.found)
    }
}

/// Returns the cache that served this thread last, if it serves the order by the thread's present routes.
#[inline]
pub(in crate::memory) fn last(order: &impl Order) -> Option<Found> {
    LAST.get()?.serving(order, Stream::id)
}

/// Remembers the cache that serves this thread by its routes after so many changes.
pub(in crate::memory) fn remember(key: CacheKey, changes: u32, found: Found) {
    LAST.set(Some(Last::new(key, changes, found)));
}

/// As [`last`], for a request for one pool.
#[inline]
pub(in crate::memory) fn last_given(stream: &Stream, given: GivenKey) -> Option<Found> {
    let (_, last) = LAST_GIVEN.get().filter(|(key, _)| *key == given)?;
    // Of a request outside captures the stream was asked already.
    last.serving(stream, |stream| if given.is_captured { stream.id() } else { stream.id_outside_captures().map(Some) })
}

/// As [`remember`], for a request for one pool.
pub(in crate::memory) fn remember_given(given: GivenKey, key: CacheKey, changes: u32, found: Found) {
    LAST_GIVEN.set(Some((given, Last::new(key, changes, found))));
}

/// Forgets the last caches, of any request and of one for one pool.
pub(in crate::memory) fn forget_last() {
    LAST.set(None);
    LAST_GIVEN.set(None);
}

fn with_known<R>(f: impl FnOnce(&mut Known) -> R) -> Result<R> {
    let done = KNOWN.try_with(|known| known.0.try_borrow_mut().map(|mut known| f(&mut known)));
    match done {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(_)) => Err(Error::internal("a thread looked for its cache while it was looking for one")),
        Err(_) => Err(ending()),
    }
}

/// Returns the thread's cache with this key and the number of its service, unless that has ended.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn known(key: CacheKey) -> Result<Option<InService>> {
    with_known(|known| known.get(key).filter(|(cache, service)| cache.is_serving(*service)))
}

/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn add(key: CacheKey, cache: InService) -> Result<()> {
    with_known(|known| known.add(key, cache))
}

/// Among the next few caches that the thread knows, forgets those that have ended their service, and those of closed
/// pools without memory. Called for each new cache, it comes to all in turn.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn forget_some(thread: ThisThread) -> Result<()> {
    forget_last();
    let is_gone = |cache: &StreamCache| cache.is_closing() && cache.lock(thread).mapped() == 0;
    with_known(|known| {
        for _ in 0..A_FEW.min(known.caches.len()) {
            known.next = if known.next < known.caches.len() { known.next } else { 0 };
            match known.caches.get(known.next) {
                Some(&(_, (cache, service))) if !cache.is_serving(service) || is_gone(cache) => {
                    known.remove(known.next).give_up(thread);
                }
                _ => known.next += 1,
            }
        }
    })
}

//! The caches that the calling thread knows, and the one that served it last. A request for the same stream in the same
//! scope as the last one finds its cache with one comparison. Another thread may end it, but it is born again for another
//! pool only once no thread knows it: so what a thread finds is its cache, or one that has ended.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::service::{Order, Role, Service};
use super::stream_cache::{CacheName, ServingCache, StreamCache};
use crate::error::{Error, Result};
use crate::ids::MemoryLocation;
use crate::memory::pool::{self, ending};
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

impl CacheKey {
    fn of(cache: &ServingCache) -> Self {
        let Service { pool, identity, role, .. } = &cache.service;
        Self {
            location: cache.memory.location,
            pool: pool.number,
            role: *role,
            stream: cache.service.address(),
            stream_id: identity.and_then(|own| own.number()).unwrap_or(0),
        }
    }
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
    /// One that the thread knows, and so names.
    pub(in crate::memory) cache: &'static StreamCache,
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

#[derive(Debug)]
struct Known {
    caches: Vec<(CacheKey, Arc<CacheName>)>,
    places: FxHashMap<CacheKey, usize>,
    /// Where [`forget_some`] goes on.
    next: usize,
}

impl Known {
    const fn new() -> Self {
        Self { caches: Vec::new(), places: FxHashMap::with_hasher(FxBuildHasher), next: 0 }
    }

    fn get(&self, key: CacheKey) -> Option<&'static StreamCache> {
        self.places.get(&key).map(|&place| self.caches[place].1.cache)
    }

    /// Adds a cache, in place of one with this key that has ended.
    fn add(&mut self, key: CacheKey, name: Arc<CacheName>) {
        if let Some(&place) = self.places.get(&key) {
            self.remove(place);
        }
        self.places.insert(key, self.caches.len());
        self.caches.push((key, name));
    }

    /// Forgets the cache at a place, which the last one of the list then takes.
    fn remove(&mut self, place: usize) {
        // First, since nothing else names what those find.
        forget_last();
        let (key, name) = self.caches.swap_remove(place);
        name.cache.give_up(ThisThread::get());
        self.places.remove(&key);
        if let Some((moved, _)) = self.caches.get(place) {
            self.places.insert(*moved, place);
        }
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
        let known = self.0.get_mut();
        while !known.caches.is_empty() {
            known.remove(0);
        }
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

/// Returns the thread's cache with this key, unless that has ended.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn known(key: CacheKey) -> Result<Option<&'static StreamCache>> {
    with_known(|known| known.get(key).filter(|cache| !cache.has_ended()))
}

/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn add(cache: &ServingCache) -> Result<()> {
    with_known(|known| known.add(CacheKey::of(cache), Arc::clone(&cache.name)))
}

/// Forgets a cache that the calling thread has ended, so that it is born again when the thread needs one, unless others know
/// it.
pub(super) fn forget(cache: &ServingCache) {
    let forgotten = with_known(|known| {
        let place = known.places.get(&CacheKey::of(cache)).copied();
        let is_it = |place: &usize| Arc::ptr_eq(&known.caches[*place].1, &cache.name);
        place.filter(is_it).map(|place| known.remove(place))
    });
    // A thread that ends forgets all that it knows.
    let _ = forgotten;
}

/// Among the next few caches that the thread knows, forgets those that have ended, and those of closed pools without memory.
/// Called for each new cache, it comes to all in turn.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn forget_some(thread: ThisThread) -> Result<()> {
    let is_gone = |cache: &StreamCache| cache.has_ended() || cache.is_closing() && cache.lock(thread).mapped() == 0;
    with_known(|known| {
        for _ in 0..A_FEW.min(known.caches.len()) {
            known.next = if known.next < known.caches.len() { known.next } else { 0 };
            match known.caches.get(known.next) {
                Some((_, name)) if is_gone(name.cache) => known.remove(known.next),
                _ => known.next += 1,
            }
        }
    })
}

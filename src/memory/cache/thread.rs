//! The caches that the calling thread owns, and the one that served last.
//!
//! The cache for a request is one comparison away where the thread asks for the same stream in the same scope as the
//! last time.

use std::cell::{Cell, RefCell};

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::service::{Service, normalized};
use super::thread_cache::ThreadCache;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::pool::{self, ending};
use crate::runtime::Stream;
use crate::sync::ThisThread;

/// What a thread finds its cache by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::memory) struct CacheKey {
    pub(in crate::memory) device: Device,
    /// The pool's number.
    pub(in crate::memory) pool: u32,
    pub(in crate::memory) is_captured: bool,
    /// The stream's address, as [`normalized`].
    pub(in crate::memory) stream: usize,
}

/// A request for one pool, by which a thread finds the cache that served the last one of the same kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct GivenKey {
    /// The pool's number.
    pub(in crate::memory) pool: u32,
    /// Scopes entered later than this go before the pool.
    pub(in crate::memory) ticket: u64,
    pub(in crate::memory) is_captured: bool,
}

/// The cache that served last.
#[derive(Clone, Copy, Debug)]
struct Last {
    device: Device,
    stream: usize,
    /// The changes of the thread's routes until then.
    changes: u32,
    thread: ThisThread,
    cache: &'static ThreadCache,
}

impl CacheKey {
    /// Returns the key of a cache of the device that serves this.
    pub(in crate::memory) fn of(service: &Service, device: Device) -> Self {
        let Service { pool, stream, is_captured, .. } = service;
        Self { device, pool: pool.number, is_captured: *is_captured, stream: normalized(stream.raw()) }
    }
}

/// The caches that a thread owns. It gives them up when it ends.
#[derive(Debug)]
struct OwnedCaches(RefCell<Owned>);

/// Caches in a list, and the place of each by its key.
#[derive(Debug)]
struct Owned {
    caches: Vec<(CacheKey, &'static ThreadCache)>,
    places: FxHashMap<CacheKey, usize>,
    /// The place in the list that [`forget_some`] has come to.
    next: usize,
}

impl Owned {
    const fn new() -> Self {
        Self { caches: Vec::new(), places: FxHashMap::with_hasher(FxBuildHasher), next: 0 }
    }

    fn get(&self, key: CacheKey) -> Option<&'static ThreadCache> {
        self.places.get(&key).map(|&place| self.caches[place].1)
    }

    fn add(&mut self, key: CacheKey, cache: &'static ThreadCache) {
        self.places.insert(key, self.caches.len());
        self.caches.push((key, cache));
    }

    /// Removes the cache at a place, where the last one of the list then stands.
    fn remove(&mut self, place: usize) -> &'static ThreadCache {
        let (key, cache) = self.caches.swap_remove(place);
        self.places.remove(&key);
        if let Some((moved, _)) = self.caches.get(place) {
            self.places.insert(*moved, place);
        }
        cache
    }
}

thread_local! {
    // Apart, without a destructor, so that a hit reads one place.
    static LAST: Cell<Option<Last>> = const { Cell::new(None) };
    // The same of requests for one pool.
    static LAST_GIVEN: Cell<Option<(GivenKey, Last)>> = const { Cell::new(None) };
    static OWNED: OwnedCaches = const { OwnedCaches(RefCell::new(Owned::new())) };
}

impl Drop for OwnedCaches {
    fn drop(&mut self) {
        forget_last();
        let thread = ThisThread::get();
        self.0.get_mut().caches.iter().for_each(|(_, cache)| cache.give_up(thread));
    }
}

impl Last {
    /// Returns the cache if it serves the stream by the routes that the thread has now.
    #[inline]
    fn serving(self, stream: &Stream) -> Option<(&'static ThreadCache, ThisThread)> {
        let is_same = self.stream == normalized(stream.raw())
            && self.device == stream.device()
            && self.changes == pool::changes();
        is_same.then_some((self.cache, self.thread))
    }
}

/// Returns the cache that served this thread last, if it serves the stream by the routes that the thread has now.
#[inline]
pub(in crate::memory) fn last(stream: &Stream) -> Option<(&'static ThreadCache, ThisThread)> {
    LAST.get()?.serving(stream)
}

/// Notes the cache that serves this thread, by routes that had changed so often.
pub(in crate::memory) fn remember(key: CacheKey, changes: u32, thread: ThisThread, cache: &'static ThreadCache) {
    LAST.set(Some(Last { device: key.device, stream: key.stream, changes, thread, cache }));
}

/// As [`last`], of requests for one pool.
#[inline]
pub(in crate::memory) fn last_given(stream: &Stream, given: GivenKey) -> Option<(&'static ThreadCache, ThisThread)> {
    let (key, last) = LAST_GIVEN.get()?;
    last.serving(stream).filter(|_| key == given)
}

/// As [`remember`], of a request for one pool.
pub(in crate::memory) fn remember_given(
    given: GivenKey,
    key: CacheKey,
    changes: u32,
    thread: ThisThread,
    cache: &'static ThreadCache,
) {
    LAST_GIVEN.set(Some((given, Last { device: key.device, stream: key.stream, changes, thread, cache })));
}

fn forget_last() {
    LAST.set(None);
    LAST_GIVEN.set(None);
}

fn owned<R>(f: impl FnOnce(&mut Owned) -> R) -> Result<R> {
    let done = OWNED.try_with(|owned| owned.0.try_borrow_mut().map(|mut owned| f(&mut owned)));
    match done {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(_)) => Err(Error::internal("a thread looked for its cache while it was looking for one")),
        Err(_) => Err(ending()),
    }
}

/// Returns the calling thread's cache with this key, if it has one.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn known(key: CacheKey) -> Result<Option<&'static ThreadCache>> {
    owned(|owned| owned.get(key))
}

/// Adds a cache that the calling thread has adopted, and that no cache of its own has the key of.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn add(key: CacheKey, cache: &'static ThreadCache) -> Result<()> {
    owned(|owned| owned.add(key, cache))
}

/// Gives up this cache of the calling thread's, if it has it by this key.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn forget(thread: ThisThread, key: CacheKey, cache: &'static ThreadCache) -> Result<()> {
    forget_last();
    owned(|owned| {
        let place = owned.places.get(&key).copied();
        if let Some(place) = place.filter(|&place| std::ptr::eq(owned.caches[place].1, cache)) {
            owned.remove(place).give_up(thread);
        }
    })
}

/// Gives up those for which `is_gone` is true among the next few of the calling thread's caches, `most` at most: a
/// thread that comes here for each of its caches looks at all of them in turn.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn forget_some(
    thread: ThisThread,
    most: usize,
    mut is_gone: impl FnMut(CacheKey, &'static ThreadCache) -> bool,
) -> Result<()> {
    forget_last();
    owned(|owned| {
        for _ in 0..most.min(owned.caches.len()) {
            owned.next = if owned.next < owned.caches.len() { owned.next } else { 0 };
            match owned.caches.get(owned.next) {
                Some(&(key, cache)) if is_gone(key, cache) => owned.remove(owned.next).give_up(thread),
                _ => owned.next += 1,
            }
        }
    })
}

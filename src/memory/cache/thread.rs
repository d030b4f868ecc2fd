//! The caches that the calling thread owns, and the one that served last.
//!
//! The cache for a request is one comparison away where the thread asks for the same stream in the same scope as the
//! last time.

use std::cell::{Cell, RefCell};

use super::service::normalized;
use super::thread_cache::ThreadCache;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::pool::{self, ending};
use crate::runtime::Stream;
use crate::sync::ThisThread;

/// What a thread finds its cache by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct CacheKey {
    pub(in crate::memory) device: Device,
    /// The pool's number.
    pub(in crate::memory) pool: u32,
    pub(in crate::memory) is_captured: bool,
    /// The stream's address, as [`normalized`].
    pub(in crate::memory) stream: usize,
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

/// The caches that a thread owns. It gives them up when it ends.
#[derive(Debug)]
struct OwnedCaches(RefCell<Vec<(CacheKey, &'static ThreadCache)>>);

thread_local! {
    // Apart, without a destructor, so that a hit reads one place.
    static LAST: Cell<Option<Last>> = const { Cell::new(None) };
    static OWNED: OwnedCaches = const { OwnedCaches(RefCell::new(Vec::new())) };
}

impl Drop for OwnedCaches {
    fn drop(&mut self) {
        LAST.set(None);
        let thread = ThisThread::get();
        self.0.get_mut().iter().for_each(|(_, cache)| cache.give_up(thread));
    }
}

/// Returns the cache that served this thread last, if it serves the stream by the routes that the thread has now.
#[inline]
pub(in crate::memory) fn last(stream: &Stream) -> Option<(&'static ThreadCache, ThisThread)> {
    let last = LAST.get()?;
    let is_same =
        last.stream == normalized(stream.raw()) && last.device == stream.device() && last.changes == pool::changes();
    is_same.then_some((last.cache, last.thread))
}

/// Notes the cache that serves this thread, by routes that had changed so often.
pub(in crate::memory) fn remember(key: CacheKey, changes: u32, thread: ThisThread, cache: &'static ThreadCache) {
    LAST.set(Some(Last { device: key.device, stream: key.stream, changes, thread, cache }));
}

fn owned<R>(f: impl FnOnce(&mut Vec<(CacheKey, &'static ThreadCache)>) -> R) -> Result<R> {
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
    owned(|owned| owned.iter().find(|(other, _)| *other == key).map(|(_, cache)| *cache))
}

/// Adds a cache that the calling thread has adopted.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn add(key: CacheKey, cache: &'static ThreadCache) -> Result<()> {
    owned(|owned| owned.push((key, cache)))
}

/// Gives up those of the calling thread's caches for which `is_gone` is true.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends.
pub(in crate::memory) fn forget(
    thread: ThisThread,
    mut is_gone: impl FnMut(&'static ThreadCache) -> bool,
) -> Result<()> {
    LAST.set(None);
    owned(|owned| {
        owned.retain(|(_, cache)| {
            !is_gone(cache) || {
                cache.give_up(thread);
                false
            }
        });
    })
}

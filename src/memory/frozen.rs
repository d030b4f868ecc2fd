//! Caches that stand still: what a look at several of them at once needs, so that it sees one moment.

use std::sync::{Mutex, MutexGuard};

use super::heap::Heap;
use super::thread_cache::ThreadCache;
use super::trace::LiveGuard;
use crate::observe::recording;
use crate::sync::OwnerGuard;
use crate::sync::lock;

/// One of them.
#[derive(Debug)]
pub(super) struct FrozenCache {
    pub(super) cache: &'static ThreadCache,
    pub(super) live: LiveGuard<'static>,
    pub(super) heap: OwnerGuard<'static, Heap>,
}

/// Caches that nobody allocates from as long as this lives. It is to be short: their threads wait.
#[derive(Debug)]
pub(super) struct Frozen {
    pub(super) caches: Vec<FrozenCache>,
    /// The moment. A cache that is not among them had nothing before it.
    pub(super) time: u64,
    /// Nobody but the holder of this locks two caches at once, so that nobody waits in a circle.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Frozen {
    /// Stops the caches that `list` answers, also those that are made meanwhile.
    pub(super) fn new(list: impl Fn() -> Vec<&'static ThreadCache>) -> Self {
        let alone = lock(&ALONE);
        let mut frozen = Self { caches: Vec::new(), time: 0, _alone: alone };
        loop {
            let before = frozen.caches.len();
            for cache in list() {
                if frozen.caches[..before].iter().all(|known| !std::ptr::eq(known.cache, cache)) {
                    // As a visitor also of this thread's own: the owner would hold others up who only look into its cache.
                    let heap = cache.lock(0);
                    frozen.caches.push(FrozenCache { cache, live: cache.trace.lock(), heap });
                }
            }
            if frozen.caches.len() == before {
                return frozen;
            }
            frozen.time = recording::now();
        }
    }
}

//! Caches that stand still: what a look at several of them at once needs, so that it sees one moment.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

use crate::memory::cache::{DeviceCaches, Heap, RecordedGuard, StreamCache};
use crate::memory::pool::Pool;
use crate::observe::recording;
use crate::sync::{OwnerGuard, lock};

/// A cache in which nothing is allocated or freed as long as this lives.
#[derive(Debug)]
pub(in crate::memory) struct FrozenCache {
    pub(in crate::memory) cache: &'static StreamCache,
    pub(in crate::memory) recorded: RecordedGuard<'static>,
    pub(in crate::memory) heap: OwnerGuard<'static, Heap>,
}

/// Caches in which nothing is allocated or freed as long as this lives. It is to be short: threads that use them wait.
#[derive(Debug)]
pub(in crate::memory) struct Frozen {
    pub(in crate::memory) caches: Vec<FrozenCache>,
    /// The moment. A cache that is not among them had nothing before it.
    pub(in crate::memory) time: u64,
    /// Only the holder of this locks two caches at once, so that no threads wait in a circle.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Frozen {
    /// Stops the caches of a pool.
    pub(in crate::memory) fn of(pool: &Pool) -> Self {
        let mut frozen = Self::new(|| DeviceCaches::caches_of(pool));
        // With its heap locked a cache begins no other service.
        frozen.caches.retain(|frozen| frozen.cache.serves_pool(pool.number));
        frozen
    }

    /// Stops the caches that `list` returns, also those that are made meanwhile.
    pub(in crate::memory) fn new(list: impl Fn() -> Vec<&'static StreamCache>) -> Self {
        let alone = lock(&ALONE);
        let mut frozen = Self { caches: Vec::new(), time: 0, _alone: alone };
        let mut known = HashSet::new();
        loop {
            let before = frozen.caches.len();
            for cache in list() {
                if known.insert(std::ptr::from_ref(cache)) {
                    // As a visitor also of this thread's own: the owner would hold others up who only look into its
                    // cache.
                    let heap = cache.visit();
                    frozen.caches.push(FrozenCache { cache, recorded: cache.recording.lock(), heap });
                }
            }
            if frozen.caches.len() == before {
                return frozen;
            }
            frozen.time = recording::now();
        }
    }
}

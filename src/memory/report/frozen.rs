//! Caches that stand still, so that a reader of several sees one moment.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::memory::cache::{DeviceCaches, Heap, RecordedGuard, ServingCache};
use crate::memory::pool::Pool;
use crate::observe::recording;
use crate::sync::{OwnerGuard, lock};

/// A cache in which nothing is allocated or freed as long as this lives.
#[derive(Debug)]
pub(in crate::memory) struct FrozenCache {
    pub(in crate::memory) cache: Arc<ServingCache>,
    pub(in crate::memory) recorded: RecordedGuard<'static>,
    pub(in crate::memory) heap: OwnerGuard<'static, Heap>,
}

/// Caches in which nothing is allocated or freed as long as this lives, which must be short: their threads wait.
#[derive(Debug)]
pub(in crate::memory) struct Frozen {
    pub(in crate::memory) caches: Vec<FrozenCache>,
    /// The moment. Other caches had nothing before it.
    pub(in crate::memory) time: u64,
    /// Only its holder locks two caches at once, so that no threads wait in a circle.
    _alone: MutexGuard<'static, ()>,
    /// Dropped after the locks: the last name of a cache that has ended drops its stream.
    named: Vec<Arc<ServingCache>>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Frozen {
    /// Freezes the caches of a pool.
    pub(in crate::memory) fn of(pool: &Pool) -> Self {
        Self::new(|| DeviceCaches::caches_of(pool))
    }

    /// Freezes the caches that `list` returns, also those made meanwhile.
    pub(in crate::memory) fn new(list: impl Fn() -> Vec<Arc<ServingCache>>) -> Self {
        let alone = lock(&ALONE);
        let mut frozen = Self { caches: Vec::new(), time: 0, _alone: alone, named: Vec::new() };
        let mut known = HashSet::new();
        loop {
            let before = frozen.caches.len();
            for cache in list() {
                if known.insert(Arc::as_ptr(&cache)) {
                    // By the mutex, also for this thread's own caches: as the owner it would block threads that only
                    // read its cache.
                    let (heap, recorded) = (cache.cache.lock_by_mutex(), cache.cache.recording.lock());
                    frozen.named.push(Arc::clone(&cache));
                    frozen.caches.push(FrozenCache { cache, recorded, heap });
                }
            }
            if frozen.caches.len() == before {
                return frozen;
            }
            frozen.time = recording::now();
        }
    }
}

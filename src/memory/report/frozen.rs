//! Caches that stand still: what a look at several of them at once needs, so that it sees one moment.

use std::sync::{Mutex, MutexGuard};

use crate::memory::cache::event::LiveGuard;
use crate::memory::cache::heap::Heap;
use crate::memory::cache::thread_cache::ThreadCache;
use crate::observe::recording;
use crate::sync::OwnerGuard;
use crate::sync::lock;

/// One of them.
#[derive(Debug)]
pub(in crate::memory) struct FrozenCache {
    pub(in crate::memory) cache: &'static ThreadCache,
    pub(in crate::memory) live: LiveGuard<'static>,
    pub(in crate::memory) heap: OwnerGuard<'static, Heap>,
}

/// Caches that nobody allocates from as long as this lives. It is to be short: their threads wait.
#[derive(Debug)]
pub(in crate::memory) struct Frozen {
    pub(in crate::memory) caches: Vec<FrozenCache>,
    /// The moment. A cache that is not among them had nothing before it.
    pub(in crate::memory) time: u64,
    /// Nobody but the holder of this locks two caches at once, so that nobody waits in a circle.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Frozen {
    /// Stops the caches that `list` answers, also those that are made meanwhile.
    pub(in crate::memory) fn new(list: impl Fn() -> Vec<&'static ThreadCache>) -> Self {
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

//! Every interleaving of what an owner and other threads do to a cache: its frees, its locks, and its change of owner.

use std::ops::Deref;

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

use super::*;
use crate::ids::Device;
use crate::memory::device::Invalid;
use crate::memory::tuning::PAGE;
use crate::sync::{AtomicBool, Ordering};

/// Tries all orders with two interruptions of threads: more take too long, since each free may wait in three ways.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

fn this_thread(number: u64) -> ThisThread {
    // SAFETY: of the numbers below those of owners are one thread's each.
    unsafe { ThisThread::of_model(number) }
}

fn owner() -> ThisThread {
    this_thread(1)
}

fn next_owner() -> ThisThread {
    this_thread(2)
}

fn other() -> ThisThread {
    this_thread(3)
}

const SMALL: u64 = 512;
const LARGE: u64 = 256 << 10;

/// A cache with a page of memory, and its device, for one run of a model.
struct Made {
    cache: Option<Box<StreamCache>>,
    device: *mut DeviceMemory,
}

/// Makes a cache, in a call of its own, since a model's stack is small and a cache is not.
fn boxed(number: u32, memory: &'static DeviceMemory) -> Box<StreamCache> {
    Box::new(StreamCache::new(number, memory))
}

fn give_page(cache: &StreamCache) {
    cache.adopt(owner());
    cache.memory.pages.set_cache(0, PAGE, Some(cache.number));
    assert!(cache.lock(owner()).add_span(0, PAGE));
}

// SAFETY: the device is behind a pointer only so that it can be freed last; what it points to is `Sync`.
unsafe impl Send for Made {}
// SAFETY: what the pointer points to is `Sync`, and the cache is too.
unsafe impl Sync for Made {}

impl Made {
    fn new() -> Arc<Self> {
        let memory = Box::into_raw(Box::new(DeviceMemory::for_model(Device::from_ordinal(0).into())));
        // SAFETY: freed by `drop`, after all that knows it.
        let cache = boxed(0, unsafe { &*memory });
        give_page(&cache);
        Arc::new(Self { cache: Some(cache), device: memory })
    }

    fn allocate(&self, bytes: u64) -> u64 {
        self.lock(owner()).allocate(&self.memory.pages, bytes, HeapSearch::AFew).unwrap()
    }

    /// Frees as another thread does.
    fn freeing(this: &Arc<Self>, offset: u64) -> JoinHandle<bool> {
        let cache = Arc::clone(this);
        thread::spawn(move || cache.free(other(), offset).is_ok())
    }

    /// Returns the bytes that the owner counts as live and the blocks it counts as freed, once it has locked.
    fn counts(&self) -> (u64, u64) {
        let counts = self.lock(owner()).counts();
        (counts.live(), counts.frees())
    }
}

impl Deref for Made {
    type Target = StreamCache;

    fn deref(&self) -> &StreamCache {
        self.cache.as_ref().unwrap()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.cache = None;
        // SAFETY: nothing else knows the device that `new` made.
        drop(unsafe { Box::from_raw(self.device) });
    }
}

#[test]
fn slots_that_two_threads_free_are_all_free() {
    explore(|| {
        let cache = Made::new();
        let threads = [cache.allocate(SMALL), cache.allocate(SMALL)].map(|offset| Made::freeing(&cache, offset));
        drop(cache.lock(owner()));
        assert!(threads.map(|thread| thread.join().unwrap()).iter().all(|&is_freed| is_freed));
        assert_eq!(cache.counts(), (0, 2));
    });
}

#[test]
fn a_block_that_two_threads_free_is_freed_by_one_and_once() {
    explore(|| {
        let cache = Made::new();
        let offset = cache.allocate(LARGE);
        let threads = [Made::freeing(&cache, offset), Made::freeing(&cache, offset)];
        drop(cache.lock(owner()));
        let succeeded = threads.map(|thread| thread.join().unwrap());
        assert_ne!(succeeded[0], succeeded[1]);
        assert_eq!(cache.counts(), (0, 1));
    });
}

#[test]
fn a_free_that_the_owner_knows_of_is_seen_by_its_next_lock() {
    explore(|| {
        let cache = Made::new();
        let (small, large) = (cache.allocate(SMALL), cache.allocate(LARGE));
        let is_freed = Arc::new(AtomicBool::new(false));
        let thread = {
            let (cache, is_freed) = (Arc::clone(&cache), Arc::clone(&is_freed));
            thread::spawn(move || {
                cache.free(other(), small).unwrap();
                cache.free(other(), large).unwrap();
                is_freed.store(true, Ordering::Release);
            })
        };
        if is_freed.load(Ordering::Acquire) {
            assert_eq!(cache.counts(), (0, 2));
        }
        thread.join().unwrap();
        assert_eq!(cache.counts(), (0, 2));
    });
}

#[test]
fn an_allocation_beside_a_free_from_afar_keeps_what_it_got() {
    explore(|| {
        let cache = Made::new();
        let first = cache.allocate(SMALL);
        let thread = Made::freeing(&cache, first);
        let second = cache.allocate(SMALL);
        assert!(thread.join().unwrap());
        assert_eq!(cache.counts(), (SMALL, 1));
        assert_eq!(cache.check_live(second), Ok(()));
        assert_eq!(cache.free(owner(), second), Ok(()));
        assert_eq!(cache.counts(), (0, 2));
    });
}

#[test]
fn a_wrong_second_free_does_not_touch_another_cache_s_block() {
    explore(|| {
        let cache = Made::new();
        let offset = cache.allocate(LARGE);
        cache.free(owner(), offset).unwrap();
        assert_eq!(cache.lock(owner()).take_free_spans(&cache.memory.pages, 0), [(0, PAGE)]);
        let other_cache = boxed(1, cache.memory);
        give_page(&other_cache);
        let again = other_cache.lock(owner()).allocate(&other_cache.memory.pages, LARGE, HeapSearch::AFew);
        assert_eq!(again, Some(offset));
        // The free found the cache while the page was still its own.
        assert_eq!(cache.free(other(), offset), Err(Invalid::Freed));
        assert_eq!(cache.counts(), (0, 1));
        assert_eq!(other_cache.lock(owner()).counts().live(), LARGE);
    });
}

#[test]
fn a_thread_that_takes_an_ended_one_s_cache_sees_what_was_freed() {
    explore(|| {
        let cache = Made::new();
        let (first, second) = (cache.allocate(SMALL), cache.allocate(SMALL));
        let other = Made::freeing(&cache, first);
        let next = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                cache.adopt(next_owner());
                cache.is_owned_by(next_owner()).then(|| cache.lock(next_owner()).counts().live())
            })
        };
        cache.free(owner(), second).unwrap();
        cache.give_up(owner());
        assert!(other.join().unwrap());
        if let Some(live) = next.join().unwrap() {
            assert!(live <= SMALL, "{live} bytes though the former owner had freed one of the two blocks");
        }
        assert_eq!(cache.counts(), (0, 2));
    });
}

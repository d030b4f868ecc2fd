//! What the allocator knows of a pool: its id, its rules, its caches and what they hold.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::memory::cache::heap::Counts;
use crate::memory::cache::thread_cache::ThreadCache;
use crate::memory::device::budget::Budget;
use crate::memory::device::device_memory::DeviceMemory;
use crate::memory::device::segment_source::SegmentSource;
use crate::memory::pool::id::PoolId;
use crate::sync::lock;

/// Where a pool's memory comes from.
#[derive(Clone, Debug, Default)]
pub(in crate::memory) enum Source {
    /// Pages of the device's address range, moved where they are needed.
    #[default]
    Pages,
    /// Segments that stay where they are.
    Segments(Arc<dyn SegmentSource>),
}

/// How a pool behaves, fixed when it is made.
#[derive(Clone, Debug, Default)]
pub(in crate::memory) struct Rules {
    pub(in crate::memory) source: Source,
    pub(in crate::memory) use_on_oom: bool,
    pub(in crate::memory) no_split: bool,
}

/// A pool of device memory.
pub(in crate::memory) struct Pool {
    pub(in crate::memory) id: PoolId,
    /// Its number in the process, for thread-local look-ups; 0 for every default pool.
    pub(in crate::memory) number: u32,
    pub(in crate::memory) device: &'static DeviceMemory,
    pub(in crate::memory) rules: Rules,
    /// How many hold the pool: its owner, scopes, captures.
    uses: AtomicU32,
    /// Those among them that are ended by the pool's id.
    uses_by_id: AtomicU32,
    /// Captures whose graphs were not reset.
    captures: AtomicU32,
    is_closed: AtomicBool,
    /// Whether free pages of foreign streams are lent.
    is_lending: AtomicBool,
    /// Its physical bytes.
    pub(in crate::memory) budget: Budget,
    /// Live bytes at the last time that a cache told, and the most they were at such a time.
    live: AtomicU64,
    peak_live: AtomicU64,
    caches: Mutex<Caches>,
}

/// A pool's caches, and what those that are gone have counted.
#[derive(Default)]
struct Caches {
    all: Vec<&'static ThreadCache>,
    past: Counts,
}

/// Without its caches and device, which would lead back to it.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("id", &self.id)
            .field("device", &self.device.device)
            .field("use_count", &self.use_count())
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

impl Pool {
    pub(in crate::memory) fn new(
        id: PoolId,
        number: u32,
        device: &'static DeviceMemory,
        rules: Rules,
        limit: Option<u64>,
    ) -> Self {
        Self {
            id,
            number,
            device,
            rules,
            uses: AtomicU32::new(1),
            uses_by_id: AtomicU32::new(0),
            captures: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            is_lending: AtomicBool::new(false),
            budget: Budget::new(limit),
            live: AtomicU64::new(0),
            peak_live: AtomicU64::new(0),
            caches: Mutex::default(),
        }
    }

    pub(in crate::memory) fn is_split(&self) -> bool {
        !self.rules.no_split
    }

    pub(in crate::memory) fn is_default(&self) -> bool {
        self.number == 0
    }

    pub(in crate::memory) fn use_count(&self) -> u32 {
        self.uses.load(Ordering::Acquire)
    }

    /// One more holder; false if the last one is gone already.
    pub(in crate::memory) fn acquire(&self) -> bool {
        self.uses.fetch_update(Ordering::AcqRel, Ordering::Acquire, |uses| (uses > 0).then(|| uses + 1)).is_ok()
    }

    /// One holder less; true if that was the last.
    pub(in crate::memory) fn release(&self) -> bool {
        let before = self.uses.fetch_update(Ordering::AcqRel, Ordering::Acquire, |uses| uses.checked_sub(1));
        before == Ok(1)
    }

    pub(in crate::memory) fn begin_capture(&self) {
        self.captures.fetch_add(1, Ordering::AcqRel);
    }

    pub(in crate::memory) fn end_capture(&self) {
        self.captures.fetch_sub(1, Ordering::AcqRel);
    }

    pub(in crate::memory) fn begin_by_id(&self) {
        self.uses_by_id.fetch_add(1, Ordering::AcqRel);
    }

    /// False if no use is left that is ended by the pool's id.
    pub(in crate::memory) fn end_by_id(&self) -> bool {
        let take = |uses: u32| uses.checked_sub(1);
        self.uses_by_id.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    pub(in crate::memory) fn has_captures(&self) -> bool {
        self.captures.load(Ordering::Acquire) > 0
    }

    pub(in crate::memory) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub(in crate::memory) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Lends free pages of foreign streams from now on; false if that was so already.
    pub(in crate::memory) fn begin_lending(&self) -> bool {
        !self.is_lending.swap(true, Ordering::AcqRel)
    }

    pub(in crate::memory) fn is_lending(&self) -> bool {
        self.is_lending.load(Ordering::Acquire)
    }

    pub(in crate::memory) fn reset_peaks(&self) {
        self.budget.reset_peak();
        self.peak_live.store(self.live.load(Ordering::Relaxed), Ordering::Relaxed);
        self.lock_caches().past.peak = 0;
    }

    /// A cache tells by how much its live bytes changed.
    pub(in crate::memory) fn tell_live(&self, change: i64) {
        let before = self.live.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
        self.peak_live.fetch_max(before.wrapping_add_signed(change), Ordering::Relaxed);
    }

    pub(in crate::memory) fn peak_live(&self) -> u64 {
        self.peak_live.load(Ordering::Relaxed)
    }

    fn lock_caches(&self) -> MutexGuard<'_, Caches> {
        lock(&self.caches)
    }

    pub(in crate::memory) fn caches(&self) -> Vec<&'static ThreadCache> {
        self.lock_caches().all.clone()
    }

    /// The caches, and what those that are gone have counted.
    pub(in crate::memory) fn caches_and_past(&self) -> (Vec<&'static ThreadCache>, Counts) {
        let caches = self.lock_caches();
        (caches.all.clone(), caches.past)
    }

    pub(in crate::memory) fn add_cache(&self, cache: &'static ThreadCache) {
        self.lock_caches().all.push(cache);
    }

    /// Forgets a cache in which nothing is live, but not what it has counted.
    pub(in crate::memory) fn remove_cache(&self, cache: &ThreadCache, counts: Counts) {
        let mut caches = self.lock_caches();
        caches.all.retain(|other| !std::ptr::eq(*other, cache));
        caches.past.add(counts);
    }

    pub(in crate::memory) fn take_caches(&self) -> Vec<&'static ThreadCache> {
        std::mem::take(&mut self.lock_caches().all)
    }
}

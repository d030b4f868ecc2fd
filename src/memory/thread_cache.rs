//! A thread cache: the memory of one pool and one stream that one thread cuts blocks from, without waiting for others.
//!
//! Other threads leave what they free in the inbox. When the thread ends, its caches wait for the next thread that works
//! on the same stream; meanwhile, and always on the slow path, any thread can lock one to take free pages out.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::device_memory::DeviceMemory;
use super::heap::{Heap, Invalid};
use super::local;
use super::order::{User, Waiting};
use super::owner_lock::OwnerGuard;
use super::owner_lock::OwnerLock;
use super::pages::Entry;
use super::pool::Pool;
use crate::runtime::Stream;
use crate::stream::RawStream;

/// What a cache serves.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) pool: Arc<Pool>,
    pub(super) stream: Stream,
    /// Whether its blocks are parts of captured graphs.
    pub(super) is_captured: bool,
    /// The thread whose per-thread default stream this is; 0 for any other stream.
    pub(super) stream_of: u64,
}

impl Service {
    /// Whether the stream can be asked and recorded on by this thread: it lasts, or somebody has just given it.
    pub(super) fn is_stream_usable(&self, thread: u64, alive: Option<&Stream>) -> bool {
        if self.stream_of != 0 {
            return self.stream_of == thread;
        }
        self.stream.is_lasting() || alive.is_some_and(|alive| alive.raw() == self.stream.raw())
    }
}

/// A list that is asked whether it is empty far more often than used.
#[derive(Debug, Default)]
pub(super) struct Shared<T> {
    len: AtomicUsize,
    items: Mutex<T>,
}

impl<T> Shared<T> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the items; `f` answers how many there are then, and a result.
    pub(super) fn change<R>(&self, f: impl FnOnce(&mut T) -> (usize, R)) -> R {
        let mut items = self.lock();
        let (len, result) = f(&mut items);
        self.len.store(len, Ordering::Release);
        result
    }
}

/// One cache. It is never moved nor dropped; when its pool is gone it serves another.
pub(super) struct ThreadCache {
    pub(super) number: u32,
    pub(super) device: &'static DeviceMemory,
    /// The thread that allocates from it; 0 for none. Only that thread gives it up.
    owner: AtomicU64,
    heap: OwnerLock<Heap>,
    service: RwLock<Option<Service>>,
    /// The address of the stream that it serves, by which it is found.
    stream: AtomicUsize,
    /// Blocks freed by other threads.
    inbox: Shared<Vec<u64>>,
    /// Further streams that use a block.
    uses: Shared<HashMap<u64, Vec<User>>>,
    /// Freed blocks that wait for streams.
    pub(super) waiting: Shared<Vec<Waiting>>,
    /// The live bytes that its pool was last told of.
    told: AtomicU64,
    /// Whether its pool was dropped, so that what is freed leaves at once.
    is_closing: AtomicBool,
}

/// Without what it holds, which would lead back to it.
impl fmt::Debug for ThreadCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadCache").field("number", &self.number).finish_non_exhaustive()
    }
}

impl ThreadCache {
    pub(super) fn new(number: u32, device: &'static DeviceMemory) -> Self {
        Self {
            number,
            device,
            owner: AtomicU64::new(0),
            heap: OwnerLock::new(Heap::new(true)),
            service: RwLock::new(None),
            stream: AtomicUsize::new(0),
            inbox: Shared::default(),
            uses: Shared::default(),
            waiting: Shared::default(),
            told: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
        }
    }

    /// Makes an empty cache serve this.
    pub(super) fn serve(&self, service: Service) {
        *self.heap.lock() = Heap::new(service.pool.is_split());
        self.is_closing.store(false, Ordering::Relaxed);
        self.told.store(0, Ordering::Relaxed);
        self.stream.store(normalized(service.stream.raw()), Ordering::Relaxed);
        *self.service.write().unwrap_or_else(PoisonError::into_inner) = Some(service);
    }

    /// Makes an empty cache serve nobody, and let its stream go.
    pub(super) fn end_service(&self) {
        let ended = self.service.write().unwrap_or_else(PoisonError::into_inner).take();
        // Outside the lock: the last clone of a stream destroys it.
        drop(ended);
    }

    /// What it serves, if anything.
    pub(super) fn service(&self) -> Option<Service> {
        self.service.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether its blocks are used in the order of this stream, as the calling thread names it.
    #[inline]
    pub(super) fn is_of(&self, stream: &Stream) -> bool {
        self.stream.load(Ordering::Relaxed) == normalized(stream.raw())
            && self.device.device == stream.device()
            && (stream.raw() != RawStream::PER_THREAD || self.is_of_this_thread())
    }

    #[cold]
    fn is_of_this_thread(&self) -> bool {
        self.service().is_some_and(|service| service.stream_of == local::thread())
    }

    #[inline]
    pub(super) fn is_owned_by(&self, thread: u64) -> bool {
        self.owner.load(Ordering::Relaxed) == thread
    }

    /// The thread that allocates from it, if any does.
    pub(super) fn owner(&self) -> Option<u64> {
        Some(self.owner.load(Ordering::Relaxed)).filter(|&owner| owner != 0)
    }

    /// Makes the thread the owner if the cache has none.
    pub(super) fn adopt(&self, thread: u64) -> bool {
        // Acquire: pairs with the release in `give_up`, so that the former owner's work is seen.
        self.owner.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends the thread's ownership; for the owner alone.
    pub(super) fn give_up(&self, thread: u64) {
        let _ = self.owner.compare_exchange(thread, 0, Ordering::Release, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Locks the heap; quick for the owner.
    #[inline]
    pub(super) fn lock(&self, thread: u64) -> OwnerGuard<'_, Heap> {
        let mut heap = if thread != 0 && self.is_owned_by(thread) {
            // SAFETY: the owner is this thread, which alone can end that, and no caller holds two guards of one cache.
            unsafe { self.heap.lock_as_owner() }
        } else {
            self.heap.lock()
        };
        if !self.inbox.is_empty() {
            self.collect(&mut heap);
        }
        heap
    }

    /// Adds free memory and takes a block at once, before another thread takes the pages away.
    pub(super) fn add_and_allocate(&self, thread: u64, start: u64, bytes: u64, request: u64) -> Option<u64> {
        let mut heap = self.lock(thread);
        heap.add_span(start, bytes);
        heap.allocate(&self.device.pages, request)
    }

    /// Tells the pool how much is live here.
    pub(super) fn tell_live(&self, pool: &Pool, thread: u64) {
        let live = self.lock(thread).counts().live;
        let told = self.told.swap(live, Ordering::Relaxed);
        pool.tell_live(live.cast_signed().wrapping_sub(told.cast_signed()));
    }

    /// Takes back what the pool was told: nothing is live here any more.
    pub(super) fn end_telling(&self, pool: &Pool) {
        let told = self.told.swap(0, Ordering::Relaxed);
        pool.tell_live(told.cast_signed().wrapping_neg());
    }

    /// Takes in what other threads have freed.
    #[cold]
    fn collect(&self, heap: &mut Heap) {
        for offset in self.inbox.change(|inbox| (0, std::mem::take(inbox))) {
            heap.collect(&self.device.pages, offset);
        }
    }

    /// Frees a block of this cache from any thread.
    ///
    /// # Errors
    /// [`Invalid`] if there is none at the offset.
    #[inline]
    pub(super) fn free(&self, thread: u64, offset: u64) -> Result<(), Invalid> {
        if thread != 0 && self.is_owned_by(thread) {
            self.lock(thread).free(&self.device.pages, offset)
        } else {
            self.free_from_afar(offset)
        }
    }

    fn free_from_afar(&self, offset: u64) -> Result<(), Invalid> {
        let pages = &self.device.pages;
        let must_tell = match pages.entry(offset) {
            Entry::Block(number) => {
                if !pages.mark_freed(offset, number) {
                    return Err(Invalid::Freed);
                }
                true
            }
            Entry::Slab(number) => {
                let slab = pages.slabs.get(number).ok_or(Invalid::NotABlock)?;
                let slot = slab.slot_at(offset).ok_or(Invalid::NotABlock)?;
                slab.mark_freed(slot).ok_or(Invalid::Freed)?
            }
            Entry::Freed(_) => return Err(Invalid::Freed),
            Entry::Nothing => return Err(Invalid::NotABlock),
        };
        if must_tell {
            self.inbox.change(|inbox| {
                inbox.push(offset);
                (inbox.len(), ())
            });
        }
        Ok(())
    }

    /// Marks a block as freed though it cannot be used again yet.
    ///
    /// # Errors
    /// [`Invalid`] if there is none at the offset.
    pub(super) fn mark_waiting(&self, offset: u64) -> Result<(), Invalid> {
        let pages = &self.device.pages;
        match pages.entry(offset) {
            Entry::Block(number) => pages.mark_freed(offset, number).then_some(()).ok_or(Invalid::Freed),
            Entry::Slab(number) => {
                let slab = pages.slabs.get(number).ok_or(Invalid::NotABlock)?;
                let slot = slab.slot_at(offset).ok_or(Invalid::NotABlock)?;
                slab.mark_waiting(slot).then_some(()).ok_or(Invalid::Freed)
            }
            Entry::Freed(_) => Err(Invalid::Freed),
            Entry::Nothing => Err(Invalid::NotABlock),
        }
    }

    /// Whether a caller holds a block that starts at the offset.
    pub(super) fn check_live(&self, offset: u64) -> Result<(), Invalid> {
        let pages = &self.device.pages;
        match pages.entry(offset) {
            Entry::Block(_) => Ok(()),
            Entry::Slab(number) => {
                let slab = pages.slabs.get(number).ok_or(Invalid::NotABlock)?;
                let slot = slab.slot_at(offset).ok_or(Invalid::NotABlock)?;
                if slab.is_live(slot) { Ok(()) } else { Err(Invalid::Freed) }
            }
            Entry::Freed(_) => Err(Invalid::Freed),
            Entry::Nothing => Err(Invalid::NotABlock),
        }
    }

    /// Notes that a stream uses a live block.
    pub(super) fn add_use(&self, offset: u64, user: User) {
        self.uses.change(|uses| {
            let users = uses.entry(offset).or_default();
            if users.iter().all(|known| !known.is(&user)) {
                users.push(user);
            }
            (uses.len(), ())
        });
    }

    /// Whether any block is used by further streams.
    #[inline]
    pub(super) fn has_uses(&self) -> bool {
        !self.uses.is_empty()
    }

    /// The further streams that use a block, which end with it.
    pub(super) fn take_uses(&self, offset: u64) -> Vec<User> {
        self.uses.change(|uses| {
            let users = uses.remove(&offset).unwrap_or_default();
            (uses.len(), users)
        })
    }
}

/// The stream by which a cache is found: the two names of the legacy stream are one.
#[inline]
pub(super) const fn normalized(stream: RawStream) -> usize {
    if stream.address() == 1 { 0 } else { stream.address() }
}

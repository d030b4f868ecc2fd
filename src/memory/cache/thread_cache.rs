//! A thread cache: the memory of one pool and one stream that one thread cuts blocks from, without waiting for others.
//!
//! Those of a pool for graphs are shared: all threads that work on the stream cut blocks from one, under its lock, so that
//! what one thread frees serves the others.
//!
//! Other threads leave what they free in the inbox. When the thread ends, its caches wait for the next thread that
//! works on the same stream; meanwhile, and always on the slow path, any thread can lock one to take free pages out.

mod frees;
#[cfg(all(test, loom))]
mod models;
mod spans;
mod uses;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, RwLock};

use super::block_user::{BlockUser, Waiting};
use super::event::is_recorded;
use super::heap::{Heap, HeapLedger};
use super::last_work::LastWork;
use super::page_traffic::PageTraffic;
use super::recorded_blocks::CacheRecording;
use super::service::{Service, normalized};
use super::visits::Visits;
use crate::ids::RawStream;
use crate::memory::device::{DeviceMemory, LENT};
use crate::memory::pool::Pool;
use crate::runtime::Stream;
use crate::sync::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering, OwnerGuard, OwnerLock, SharedList, ThisThread, ThreadNumber, read,
    write,
};

/// In place of an owner's number: all threads share the cache.
const SHARED: u64 = u64::MAX;

/// The pool was closed or dropped, so what is freed leaves at once.
const CLOSING: u32 = 1;
/// The work on its stream is marked when memory is freed there.
const MARKS_WORK: u32 = 2;
/// It lends slabs to the pool's other caches; see [`Service::of_lender`].
const LENDER: u32 = 4;
/// Live blocks have stacks of a recording that has ended.
const KEEPS_STACKS: u32 = 8;

/// A thread's cache. It is never moved nor dropped; when its pool is gone it serves another. It shares no cache line, nor the
/// next one, which processors fetch with it.
#[repr(align(128))]
pub(in crate::memory) struct ThreadCache {
    pub(in crate::memory) number: u32,
    pub(in crate::memory) memory: &'static DeviceMemory,
    /// The number of the thread that allocates from it; 0 for none, [`SHARED`] for all. Only that thread gives it up.
    owner: AtomicU64,
    heap: OwnerLock<Heap>,
    service: RwLock<Option<Service>>,
    /// The address of the stream that it serves, by which it is found.
    stream: AtomicUsize,
    /// Blocks freed by other threads.
    inbox: SharedList<Inbox>,
    /// Further streams that use a block.
    uses: SharedList<HashMap<u64, Vec<BlockUser>>>,
    /// Freed blocks that wait for streams.
    pub(in crate::memory) waiting: SharedList<Vec<Waiting>>,
    pub(in crate::memory) traffic: PageTraffic,
    /// How others of its stream have come by.
    visits: Visits,
    /// The last work on a stream that may be gone.
    pub(in crate::memory) last_work: LastWork,
    /// What there is to do when a block is freed: [`CLOSING`], [`MARKS_WORK`], [`KEEPS_STACKS`].
    duties: AtomicU32,
    /// What is recorded of its blocks.
    pub(in crate::memory) recording: CacheRecording,
}

/// Memory was not added to a cache: its service has ended, or it has as many blocks as there can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct NotAdded;

/// What other threads leave.
#[derive(Debug, Default)]
struct Inbox {
    /// The offsets of the blocks that they freed.
    freed: Vec<u64>,
    /// Whether the pool's ledger knows that the cache may have free pages for it.
    is_told: bool,
}

/// Without what it holds, which would lead back to it.
impl fmt::Debug for ThreadCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadCache").field("number", &self.number).finish_non_exhaustive()
    }
}

impl ThreadCache {
    pub(in crate::memory) fn new(number: u32, memory: &'static DeviceMemory) -> Self {
        Self {
            number,
            memory,
            owner: AtomicU64::new(0),
            heap: OwnerLock::new(Heap::new(true)),
            service: RwLock::new(None),
            stream: AtomicUsize::new(0),
            inbox: SharedList::default(),
            uses: SharedList::default(),
            waiting: SharedList::default(),
            traffic: PageTraffic::default(),
            visits: Visits::default(),
            last_work: LastWork::default(),
            duties: AtomicU32::new(0),
            recording: CacheRecording::default(),
        }
    }

    /// Makes an empty cache serve this.
    pub(in crate::memory) fn serve(&self, mut service: Service) {
        let ledger = HeapLedger { ledger: Arc::clone(&service.pool.ledger), cache: self.number };
        {
            let mut heap = self.heap.lock();
            service.number = heap.restart(service.pool.begin_cutting(), Some(ledger));
            if service.is_lender {
                heap.begin_lending();
            }
            // With the heap locked, so that the former service is not closed meanwhile.
            self.duties.store(if service.is_lender { LENDER } else { 0 }, Ordering::Relaxed);
        }
        self.inbox.change(|inbox| {
            inbox.is_told = false;
            (inbox.freed.len(), ())
        });
        self.traffic.reset();
        self.visits.reset();
        self.recording.set_pool(service.pool.id);
        self.stream.store(normalized(service.stream.raw()), Ordering::Relaxed);
        *write(&self.service) = Some(service);
    }

    /// Ends the service of an empty cache, and lets its stream go.
    pub(in crate::memory) fn end_service(&self) {
        let ended = write(&self.service).take();
        // Outside the lock: the last clone of a stream destroys it.
        drop(ended);
    }

    /// Returns what the cache serves, if anything.
    pub(in crate::memory) fn service(&self) -> Option<Service> {
        read(&self.service).clone()
    }

    /// Returns what the cache serves, if that is of this pool: one that was found by its pool may serve another by now.
    pub(in crate::memory) fn service_of(&self, pool: &Pool) -> Option<Service> {
        self.service().filter(|service| service.pool.number == pool.number)
    }

    /// Returns whether its blocks are used in the order of this stream, as the calling thread names it.
    #[inline]
    pub(in crate::memory) fn is_of(&self, stream: &Stream) -> bool {
        self.stream.load(Ordering::Relaxed) == normalized(stream.raw())
            && self.memory.device == stream.device()
            && (stream.raw() != RawStream::PER_THREAD || self.is_of_this_thread())
    }

    #[cold]
    fn is_of_this_thread(&self) -> bool {
        self.service().is_some_and(|service| service.per_thread_of == Some(ThisThread::get().number()))
    }

    /// Returns the address of the stream that it serves; 0 for the legacy default one.
    pub(in crate::memory) fn stream_address(&self) -> usize {
        self.stream.load(Ordering::Relaxed)
    }

    /// Returns whether the calling thread allocates from it.
    #[inline]
    pub(in crate::memory) fn is_owned_by(&self, thread: ThisThread) -> bool {
        self.owner.load(Ordering::Relaxed) == thread.number().get()
    }

    /// Returns the thread that allocates from it, if one alone does.
    pub(in crate::memory) fn owner(&self) -> Option<ThreadNumber> {
        ThreadNumber::from_word(self.owner.load(Ordering::Relaxed)).filter(|owner| owner.get() != SHARED)
    }

    /// Returns whether all threads share it.
    pub(in crate::memory) fn is_shared(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == SHARED
    }

    /// Makes a cache that no thread owns one that all threads share, for as long as the process lives.
    pub(super) fn share(&self) {
        self.owner.store(SHARED, Ordering::Relaxed);
    }

    /// Returns whether both serve the same.
    pub(in crate::memory) fn serves_as(&self, other: &Self) -> bool {
        let (own, others) = (read(&self.service), read(&other.service));
        own.as_ref().zip(others.as_ref()).is_some_and(|(own, other)| own.is_as(other))
    }

    /// Returns whether it serves the pool with this number.
    pub(in crate::memory) fn serves_pool(&self, number: u32) -> bool {
        read(&self.service).as_ref().is_some_and(|service| service.pool.number == number)
    }

    /// Makes the calling thread the owner if the cache has none.
    pub(in crate::memory) fn adopt(&self, thread: ThisThread) -> bool {
        // Acquire: pairs with the release in `give_up`, so that the former owner's work is seen.
        self.owner.compare_exchange(0, thread.number().get(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends the calling thread's ownership, if it is the owner.
    pub(in crate::memory) fn give_up(&self, thread: ThisThread) {
        let _ = self.owner.compare_exchange(thread.number().get(), 0, Ordering::Release, Ordering::Relaxed);
    }

    /// Serves no more requests of this pool, and lets what is freed leave at once.
    pub(in crate::memory) fn close(&self, pool: &Pool) {
        let Some(service) = self.service_of(pool) else { return };
        let mut heap = self.visit();
        if heap.is_in(service.number) {
            // With the heap locked, so that no other service has begun.
            self.duties.fetch_or(CLOSING, Ordering::Release);
            heap.close();
        }
    }

    /// Ends its service of this pool if it has no memory; false if it has some.
    pub(in crate::memory) fn end_if_empty(&self, pool: &Pool, thread: ThisThread) -> bool {
        let Some(service) = self.service_of(pool) else { return true };
        let mut heap = self.lock(thread);
        !heap.is_in(service.number) || heap.end_if_empty()
    }

    /// Marks the work on its stream from now on, if that may be gone at any time.
    pub(in crate::memory) fn mark_work_if_foreign(&self) {
        if self.service().is_some_and(|service| !service.stream.is_lasting() && !service.is_captured) {
            self.duties.fetch_or(MARKS_WORK, Ordering::Relaxed);
        }
    }

    /// Returns whether there is more to do than to free a block.
    #[inline]
    pub(in crate::memory) fn has_duties(&self) -> bool {
        self.duties.load(Ordering::Acquire) != 0
    }

    pub(in crate::memory) fn is_closing(&self) -> bool {
        self.duties.load(Ordering::Acquire) & CLOSING != 0
    }

    pub(in crate::memory) fn marks_work(&self) -> bool {
        self.duties.load(Ordering::Relaxed) & MARKS_WORK != 0
    }

    /// Says whether live blocks have stacks of a recording that has ended. With what is recorded of them locked.
    pub(super) fn set_keeps_stacks(&self, keeps: bool) {
        if keeps {
            self.duties.fetch_or(KEEPS_STACKS, Ordering::Release);
        } else {
            self.duties.fetch_and(!KEEPS_STACKS, Ordering::Release);
        }
    }

    /// Returns whether live blocks have stacks of a recording that has ended.
    pub(in crate::memory) fn keeps_stacks(&self) -> bool {
        self.duties.load(Ordering::Acquire) & KEEPS_STACKS != 0
    }

    /// Returns whether it lends slabs to the pool's other caches.
    pub(in crate::memory) fn is_lender(&self) -> bool {
        self.duties.load(Ordering::Relaxed) & LENDER != 0
    }

    /// Returns what its pages are marked with as theirs.
    pub(in crate::memory) fn page_mark(&self) -> u32 {
        if self.is_lender() { self.number | LENT } else { self.number }
    }

    /// Returns whether a block at the offset would be of this cache.
    fn has_block_at(&self, offset: u64) -> bool {
        let pages = &self.memory.pages;
        match pages.cache(offset) {
            Some(mark) if mark & LENT != 0 => pages.borrower(offset) == Some(self.number),
            mark => mark == Some(self.number),
        }
    }

    /// Locks the heap; quick for the owner. A thread holds one guard of a cache at a time.
    #[inline]
    pub(in crate::memory) fn lock(&self, thread: ThisThread) -> OwnerGuard<'_, Heap> {
        let mut heap = self.lock_for_block(thread);
        heap.join_freed();
        heap
    }

    /// As [`ThreadCache::lock`], for a request or a free alone: the block that was freed last may be a part of its own.
    fn lock_for_block(&self, thread: ThisThread) -> OwnerGuard<'_, Heap> {
        let heap = if self.is_owned_by(thread) {
            // SAFETY: the token shows that this thread runs here, it alone can end its ownership, and no function of
            // this room keeps a guard while it calls one that locks.
            unsafe { self.heap.lock_as_owner() }
        } else {
            self.heap.lock()
        };
        self.with_inbox(heap)
    }

    /// Works on the heap for a request or a free, as [`ThreadCache::lock_for_block`] has it. A guard that is handed on passes
    /// through memory, which costs more than all the rest of the lock; so the short way has one that stays here.
    #[inline]
    fn with_heap<R>(&self, thread: ThisThread, work: impl FnOnce(&mut Heap) -> R) -> R {
        if self.is_owned_by(thread) && self.inbox.is_empty() {
            // SAFETY: as in `lock_for_block`.
            if let Some(mut heap) = unsafe { self.heap.lock_shortly() } {
                return work(&mut heap);
            }
        }
        self.with_heap_slowly(thread, work)
    }

    #[cold]
    fn with_heap_slowly<R>(&self, thread: ThisThread, work: impl FnOnce(&mut Heap) -> R) -> R {
        work(&mut self.lock_for_block(thread))
    }

    /// Locks the heap as [`ThreadCache::lock`] does, if the cache is in this service: not once that has ended, though the
    /// cache may be in another one.
    pub(in crate::memory) fn lock_in(&self, service: &Service, thread: ThisThread) -> Option<OwnerGuard<'_, Heap>> {
        Some(self.lock(thread)).filter(|heap| heap.service() == Some(service.number))
    }

    /// As [`ThreadCache::lock_in`], for one who takes free memory out of the cache: none if graphs that live may use it.
    pub(in crate::memory) fn lock_to_take(
        &self,
        service: &Service,
        thread: ThisThread,
    ) -> Option<OwnerGuard<'_, Heap>> {
        self.lock_in(service, thread).filter(|_| !service.is_of_live_graph())
    }

    /// Locks the heap as a visitor, also for the owner, so that threads that only look into
    /// it are not held up by a long look.
    pub(in crate::memory) fn visit(&self) -> OwnerGuard<'_, Heap> {
        let mut heap = self.with_inbox(self.heap.lock());
        heap.join_freed();
        heap
    }

    /// Returns whether the visitor, a cache of another thread on the same stream, may take blocks here, and locks the heap
    /// for that: where one thread frees the other's blocks, and the owner is not at work.
    pub(in crate::memory) fn begin_visit(
        &self,
        visitor: &Self,
        service: &Service,
        thread: ThisThread,
    ) -> Option<OwnerGuard<'_, Heap>> {
        let is_allowed = || self.visits.spend() || visitor.visits.spend();
        let is_allowed_now = is_allowed();
        if !is_allowed_now && self.inbox.is_empty() {
            return None;
        }
        let is_as_left = self.owner().is_none() || self.heap.is_as_left();
        let allocations = visitor.lock(thread).allocations();
        let heap = self.visits.begin(is_as_left, allocations).then(|| self.lock_in(service, thread))??;
        // Only what was in the inbox tells whose blocks they were.
        (is_allowed_now || is_allowed()).then_some(heap)
    }

    /// Returns whether its owner takes turns with other threads of the stream, and is away.
    pub(in crate::memory) fn is_at_rest(&self) -> bool {
        self.visits.takes_turns() && (self.owner().is_none() || self.heap.is_as_left())
    }

    fn with_inbox<'a>(&self, mut heap: OwnerGuard<'a, Heap>) -> OwnerGuard<'a, Heap> {
        if !self.inbox.is_empty() {
            self.collect(&mut heap);
        }
        heap
    }

    /// Returns a block of at least this many bytes, if one is free; recorded if memory is.
    pub(in crate::memory) fn allocate(&self, thread: ThisThread, bytes: u64) -> Option<u64> {
        self.allocate_locked(&mut self.lock(thread), bytes, is_recorded())
    }

    /// As [`ThreadCache::allocate`], for a request alone and a caller that knows whether memory is recorded.
    #[inline]
    pub(in crate::memory) fn allocate_block(&self, thread: ThisThread, bytes: u64, is_recorded: bool) -> Option<u64> {
        self.with_heap(thread, |heap| self.allocate_locked(heap, bytes, is_recorded))
    }

    /// As [`ThreadCache::allocate`], with the heap locked, for a caller that knows whether memory is recorded.
    #[inline]
    pub(in crate::memory) fn allocate_locked(&self, heap: &mut Heap, bytes: u64, is_recorded: bool) -> Option<u64> {
        let offset = heap.allocate(&self.memory.pages, bytes)?;
        if is_recorded {
            self.record_alloc(offset, bytes);
        }
        Some(offset)
    }
}

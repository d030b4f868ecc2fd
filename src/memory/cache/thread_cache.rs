//! A thread cache: the memory of one pool and one stream that one thread cuts blocks from, without waiting for others.
//!
//! Those of a pool for graphs are shared: all threads that work on the stream cut blocks from one, under its lock, so that
//! what one thread frees serves the others.
//!
//! Other threads leave what they free in the inbox. When the thread ends, its caches wait for the next thread that
//! works on the same stream; meanwhile, and always on the slow path, any thread can lock one to take free pages out.

#[cfg(all(test, loom))]
mod models;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, RwLock};

use super::block_user::{BlockUser, Waiting};
use super::event::{MemoryAction, To, is_recorded};
use super::heap::{Heap, HeapLedger, Invalid};
use super::last_work::LastWork;
use super::page_traffic::PageTraffic;
use super::recorded_blocks::CacheRecording;
use super::service::{Service, normalized};
use super::sharing::Sharing;
use super::visits::Visits;
use crate::ids::RawStream;
use crate::memory::device::{DeviceMemory, Entry, LENT, Mapping, PAGE, Reserve, Run};
use crate::observe::delivery;
use crate::process;
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
        }
        self.inbox.change(|inbox| {
            inbox.is_told = false;
            (inbox.freed.len(), ())
        });
        self.duties.store(if service.is_lender { LENDER } else { 0 }, Ordering::Relaxed);
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

    /// Serves no more requests, and lets what is freed leave at once.
    pub(in crate::memory) fn close(&self) {
        self.duties.fetch_or(CLOSING, Ordering::Release);
        self.visit().close();
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

    /// Adds free memory and takes a block at once, before another thread takes the pages away. A lender only adds it.
    ///
    /// # Errors
    /// [`NotAdded`] if the service has ended, or there are too many blocks.
    pub(in crate::memory) fn add_and_allocate(
        &self,
        service: &Service,
        thread: ThisThread,
        start: u64,
        bytes: u64,
        request: u64,
    ) -> Result<Option<u64>, NotAdded> {
        // The observer is told before any thread can have the memory.
        self.observe_segment(self.coming(start), start, bytes);
        let mut heap = match self.add_span_in(service, thread, start, bytes) {
            Ok(heap) => heap,
            Err(not_added) => {
                self.observe_segment(self.going(start), start, bytes);
                return Err(not_added);
            }
        };
        if self.is_lender() {
            return Ok(Some(start));
        }
        let offset = heap.allocate_grown(&self.memory.pages, request);
        // Most often the request takes all of it.
        self.tell_if_no_pages(&mut heap);
        if let Some(offset) = offset.filter(|_| is_recorded()) {
            self.record_alloc(offset, request);
        }
        Ok(offset)
    }

    /// Adds a segment to the heap, if the cache is in this service.
    ///
    /// # Errors
    /// [`NotAdded`] if it is not, or there are too many blocks.
    pub(in crate::memory) fn add_segment(
        &self,
        service: &Service,
        thread: ThisThread,
        start: u64,
        bytes: u64,
    ) -> Result<(), NotAdded> {
        self.observe_segment(self.coming(start), start, bytes);
        let added = self.add_span_in(service, thread, start, bytes).map(drop);
        if added.is_err() {
            self.observe_segment(self.going(start), start, bytes);
        }
        added
    }

    /// Locks the heap and adds free memory to it, of which the observer was told.
    fn add_span_in(
        &self,
        service: &Service,
        thread: ThisThread,
        start: u64,
        bytes: u64,
    ) -> Result<OwnerGuard<'_, Heap>, NotAdded> {
        let mut heap = self.lock_in(service, thread).ok_or(NotAdded)?;
        self.add_span_for(To::Recording, &mut heap, start, bytes)?;
        Ok(heap)
    }

    /// Adds free memory to this cache's heap.
    ///
    /// # Errors
    /// [`NotAdded`] if its service has ended, or there are too many blocks.
    pub(in crate::memory) fn add_span(&self, heap: &mut Heap, start: u64, bytes: u64) -> Result<(), NotAdded> {
        self.add_span_for(To::Both, heap, start, bytes)
    }

    /// Gives free memory back to this cache's heap, if it is still in the service. Returns what cannot be added.
    #[must_use]
    pub(in crate::memory) fn put_back(
        &self,
        service: &Service,
        thread: ThisThread,
        mappings: Vec<Mapping>,
    ) -> Vec<Mapping> {
        let add = |mapping: &Mapping| {
            let (start, bytes) = (mapping.start(), mapping.bytes());
            self.add_segment(service, thread, start, bytes).is_ok()
        };
        mappings.into_iter().filter(|mapping| !add(mapping)).collect()
    }

    fn add_span_for(&self, to: To, heap: &mut Heap, start: u64, bytes: u64) -> Result<(), NotAdded> {
        if !heap.add_span(start, bytes) {
            return Err(NotAdded);
        }
        self.memory.pages.set_cache(start, start + bytes, Some(self.page_mark()));
        if is_recorded() {
            self.record_segment_for(to, self.coming(start), start, bytes);
        }
        Ok(())
    }

    /// Returns what it is when memory at the offset comes.
    fn coming(&self, start: u64) -> MemoryAction {
        if self.is_movable(start) { MemoryAction::SegmentMap } else { MemoryAction::SegmentAlloc }
    }

    /// Returns what it is when memory at the offset goes.
    fn going(&self, start: u64) -> MemoryAction {
        if self.is_movable(start) { MemoryAction::SegmentUnmap } else { MemoryAction::SegmentFree }
    }

    /// Returns whether memory at the offset is of pages that move; the rest are segments, which stay where they are.
    fn is_movable(&self, start: u64) -> bool {
        start < self.memory.range.bytes() && !self.has_segments()
    }

    /// Returns whether each mapping of the cache is a segment for one block alone.
    fn has_segments(&self) -> bool {
        read(&self.service).as_ref().is_some_and(|service| service.pool.no_split())
    }

    /// Tells the observer, if there is one, of memory that comes or goes. No lock is held.
    fn observe_segment(&self, action: MemoryAction, start: u64, bytes: u64) {
        if process::state().is_observed() {
            self.record_segment_for(To::Observer, action, start, bytes);
            delivery::deliver();
        }
    }

    /// Takes free mappings out of this cache's heap; see [`Heap::take_mappings`].
    pub(in crate::memory) fn take_mappings(&self, heap: &mut Heap, wanted: u64, slack: u64, kept: u64) -> Vec<Mapping> {
        let taken = heap.take_mappings(&self.memory.pages, wanted, slack, kept);
        self.note_taken(heap, taken)
    }

    /// Takes free mappings in a row out of this cache's heap; see [`Heap::take_row`].
    pub(in crate::memory) fn take_row(&self, heap: &mut Heap, bytes: u64) -> Vec<Mapping> {
        let taken = heap.take_row(&self.memory.pages, bytes);
        self.note_taken(heap, taken)
    }

    fn note_taken(&self, heap: &mut Heap, taken: Vec<Mapping>) -> Vec<Mapping> {
        if is_recorded() {
            // Those in a row are one event, but for segments.
            let has_segments = self.has_segments();
            for row in taken.chunk_by(|mapping, next| !has_segments && mapping.end() == next.start()) {
                let bytes = row.iter().map(|mapping| mapping.bytes()).sum();
                self.record_segment(self.going(row[0].start()), row[0].start(), bytes);
            }
        }
        if !taken.is_empty() {
            self.tell_if_no_pages(heap);
        }
        taken
    }

    /// Takes free pages of the pool's reserve out of this cache's heap.
    pub(in crate::memory) fn take_reserve(&self, heap: &mut Heap, reserve: &Reserve) -> Vec<Run> {
        let taken = heap.take_pages(&self.memory.pages, reserve.range());
        if is_recorded() {
            taken.iter().for_each(|&(start, bytes)| self.record_segment(MemoryAction::SegmentUnmap, start, bytes));
        }
        taken.into_iter().map(|(start, bytes)| ((start / PAGE) as u32, (bytes / PAGE) as u32)).collect()
    }

    /// Adds pages of the pool's reserve to this cache's heap. Returns those that could not be added.
    #[must_use]
    pub(in crate::memory) fn add_reserve(&self, heap: &mut Heap, runs: Vec<Run>) -> Vec<Run> {
        let mut add = |&(first, pages): &Run| self.add_span(heap, u64::from(first) * PAGE, u64::from(pages) * PAGE);
        runs.into_iter().filter_map(|run| add(&run).err().map(|NotAdded| run)).collect()
    }

    /// Takes free segments out of this cache's heap; see [`Heap::take_free_spans`].
    pub(in crate::memory) fn take_free_spans(&self, heap: &mut Heap) -> Vec<(u64, u64)> {
        let taken = heap.take_free_spans(&self.memory.pages, self.memory.range.bytes());
        if is_recorded() {
            taken.iter().for_each(|&(start, bytes)| self.record_segment(MemoryAction::SegmentFree, start, bytes));
        }
        taken
    }

    /// Takes in what other threads have freed.
    #[cold]
    fn collect(&self, heap: &mut Heap) {
        let mut passed_on = 0;
        for offset in self.inbox.change(|inbox| (0, std::mem::take(&mut inbox.freed))) {
            // What a wrong second free tells may come when the page is another cache's.
            if self.has_block_at(offset) && heap.collect(&self.memory.pages, offset) {
                passed_on += 1;
            }
        }
        if passed_on > 0 {
            self.visits.allow_for(passed_on);
        }
    }

    /// Frees a block of this cache from any thread.
    ///
    /// # Errors
    /// [`Invalid`] if there is none at the offset.
    #[inline]
    pub(in crate::memory) fn free(&self, thread: ThisThread, offset: u64) -> Result<(), Invalid> {
        if self.is_owned_by(thread) {
            self.with_heap(thread, |heap| heap.free(&self.memory.pages, offset))
        } else {
            self.free_from_afar(offset)
        }
    }

    fn free_from_afar(&self, offset: u64) -> Result<(), Invalid> {
        let pages = &self.memory.pages;
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
            self.leave(offset);
        }
        Ok(())
    }

    /// Leaves a block in the inbox. The pages that it makes free are found by others also if the owner never comes.
    fn leave(&self, offset: u64) {
        let was_told = self.inbox.change(|inbox| {
            inbox.freed.push(offset);
            (inbox.freed.len(), std::mem::replace(&mut inbox.is_told, true))
        });
        if !was_told && let Some(service) = self.service() {
            service.pool.ledger.add_with_pages(self.number);
        }
    }

    /// Has the pool's ledger forget that the cache may have free pages, if it has none, nor blocks in the inbox. Returns
    /// whether it had told of some.
    pub(in crate::memory) fn tell_if_no_pages(&self, heap: &mut Heap) -> bool {
        let Some(HeapLedger { ledger, .. }) = heap.ledger().filter(|_| !heap.has_free_page()) else { return false };
        heap.end_telling_of_pages();
        let had_told = ledger.remove_with_pages(self.number);
        let has_mail = self.inbox.change(|inbox| {
            inbox.is_told = !inbox.freed.is_empty();
            (inbox.freed.len(), inbox.is_told)
        });
        if has_mail {
            ledger.add_with_pages(self.number);
        }
        had_told && !has_mail
    }

    /// Marks a block as freed though it cannot be used again yet.
    ///
    /// # Errors
    /// [`Invalid`] if there is none at the offset.
    pub(in crate::memory) fn mark_waiting(&self, offset: u64) -> Result<(), Invalid> {
        let pages = &self.memory.pages;
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

    /// Returns whether the block at the offset is no slot of a slab.
    pub(in crate::memory) fn is_large(&self, offset: u64) -> bool {
        matches!(self.memory.pages.entry(offset), Entry::Block(_))
    }

    /// Returns whether a caller holds a block that starts at the offset.
    pub(in crate::memory) fn check_live(&self, offset: u64) -> Result<(), Invalid> {
        let pages = &self.memory.pages;
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
    pub(in crate::memory) fn add_use(&self, offset: u64, user: BlockUser) {
        self.uses.change(|uses| {
            let users = uses.entry(offset).or_default();
            if users.iter().all(|known| !known.is(&user)) {
                users.push(user);
            }
            (uses.len(), ())
        });
    }

    /// Returns what other processes have of a live block, from now on; made if it is not shared yet.
    pub(in crate::memory) fn share_block(&self, offset: u64) -> Arc<Sharing> {
        self.uses.change(|uses| {
            let users = uses.entry(offset).or_default();
            let known = users.iter().find_map(|user| match user {
                BlockUser::Processes(sharing) => Some(Arc::clone(sharing)),
                BlockUser::Stream(_) => None,
            });
            let sharing = known.unwrap_or_else(|| {
                let sharing = Arc::<Sharing>::default();
                users.push(BlockUser::Processes(Arc::clone(&sharing)));
                sharing
            });
            (uses.len(), sharing)
        })
    }

    /// Returns whether any block is used by further streams, or by other processes.
    #[inline]
    pub(in crate::memory) fn has_uses(&self) -> bool {
        !self.uses.is_empty()
    }

    /// Returns the further streams that use each block.
    pub(in crate::memory) fn all_uses(&self) -> Vec<(u64, Vec<BlockUser>)> {
        let copy = |(offset, users): (&u64, &Vec<BlockUser>)| (*offset, users.clone());
        self.uses.change(|uses| (uses.len(), uses.iter().map(copy).collect()))
    }

    /// Forgets the further streams that use blocks, but for those at the offsets that are kept, whose streams may be gone
    /// by the time they are freed. Returns what was forgotten: the last clone of a stream destroys it, which is for a time
    /// without locks.
    #[must_use]
    pub(in crate::memory) fn keep_uses(&self, is_kept: impl Fn(u64) -> bool) -> HashMap<u64, Vec<BlockUser>> {
        self.uses.change(|uses| {
            let (kept, forgotten) = std::mem::take(uses).into_iter().partition(|(offset, _)| is_kept(*offset));
            *uses = kept;
            uses.values_mut().for_each(|users| users.iter_mut().for_each(BlockUser::become_fleeting));
            (uses.len(), forgotten)
        })
    }

    /// Notes that the further streams that use a block may be gone by the time it is freed.
    #[cfg(feature = "python")]
    pub(in crate::memory) fn let_streams_end(&self, offset: u64) {
        self.uses.change(|uses| {
            uses.get_mut(&offset).into_iter().flatten().for_each(BlockUser::become_fleeting);
            (uses.len(), ())
        });
    }

    /// Returns the further streams that use a block, which end with it.
    pub(in crate::memory) fn take_uses(&self, offset: u64) -> Vec<BlockUser> {
        self.uses.change(|uses| {
            let users = uses.remove(&offset).unwrap_or_default();
            (uses.len(), users)
        })
    }
}

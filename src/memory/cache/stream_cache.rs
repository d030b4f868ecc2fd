//! A cache: the memory of one pool and one stream. All threads cut blocks from it, so that each reuses what others
//! free, and a program's peak does not depend on which thread asks. The first thread to use it locks it cheaply. The
//! others lock a mutex, or, if that is taken, leave their request to the thread that has it.

mod blocks;
#[cfg(all(test, loom))]
mod models;
mod serving;
mod spans;

use std::collections::HashMap;
use std::fmt;
use std::hint;
use std::sync::{Arc, RwLock};

use super::block_user::{BlockUser, Waiting};
use super::event::is_recorded;
use super::heap::{Cut, Heap, HeapSearch};
use super::recorded_blocks::CacheRecording;
use super::service::{Order, Role, Service};
use crate::ids::RawStream;
use crate::memory::device::{DeviceMemory, LENT};
use crate::memory::tuning::{A_FEW, LOOKS};
use crate::runtime::Stream;
use crate::sync::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering, OwnerGuard, OwnerLock, Requests, SharedList, ThisThread, read, write,
};
use serving::LastWork;
pub(in crate::memory) use serving::{CacheName, ServingCache, UnnamedCaches, WorkMark};

/// The pool was closed or dropped: what is freed leaves at once.
const CLOSING: u32 = 0b0_0001;
/// It has no memory, and gets none: a request that finds it so needs another cache.
const ENDED: u32 = 0b0_0010;
/// The work on its stream is marked when memory is freed there.
const MARKS_WORK: u32 = 0b0_0100;
/// It lends slabs to the pool's other caches; see [`Service::of_lender`].
const LENDER: u32 = 0b0_1000;
/// Live blocks have stacks of a recording that has ended.
const KEEPS_STACKS: u32 = 0b1_0000;

/// A cache. It is never moved nor dropped: what is found by a wrong address is a cache all the same. Once it has ended, and
/// nothing names it any more, it is born again for another pool or stream. It shares neither its cache lines nor the next
/// one, which processors fetch along.
#[repr(align(128))]
pub(in crate::memory) struct StreamCache {
    pub(in crate::memory) number: u32,
    pub(in crate::memory) memory: &'static DeviceMemory,
    /// The number of the thread for which the heap's lock is cheap, or 0. Only that thread resets it.
    owner: AtomicU64,
    heap: OwnerLock<Heap>,
    /// None once it has ended.
    serving: RwLock<Option<Arc<ServingCache>>>,
    /// The address of the stream that it serves.
    stream: AtomicUsize,
    /// Requests of threads that wait for the heap's lock.
    requests: Requests,
    /// Further streams that use a block.
    uses: SharedList<HashMap<u64, Vec<BlockUser>>>,
    /// Freed blocks that wait for streams.
    pub(in crate::memory) waiting: SharedList<Vec<Waiting>>,
    /// The last work on a stream that may be gone.
    pub(in crate::memory) last_work: LastWork,
    /// Extra work when a block is freed.
    duties: AtomicU32,
    pub(in crate::memory) recording: CacheRecording,
}

/// Memory was not added to a cache: it has ended or is asleep, or it has the most blocks that it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct NotAdded;

/// A thread's request to a heap.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// A block of at least so many bytes.
    Block { bytes: u64 },
    /// To free the block there.
    Free { offset: u64 },
}

impl Asked {
    /// Returns the request as one number, to be left for another thread; none if it is too large.
    const fn to_number(self) -> Option<u64> {
        match self {
            Self::Block { bytes } => bytes.checked_mul(2),
            Self::Free { offset } => match offset.checked_mul(2) {
                Some(number) => Some(number + 1),
                None => None,
            },
        }
    }

    const fn from_number(number: u64) -> Self {
        if number.is_multiple_of(2) { Self::Block { bytes: number / 2 } } else { Self::Free { offset: number / 2 } }
    }
}

/// Without its contents, which lead back to it.
impl fmt::Debug for StreamCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamCache").field("number", &self.number).finish_non_exhaustive()
    }
}

impl StreamCache {
    pub(in crate::memory) fn new(number: u32, memory: &'static DeviceMemory) -> Self {
        Self {
            number,
            memory,
            owner: AtomicU64::new(0),
            heap: OwnerLock::new(Heap::new(Cut::ToSize)),
            serving: RwLock::new(None),
            stream: AtomicUsize::new(0),
            requests: Requests::default(),
            uses: SharedList::default(),
            waiting: SharedList::default(),
            last_work: LastWork::default(),
            duties: AtomicU32::new(0),
            recording: CacheRecording::default(),
        }
    }

    /// Begins the life of a cache that nothing names. At the end of its last name it is one of `unnamed`.
    pub(super) fn begin(
        &'static self,
        service: Service,
        unnamed: &'static UnnamedCaches,
        birth: u64,
    ) -> Arc<ServingCache> {
        *self.heap.lock() = Heap::born(&service.pool, service.role, birth);
        self.duties.store(if service.role == Role::Lender { LENDER } else { 0 }, Ordering::Relaxed);
        self.memory.events.put_back(self.last_work.take().map(|mark| mark.event));
        self.recording.set_pool(service.pool.id);
        if service.role == Role::Ranges {
            self.hold_for_ranges();
        }
        self.stream.store(service.address(), Ordering::Relaxed);
        let name = Arc::new(CacheName { cache: self, unnamed });
        let born = Arc::new(ServingCache { cache: self, service, name, birth });
        *write(&self.serving) = Some(Arc::clone(&born));
        born
    }

    /// Returns the cache with what it serves; none once it has ended. One that was found by an address may have been born
    /// again since, for another pool.
    pub(in crate::memory) fn serving(&self) -> Option<Arc<ServingCache>> {
        read(&self.serving).clone()
    }

    /// Looks at what it serves. No copy is made, whose end could be that of a stream or a pool.
    fn look_at_service<T>(&self, look: impl FnOnce(&Service) -> T) -> Option<T> {
        read(&self.serving).as_ref().map(|of| look(&of.service))
    }

    /// Returns whether its blocks are used in the order of this stream, as the calling thread names it, or of one that had
    /// its address. That one is gone: no request can name it, and what its cache has free goes to others only behind all
    /// work of the device.
    #[inline]
    pub(in crate::memory) fn is_of(&self, stream: &Stream) -> bool {
        self.stream.load(Ordering::Relaxed) == stream.address()
            && self.memory.location == stream.device()
            && (stream.raw() != RawStream::PER_THREAD || self.is_of_this_thread())
    }

    /// Returns whether the thread can name its stream: it is not another one's per-thread default stream.
    #[cfg(feature = "python")]
    pub(in crate::memory) fn is_nameable_by(&self, thread: ThisThread) -> bool {
        let is_own = |service: &Service| service.identity.is_none_or(|own| own.is_nameable_by(thread));
        self.look_at_service(is_own) != Some(false)
    }

    #[cold]
    fn is_of_this_thread(&self) -> bool {
        let is_own = |service: &Service| service.identity.is_some_and(|own| own.is_nameable_by(ThisThread::get()));
        self.look_at_service(is_own) == Some(true)
    }

    /// Returns the address of its stream; 0 for the legacy default one.
    pub(in crate::memory) fn stream_address(&self) -> usize {
        self.stream.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::memory) fn is_owned_by(&self, thread: ThisThread) -> bool {
        self.owner.load(Ordering::Relaxed) == thread.number().get()
    }

    /// Makes the calling thread the heap lock's owner, if there is none.
    #[inline]
    pub(in crate::memory) fn adopt(&self, thread: ThisThread) {
        if self.owner.load(Ordering::Relaxed) == 0 {
            // Acquire: pairs with the release in `give_up`, so that the former owner's work is seen.
            let _ = self.owner.compare_exchange(0, thread.number().get(), Ordering::Acquire, Ordering::Relaxed);
        }
    }

    /// Ends the calling thread's ownership, if it is the owner.
    pub(in crate::memory) fn give_up(&self, thread: ThisThread) {
        let _ = self.owner.compare_exchange(thread.number().get(), 0, Ordering::Release, Ordering::Relaxed);
    }

    /// Returns whether freeing a block takes extra work.
    #[inline]
    pub(in crate::memory) fn has_duties(&self) -> bool {
        self.duties.load(Ordering::Acquire) != 0
    }

    #[inline]
    pub(in crate::memory) fn is_closing(&self) -> bool {
        self.duties.load(Ordering::Acquire) & CLOSING != 0
    }

    /// Returns whether it has ended, as far as a thread without the heap's lock can see.
    #[inline]
    pub(in crate::memory) fn has_ended(&self) -> bool {
        self.duties.load(Ordering::Relaxed) & ENDED != 0
    }

    pub(in crate::memory) fn marks_work(&self) -> bool {
        self.duties.load(Ordering::Relaxed) & MARKS_WORK != 0
    }

    /// Sets whether live blocks have stacks of an ended recording. Its `RecordedBlocks` are locked.
    pub(super) fn set_keeps_stacks(&self, keeps: bool) {
        if keeps {
            self.duties.fetch_or(KEEPS_STACKS, Ordering::Release);
        } else {
            self.duties.fetch_and(!KEEPS_STACKS, Ordering::Release);
        }
    }

    pub(in crate::memory) fn keeps_stacks(&self) -> bool {
        self.duties.load(Ordering::Acquire) & KEEPS_STACKS != 0
    }

    pub(in crate::memory) fn is_lender(&self) -> bool {
        self.duties.load(Ordering::Relaxed) & LENDER != 0
    }

    pub(in crate::memory) fn page_mark(&self) -> u32 {
        if self.is_lender() { self.number | LENT } else { self.number }
    }

    #[inline]
    pub(in crate::memory) fn has_block_at(&self, offset: u64) -> bool {
        self.memory.pages.is_of(offset, self.number) || self.has_borrowed_at(offset)
    }

    #[cold]
    fn has_borrowed_at(&self, offset: u64) -> bool {
        let pages = &self.memory.pages;
        pages.cache(offset).is_some_and(|mark| mark & LENT != 0) && pages.borrower(offset) == Some(self.number)
    }

    /// Locks the heap; quick for the owner. A thread holds one guard of a cache at a time.
    #[inline]
    pub(in crate::memory) fn lock(&self, thread: ThisThread) -> OwnerGuard<'_, Heap> {
        let mut heap = self.lock_for_block(thread);
        heap.join_freed();
        heap
    }

    /// As [`StreamCache::lock`], for a request or a free alone, which do without [`Heap::join_freed`].
    fn lock_for_block(&self, thread: ThisThread) -> OwnerGuard<'_, Heap> {
        if self.is_owned_by(thread) {
            // SAFETY: the token shows that this thread is the owner, which alone can end that, and no function of this
            // module keeps a guard while it calls one that locks.
            unsafe { self.heap.lock_as_owner() }
        } else {
            self.heap.lock()
        }
    }

    /// Locks the heap for a request or a free of its owner, by the fast path alone: a guard that may hold the mutex is
    /// passed through memory, which costs more than the lock itself.
    #[inline]
    fn lock_fast(&self, thread: ThisThread) -> Option<OwnerGuard<'_, Heap>> {
        if !self.is_owned_by(thread) {
            return None;
        }
        // SAFETY: as in `lock_for_block`.
        unsafe { self.heap.lock_fast() }
    }

    /// Locks the heap for a request or a free, unless another thread has it by the mutex; others wait for the owner.
    fn try_lock(&self, thread: ThisThread) -> Option<OwnerGuard<'_, Heap>> {
        if self.is_owned_by(thread) {
            // SAFETY: as in `lock_for_block`.
            unsafe { self.heap.try_lock_as_owner() }
        } else {
            self.heap.try_lock()
        }
    }

    /// Locks the heap by the mutex, also for the owner: a thread that waits for a long reader then sleeps.
    pub(in crate::memory) fn lock_by_mutex(&self) -> OwnerGuard<'_, Heap> {
        let mut heap = self.heap.lock();
        heap.join_freed();
        heap
    }

    /// Returns a block of at least this many bytes, if one is free; none of a cache that has ended.
    #[inline]
    pub(in crate::memory) fn allocate_block(&self, thread: ThisThread, bytes: u64) -> Option<u64> {
        match self.lock_fast(thread) {
            Some(mut heap) => self.allocate_locked(&mut heap, bytes, HeapSearch::AFew),
            None => self.allocate_beside_others(thread, bytes),
        }
    }

    #[cold]
    fn allocate_beside_others(&self, thread: ThisThread, bytes: u64) -> Option<u64> {
        self.adopt(thread);
        self.serve_beside_others(thread, Asked::Block { bytes })
    }

    /// Serves a request beside other threads: locks the heap if it is free, else leaves the request to the thread that has it.
    fn serve_beside_others(&self, thread: ThisThread, asked: Asked) -> Option<u64> {
        let by_itself = |mut heap: OwnerGuard<'_, Heap>| {
            let answer = self.serve_locked(&mut heap, asked);
            self.answer_requests(&mut heap);
            answer
        };
        if let Some(heap) = self.try_lock(thread) {
            return by_itself(heap);
        }
        let left = asked.to_number().and_then(|number| self.requests.leave(thread.number().get(), number));
        let Some(request) = left else {
            return by_itself(self.lock_for_block(thread));
        };
        for look in 0..LOOKS {
            if let Some(answer) = request.take_answer() {
                return answer;
            }
            // The thread that had the lock may have answered requests just before this one was left.
            if look % A_FEW as u32 == 0
                && let Some(heap) = self.try_lock(thread)
            {
                return request.take_back().unwrap_or_else(|| by_itself(heap));
            }
            hint::spin_loop();
        }
        let heap = self.lock_for_block(thread);
        request.take_back().unwrap_or_else(|| by_itself(heap))
    }

    fn serve_locked(&self, heap: &mut Heap, asked: Asked) -> Option<u64> {
        match asked {
            Asked::Block { bytes } => self.allocate_locked(heap, bytes, HeapSearch::AFew),
            Asked::Free { offset } => self.free_locked(heap, offset),
        }
    }

    /// Serves requests that other threads left, and those that arrive for a while, since the heap is in this core's
    /// cache. While memory is recorded each thread serves itself, as an event names its thread.
    fn answer_requests(&self, heap: &mut Heap) {
        for _ in 0..A_FEW {
            let serve = |number| self.serve_locked(heap, Asked::from_number(number));
            if is_recorded() || !self.requests.answer(serve) {
                return;
            }
        }
    }

    /// As [`StreamCache::allocate_block`], with the heap locked. A recording begins with all heaps locked, so a block
    /// that it does not find live is recorded here.
    #[inline]
    pub(in crate::memory) fn allocate_locked(&self, heap: &mut Heap, bytes: u64, search: HeapSearch) -> Option<u64> {
        let offset = heap.allocate(&self.memory.pages, bytes, search)?;
        if is_recorded() {
            self.record_alloc(offset, bytes);
        }
        Some(offset)
    }
}

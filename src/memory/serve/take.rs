//! A request of a cache, and taking another cache's free memory for it: the one way in which a request gets memory of another stream or pool. Check that
//! it is ready, lock the cache, check that nothing changed, take it, record the work so far, and put
//! back what that work still uses. The work is recorded after the memory was taken, so that it is all that ever used
//! it, and no lock is held during driver calls.
//!
//! A stream that gpupool did not make can be touched only in a call that names it. So calls that free on such a stream mark
//! its work by an event. What is free then can serve other streams once the event is done, while the cache's free pages
//! stay as they were. Nothing is marked before a request has passed over such pages, so that a program with one stream pays
//! nothing. Memory of a graph that was reset is marked by the request that looks at it.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;

use crate::error::Result;
use crate::ids::CaptureStatus;
use crate::memory::cache::{DeviceCaches, Heap, HeapSearch, Service, ServingCache, StreamCache, WorkMark};
use crate::memory::device::{Patience, Until};
use crate::memory::pool::Pool;
use crate::memory::tuning::{MANY, PAGE};
use crate::observe::delivery::deliver;
use crate::runtime::{self, Event, RelaxedCapture, Stream};
use crate::sync::ThisThread;

/// The pools whose free pages may be taken for a need, its own first, and whether the work that used them is waited for. It
/// grows once the driver or a limit has refused memory.
#[derive(Debug)]
pub(super) struct Reach {
    pub(super) pools: Vec<Arc<Pool>>,
    pub(super) waits: bool,
    refused: Cell<Option<RefusedPages>>,
}

/// Pages that could not be created for a need. To find that out again takes as long as to create all that the driver has
/// left, which may be milliseconds.
#[derive(Clone, Copy, Debug)]
struct RefusedPages {
    pages: u32,
    /// The bytes that this process had given back by then.
    went: u64,
}

impl Reach {
    /// Reaches for ready pages of one pool.
    pub(super) fn of_pool(pool: &Arc<Pool>) -> Self {
        Self { pools: vec![Arc::clone(pool)], waits: false, refused: Cell::new(None) }
    }

    /// Takes its own pool's pages alone again, and waits for the work that used them.
    pub(super) fn wait_for_streams(&mut self) {
        self.pools.truncate(1);
        self.waits = true;
    }

    /// Notes that so many pages could not be created.
    pub(super) fn note_refusal(&self, pages: u32) {
        self.refused.set((pages > 0).then(|| RefusedPages { pages, went: self.pools[0].memory.given_back() }));
    }

    /// Returns whether as many pages, or fewer, could not be created before, and this process has given nothing back since.
    pub(super) fn would_be_refused(&self, pages: u32) -> bool {
        self.refused
            .get()
            .is_some_and(|refused| pages >= refused.pages && self.pools[0].memory.given_back() == refused.went)
    }

    /// Has the driver asked again, since others may have given memory back.
    pub(super) fn ask_again(&self) {
        self.refused.set(None);
    }

    /// Returns the caches of a pool that may have free pages, all if it waits, else a few that have published some; and how
    /// many of those are gone.
    pub(super) fn caches_with_pages(&self, pool: &Pool) -> (Vec<Arc<ServingCache>>, usize) {
        if self.waits {
            return (DeviceCaches::caches_of(pool), 0);
        }
        let published = pool.ledger.with_pages(MANY);
        let caches = DeviceCaches::of_births(pool, &published);
        let gone = published.len() - caches.len();
        (caches, gone)
    }

    /// Returns how many free blocks of a heap are looked at.
    pub(super) fn search(&self) -> HeapSearch {
        if self.waits { HeapSearch::Whole } else { HeapSearch::AFew }
    }
}

/// Returns the other pools of the device that `is_meant` selects.
pub(super) fn other_pools(own: &Pool, is_meant: fn(&Pool) -> bool) -> impl Iterator<Item = Arc<Pool>> {
    let pools = DeviceCaches::known(own.memory.location).map(|caches| caches.pools.all()).unwrap_or_default();
    pools.into_iter().filter(move |pool| pool.number != own.number && is_meant(pool))
}

/// Free memory that can be taken out of a cache, and given back to it.
pub(super) trait FreeMemory {
    /// Puts it back into its cache, or gives it to its pool once `until` is done if that cache has ended.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses to take back memory of a pool that is gone; the caller has lost it anyway.
    fn put_back(self, from: &ServingCache, until: Until) -> Result<()>;
}

/// What was taken out of a cache.
#[derive(Debug)]
pub(super) struct Taken<T> {
    pub(super) from: Arc<ServingCache>,
    pub(super) memory: T,
    /// When the work that used it is done.
    pub(super) until: Until,
}

impl<T: FreeMemory> Taken<T> {
    /// Records the work so far that may use what was just taken. On a refusal the memory goes back.
    pub(super) fn after_work_so_far(from: Arc<ServingCache>, memory: T, request: &AllocationRequest) -> Result<Self> {
        match from.work_so_far(Some(&request.service)) {
            Ok(until) => Ok(Self { from, memory, until }),
            Err(error) => {
                // Waits for all work if the driver does not record the stream's.
                memory.put_back(&from, Until::recorded_later(from.memory.location.device()))?;
                Err(error)
            }
        }
    }

    pub(super) fn put_back(self) -> Result<()> {
        self.memory.put_back(&self.from, self.until)
    }

    /// Returns whether later work of the request's stream comes after all work that used it.
    pub(super) fn is_in_order_with(&self, request: &AllocationRequest) -> bool {
        let service = &self.from.service;
        service.is_in_order_with(&request.service) && !service.role.is_captured()
    }
}

/// A cache that something may be taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Giver<'a> {
    pub(super) cache: &'a Arc<ServingCache>,
    /// The unused bytes that it must have before its stream is queried.
    pub(super) least: u64,
    /// Whether its empty slabs are dropped now and then, also by a request that does not wait.
    pub(super) drops_slabs: bool,
}

/// Why nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotTaken {
    /// The cache's stream is at work, according to the driver.
    AtWork,
    Bare,
    /// What the cache has cannot be taken for now.
    Kept,
}

impl NotTaken {
    fn of(is_bare: bool) -> Self {
        if is_bare { Self::Bare } else { Self::Kept }
    }
}

/// Takes what `select` selects, perhaps nothing, out of another cache's heap, if no work uses it that the request's
/// stream does not come after.
///
/// # Errors
/// Any refusal of the driver. Everything is then as it was.
pub(super) fn take_from<T: FreeMemory>(
    request: &AllocationRequest,
    reach: &Reach,
    Giver { cache: from, least, drops_slabs }: Giver<'_>,
    select: impl FnOnce(&mut Heap, &Service) -> Option<T>,
) -> Result<std::result::Result<Taken<T>, NotTaken>> {
    let cache = from.cache;
    if std::ptr::eq(cache, request.cache) {
        return Ok(Err(NotTaken::Kept));
    }
    // A look into a cache that this thread locks cheaply costs less than querying its stream.
    if cache.is_owned_by(request.thread) {
        let mut heap = cache.lock(request.thread);
        let is_bare = heap.withdraw_if_no_pages();
        if heap.unused() < least || (is_bare && !reach.waits) {
            return Ok(Err(NotTaken::of(is_bare)));
        }
    }
    let readiness = readiness(from, request, reach)?;
    let (memory, is_bare) = {
        let heap = match readiness {
            Readiness::Never => None,
            Readiness::AtWork => return Ok(Err(NotTaken::AtWork)),
            Readiness::AfterWork => from.lock_to_take(),
            Readiness::Done { turnover } => from.lock_to_take().filter(|heap| heap.turnover() == turnover),
        };
        let Some(mut heap) = heap else { return Ok(Err(NotTaken::Kept)) };
        if reach.waits {
            heap.drop_empty_slabs(&cache.memory.pages);
        } else if drops_slabs && readiness == Readiness::AfterWork {
            // If the work was marked earlier, slots may have been freed since.
            heap.drop_empty_slabs_at_times(&cache.memory.pages);
        }
        let memory = select(&mut heap, &from.service);
        (memory, heap.withdraw_if_no_pages())
    };
    let Some(memory) = memory else { return Ok(Err(NotTaken::of(is_bare))) };
    // Before any thread can have it.
    deliver();
    if let Readiness::Done { .. } = readiness {
        return Ok(Ok(Taken { from: Arc::clone(from), memory, until: Until::at_once() }));
    }
    let mut taken = Taken::after_work_so_far(Arc::clone(from), memory, request)?;
    if taken.is_in_order_with(request) {
        return Ok(Ok(taken));
    }
    let patience = if reach.waits { Patience::Wait } else { Patience::Ask };
    match taken.until.is_done(&cache.memory.events, patience) {
        Ok(true) => Ok(Ok(taken)),
        outcome => {
            taken.put_back()?;
            outcome.map(|_| Err(NotTaken::AtWork))
        }
    }
}

/// Whether a cache's free memory can be taken for another cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Readiness {
    Never,
    /// Not now: its stream is at work.
    AtWork,
    /// After the work so far on its stream, or on the device.
    AfterWork,
    /// At once, if its heap's turnover is still this.
    Done {
        turnover: u64,
    },
}

/// Returns whether a request can take another cache's free memory, before its heap is locked.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses, also for an error of earlier work.
fn readiness(from: &ServingCache, request: &AllocationRequest, reach: &Reach) -> Result<Readiness> {
    let ServingCache { cache, service, .. } = from;
    let Some(stream) = &service.stream else { return Ok(Readiness::AfterWork) };
    // A graph may use it at any time.
    if service.is_of_live_graph() {
        return Ok(Readiness::Never);
    }
    if !service.is_stream_usable(request.thread, Some(&request.service)) {
        if reach.waits {
            return Ok(Readiness::AfterWork);
        }
        if service.role.is_captured() {
            // No call names its stream, so this one marks the work. Without a mark nothing is taken.
            let _ = mark_all_work(from);
        } else if !service.pool.marks_work()
            && cache.lock(request.thread).unused() >= PAGE
            && service.pool.begin_marking_work()
        {
            // From now on, when memory is freed on the pool's foreign streams.
            DeviceCaches::caches_of(&service.pool).iter().for_each(|cache| cache.mark_work_if_foreign());
        }
        let turnover = finished_turnover(cache)?;
        return Ok(turnover.map_or(Readiness::Never, |turnover| Readiness::Done { turnover }));
    }
    if service.is_of_stream_of(&request.service) {
        return Ok(Readiness::AfterWork);
    }
    if stream.capture_status()? != CaptureStatus::None {
        return Ok(Readiness::Never);
    }
    if reach.waits {
        return Ok(Readiness::AfterWork);
    }
    // The query spoils captures as an allocation does.
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    let is_idle = stream.query()?;
    Ok(if is_idle { Readiness::AfterWork } else { Readiness::AtWork })
}

/// Marks the work so far on a service's stream, which the caller names and so keeps alive, if its cache's free pages
/// have changed since the last mark. A refusal leaves the old, outdated mark.
pub(super) fn mark_work(cache: &ServingCache, stream: &Stream, thread: ThisThread) -> Result<()> {
    // Read first: what is freed after this is not in the mark.
    let turnover = {
        let mut heap = cache.lock(thread);
        if heap.live() == 0 {
            // The stream may be at its end, and nothing of it is to stay behind.
            heap.drop_empty_slabs(&cache.memory.pages);
        }
        heap.turnover()
    };
    if cache.last_work.turnover() == Some(turnover) || stream.capture_status()? != CaptureStatus::None {
        return Ok(());
    }
    let event = match cache.last_work.take() {
        Some(last) => {
            last.event.record(stream)?;
            last.event
        }
        None => cache.memory.events.record(stream)?,
    };
    put_mark(cache, event, turnover);
    Ok(())
}

/// Marks all work so far on the device, if the cache's free pages have changed since the last mark, unless that would
/// spoil a known capture.
fn mark_all_work(from: &ServingCache) -> Result<()> {
    let (cache, memory) = (from.cache, from.memory);
    let turnover = cache.lock(ThisThread::get()).turnover();
    if cache.last_work.turnover() == Some(turnover) {
        return Ok(());
    }
    let event = memory.events.take(memory.device()?)?;
    if event.record_or_await_context()? {
        put_mark(cache, event, turnover);
    } else {
        memory.events.put_back([event]);
    }
    Ok(())
}

fn put_mark(cache: &StreamCache, event: Event, turnover: u64) {
    cache.memory.events.put_back(cache.last_work.put(WorkMark { event, is_done: false, turnover }));
}

/// Returns the heap's turnover at the last mark, if the marked work is done.
///
/// # Errors
/// `ErrorKind::Library`, also for an error of the marked work.
fn finished_turnover(cache: &StreamCache) -> Result<Option<u64>> {
    let Some(mut mark) = cache.last_work.take() else { return Ok(None) };
    if !mark.is_done {
        // The query spoils captures as an allocation does.
        let _relaxed = RelaxedCapture::new(runtime::get()?)?;
        mark.is_done = mark.event.query()?;
    }
    let turnover = mark.is_done.then_some(mark.turnover);
    cache.memory.events.put_back(cache.last_work.put(mark));
    Ok(turnover)
}

/// A block that a caller holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(in crate::memory) cache: &'static StreamCache,
    pub(in crate::memory) offset: u64,
}

impl Allocation {
    #[inline]
    pub(in crate::memory) fn address(self) -> u64 {
        self.cache.memory.address(self.offset)
    }
}

/// A request of a cache, which may end meanwhile.
#[derive(Debug)]
pub(super) struct AllocationRequest {
    pub(super) of: Arc<ServingCache>,
    pub(super) thread: ThisThread,
    pub(super) bytes: u64,
}

impl Deref for AllocationRequest {
    type Target = ServingCache;

    fn deref(&self) -> &ServingCache {
        &self.of
    }
}

impl AllocationRequest {
    pub(super) fn new(of: Arc<ServingCache>, bytes: u64) -> Self {
        Self { of, thread: ThisThread::get(), bytes }
    }

    /// Returns how many bytes must be free in one piece for it.
    pub(super) fn needed(&self) -> u64 {
        self.cache.lock(self.thread).needed_for(self.bytes)
    }

    /// Returns whether pages may move for it. Not for a captured stream, whose work runs whenever its graph does and so
    /// is never known to be done; nor segments that may be registered, which stay where they are.
    pub(super) fn may_move(&self) -> Result<bool> {
        let pool = self.pool();
        Ok(pool.source().is_pages() && !pool.no_split() && !self.is_captured()?)
    }

    /// Returns whether it is for a captured stream.
    pub(super) fn is_captured(&self) -> Result<bool> {
        let Service { role, stream, .. } = &self.service;
        Ok(role.is_captured() || stream.as_ref().map_or(Ok(false), Stream::is_captured)?)
    }

    /// Returns the block at an offset that the cache handed out.
    pub(super) fn allocation(&self, offset: u64) -> Allocation {
        Allocation { cache: self.cache, offset }
    }

    /// Searches the cache's heap once for a free block.
    pub(super) fn search(&self, search: HeapSearch) -> Option<Allocation> {
        let mut heap = self.lock_awake()?;
        if search == HeapSearch::Whole {
            heap.drop_empty_slabs(&self.memory.pages);
        }
        let offset = self.cache.allocate_locked(&mut heap, self.bytes, search)?;
        Some(self.allocation(offset))
    }
}

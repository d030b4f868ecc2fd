//! What a request does when no free block fits: steps, from the cheapest to the last resort. Nothing waits for the GPU
//! before the driver or a limit has refused memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use log::info;

use super::extents::{beyond_a_limit, is_no_memory};
use super::free::free;
use super::in_place::serve_in_place;
use super::make_room::{after_discarding, after_handles, after_neighbours, make_room, wake_if_taken};
use super::out_of_memory::{after_callbacks, no_memory_left, note};
use super::pages::{Grown, grow_by_pages};
use super::request::{Allocation, AllocationRequest};
use super::reserve::serve_from_reserve;
use super::segments::grow_by_segment;
use super::settle::Patience;
use super::slabs::{serve_from_empty_slabs, serve_from_lent_slab};
use super::take::{FreeMemory, Giver, Reach, other_pools, take_from};
use super::trim::{leave_closed, settle};
use crate::error::{Error, ErrorKind, GPUPOOL, Result};
use crate::memory::cache::{
    BLOCK_BYTES_MAX, BlockUser, DeviceCaches, Heap, HeapSearch, Service, ServingCache, StreamCache, forget_last,
};
use crate::memory::device::{Moment, Until};
use crate::memory::pool::{self, Pool, Role};
use crate::memory::tuning::{A_FEW, MANY};
use crate::observe::Activity;
use crate::observe::delivery::Delivery;
use crate::observe::recording::{Purpose, hold_stack};
use crate::observe::target::MEMORY;
use crate::sync::ThisThread;

/// A step: returns a block, or none if the next step is to be tried.
type Step = fn(&mut Escalation) -> Result<Option<Allocation>>;

/// The steps after no free block was found, until the driver or a limit has refused memory.
#[rustfmt::skip] // the right column explains the left one
const READY: [Step; 7] = [
    Escalation::blocks_of_other_streams, // blocks of this cache that waited for other streams, if those are done
    Escalation::reserve,                 // free pages of the pool's reserve
    Escalation::lent_slab,               // a slab that the pool lends, for a small block of a stream without pages
    Escalation::empty_slabs,             // what this cache has free together with its empty slabs
    Escalation::pages_in_place,          // free pages of another stream of this pool, where they are
    Escalation::pages,                   // free pages of this pool, moved to one place; new ones for the rest
    Escalation::segment,                 // new memory of the pool's own source, if it has one
];

/// The steps from there on, which wait for the GPU and look for all free memory.
#[rustfmt::skip]
const SEARCH: [Step; 14] = [
    Escalation::blocks_of_pool,          // blocks of this pool, once its streams are done
    Escalation::reserve,                 // from here on pages are waited for
    Escalation::pages,
    Escalation::segment,
    Escalation::blocks_of_device,        // wait for the streams of pools that help others
    Escalation::pages,                   // from here on also those of pools that give way to others
    Escalation::segment,
    Escalation::blocks_of_other_caches,  // free blocks of this pool's other streams, and of those pools, which stay theirs
    Escalation::give_back,               // free memory goes back to the driver, which is asked once more
    Escalation::reserve,
    Escalation::lent_slab,               // what other streams have given back of theirs
    Escalation::pages,
    Escalation::segment,
    Escalation::discardable,             // pages of ranges that may be taken, lowest priority first
];

#[rustfmt::skip]
const LAST: [Step; 4] = [
    Escalation::what_was_under_way,      // wait for memory under way in other threads, and search all of these again
    Escalation::idle_handles,            // libraries' handles that no thread has are destroyed
    Escalation::neighbours,              // other processes give back what they can do without
    Escalation::callbacks,               // ask the user's callbacks to free something, each followed by another search
];

/// What is left to a request that is larger than a limit, which a callback may raise.
const BEYOND_A_LIMIT: [Step; 2] = [Escalation::any_block, Escalation::callbacks];

/// A block that another cache had free.
struct FreeBlock(u64);

impl FreeMemory for FreeBlock {
    fn put_back(self, from: &ServingCache, _: Until) -> Result<()> {
        free(Allocation { cache: from.cache, offset: self.0 }, None)
    }
}

/// A request that found no free block in its cache. [`Miss::serve`] continues it on the same thread.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is allocated before it is served"]
pub(crate) struct Miss {
    pub(in crate::memory) cache: &'static StreamCache,
    /// The number of the service that the cache was in.
    pub(in crate::memory) service: u64,
    pub(in crate::memory) bytes: u64,
}

impl Miss {
    /// Continues the request on the thread that made it. None if the cache serves another pool or stream by now: then
    /// the request must start anew.
    ///
    /// # Errors
    /// `ErrorKind::OutOfMemory` once nothing is left to try; `ErrorKind::InvalidValue` for 0 bytes, or if the pool has
    /// ended; any other refusal of the driver.
    #[cold]
    pub(in crate::memory) fn serve(self) -> Result<Option<Allocation>> {
        let Self { cache, service: number, bytes } = self;
        let _delivery = Delivery::at_end();
        let _stack = hold_stack(Purpose::Allocation);
        if bytes == 0 {
            return Err(Error::invalid_value("an allocation of 0 bytes has no address"));
        }
        let Some(service) = cache.service().filter(|service| service.number == number && cache.is_serving(number))
        else {
            forget_last();
            return Ok(None);
        };
        let request = AllocationRequest::new(ServingCache { cache, service, thread: ThisThread::get() }, bytes);
        Escalation::new(request).run().inspect_err(|error| info!(target: MEMORY, "{error}"))
    }
}

/// The state when a search began. If it is the same at the end, the search has missed nothing.
struct Beginning {
    under_way: Moment,
    /// Blocks that other threads have taken or freed.
    traffic: u64,
}

/// A request on its way through the steps.
struct Escalation {
    request: AllocationRequest,
    /// Whose free pages it may take.
    reach: Reach,
    /// The last refusal for want of memory.
    refused: Option<Error>,
    /// The part that waits, once it has begun.
    waiting: Option<Activity>,
    /// How that part began; none inside a move of this thread.
    beginning: Option<Beginning>,
    /// The most bytes of discardable pages that it may still take.
    left_to_discard: u64,
}

impl Escalation {
    fn new(request: AllocationRequest) -> Self {
        let reach = Reach::of_pool(&request.service.pool);
        let left_to_discard = request.memory().total;
        Self { request, reach, refused: None, waiting: None, beginning: None, left_to_discard }
    }

    /// Returns a block; none if the cache has ended its service.
    fn run(&mut self) -> Result<Option<Allocation>> {
        self.refuse_more_than_any_device_has()?;
        if self.request.pool().offer.is_taken() {
            wake_if_taken(&self.request.service.pool)?;
        }
        self.refused = beyond_a_limit(self.request.pool(), self.request.bytes);
        let parts: &[&[Step]] = if self.refused.is_some() { &[&BEYOND_A_LIMIT] } else { &[&READY, &SEARCH, &LAST] };
        for steps in parts {
            if let Some(found) = self.try_each(steps)? {
                self.log_end();
                return Ok(Some(found));
            }
            if self.has_ended() {
                forget_last();
                return Ok(None);
            }
        }
        let refused = self.last_refusal();
        Err(no_memory_left(self.request.pool(), self.request.bytes, refused))
    }

    /// Returns the block of the first step that finds one; none if no step does or the cache has ended its service.
    fn try_each(&mut self, steps: &[Step]) -> Result<Option<Allocation>> {
        for step in steps {
            self.refuse_out_of_service()?;
            let found = step(self)?;
            if found.is_some() || self.has_ended() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn has_ended(&self) -> bool {
        !self.request.cache.is_serving(self.request.service.number)
    }

    fn refuse_more_than_any_device_has(&self) -> Result<()> {
        if self.request.bytes <= self.request.memory().total.min(BLOCK_BYTES_MAX) {
            return Ok(());
        }
        note(self.request.pool(), self.request.cache.stream_address(), self.request.bytes);
        Err(no_memory_left(
            self.request.pool(),
            self.request.bytes,
            Error::no_memory(GPUPOOL, "No device has that many bytes: request less"),
        ))
    }

    /// Refuses a request to a pool that was closed or put to sleep, also meanwhile.
    fn refuse_out_of_service(&self) -> Result<()> {
        let pool = self.request.pool();
        if !pool.is_closed() {
            return if pool.sleep.is_asleep() { Err(pool::asleep(pool)) } else { Ok(()) };
        }
        // Pages added since then leave again; a refusal of the driver is not this request's error.
        if self.request.cache.serves_pool(pool.number) {
            let _ = leave_closed(self.request.cache, self.request.thread);
        }
        Err(pool::closed(pool))
    }

    fn last_refusal(&mut self) -> Error {
        let refused = self.refused.take();
        let refused =
            refused.unwrap_or_else(|| Error::internal("a request went through all steps and nothing refused it"));
        if !self.request.pool().no_split() {
            return refused;
        }
        refused.advised("The pool keeps its free segments, which may be registered, until its trim()")
    }

    fn blocks_of_other_streams(&mut self) -> Result<Option<Allocation>> {
        let has_settled = settle(self.request.cache, self.request.thread, Patience::Ask)?;
        Ok(if has_settled { self.request.search(HeapSearch::AFew) } else { None })
    }

    fn reserve(&mut self) -> Result<Option<Allocation>> {
        self.grow(|request, reach| serve_from_reserve(request, reach).map(Grown::or_nothing))
    }

    fn lent_slab(&mut self) -> Result<Option<Allocation>> {
        self.grow(|request, reach| serve_from_lent_slab(request, reach).map(Grown::or_nothing))
    }

    fn empty_slabs(&mut self) -> Result<Option<Allocation>> {
        self.grow(|request, _| Ok(Grown::or_nothing(serve_from_empty_slabs(request))))
    }

    fn pages_in_place(&mut self) -> Result<Option<Allocation>> {
        self.grow(|request, reach| serve_in_place(request, reach).map(Grown::or_nothing))
    }

    fn pages(&mut self) -> Result<Option<Allocation>> {
        if !self.has_pages() {
            return Ok(None);
        }
        let prefers_segment = self.refused.is_none() && self.request.pool().source().has_segments();
        self.grow(|request, reach| grow_by_pages(request, reach, prefers_segment))
    }

    fn segment(&mut self) -> Result<Option<Allocation>> {
        if !self.request.pool().source().has_segments() {
            return Ok(None);
        }
        // If pages were refused, too, that explains more than this source's refusal.
        let of_pages = if self.has_pages() { self.refused.take() } else { None };
        let grown = self.grow(|request, _| grow_by_segment(request));
        if of_pages.is_none() {
            return grown;
        }
        self.refused = of_pages;
        grown.or(Ok(None))
    }

    fn has_pages(&self) -> bool {
        self.request.pool().source().is_pages()
    }

    fn blocks_of_pool(&mut self) -> Result<Option<Allocation>> {
        if self.waiting.is_none() {
            let (id, device, bytes) = (self.request.pool().id, self.request.memory().location, self.request.bytes);
            self.waiting = Some(Activity::begin_of(bytes, format_args!("free memory for a request")));
            info!(
                target: MEMORY,
                "pool {id} on {device}: no memory for {bytes} bytes, waiting for streams and trimming"
            );
        }
        // What other threads have under way is waited for.
        let under_way = self.request.memory().under_way.wait();
        self.beginning = under_way.map(|under_way| Beginning { under_way, traffic: self.traffic() });
        self.reach = Reach { waits: true, ..Reach::of_pool(&self.request.service.pool) };
        Ok(self.blocks_after_waiting(&self.reach.pools))
    }

    fn blocks_of_device(&mut self) -> Result<Option<Allocation>> {
        // From here on the free pages of all pools that give way are within reach, not only its own.
        self.reach.pools.extend(other_pools(self.request.pool(), Pool::gives_way));
        // Those that help others.
        let helpers: Vec<_> = other_pools(self.request.pool(), Pool::helps_others).collect();
        Ok(self.blocks_after_waiting(&helpers))
    }

    /// Returns a block of another cache, which goes back there later. None for a graph or a feed, whose memory is its
    /// own. None of other pools for a pool with a limit, which it would evade, or with a source of its own.
    fn blocks_of_other_caches(&mut self) -> Result<Option<Allocation>> {
        let service = &self.request.service;
        if service.role != Role::Requests {
            return Ok(None);
        }
        let mut pools = vec![Arc::clone(&service.pool)];
        if service.pool.budget().limit().is_none() && !service.pool.keeps_segments() {
            pools.extend(other_pools(&service.pool, Pool::helps_others));
        }
        for (cache, other) in pools.iter().flat_map(|pool| DeviceCaches::services_of(pool)) {
            if other.role == Role::Requests
                && let Some(found) = self.block_of(cache, &other.pool)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns a free block of another cache, which is reused there once the request's stream is done with it.
    fn block_of(&self, cache: &'static StreamCache, pool: &Pool) -> Result<Option<Allocation>> {
        let _moving = cache.memory.under_way.begin();
        let select = |heap: &mut Heap, other: &Service| self.take_block(cache, other, heap).map(FreeBlock);
        let giver = Giver { cache, pool, least: self.request.bytes, drops_slabs: false };
        let Ok(taken) = take_from(&self.request, &self.reach, giver, select)? else { return Ok(None) };
        let offset = taken.memory.0;
        if let Some(stream) = &self.request.service.stream
            && !taken.is_in_order_with(&self.request)
        {
            cache.add_use(offset, BlockUser::new(stream).fleeting());
        }
        taken.until.recycle(&cache.memory.events);
        Ok(Some(Allocation { cache, offset }))
    }

    /// Takes a free block out of another cache's heap, unless its pool is another one that is about to sleep.
    fn take_block(&self, cache: &StreamCache, other: &Service, heap: &mut Heap) -> Option<u64> {
        let serves_another = other.pool.number != self.request.pool().number;
        if serves_another && !other.pool.sleep.may_serve_others() {
            return None;
        }
        let offset = cache.allocate_locked(heap, self.request.bytes, self.reach.search())?;
        // The default pool sleeps only with the whole device, which no such block prevents.
        if serves_another && !other.pool.is_default() {
            // With the heap locked, as in the search for such blocks before the pool falls asleep.
            cache.add_use(offset, BlockUser::OtherPool);
        }
        Some(offset)
    }

    fn any_block(&mut self) -> Result<Option<Allocation>> {
        Ok(self.request.search(HeapSearch::Whole))
    }

    fn discardable(&mut self) -> Result<Option<Allocation>> {
        let (pool, bytes) = self.wanted();
        let mut left = self.left_to_discard;
        let found = after_discarding(&pool, bytes, &mut left, || self.ask_again());
        self.left_to_discard = left;
        found
    }

    fn idle_handles(&mut self) -> Result<Option<Allocation>> {
        // Some libraries wait for the device then, which would spoil the capture.
        if self.request.is_captured()? {
            return Ok(None);
        }
        let (pool, bytes) = self.wanted();
        after_handles(&pool, bytes, || self.search_again())
    }

    fn neighbours(&mut self) -> Result<Option<Allocation>> {
        let (pool, bytes) = self.wanted();
        after_neighbours(&pool, bytes, || self.ask_again())
    }

    /// Returns the pool that is to have so many bytes.
    fn wanted(&self) -> (Arc<Pool>, u64) {
        (Arc::clone(&self.request.service.pool), self.request.bytes)
    }

    /// Asks the driver, or the pool's own source, once more.
    fn ask_again(&mut self) -> Result<Option<Allocation>> {
        self.request.ask_again();
        self.try_each(&[Self::pages, Self::segment])
    }

    /// Searches once more for all that there is, as anything may have been freed: blocks of other streams, too.
    fn search_again(&mut self) -> Result<Option<Allocation>> {
        self.request.ask_again();
        match self.try_each(&SEARCH)? {
            None => self.what_was_under_way(),
            found => Ok(found),
        }
    }

    /// Gives what cannot be moved into this pool back to the driver, which can then give it to this pool. With
    /// `no_split` the pool's own segments go only by its trim.
    fn give_back(&mut self) -> Result<Option<Allocation>> {
        self.request.ask_again();
        if let Some(caches) = DeviceCaches::known(self.request.memory().location) {
            let own = self.request.pool().number;
            let is_meant = |pool: &Pool| (pool.number == own && !pool.no_split()) || pool.gives_way();
            make_room(caches, self.request.thread, is_meant);
            if self.request.memory().is_of_host() {
                // The limit of pinned memory is of all nodes together.
                for other in DeviceCaches::of_nodes().filter(|other| !std::ptr::eq(*other, caches)) {
                    make_room(other, self.request.thread, Pool::gives_way);
                }
            }
        }
        self.request.memory().retries.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    fn what_was_under_way(&mut self) -> Result<Option<Allocation>> {
        if self.has_missed_nothing() {
            return Ok(None);
        }
        // Not in a callback of a move: what led to it searches again itself.
        let Some(_alone) = self.request.memory().under_way.repeat() else { return Ok(None) };
        for _ in 0..A_FEW {
            if self.has_missed_nothing() || self.has_ended() {
                break;
            }
            if let Some(found) = self.try_each(&SEARCH)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn has_missed_nothing(&self) -> bool {
        self.beginning.as_ref().is_none_or(|beginning| {
            self.request.memory().under_way.was_quiet_since(beginning.under_way) && self.traffic() == beginning.traffic
        })
    }

    /// Returns how many blocks of the device were taken and freed so far.
    fn traffic(&self) -> u64 {
        let caches = DeviceCaches::known(self.request.memory().location)
            .map(|caches| caches.pools.serving())
            .unwrap_or_default();
        let traffic = |cache: &StreamCache| {
            let counts = cache.lock(self.request.thread).counts();
            counts.allocations() + counts.frees()
        };
        caches.into_iter().map(traffic).sum()
    }

    fn callbacks(&mut self) -> Result<Option<Allocation>> {
        let (pool, bytes) = self.wanted();
        let stream = self.request.cache.stream_address();
        let found = after_callbacks(&pool, stream, bytes, || {
            if beyond_a_limit(&pool, bytes).is_some() {
                return Ok(None);
            }
            self.search_again()
        });
        found.map_err(|error| no_memory_left(&pool, bytes, error.while_refused(|| self.last_refusal())))
    }

    /// Waits for the streams of these pools' waiting blocks and pages, then searches once. A refusal for another pool
    /// does not end this request.
    fn blocks_after_waiting(&self, pools: &[Arc<Pool>]) -> Option<Allocation> {
        for cache in pools.iter().flat_map(|pool| DeviceCaches::caches_of(pool)) {
            let _ = settle(cache, self.request.thread, Patience::Wait);
        }
        let _ = self.request.memory().end_retired(true);
        self.request.search(HeapSearch::Whole)
    }

    /// Runs a step that adds memory to the cache, again if another thread takes that; none for want of memory, which is
    /// kept as the last refusal.
    fn grow(
        &mut self,
        mut step: impl FnMut(&AllocationRequest, &Reach) -> Result<Grown>,
    ) -> Result<Option<Allocation>> {
        for _ in 0..MANY {
            match step(&self.request, &self.reach) {
                Ok(Grown::Block(offset)) => return Ok(Some(self.request.allocation(offset))),
                Ok(Grown::Nothing) => return Ok(None),
                Ok(Grown::TakenAway) => {
                    self.refuse_out_of_service()?;
                    if self.has_ended() {
                        return Ok(None);
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted { .. }) => return Err(error),
                // Whatever a pool's own allocator refuses counts as a lack of memory.
                Err(error) if is_no_memory(&error) || !self.has_pages() => {
                    self.refused = Some(error);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::unavailable("a stream has more blocks than gpupool can number; free some, or allocate larger ones"))
    }

    fn log_end(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let (id, device, bytes) = (self.request.pool().id, self.request.memory().location, self.request.bytes);
            info!(target: MEMORY, "pool {id} on {device}: found {bytes} bytes after {}", waiting.took());
        }
    }
}

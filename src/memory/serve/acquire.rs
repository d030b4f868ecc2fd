//! How memory is found for a need: by steps, from the cheapest to the last resort, in one table. No step waits for the
//! GPU before the driver or a limit has refused memory. A new search follows each step that gives memory back, and
//! before the user's callbacks the search is repeated while other threads had memory under way, so that no need fails
//! while there is memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use log::Level;

use super::extents::{beyond_a_limit, claimed, is_no_memory};
use super::out_of_memory::{Help, after_callbacks, no_memory_left, settle_in};
use super::pages::Grown;
use super::take::{AllocationRequest, Reach, other_pools};
use super::trim::{leave_closed, settle, trim_pools};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::Device;
use crate::memory::cache::{DeviceCaches, ServingCache, ToDiscard};
use crate::memory::device::{DeviceMemory, Moment, Patience, log_out};
use crate::memory::pool::{self, Pool};
use crate::memory::tuning::{A_FEW, MANY, PAGE, WAIT};
use crate::observe::Activity;
use crate::runtime::Extent;
use crate::sync::ThisThread;

/// What memory is needed for: a block, a run of pages at an address, a reserve, or extents of a pool that wakes.
pub(super) struct Need<'a, R> {
    pub(super) pool: &'a Arc<Pool>,
    pub(super) bytes: u64,
    /// The request of the cache that gets the memory; none if no cache gets it: then the need is for new memory, of
    /// which this thread may have a part under way.
    pub(super) request: Option<&'a AllocationRequest>,
    /// Takes a step that [`Acquisition`] does not take itself, within the reach. It finds memory, or nothing, also if
    /// the step is not for such a need. Its errors are the driver's; a refusal for want of memory is not one.
    pub(super) take: &'a dyn Fn(Step, &Reach) -> Result<Grown<R>>,
}

/// What a step may wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitsFor {
    Nothing,
    /// The GPU, and what other threads have under way. Together these steps search for all free memory.
    Streams,
    /// Libraries, other processes, and the user's code.
    Others,
}

/// Where memory is taken from, and who gives some back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Blocks of the cache that waited for other streams, if those are done.
    SettledBlocks,
    /// Any free block of the cache.
    OwnBlocks,
    /// Free pages of the pool's reserve.
    Reserve,
    /// A slab that the pool lends, for a small block of a stream without pages.
    LentSlab,
    /// The cache's free memory together with its empty slabs.
    EmptySlabs,
    /// Free pages of another stream of the pool, left in place.
    PagesInPlace,
    /// Free pages within reach, moved to one place, and new ones for the rest.
    Pages,
    /// New memory of the pool's own source, if it has one.
    Segment,
    /// Waits for the pool's streams; what is free then is within reach.
    PoolsStreams,
    /// Waits for the streams of pools that help others; from here on pages of all pools that give way are within reach.
    HelpersStreams,
    /// Free blocks of the pool's other streams and of pools that help others; the blocks stay theirs.
    BlocksOfOthers,
    /// Free memory goes back to the driver, which is asked once more.
    GivenBack,
    /// Discardable pages of ranges are taken, lowest priority first.
    Discarded,
    /// Everything is searched again if other threads had memory under way.
    Missed,
    /// Libraries' handles that no thread has are destroyed.
    IdleHandles,
    /// Other processes give back what they can do without, and put to sleep the pools that they have offered.
    Neighbours,
    /// The user's callbacks are asked to free something.
    Callbacks,
}

const STEPS: [(WaitsFor, Step); 27] = [
    (WaitsFor::Nothing, Step::SettledBlocks),
    (WaitsFor::Nothing, Step::Reserve),
    (WaitsFor::Nothing, Step::LentSlab),
    (WaitsFor::Nothing, Step::EmptySlabs),
    (WaitsFor::Nothing, Step::PagesInPlace),
    (WaitsFor::Nothing, Step::Pages),
    (WaitsFor::Nothing, Step::Segment),
    (WaitsFor::Streams, Step::PoolsStreams),
    (WaitsFor::Streams, Step::OwnBlocks),
    (WaitsFor::Streams, Step::Reserve),
    (WaitsFor::Streams, Step::Pages),
    (WaitsFor::Streams, Step::Segment),
    (WaitsFor::Streams, Step::HelpersStreams),
    (WaitsFor::Streams, Step::OwnBlocks),
    (WaitsFor::Streams, Step::Pages),
    (WaitsFor::Streams, Step::Segment),
    (WaitsFor::Streams, Step::BlocksOfOthers),
    (WaitsFor::Streams, Step::GivenBack),
    (WaitsFor::Streams, Step::Reserve),
    (WaitsFor::Streams, Step::LentSlab),
    (WaitsFor::Streams, Step::Pages),
    (WaitsFor::Streams, Step::Segment),
    (WaitsFor::Streams, Step::Discarded),
    (WaitsFor::Others, Step::Missed),
    (WaitsFor::Others, Step::IdleHandles),
    (WaitsFor::Others, Step::Neighbours),
    (WaitsFor::Others, Step::Callbacks),
];

/// The steps for a need that is larger than a limit, which a callback may raise.
const BEYOND_A_LIMIT: [Step; 2] = [Step::OwnBlocks, Step::Callbacks];

/// Finds memory for a need. None if the cache that asked for it has ended: then the need must start anew.
///
/// # Errors
/// If nothing is left to try, the error of a request that found no memory, or, without a request, the last refusal, for
/// which [`is_no_memory`] holds; `ErrorKind::Asleep` or `ErrorKind::InvalidValue` if the pool of a request fell asleep
/// or was closed; any other refusal of the driver.
pub(super) fn acquire<R>(need: Need<'_, R>) -> Result<Option<R>> {
    let (pool, bytes) = (need.pool, need.bytes);
    let refused = beyond_a_limit(pool, bytes);
    let is_beyond = refused.is_some();
    let (reach, left_to_discard) = (Reach::of_pool(pool), pool.memory.total);
    let mut acquisition = Acquisition { need, reach, refused, waiting: None, beginning: None, left_to_discard };
    let found = if is_beyond {
        acquisition.take_each(BEYOND_A_LIMIT)?
    } else {
        acquisition.take_each(STEPS.map(|(_, step)| step))?
    };
    if found.is_none() && !acquisition.has_ended() {
        let refused = acquisition.last_refusal();
        return Err(acquisition.explained(refused));
    }
    if let Some(waiting) = acquisition.waiting.filter(|_| found.is_some()) {
        let (id, on, took) = (pool.id, pool.memory.location, waiting.took());
        log_out(Level::Info, format_args!("pool {id} on {on}: found {bytes} bytes after {took}"));
    }
    Ok(found)
}

/// The state when a search began. If it is the same at the end, the search has missed nothing.
struct Beginning {
    under_way: Moment,
    /// Blocks that other threads have taken or freed.
    traffic: u64,
}

/// A need on its way through the steps.
struct Acquisition<'a, R> {
    need: Need<'a, R>,
    /// Whose free pages the need may take.
    reach: Reach,
    /// The last refusal for want of memory.
    refused: Option<Error>,
    /// The part that waits, once it has begun.
    waiting: Option<Activity>,
    /// How that part began; none inside a move of this thread.
    beginning: Option<Beginning>,
    /// The most bytes of discardable pages that the need may still take: a callback may commit taken pages again.
    left_to_discard: u64,
}

impl<R> Acquisition<'_, R> {
    /// Returns what the first successful step finds; none if no step finds anything or the cache has ended.
    fn take_each(&mut self, steps: impl IntoIterator<Item = Step>) -> Result<Option<R>> {
        for step in steps {
            self.refuse_out_of_service()?;
            let found = self.take(step)?;
            if found.is_some() || self.has_ended() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn take(&mut self, step: Step) -> Result<Option<R>> {
        match step {
            Step::PoolsStreams => self.wait_for_pool(),
            Step::HelpersStreams => {
                self.reach.pools.extend(other_pools(self.need.pool, Pool::gives_way));
                self.wait_for(&other_pools(self.need.pool, Pool::helps_others).collect::<Vec<_>>());
            }
            Step::GivenBack => self.give_back(),
            Step::Discarded => return self.discard(),
            Step::Missed => return self.search_while_missed(),
            Step::IdleHandles => {
                // Some libraries wait for the device when a handle is destroyed, which would spoil the capture.
                let is_captured = self.need.request.map_or(Ok(false), AllocationRequest::is_captured)?;
                // What the handles held may not be known.
                if !is_captured && Help::IdleHandles.give_to(self.need.pool, self.need.bytes).is_some() {
                    return self.search_again();
                }
            }
            Step::Neighbours => return self.ask_neighbours(),
            Step::Callbacks => return self.call_back(),
            Step::Segment if self.has_pages() => {
                // If pages were refused, too, that explains more than this source's refusal.
                let of_pages = self.refused.take();
                let found = self.find(step);
                if of_pages.is_some() {
                    self.refused = of_pages;
                    return found.or(Ok(None));
                }
                return found;
            }
            _ => return self.find(step),
        }
        Ok(None)
    }

    fn memory(&self) -> &'static DeviceMemory {
        self.need.pool.memory
    }

    fn has_ended(&self) -> bool {
        self.need.request.is_some_and(|request| request.has_ended())
    }

    /// Refuses a request to a pool that was closed or put to sleep, also during the search.
    fn refuse_out_of_service(&self) -> Result<()> {
        let Some(request) = self.need.request else { return Ok(()) };
        let pool = request.pool();
        if !pool.is_closed() {
            return if pool.sleep.is_asleep() { Err(pool::asleep(pool)) } else { Ok(()) };
        }
        // Pages added since then leave again; a refusal of the driver is not this request's error.
        let _ = leave_closed(request.cache, request.thread);
        Err(pool::closed(pool))
    }

    fn last_refusal(&mut self) -> Error {
        let refused = self.refused.take();
        let refused =
            refused.unwrap_or_else(|| Error::internal("a request went through all steps and nothing refused it"));
        if !self.need.pool.no_split() {
            return refused;
        }
        refused.advised("The pool keeps its free segments, which may be registered, until its trim()")
    }

    fn has_pages(&self) -> bool {
        self.need.pool.source().is_pages()
    }

    /// Lets the need take a step, again if another thread takes what the step adds. Returns none for want of memory,
    /// and keeps that as the last refusal.
    fn find(&mut self, step: Step) -> Result<Option<R>> {
        let adds = !matches!(step, Step::SettledBlocks | Step::BlocksOfOthers);
        for _ in 0..MANY {
            match (self.need.take)(step, &self.reach) {
                Ok(Grown::Block(found)) => return Ok(Some(found)),
                Ok(Grown::Nothing) => return Ok(None),
                Ok(Grown::TakenAway) => {
                    self.refuse_out_of_service()?;
                    if self.has_ended() {
                        return Ok(None);
                    }
                }
                Err(error) if !adds || matches!(error.kind(), ErrorKind::Interrupted { .. }) => return Err(error),
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

    fn wait_for_pool(&mut self) {
        let (pool, bytes) = (self.need.pool, self.need.bytes);
        let under_way = &pool.memory.under_way;
        if self.waiting.is_none() {
            self.waiting = Some(Activity::begin_of(bytes, format_args!("free memory for a request")));
            let (id, on) = (pool.id, pool.memory.location);
            log_out(
                Level::Info,
                format_args!("pool {id} on {on}: no memory for {bytes} bytes, waiting for streams and trimming"),
            );
        }
        // Waits for what other threads have under way.
        let own = || if self.need.request.is_none() { under_way.wait_with_own() } else { None };
        self.beginning =
            under_way.wait().or_else(own).map(|under_way| Beginning { under_way, traffic: self.traffic() });
        self.reach.wait_for_streams();
        self.wait_for(&self.reach.pools);
    }

    /// Waits for the streams of these pools' waiting blocks and pages. A refusal for another pool does not end this.
    fn wait_for(&self, pools: &[Arc<Pool>]) {
        for cache in pools.iter().flat_map(|pool| DeviceCaches::caches_of(pool)) {
            let _ = settle(&cache, ThisThread::get(), Patience::Wait);
        }
        let _ = self.memory().end_retired(Patience::Wait);
    }

    /// Gives memory that cannot be moved into this pool back to the driver, which can then give it to this pool. With
    /// `no_split` only the pool's trim releases its own segments.
    fn give_back(&mut self) {
        self.reach.ask_again();
        let (memory, own) = (self.memory(), self.need.pool.number);
        if let Some(caches) = DeviceCaches::known(memory.location) {
            make_room(caches, |pool| (pool.number == own && !pool.no_split()) || pool.gives_way());
            if memory.is_of_host() {
                // The limit of pinned memory is for all nodes together.
                for other in DeviceCaches::of_nodes().filter(|other| !std::ptr::eq(*other, caches)) {
                    make_room(other, Pool::gives_way);
                }
            }
        }
        memory.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks the driver, or the pool's own source, once more.
    fn grow_again(&mut self) -> Result<Option<R>> {
        self.reach.ask_again();
        self.take_each([Step::Pages, Step::Segment])
    }

    /// Gives discardable pages back to the driver, and asks it again after each part.
    fn discard(&mut self) -> Result<Option<R>> {
        let (pool, bytes) = (self.need.pool, self.need.bytes);
        let Some(caches) = DeviceCaches::known(pool.memory.location) else { return Ok(None) };
        while self.left_to_discard > 0 {
            // What others give up does not help a pool at its limit.
            let only = (!pool.budget().has_room_for(bytes)).then_some(pool.number);
            let wanted = bytes.min(self.left_to_discard);
            let gone = caches.discardable.discard(ToDiscard { wanted, most: u64::MAX, patience: Patience::Wait }, only);
            if gone == 0 {
                break;
            }
            self.left_to_discard = self.left_to_discard.saturating_sub(gone);
            if let Some(found) = self.grow_again()? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Searches once more everywhere, since anything may have been freed, also blocks of other streams.
    fn search_again(&mut self) -> Result<Option<R>> {
        self.reach.ask_again();
        match self.search()? {
            None => self.search_while_missed(),
            found => Ok(found),
        }
    }

    fn search(&mut self) -> Result<Option<R>> {
        self.take_each(STEPS.into_iter().filter(|(waits_for, _)| *waits_for == WaitsFor::Streams).map(|(_, step)| step))
    }

    fn search_while_missed(&mut self) -> Result<Option<R>> {
        if self.has_missed_nothing() {
            return Ok(None);
        }
        let alone = self.memory().under_way.repeat();
        // Not in a callback of a move: the call that led to it searches again itself. A thread that wakes a pool has a
        // part of it under way, for which a thread that searches alone may wait; so it does not wait for that thread.
        if alone.is_none() && self.need.request.is_some() {
            return Ok(None);
        }
        for _ in 0..A_FEW {
            if self.has_missed_nothing() || self.has_ended() {
                break;
            }
            if let Some(found) = self.search()? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn has_missed_nothing(&self) -> bool {
        self.beginning.as_ref().is_none_or(|beginning| {
            self.memory().under_way.was_quiet_since(beginning.under_way) && self.traffic() == beginning.traffic
        })
    }

    /// Returns how many blocks of the device were taken and freed so far.
    fn traffic(&self) -> u64 {
        let caches = DeviceCaches::known(self.memory().location).map(|caches| caches.pools.serving());
        let traffic = |cache: Arc<ServingCache>| {
            let counts = cache.lock(ThisThread::get()).counts();
            counts.allocations() + counts.frees()
        };
        caches.into_iter().flatten().map(traffic).sum()
    }

    /// Asks other processes for memory, and then the driver again, as long as they give some.
    fn ask_neighbours(&mut self) -> Result<Option<R>> {
        for _ in 0..A_FEW {
            let Some(given) = Help::Neighbours.give_to(self.need.pool, self.need.bytes) else { break };
            // Also if nothing came in time: memory may have come since.
            if let Some(found) = self.grow_again()? {
                return Ok(Some(found));
            }
            if given == 0 {
                break;
            }
        }
        Ok(None)
    }

    fn call_back(&mut self) -> Result<Option<R>> {
        let (pool, bytes) = (self.need.pool, self.need.bytes);
        let stream = self.need.request.map_or(0, |request| request.cache.stream_address());
        let found = after_callbacks(pool, stream, bytes, || {
            if beyond_a_limit(pool, bytes).is_some() { Ok(None) } else { self.search_again() }
        });
        found.map_err(|error| {
            let error = error.while_refused(|| self.last_refusal());
            self.explained(error)
        })
    }

    /// Returns the error of a refused request. Without a request, the caller explains the refusal itself.
    fn explained(&self, refused: Error) -> Error {
        let Need { pool, bytes, request, .. } = self.need;
        if request.is_some() { no_memory_left(pool, bytes, refused) } else { refused }
    }
}

/// Gives as much as possible back to the driver: the free memory of the pools selected by `is_meant`, once the GPU is
/// done with it, and the mappings that other processes have of this one's memory, and this one of theirs. A refusal
/// does not stop the rest. First waits for memory that other threads have under way.
pub(super) fn make_room(caches: &'static DeviceCaches, is_meant: impl Fn(&Pool) -> bool) {
    let _ = caches.memory.under_way.wait();
    let _ = trim_pools(caches, ThisThread::get(), Patience::Wait, is_meant);
    caches.memory.elsewhere.end_idle();
    caches.memory.elsewhere.wait_for_processes(WAIT);
}

/// Gives back what pools that give way have free on a device, after waiting for work that uses it, and asks other
/// processes for this many bytes, which are not for a pool but, for example, for a library's handle.
pub(crate) fn make_room_for(device: Device, bytes: u64) {
    if let Some(caches) = DeviceCaches::known(device) {
        make_room(caches, Pool::gives_way);
    }
    // This process may have no memory there yet.
    settle_in(device.into());
    let _ = Help::Neighbours.give(device, bytes);
}

/// Makes new memory for a pool: of what the device has, else of what other pools and the user's callbacks give back.
///
/// # Errors
/// One for which [`is_no_memory`] holds if there is not enough; any other refusal of the driver.
pub(super) fn acquire_new<R>(pool: &Arc<Pool>, bytes: u64, make: impl Fn() -> Result<R>) -> Result<R> {
    // A refusal is of all of it, whatever it is made of.
    let whole = 1;
    let take = |step, reach: &Reach| {
        if step != Step::Pages || reach.would_be_refused(whole) {
            return Ok(Grown::Nothing);
        }
        make().map(Grown::Block).inspect_err(|_| reach.note_refusal(whole))
    };
    let found = acquire(Need { pool, bytes, request: None, take: &take })?;
    found.ok_or_else(|| Error::internal("memory was neither made nor refused"))
}

/// Returns a new extent for a waking pool. The thread has the earlier ones under way.
///
/// # Errors
/// As [`acquire_new`].
pub(in crate::memory) fn extent_for_waking(pool: &Arc<Pool>, pages: u32) -> Result<Extent> {
    let bytes = u64::from(pages) * PAGE;
    acquire_new(pool, bytes, || claimed(pool, bytes, || pool.memory.range.create(pages)))
}

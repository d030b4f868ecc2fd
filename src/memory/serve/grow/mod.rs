//! Growth: finds the pages for a request that no free block can serve.
//!
//! Free pages are mapped together at a new place before any physical memory is created. They come from this cache first,
//! then from others, as far as the effort goes. The old mappings stay until their streams have passed, so nothing here
//! waits for the GPU unless memory has run out. No lock is held during a driver call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use log::debug;

mod place;
mod segments;

use place::{HANDLE_PAGES, Place, find_place, rivals, spare};

use crate::error::{Bytes, Error, ErrorKind, Result, StatusKind};
use crate::ids::CaptureStatus;
use crate::memory::cache::thread_cache::{Service, ThreadCache};
use crate::memory::device::device_memory::DeviceMemory;
use crate::memory::device::pages::{Mapping, PAGE};
use crate::memory::device::retired::Remains;
use crate::memory::pool::state::{Pool, Source};
use crate::memory::serve::lending;
use crate::memory::serve::settle::Until;
use crate::observe::{Activity, target::MEMORY};
use crate::runtime::{self, RelaxedCapture, Stream};
use crate::sync::lock;

/// How far a request goes to find pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::memory) enum Effort {
    /// Free pages of the same pool that are ready now, and a little more than is needed if physical memory is created.
    Ready,
    /// The same, and no more than is needed.
    Exact,
    /// Free pages of the same pool, waiting for the streams that used them.
    Pool,
    /// Free pages of every pool of the device.
    Device,
}

/// Physical memory comes in handles, which are what is moved and given back. Small ones waste less, large ones need fewer
/// driver calls: so their size is this part of what the pool has, between [`HANDLE_PAGES`].
const HANDLE_PART: u64 = 180;

/// Pages taken from a cache to be moved.
#[derive(Debug)]
struct Gathered {
    cache: &'static ThreadCache,
    pool: Arc<Pool>,
    mappings: Vec<Mapping>,
    /// When the old mappings can go.
    until: Until,
}

impl Gathered {
    /// Gives the pages back to the cache they came from; they are still mapped there.
    fn put_back(self, device: &DeviceMemory) {
        let mut heap = self.cache.lock(0);
        for mapping in self.mappings {
            device.pages.set_cache(mapping.start(), mapping.end(), Some(self.cache.number));
            self.cache.add_span(&mut heap, mapping.start(), mapping.bytes());
        }
    }
}

fn out_of_addresses(device: &DeviceMemory) -> Error {
    Error::no_memory(
        "gpupool",
        format!("no addresses are left of the {} bytes reserved for {}", device.room(), device.device),
    )
}

/// Whether an error means that memory ran out, so that freeing some may help.
pub(in crate::memory) fn is_no_memory(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Library(refused) if refused.kind == StatusKind::OutOfMemory)
}

/// Adds memory to the cache and serves a request of this many bytes from it: the offset of the block. None if another
/// thread took pages that the request was to use, so that it must be tried again.
///
/// # Errors
/// One for which [`is_no_memory`] holds if there is not enough; any other refusal of the driver. Everything is then as it
/// was.
pub(in crate::memory) fn grow(
    cache: &'static ThreadCache,
    service: &Service,
    thread: u64,
    bytes: u64,
    effort: Effort,
) -> Result<Option<u64>> {
    match &service.pool.rules.source {
        Source::Pages => grow_pages(cache, service, thread, bytes, effort),
        Source::Segments(source) => segments::grow_segment(cache, service, thread, bytes, source.as_ref()),
    }
}

fn grow_pages(
    cache: &'static ThreadCache,
    service: &Service,
    thread: u64,
    bytes: u64,
    effort: Effort,
) -> Result<Option<u64>> {
    let device = cache.device;
    let activity = Activity::begin_of(bytes, format_args!("grow memory pool"));
    // Work on a captured stream runs whenever its graph does, so what it used is never known to be done.
    let may_move = !service.is_captured && service.stream.capture_status()? == CaptureStatus::None;
    let rivals = if effort == Effort::Ready { rivals(&service.pool) } else { 0 };
    let (place, own) = {
        let mut heap = cache.lock(thread);
        if effort > Effort::Exact {
            heap.drop_empty_slabs(&device.pages);
        }
        let place =
            find_place(device, &heap, &service.pool, bytes, effort, rivals).ok_or_else(|| out_of_addresses(device))?;
        let (wanted, slack) = (u64::from(place.pages) * PAGE, u64::from(place.taken - place.pages) * PAGE);
        let (wanted, slack) = spare(&heap, wanted, slack, rivals);
        let own = if may_move { cache.take_mappings(&mut heap, wanted, slack, place.start()) } else { Vec::new() };
        (place, own)
    };
    let mut work = Work {
        device,
        pool: &service.pool,
        place,
        rivals,
        gathered: Vec::new(),
        created: Vec::new(),
        mapped: Vec::new(),
    };
    let outcome = (|| {
        work.add(cache, service, thread, &service.stream, own)?;
        if may_move {
            work.gather(cache, service, thread, effort)?;
        }
        work.create()?;
        work.map()
    })();
    match outcome {
        Ok(()) => {
            let (created, moved) = (Bytes(work.created_bytes()), Bytes(work.moved_bytes()));
            let offset = work.finish(cache, thread, bytes);
            let (id, on, took) = (service.pool.id, device.device, activity.took());
            let reserved = Bytes(service.pool.budget.reserved());
            debug!(
                target: MEMORY,
                "pool {id} on {on}: grew by {created} of new and {moved} of moved pages in {took} \
                 for {bytes} bytes, {reserved} reserved"
            );
            // What the driver refuses here it refuses again later, where somebody asked for it.
            let _ = device.end_retired(false);
            Ok(offset)
        }
        Err(error) => {
            work.undo();
            Err(error)
        }
    }
}

/// One growth under way: what was taken and done so far, so that all of it can be undone.
#[derive(Debug)]
struct Work<'a> {
    device: &'static DeviceMemory,
    pool: &'a Arc<Pool>,
    place: Place,
    rivals: u64,
    gathered: Vec<Gathered>,
    /// New handles, with the bytes counted for each.
    created: Vec<Mapping>,
    /// What stands at the new place so far.
    mapped: Vec<Mapping>,
}

impl Work<'_> {
    fn gathered_pages(&self) -> u32 {
        self.gathered.iter().flat_map(|from| &from.mappings).map(|mapping| mapping.pages).sum()
    }

    fn moved_bytes(&self) -> u64 {
        u64::from(self.gathered_pages()) * PAGE
    }

    fn created_bytes(&self) -> u64 {
        self.created.iter().map(|mapping| mapping.bytes()).sum()
    }

    /// Takes in free pages of a cache. The event on its stream comes first, so that a refusal changes nothing.
    fn add(
        &mut self,
        cache: &'static ThreadCache,
        service: &Service,
        thread: u64,
        alive: &Stream,
        mappings: Vec<Mapping>,
    ) -> Result<()> {
        if mappings.is_empty() {
            return Ok(());
        }
        let pool = Arc::clone(&service.pool);
        self.gathered.push(Gathered { cache, pool, mappings, until: Until::Events(Vec::new()) });
        let until = Until::served(self.device, service, thread, Some(alive))?;
        if let Some(last) = self.gathered.last_mut() {
            last.until = until;
        }
        Ok(())
    }

    /// Takes free pages of other caches, those of the same pool first, until there are enough.
    fn gather(&mut self, asker: &ThreadCache, service: &Service, thread: u64, effort: Effort) -> Result<()> {
        if effort == Effort::Ready && self.is_lively(asker, thread) {
            return Ok(());
        }
        let mut pools = vec![Arc::clone(&service.pool)];
        if effort == Effort::Device {
            pools.extend(self.device.pools().into_iter().filter(|pool| pool.number != service.pool.number));
        }
        for pool in pools.iter().filter(|pool| matches!(pool.rules.source, Source::Pages)) {
            for cache in pool.caches() {
                let missing = self.place.pages.saturating_sub(self.gathered_pages());
                if missing == 0 {
                    return Ok(());
                }
                // A look into a cache of this thread costs less than a question about its stream.
                let is_bare = || cache.is_owned_by(thread) && cache.lock(thread).unused() == 0;
                if std::ptr::eq(cache, asker) || is_bare() {
                    continue;
                }
                let Some(other) = cache.service() else { continue };
                let readiness = readiness(cache, &other, service, thread, effort)?;
                if readiness == Readiness::Never {
                    continue;
                }
                let is_at_work = !cache.is_owned_by(thread) && !cache.is_owned_by(0);
                let slack = u64::from(self.place.taken.saturating_sub(self.gathered_pages() + missing)) * PAGE;
                let mappings = {
                    let mut heap = cache.lock(thread);
                    if matches!(readiness, Readiness::Done(turnover) if turnover != heap.turnover()) {
                        continue;
                    }
                    if effort > Effort::Exact {
                        heap.drop_empty_slabs(&self.device.pages);
                    }
                    let rivals = if is_at_work { self.rivals } else { 0 };
                    let (wanted, slack) = spare(&heap, u64::from(missing) * PAGE, slack, rivals);
                    cache.take_mappings(&mut heap, wanted, slack, u64::MAX)
                };
                if matches!(readiness, Readiness::Done(_)) {
                    let (pool, until) = (Arc::clone(&other.pool), Until::Events(Vec::new()));
                    self.gathered.push(Gathered { cache, pool, mappings, until });
                    continue;
                }
                self.add(cache, &other, thread, &service.stream, mappings)?;
                let is_in_order = other.stream.raw() == service.stream.raw() && other.stream_of == service.stream_of;
                if !is_in_order || other.is_captured {
                    self.pass_on(effort >= Effort::Pool)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the asker had better take new pages than those that other streams would want back.
    fn is_lively(&self, asker: &ThreadCache, thread: u64) -> bool {
        let heap = asker.lock(thread);
        asker.exchange.is_lively(heap.mapped() / PAGE + u64::from(self.place.pages), heap.counts().allocations)
    }

    /// Pages last used on another stream are only taken once the GPU is done with them; otherwise they go back.
    fn pass_on(&mut self, wait: bool) -> Result<()> {
        let Some(last) = self.gathered.last_mut() else { return Ok(()) };
        if !last.until.is_done(self.device, wait)?
            && let Some(from) = self.gathered.pop()
        {
            from.put_back(self.device);
        }
        Ok(())
    }

    /// Creates the physical memory that is missing.
    fn create(&mut self) -> Result<()> {
        let mut missing = self.place.pages.saturating_sub(self.gathered_pages());
        let part = ((self.pool.budget.reserved() / PAGE / HANDLE_PART) as u32).clamp(HANDLE_PAGES.0, HANDLE_PAGES.1);
        let part = if self.rivals > 0 { HANDLE_PAGES.1 } else { part };
        let most = part.min(self.place.pages.next_power_of_two());
        let _activity =
            (missing > 0).then(|| Activity::begin_of(u64::from(missing) * PAGE, format_args!("create pages")));
        while missing > 0 {
            let pages = most.min(missing);
            let bytes = u64::from(pages) * PAGE;
            let physical = claimed(self.device, self.pool, bytes, || self.device.create(pages))?;
            self.created.push(Mapping { first: 0, pages, physical });
            missing -= pages;
        }
        Ok(())
    }

    /// Maps everything at the new place.
    fn map(&mut self) -> Result<()> {
        // Pages of another pool are this pool's from now on.
        let foreign: u64 = self.foreign().map(|(_, bytes)| bytes).sum();
        if !self.pool.budget.claim(foreign) {
            return Err(limit_reached(self.pool));
        }
        match self.map_all() {
            Ok(()) => {
                self.pool.budget.settle(foreign);
                Ok(())
            }
            Err(error) => {
                self.pool.budget.withdraw(foreign);
                Err(error)
            }
        }
    }

    fn map_all(&mut self) -> Result<()> {
        let _activity =
            (self.moved_bytes() > 0).then(|| Activity::begin_of(self.moved_bytes(), format_args!("move pages")));
        let mut first = self.place.first;
        let moved = self.gathered.iter().flat_map(|from| &from.mappings);
        for &mapping in moved.chain(&self.created) {
            let mapping = Mapping { first, ..mapping };
            self.device.map(mapping)?;
            self.mapped.push(mapping);
            first += mapping.pages;
        }
        self.device.set_access(self.place.start(), u64::from(first - self.place.first) * PAGE)
    }

    /// Bytes gathered from other pools.
    fn foreign(&self) -> impl Iterator<Item = (&Arc<Pool>, u64)> {
        let others = self.gathered.iter().filter(|from| from.pool.number != self.pool.number);
        others.map(|from| (&from.pool, from.mappings.iter().map(|mapping| mapping.bytes()).sum()))
    }

    /// Hands the new pages to the cache, and what is left at the old places to be unmapped later.
    fn finish(self, cache: &ThreadCache, thread: u64, request: u64) -> Option<u64> {
        for (pool, bytes) in self.foreign() {
            pool.budget.release(bytes);
        }
        let moved = self.gathered_pages();
        let pages: u32 = self.mapped.iter().map(|mapping| mapping.pages).sum();
        let bytes = u64::from(pages) * PAGE;
        let device = self.device;
        device.moved_pages.fetch_add(moved.into(), Ordering::Relaxed);
        for &mapping in &self.mapped {
            device.pages.set_mapping(mapping);
        }
        device.pages.set_cache(self.place.start(), self.place.start() + bytes, Some(cache.number));
        self.count_exchange(cache, thread);
        let offset = cache.add_and_allocate(thread, self.place.start(), bytes, request);
        device.put_back_pages(self.place.first + pages, self.place.taken - pages);
        for from in self.gathered {
            device.retired.push(Remains::Moved(from.mappings), from.until, &from.pool);
        }
        offset
    }

    fn count_exchange(&self, cache: &ThreadCache, thread: u64) {
        let count = |mappings: &[Mapping]| mappings.iter().map(|mapping| u64::from(mapping.pages)).sum();
        for from in self.gathered.iter().filter(|from| !std::ptr::eq(from.cache, cache)) {
            let pages = count(&from.mappings);
            from.cache.exchange.lose(pages);
            cache.exchange.take(pages, cache.lock(thread).counts().allocations);
        }
        cache.exchange.create(count(&self.created));
    }

    /// Puts everything back to where it was; what the driver refuses now is tried again later.
    fn undo(mut self) {
        let device = self.device;
        let at_once = || Until::Events(Vec::new());
        let pages: u32 = self.mapped.iter().map(|mapping| mapping.pages).sum();
        // Created memory was mapped after what was gathered.
        let moved = self.mapped.len().min(self.gathered.iter().map(|from| from.mappings.len()).sum());
        let created = self.mapped.split_off(moved);
        let unmapped = self.created.split_off(created.len());
        device.retired.push(Remains::Moved(self.mapped), at_once(), self.pool);
        device.retired.push(Remains::Released { mapped: created, unmapped }, at_once(), self.pool);
        for from in self.gathered {
            from.put_back(device);
        }
        device.put_back_pages(self.place.first + pages, self.place.taken - pages);
        let _ = device.end_retired(false);
    }
}

/// Whether free pages of a cache can be taken for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Readiness {
    Never,
    /// With the work so far on its stream, or on the device.
    AfterWork,
    /// At once, if its heap's turnover is still this.
    Done(u64),
}

fn readiness(cache: &ThreadCache, other: &Service, asker: &Service, thread: u64, effort: Effort) -> Result<Readiness> {
    let after_work = |is_ready| if is_ready { Readiness::AfterWork } else { Readiness::Never };
    // A graph may use them at any time.
    if other.is_captured && other.pool.has_captures() {
        return Ok(Readiness::Never);
    }
    if !other.is_stream_usable(thread, Some(&asker.stream)) {
        if effort >= Effort::Pool {
            return Ok(Readiness::AfterWork);
        }
        if !other.pool.is_lending() && cache.lock(thread).unused() >= PAGE {
            lending::begin(other);
        }
        return Ok(cache.finished_turnover()?.map_or(Readiness::Never, Readiness::Done));
    }
    if other.stream.raw() == asker.stream.raw() {
        return Ok(Readiness::AfterWork);
    }
    if other.stream.capture_status()? != CaptureStatus::None {
        return Ok(Readiness::Never);
    }
    if effort >= Effort::Pool {
        return Ok(Readiness::AfterWork);
    }
    // The question spoils captures as an allocation does.
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    other.stream.query().map(after_work)
}

fn limit_reached(pool: &Pool) -> Error {
    Error::no_memory("gpupool", format!("the limit of pool {} is reached", pool.id))
}

/// Physical memory that `supply` gives, within the limits of the pool and the process.
fn claimed<R>(device: &DeviceMemory, pool: &Pool, bytes: u64, supply: impl FnOnce() -> Result<R>) -> Result<R> {
    if !pool.budget.claim(bytes) {
        return Err(limit_reached(pool));
    }
    if !device.budget.claim(bytes) {
        pool.budget.withdraw(bytes);
        return Err(Error::no_memory("gpupool", "this process's memory fraction is used up"));
    }
    let supplied = supply();
    for budget in [&pool.budget, &device.budget] {
        if supplied.is_ok() { budget.settle(bytes) } else { budget.withdraw(bytes) }
    }
    supplied
}

impl DeviceMemory {
    fn put_back_pages(&self, first: u32, pages: u32) {
        lock(&self.space).put_back(first, pages);
    }
}

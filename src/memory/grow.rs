//! Growth: finds the pages for a request that no free block can serve.
//!
//! Free pages are mapped together at a new place before any physical memory is created. They come from this cache first,
//! then from others, as far as the effort goes. The old mappings stay until their streams have passed, so nothing here
//! waits for the GPU unless memory has run out. No lock is held during a driver call.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::device_memory::{DeviceMemory, Segment};
use super::heap::Heap;
use super::local;
use super::order::Until;
use super::pages::{Mapping, PAGE};
use super::pool::{Pool, Source};
use super::retired::Remains;
use super::segment::{SegmentSource, segment_bytes};
use super::thread_cache::{Service, ThreadCache};
use crate::error::{Error, ErrorKind, Result, StatusKind};
use crate::runtime::{self, RelaxedCapture, Stream};
use crate::stream::CaptureStatus;

/// How far a request goes to find pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Effort {
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
/// driver calls: so their size is a part of what the pool has, between these many pages.
const HANDLE_PART: u64 = 180;
const HANDLE_PAGES: (u32, u32) = (4, 16);
/// At least this part of what the pool has is created at a time, up to one handle.
const AHEAD_PART: u64 = 512;
/// More pages than this are not created ahead.
const AHEAD_MOST: u64 = 64;

/// Where new pages will stand.
#[derive(Clone, Copy, Debug)]
struct Place {
    first: u32,
    /// Pages needed, and those taken so that a handle may be larger than what is left to fill.
    pages: u32,
    taken: u32,
}

impl Place {
    const fn start(self) -> u64 {
        self.first as u64 * PAGE
    }
}

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
            heap.add_span(mapping.start(), mapping.bytes());
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
pub(super) fn is_no_memory(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Library(refused) if refused.kind == StatusKind::OutOfMemory)
}

/// Adds memory to the cache and serves a request of this many bytes from it: the offset of the block. None if another
/// thread took pages that the request was to use, so that it must be tried again.
///
/// # Errors
/// One for which [`is_no_memory`] holds if there is not enough; any other refusal of the driver. Everything is then as it
/// was.
pub(super) fn grow(
    cache: &'static ThreadCache,
    service: &Service,
    thread: u64,
    bytes: u64,
    effort: Effort,
) -> Result<Option<u64>> {
    match &service.pool.rules.source {
        Source::Pages => grow_pages(cache, service, thread, bytes, effort),
        Source::Segments(source) => grow_segment(cache, service, thread, bytes, source.as_ref()),
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
        let own = if may_move { heap.take_mappings(&device.pages, wanted, slack, place.start()) } else { Vec::new() };
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
            let offset = work.finish(cache, thread, bytes);
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

/// Chooses where pages for the request will stand: where the fewest are needed since free memory stands beside, in a hole
/// rather than in new space.
fn find_place(
    device: &DeviceMemory,
    heap: &Heap,
    pool: &Pool,
    bytes: u64,
    effort: Effort,
    rivals: u64,
) -> Option<Place> {
    let needed = heap.needed_for(bytes);
    let tails = heap.tails();
    let pages_at = |offset: u64| {
        let found = tails.binary_search_by_key(&offset, |&(end, _)| end);
        let free = found.map_or(0, |place| tails[place].1);
        u32::try_from(needed.saturating_sub(free).div_ceil(PAGE)).ok()
    };
    let mut space = device.space.lock().unwrap_or_else(PoisonError::into_inner);
    let holes = space.holes().map(|(first, room)| (u64::from(first) * PAGE, room));
    let ends =
        tails.iter().filter(|(end, _)| *end < device.room()).map(|&(end, _)| (end, space.free_at((end / PAGE) as u32)));
    let fitting = holes.chain(ends).filter_map(|(start, room)| {
        // One at least: the search may have passed over what is free there.
        let pages = pages_at(start)?.max(1);
        if pages > room {
            return None;
        }
        Some((pages, room, (start / PAGE) as u32))
    });
    let best = fitting.min();
    let (pages, room, first) = match best {
        Some(best) => best,
        None => {
            let pages: u32 = needed.div_ceil(PAGE).try_into().ok()?;
            let first = space.far(pages)?;
            (pages, space.free_at(first), first)
        }
    };
    let pages = if effort == Effort::Ready { pages.max(ahead(pool, heap, rivals)).min(room) } else { pages };
    let taken = (pages + HANDLE_PAGES.1).min(room);
    space.take(first, taken).then_some(Place { first, pages, taken })
}

/// How much threads that work in the pool get in each other's way, 0 for one thread to 8 for four or more. The driver serves
/// one at a time, so with each thread moving pages costs all of them more.
fn rivals(pool: &Pool) -> u64 {
    let mut owners: Vec<_> = pool.caches().iter().filter_map(|cache| cache.owner()).collect();
    owners.sort_unstable();
    owners.dedup();
    (owners.len() as u64).saturating_sub(1).pow(2).min(8)
}

/// The bytes to take from a heap, and how many more may be, such that it keeps what its thread is likely to need again.
fn spare(heap: &Heap, wanted: u64, slack: u64, rivals: u64) -> (u64, u64) {
    let kept = heap.mapped() / 32 * 3 * rivals;
    (wanted.min(heap.unused().saturating_sub(kept)), if kept > 0 { 0 } else { slack })
}

/// The fewest pages to create at a time: a part of what the pool has, and with rivals of what the cache has.
fn ahead(pool: &Pool, heap: &Heap, rivals: u64) -> u32 {
    let part = (pool.budget.reserved() / PAGE / AHEAD_PART).clamp(1, HANDLE_PAGES.1.into());
    let growing = heap.mapped() / 32 * rivals / PAGE;
    part.max(growing).min(AHEAD_MOST) as u32
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
                if std::ptr::eq(cache, asker) {
                    continue;
                }
                let Some(other) = cache.service() else { continue };
                if !is_ready(&other, service, thread, effort)? {
                    continue;
                }
                let is_at_work = !cache.is_owned_by(thread) && !cache.is_owned_by(0);
                let slack = u64::from(self.place.taken.saturating_sub(self.gathered_pages() + missing)) * PAGE;
                let mappings = {
                    let mut heap = cache.lock(thread);
                    if effort > Effort::Exact {
                        heap.drop_empty_slabs(&self.device.pages);
                    }
                    let rivals = if is_at_work { self.rivals } else { 0 };
                    let (wanted, slack) = spare(&heap, u64::from(missing) * PAGE, slack, rivals);
                    heap.take_mappings(&self.device.pages, wanted, slack, u64::MAX)
                };
                self.add(cache, &other, thread, &service.stream, mappings)?;
                if other.stream.raw() != service.stream.raw() || other.stream_of != service.stream_of {
                    self.pass_on(effort >= Effort::Pool)?;
                }
            }
        }
        Ok(())
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
        let offset = cache.add_and_allocate(thread, self.place.start(), bytes, request);
        device.put_back_pages(self.place.first + pages, self.place.taken - pages);
        for from in self.gathered {
            device.retired.push(Remains::Moved(from.mappings), from.until, &from.pool);
        }
        offset
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
fn is_ready(other: &Service, asker: &Service, thread: u64, effort: Effort) -> Result<bool> {
    // A graph may use them at any time.
    if other.is_captured && other.pool.has_captures() {
        return Ok(false);
    }
    if !other.is_stream_usable(thread, Some(&asker.stream)) {
        return Ok(effort >= Effort::Pool);
    }
    if other.stream.raw() == asker.stream.raw() {
        return Ok(true);
    }
    if other.stream.capture_status()? != CaptureStatus::None {
        return Ok(false);
    }
    if effort >= Effort::Pool {
        return Ok(true);
    }
    // The question spoils captures as an allocation does.
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    other.stream.query()
}

/// Adds a segment of the pool's own source.
fn grow_segment(
    cache: &'static ThreadCache,
    service: &Service,
    thread: u64,
    bytes: u64,
    source: &dyn SegmentSource,
) -> Result<Option<u64>> {
    let (device, pool) = (cache.device, &service.pool);
    let needed = cache.lock(thread).needed_for(bytes);
    let wanted = segment_bytes(needed);
    let start = claimed(device, pool, wanted, || {
        device.driver_calls.fetch_add(1, Ordering::Relaxed);
        let address = local::supply(pool, || source.allocate(wanted, &service.stream))?;
        device.add_segment(address, wanted, cache).inspect_err(|_| {
            // To free what starts where a segment does would take that segment's memory away from who holds it.
            if !device.has_segment(address) {
                let _ = source.free(address, wanted, &service.stream);
            }
        })
    })?;
    Ok(cache.add_and_allocate(thread, start, wanted, bytes))
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
        self.space.lock().unwrap_or_else(PoisonError::into_inner).put_back(first, pages);
    }

    /// Makes memory at a foreign address known, and the cache's. Answers its offset.
    fn add_segment(&self, address: u64, bytes: u64, cache: &ThreadCache) -> Result<u64> {
        let alignment = super::heap::ALIGNMENT;
        if !address.is_multiple_of(alignment) {
            return Err(Error::invalid_value(format!(
                "the pool's own allocator returned {address:#x}, which is not a multiple of {alignment}; allocate with that alignment"
            )));
        }
        // A page stays unused after each segment, so that segments never join.
        let pages = u32::try_from(bytes.div_ceil(PAGE) + 1).map_err(|_| out_of_addresses(self))?;
        let first = {
            let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
            let hole = windows.holes().find(|&(_, room)| room >= pages).map(|(first, _)| first);
            let first = hole.or_else(|| windows.far(pages)).ok_or_else(|| out_of_addresses(self))?;
            windows.take(first, pages);
            first
        };
        let offset = u64::from(first) * PAGE;
        if let Err(error) = self.insert_segment(address, Segment { bytes, offset }) {
            self.windows.lock().unwrap_or_else(PoisonError::into_inner).put_back(first, pages);
            return Err(error);
        }
        self.pages.set_segment(offset, bytes, address);
        self.pages.set_cache(offset, offset + bytes, Some(cache.number));
        Ok(offset)
    }

    fn insert_segment(&self, address: u64, segment: Segment) -> Result<()> {
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        let end = address.checked_add(segment.bytes);
        let below = segments.range(..=address).next_back();
        let overlaps = below.is_some_and(|(start, known)| start + known.bytes > address)
            || end.is_none_or(|end| segments.range(address..end).next().is_some())
            || (address < self.base() + self.room() && end.is_none_or(|end| end > self.base()) && self.room() > 0);
        if overlaps {
            return Err(Error::invalid_value(format!(
                "the pool's own allocator returned {address:#x} for {} bytes, which overlaps memory that is still in use",
                segment.bytes
            )));
        }
        segments.insert(address, segment);
        Ok(())
    }

    /// Whether a segment starts at this address.
    fn has_segment(&self, address: u64) -> bool {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).contains_key(&address)
    }

    /// Forgets a segment; its address, for its source.
    pub(super) fn remove_segment(&self, offset: u64, bytes: u64) -> u64 {
        let address = self.address(offset);
        self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&address);
        let (first, pages) = ((offset / PAGE) as u32, bytes.div_ceil(PAGE) as u32 + 1);
        self.windows.lock().unwrap_or_else(PoisonError::into_inner).put_back(first, pages);
        address
    }
}

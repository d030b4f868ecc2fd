//! A pool's reserve: how it is made, and how a cache gets pages of it.
//!
//! The pages stay where they are, so that a cache gets them without a driver call. Those that other streams of the pool
//! have free come back once the work that used them is done.

use super::claim::{claimed, out_of_addresses};
use super::effort::Effort;
use super::gather::{Readiness, readiness};
use crate::error::Result;
use crate::memory::cache::{DeviceCaches, Service, StreamCache, is_recorded};
use crate::memory::device::{Mapping, Remains, Reserve, Run, Until};
use crate::memory::pool::Pool;
use crate::memory::serve::request::Request;
use crate::memory::serve::trim::take_out;
use crate::memory::tuning::{LARGE_EXTENT_PAGES, MANY, PAGE};
use crate::observe::Activity;
use crate::observe::delivery::deliver;
use crate::sync::{ThisThread, lock};

/// The most pages of an extent of a reserve: creating and mapping cost by the extent, and after the pool's end a live block
/// keeps all of one.
const EXTENT_PAGES: u32 = LARGE_EXTENT_PAGES as u32 / 2;

/// Makes the reserve of a new pool, in whole pages.
///
/// # Errors
/// One for which [`is_no_memory`](super::is_no_memory) holds if there is not enough; any other refusal of the driver.
/// Nothing is kept then.
pub(in crate::memory::serve) fn make_reserve(pool: &Pool, bytes: u64) -> Result<()> {
    let memory = pool.memory;
    let _moving = memory.under_way.begin();
    let _activity = Activity::begin_of(bytes, format_args!("reserve memory"));
    let pages = u32::try_from(bytes.div_ceil(PAGE)).map_err(|_| out_of_addresses(memory))?;
    let first = {
        let mut space = lock(&memory.space);
        let place = space.hole(pages).map(|(first, _)| first).or_else(|| space.far(pages));
        place.filter(|&first| space.take(first, pages)).ok_or_else(|| out_of_addresses(memory))?
    };
    let mut extents = Vec::new();
    let mut mapped = 0;
    let outcome = (|| {
        let mut at = first;
        while at < first + pages {
            let pages = EXTENT_PAGES.min(first + pages - at);
            let extent = claimed(memory, pool, u64::from(pages) * PAGE, || memory.range.create(pages))?;
            extents.push(Mapping { first: at, pages, extent });
            at += pages;
        }
        // SAFETY: the pages were taken for this reserve above, which alone has the extents.
        let (count, outcome) = unsafe { memory.range.map_row(&extents) };
        mapped = count;
        outcome
    })();
    if outcome.is_err() {
        let unmapped = extents.split_off(mapped);
        let end = extents.last().map_or(first, |mapping| mapping.first + mapping.pages);
        memory.put_back_pages(end, first + pages - end);
        // SAFETY: no cache has got any of it, so no work uses it.
        unsafe { memory.retire(Remains::Released { mapped: extents, unmapped }, Until::at_once(), &pool.supply) };
        // What the driver refuses to take back now is tried again whenever memory is given back.
        let _ = memory.end_retired(false);
        return outcome;
    }
    // Its pages are never moved.
    let start = u64::from(first) * PAGE;
    memory.pages.set_segment(start, u64::from(pages) * PAGE, start);
    pool.supply.set_reserve(Reserve::new(extents));
    Ok(())
}

/// Serves the request from pages of its pool's reserve: the offset of the block. None if there are not enough in a row.
///
/// # Errors
/// Any refusal of the driver. Everything is then as it was.
pub(super) fn grow_by_reserve(request: &Request, reserve: &Reserve, effort: Effort) -> Result<Option<u64>> {
    let needed = request.cache.lock(request.thread).needed_for(request.bytes);
    if needed > reserve.bytes() {
        return Ok(None);
    }
    let pages = needed.div_ceil(PAGE) as u32;
    if let Some(found) = take(request, reserve, effort, pages) {
        return Ok(Some(found));
    }
    // Work on a captured stream runs whenever its graph does, and asking about other streams may wait.
    let is_captured = request.service.is_captured || request.service.stream.is_captured()?;
    if is_captured || !collect(request, reserve, effort)? {
        return Ok(None);
    }
    Ok(take(request, reserve, effort, pages))
}

/// Takes so many pages in a row for the request's cache, counting its own as free, and the block from them.
fn take(request: &Request, reserve: &Reserve, effort: Effort, pages: u32) -> Option<u64> {
    let Request { cache, ref service, thread, bytes } = *request;
    let mut heap = cache.lock_in(service, thread)?;
    if effort > Effort::Ready {
        heap.drop_empty_slabs(&cache.memory.pages);
    }
    let mut own = cache.take_reserve(&mut heap, reserve);
    let found = reserve.take(&mut own, pages);
    own.extend(found.map(|first| (first, pages)));
    let left = cache.add_reserve(&mut heap, own);
    if !left.is_empty() {
        retire_runs(cache, service, left);
    }
    found.and_then(|_| cache.allocate_locked(&mut heap, bytes, is_recorded()))
}

/// Returns the caches of a pool that may have free pages: all of them once memory has run out, a few before.
fn caches_to_look_at(pool: &Pool, effort: Effort) -> Vec<&'static StreamCache> {
    if effort > Effort::Ready {
        return DeviceCaches::caches_of(pool);
    }
    DeviceCaches::numbered(pool, &pool.ledger.with_pages(MANY))
}

/// Takes back what other caches of the pool have free of the reserve and no work uses any more. Returns whether there
/// was any.
fn collect(request: &Request, reserve: &Reserve, effort: Effort) -> Result<bool> {
    let mut has_any = false;
    for cache in caches_to_look_at(request.pool(), effort) {
        let Some(other) = cache.service_of(request.pool()) else { continue };
        if !std::ptr::eq(cache, request.cache) && collect_from(request, reserve, effort, cache, &other)? {
            has_any = true;
        }
    }
    Ok(has_any)
}

fn collect_from(
    request: &Request,
    reserve: &Reserve,
    effort: Effort,
    cache: &'static StreamCache,
    other: &Service,
) -> Result<bool> {
    let Request { cache: asker, ref service, thread, .. } = *request;
    let readiness = readiness(cache, other, request, effort)?;
    if matches!(readiness, Readiness::Never | Readiness::AtWork) {
        return Ok(false);
    }
    let runs = {
        let Some(mut heap) = cache.lock_to_take(other, thread) else { return Ok(false) };
        if matches!(readiness, Readiness::Done { turnover } if turnover != heap.turnover()) {
            return Ok(false);
        }
        if effort > Effort::Ready {
            heap.drop_empty_slabs(&cache.memory.pages);
        }
        cache.take_reserve(&mut heap, reserve)
    };
    if runs.is_empty() {
        return Ok(false);
    }
    // Before any thread can have them.
    deliver();
    if other.is_in_order_with(service) && !other.is_captured {
        put_back(asker, service, thread, runs);
        return Ok(true);
    }
    let is_done = match readiness {
        Readiness::Done { .. } => Ok(true),
        _ => is_work_done(cache, other, request, effort),
    };
    if matches!(is_done, Ok(true)) {
        // Some are to go where the pool was closed meanwhile.
        retire_extents(request.pool(), reserve.put_back(runs));
    } else {
        put_back(cache, other, thread, runs);
    }
    is_done
}

/// Gives free pages of the reserve to a cache, or to the reserve later if the cache has ended its service.
fn put_back(cache: &StreamCache, service: &Service, thread: ThisThread, runs: Vec<Run>) {
    let left = match cache.lock_in(service, thread) {
        Some(mut heap) => cache.add_reserve(&mut heap, runs),
        None => runs,
    };
    if !left.is_empty() {
        retire_runs(cache, service, left);
    }
}

/// Has pages that no cache can take be the reserve's again once all work on the device so far is done.
fn retire_runs(cache: &StreamCache, service: &Service, runs: Vec<Run>) {
    let until = Until::recorded_later(vec![cache.memory.device]);
    // SAFETY: these pages were taken out of their cache, and `until` is all work that may have used them.
    unsafe { cache.memory.retire(Remains::Reserve(runs), until, &service.pool.supply) };
}

/// Returns whether the work so far of a cache's stream is done, waiting for it if the effort says so.
fn is_work_done(cache: &StreamCache, other: &Service, request: &Request, effort: Effort) -> Result<bool> {
    let events = &cache.memory.events;
    let mut until = other.work_so_far(events, request.thread, Some(&request.service))?;
    until.is_done(events, effort >= Effort::Pool)
}

/// Takes what a cache has free of its pool's reserve, to be the reserve's again once the stream is done with it.
pub(in crate::memory::serve) fn retire_reserve(
    cache: &StreamCache,
    thread: ThisThread,
    service: &Service,
) -> Result<()> {
    let Some(reserve) = service.pool.supply.reserve() else { return Ok(()) };
    let memory = cache.memory;
    let _moving = memory.under_way.begin();
    let taken = take_out(cache, thread, service, |heap| cache.take_reserve(heap, reserve))?;
    let Some((runs, until)) = taken else { return Ok(()) };
    if runs.is_empty() {
        if let Until::Events(events) = until {
            memory.events.put_back(events);
        }
        return Ok(());
    }
    deliver();
    // SAFETY: these pages were taken out of the cache, and `until` is all work on the stream that it serves.
    unsafe { memory.retire(Remains::Reserve(runs), until, &service.pool.supply) };
    Ok(())
}

/// Ends the reserve of a pool that has ended: each extent goes once all of it is free.
pub(in crate::memory::serve) fn end_reserve(pool: &Pool) {
    let Some(reserve) = pool.supply.reserve() else { return };
    retire_extents(pool, reserve.end());
}

/// Gives back what a reserve has let go of, since its pool has ended.
pub(in crate::memory) fn retire_extents(pool: &Pool, mapped: Vec<Mapping>) {
    if !mapped.is_empty() {
        let remains = Remains::Released { mapped, unmapped: Vec::new() };
        // SAFETY: what is in the reserve is in no cache, and no work uses it.
        unsafe { pool.memory.retire(remains, Until::at_once(), &pool.supply) };
    }
}

//! What slabs serve before memory is added or moved. One of each small size stays though it is empty: a large request
//! that fits nowhere else has them joined with what is free beside them. All sizes together keep some 10 MiB.
//!
//! A pool also lends slabs to caches without pages, so that many streams that each hold little need no page each. Only
//! lasting streams take part: their work is recorded when a slab is returned, which may be long after its last use.
//! Pools begin to with many caches; captures never do, since a graph's memory is its own.

use super::claim::is_no_memory;
use super::in_place::serve_in_place;
use super::pages::grow_by_pages;
use crate::error::Result;
use crate::memory::cache::{DeviceCaches, HeapSearch, MemoryAction, Service, StreamCache, To, Waiting, is_recorded};
use crate::memory::device::{Slab, Until};
use crate::memory::serve::request::AllocationRequest;
use crate::memory::serve::settle::{Patience, wait};
use crate::memory::serve::take::Reach;
use crate::memory::serve::trim::{retire_free, settle};
use crate::memory::tuning::{A_FEW, PAGE, SMALL_MAX};
use crate::sync::ThisThread;

/// Serves a large request from its cache's free memory after dropping its empty slabs: the offset of the block.
pub(in crate::memory::serve) fn serve_from_empty_slabs(request: &AllocationRequest) -> Option<u64> {
    let AllocationRequest { cache, ref service, thread, bytes, .. } = *request;
    if bytes <= SMALL_MAX || cache.is_lender() || !service.pool.source().is_pages() {
        return None;
    }
    let mut heap = cache.lock_in(service, thread)?;
    if !heap.drop_empty_slabs_at_times(&cache.memory.pages) {
        return None;
    }
    cache.allocate_locked(&mut heap, bytes, HeapSearch::AFew)
}

/// Serves a request of a cache without pages from a slab that it borrows: the offset of the block. None if request and
/// pool do not take part, or memory for slabs has run out. Once memory has run out any cache may borrow.
///
/// # Errors
/// A refusal of the driver, but for want of memory.
pub(in crate::memory::serve) fn serve_from_lent_slab(
    request: &AllocationRequest,
    reach: &Reach,
) -> Result<Option<u64>> {
    let AllocationRequest { cache, ref service, thread, bytes, .. } = *request;
    let search = reach.search();
    let may_borrow = service.pool.source().is_pages() && service.may_borrow();
    if !may_borrow || !cache.lock_in(service, thread).is_some_and(|heap| heap.borrows_for(bytes, search)) {
        return Ok(None);
    }
    let _moving = cache.memory.under_way.begin();
    let lender = match search {
        HeapSearch::AFew => DeviceCaches::lender_for_many(&service.pool, A_FEW)?,
        HeapSearch::Whole => DeviceCaches::lender_of(&service.pool),
    };
    let Some(lender) = lender else { return Ok(None) };
    // Read once the pool knows the lender, so that the call that ends the pool or puts it to sleep sees it, or this one
    // sees that.
    if service.pool.is_closed() || service.pool.sleep.is_asleep() {
        return Ok(None);
    }
    // A lender whose pool has ended may lend for another.
    let Some(lending) = lender.service_of(&service.pool) else { return Ok(None) };
    let lend = || {
        let mut heap = lender.lock_in(&lending, thread)?;
        let slab = heap.lend(&lender.memory.pages, bytes, cache.number)?;
        record(lender, MemoryAction::SegmentUnmap, slab);
        Some(slab)
    };
    let mut slab = lend();
    if slab.is_none() && settle(lender, thread, Patience::Ask)? {
        slab = lend();
    }
    if slab.is_none() && search == HeapSearch::AFew {
        let request = AllocationRequest::new(lender, lending.clone(), thread, PAGE);
        let reach = Reach::of_pool(&service.pool);
        let grown = serve_in_place(&request, &reach)
            .and_then(|found| found.map_or_else(|| grow_by_pages(&request, &reach, false).map(drop), |_| Ok(())));
        match grown {
            Ok(()) => slab = lend(),
            Err(error) if is_no_memory(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(slab) = slab else { return Ok(None) };
    let Some(mut heap) = cache.lock_in(service, thread) else {
        // It was lent for no work.
        take_back(lender, thread, slab, Until::at_once());
        return Ok(None);
    };
    heap.borrow(slab);
    record(cache, MemoryAction::SegmentMap, slab);
    Ok(cache.allocate_locked(&mut heap, bytes, search))
}

/// Records that a slab came to a cache or left it, if memory is recorded; with the heap's lock held.
fn record(cache: &StreamCache, action: MemoryAction, slab: &Slab) {
    if is_recorded() {
        cache.record_segment(To::Both, action, slab.start(), slab.class().slab_bytes());
    }
}

/// Returns a slab to its lender, which cannot have ended meanwhile, to be lent again once `until` is done.
fn take_back(lender: &StreamCache, thread: ThisThread, slab: &'static Slab, until: Until) {
    let offset = slab.start();
    {
        let mut heap = lender.lock(thread);
        record(lender, MemoryAction::SegmentMap, slab);
        heap.take_back(&lender.memory.pages, slab);
    }
    wait(lender, Waiting::new(offset, until));
}

/// Returns a cache's empty borrowed slabs to the lender, to be lent again once the work so far on its stream is done.
pub(in crate::memory::serve) fn return_slabs(cache: &StreamCache, thread: ThisThread, service: &Service) -> Result<()> {
    // From before any slab leaves the cache until all are the lender's.
    let _moving = cache.memory.under_way.begin();
    let returned = {
        let heap = cache.lock_in(service, thread);
        let Some(mut heap) = heap.filter(|heap| heap.has_borrowed()) else { return Ok(()) };
        let returned = heap.take_borrowed();
        returned.iter().for_each(|slab| record(cache, MemoryAction::SegmentUnmap, slab));
        returned
    };
    let Some(lender) = DeviceCaches::lender_of(&service.pool) else { return Ok(()) };
    for slab in returned {
        // Recorded after they were taken, so that it is all work that used them.
        take_back(lender, thread, slab, service.work_so_far_or_later(&cache.memory.events, thread));
    }
    if !service.pool.is_closed() {
        return Ok(());
    }
    // Nothing else would give its pages back.
    settle(lender, thread, Patience::Ask)?;
    lender.service_of(&service.pool).map_or(Ok(()), |service| retire_free(lender, thread, &service, Patience::Ask))
}

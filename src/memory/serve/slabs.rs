//! What slabs serve before memory is added or moved. One of each small size stays though it is empty: a large request
//! that fits nowhere else has them joined with what is free beside them. All sizes together keep some 10 MiB.
//!
//! A pool also lends slabs to caches without pages, so that many streams that each hold little need no page each. Only
//! lasting streams take part: their work is recorded when a slab is returned, which may be long after its last use.
//! Pools begin to with many caches; captures never do, since a graph's memory is its own.

use std::sync::Arc;

use super::extents::is_no_memory;
use super::in_place::serve_in_place;
use super::pages::grow_by_pages;
use super::take::{AllocationRequest, Reach};
use super::trim::{retire_free, settle, wait};
use crate::error::Result;
use crate::memory::cache::{
    DeviceCaches, HeapSearch, MemoryAction, ServingCache, StreamCache, To, Waiting, is_recorded,
};
use crate::memory::device::{Patience, Slab, Until};
use crate::memory::tuning::{A_FEW, PAGE, SMALL_MAX};
use crate::sync::ThisThread;

/// Serves a large request from its cache's free memory after dropping its empty slabs: the offset of the block.
pub(super) fn serve_from_empty_slabs(request: &AllocationRequest) -> Option<u64> {
    let (cache, bytes) = (request.cache, request.bytes);
    if bytes <= SMALL_MAX || cache.is_lender() || !request.pool().source().is_pages() {
        return None;
    }
    let mut heap = request.lock_awake()?;
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
pub(super) fn serve_from_lent_slab(request: &AllocationRequest, reach: &Reach) -> Result<Option<u64>> {
    let (cache, pool, bytes, search) = (request.cache, request.pool(), request.bytes, reach.search());
    let may_borrow = pool.source().is_pages() && request.service.may_borrow();
    if !may_borrow || !request.lock_awake().is_some_and(|heap| heap.borrows_for(bytes, search)) {
        return Ok(None);
    }
    let _moving = cache.memory.under_way.begin();
    let lender = match search {
        HeapSearch::AFew => DeviceCaches::lender_for_many(pool, A_FEW)?,
        HeapSearch::Whole => DeviceCaches::lender_of(pool),
    };
    let Some(lender) = lender else { return Ok(None) };
    // Read once the pool knows the lender, so that the call that ends the pool or puts it to sleep sees it, or this one
    // sees that.
    if !pool.is_in_service() {
        return Ok(None);
    }
    let lend = || {
        let mut heap = lender.lock_awake()?;
        let slab = heap.lend(&lender.memory.pages, bytes, cache.number)?;
        record(&lender, MemoryAction::SegmentUnmap, slab);
        Some(slab)
    };
    let mut slab = lend();
    if slab.is_none() && settle(&lender, request.thread, Patience::Ask)? {
        slab = lend();
    }
    if slab.is_none() && search == HeapSearch::AFew {
        let (request, reach) = (AllocationRequest::new(Arc::clone(&lender), PAGE), Reach::of_pool(pool));
        let grown = match serve_in_place(&request, &reach) {
            Ok(None) => grow_by_pages(&request, &reach).map(drop),
            found => found.map(drop),
        };
        match grown {
            Ok(()) => slab = lend(),
            Err(error) if is_no_memory(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(slab) = slab else { return Ok(None) };
    let Some(mut heap) = request.lock_awake() else {
        // It was lent for no work.
        take_back(&lender, request.thread, slab, Until::at_once());
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
pub(super) fn return_slabs(of: &ServingCache) -> Result<()> {
    let (cache, thread) = (of.cache, ThisThread::get());
    // From before any slab leaves the cache until all are the lender's.
    let _moving = cache.memory.under_way.begin();
    let returned = {
        let Some(mut heap) = of.lock_awake().filter(|heap| heap.has_borrowed()) else { return Ok(()) };
        let returned = heap.take_borrowed();
        returned.iter().for_each(|slab| record(cache, MemoryAction::SegmentUnmap, slab));
        returned
    };
    let Some(lender) = DeviceCaches::lender_of(of.pool()) else { return Ok(()) };
    for slab in returned {
        // Recorded after they were taken, so that it is all work that used them.
        take_back(&lender, thread, slab, of.work_so_far_or_later());
    }
    if !of.pool().is_closed() {
        return Ok(());
    }
    // Nothing else would give its pages back.
    settle(&lender, thread, Patience::Ask)?;
    retire_free(&lender, Patience::Ask)
}

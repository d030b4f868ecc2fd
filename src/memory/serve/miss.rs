//! What a request does when no free block fits: it acquires a block.

use std::sync::Arc;

use log::info;

use super::acquire::{Need, Step, acquire};
use super::free::free;
use super::in_place::serve_in_place;
use super::out_of_memory::{no_memory_left, note, wake_if_taken};
use super::pages::{Grown, grow_by_pages};
use super::reserve::serve_from_reserve;
use super::segments::grow_by_segment;
use super::slabs::{serve_from_empty_slabs, serve_from_lent_slab};
use super::take::{Allocation, AllocationRequest, FreeMemory, Giver, Reach, other_pools, take_from};
use super::trim::settle;
use crate::error::{Error, GPUPOOL, Result};
use crate::memory::cache::{
    BLOCK_BYTES_MAX, BlockUser, DeviceCaches, Heap, HeapSearch, Role, Service, ServingCache, StreamCache, forget_last,
};
use crate::memory::device::{Patience, Until};
use crate::memory::pool::Pool;
use crate::observe::delivery::Delivery;
use crate::observe::recording::{Purpose, hold_stack};
use crate::observe::target::MEMORY;

/// A request that found no free block in its cache. [`Miss::serve`] continues it on the same thread.
#[derive(Clone, Debug)]
#[must_use = "nothing is allocated before it is served"]
pub(crate) struct Miss {
    /// None if it has ended. What is called on the way may have the thread forget it.
    cache: Option<Arc<ServingCache>>,
    bytes: u64,
}

impl Miss {
    /// Makes the miss of a request to a cache that the thread knows.
    #[cold]
    pub(in crate::memory) fn new(cache: &StreamCache, bytes: u64) -> Self {
        Self { cache: cache.serving(), bytes }
    }

    /// Continues the request on the thread that made it. None if the cache has ended: then the request must start anew.
    ///
    /// # Errors
    /// `ErrorKind::OutOfMemory` once nothing is left to try; `ErrorKind::InvalidValue` for 0 bytes, or if the pool has
    /// ended; any other refusal of the driver.
    #[cold]
    pub(in crate::memory) fn serve(&self) -> Result<Option<Allocation>> {
        let Self { cache, bytes } = self;
        let _delivery = Delivery::at_end();
        let _stack = hold_stack(Purpose::Allocation);
        if *bytes == 0 {
            return Err(Error::invalid_value("an allocation of 0 bytes has no address"));
        }
        let found = match cache {
            Some(cache) => acquire_block(&AllocationRequest::new(Arc::clone(cache), *bytes))
                .inspect_err(|error| info!(target: MEMORY, "{error}"))?,
            None => None,
        };
        if found.is_none() {
            forget_last();
        }
        Ok(found)
    }
}

fn acquire_block(request: &AllocationRequest) -> Result<Option<Allocation>> {
    let (pool, bytes) = (request.pool(), request.bytes);
    if bytes > request.memory.total.min(BLOCK_BYTES_MAX) {
        note(pool, request.cache.stream_address(), bytes);
        let refused = Error::no_memory(GPUPOOL, "No device has that many bytes: request less");
        return Err(no_memory_left(pool, bytes, refused));
    }
    if pool.sleep.offer.is_taken() {
        wake_if_taken(pool)?;
    }
    acquire(Need { pool, bytes, request: Some(request), take: &|step, reach| take(request, step, reach) })
}

/// Takes a step for a block.
fn take(request: &AllocationRequest, step: Step, reach: &Reach) -> Result<Grown<Allocation>> {
    let source = request.pool().source();
    let of_cache = |offset| request.allocation(offset);
    Ok(match step {
        Step::SettledBlocks if settle(request.cache, request.thread, Patience::Ask)? => {
            Grown::found(request.search(HeapSearch::AFew))
        }
        Step::OwnBlocks => Grown::found(request.search(HeapSearch::Whole)),
        Step::BlocksOfOthers => Grown::found(block_of_others(request, reach)?),
        Step::Reserve => Grown::found(serve_from_reserve(request, reach)?.map(of_cache)),
        Step::LentSlab => Grown::found(serve_from_lent_slab(request, reach)?.map(of_cache)),
        Step::EmptySlabs => Grown::found(serve_from_empty_slabs(request).map(of_cache)),
        Step::PagesInPlace => Grown::found(serve_in_place(request, reach)?.map(of_cache)),
        Step::Pages if source.is_pages() => grow_by_pages(request, reach)?.map(of_cache),
        Step::Segment if source.has_segments() => grow_by_segment(request)?.map(of_cache),
        _ => Grown::Nothing,
    })
}

/// A block that another cache had free.
struct FreeBlock(u64);

impl FreeMemory for FreeBlock {
    fn put_back(self, from: &ServingCache, _: Until) -> Result<()> {
        free(Allocation { cache: from.cache, offset: self.0 }, None)
    }
}

/// Returns a block of another cache, which goes back there later. None for a graph or a feed, whose memory is its
/// own. None of other pools for a pool with a limit, which it would evade, or with a source of its own.
fn block_of_others(request: &AllocationRequest, reach: &Reach) -> Result<Option<Allocation>> {
    let service = &request.service;
    if service.role != Role::Requests {
        return Ok(None);
    }
    let mut pools = vec![Arc::clone(&service.pool)];
    if service.pool.budget().limit().is_none() && !service.pool.keeps_segments() {
        pools.extend(other_pools(&service.pool, Pool::helps_others));
    }
    for other in pools.iter().flat_map(|pool| DeviceCaches::caches_of(pool)) {
        if other.service.role == Role::Requests
            && let Some(found) = block_of(request, reach, &other)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns a free block of another cache, which is reused there once the request's stream is done with it.
fn block_of(request: &AllocationRequest, reach: &Reach, of: &Arc<ServingCache>) -> Result<Option<Allocation>> {
    let cache = of.cache;
    let _moving = cache.memory.under_way.begin();
    // Not of another pool that is about to sleep.
    let select = |heap: &mut Heap, other: &Service| {
        let serves_another = other.pool.number != request.service.pool.number;
        if serves_another && !other.pool.sleep.may_serve_others() {
            return None;
        }
        let offset = cache.allocate_locked(heap, request.bytes, reach.search())?;
        // The default pool sleeps only with the whole device, which no such block prevents.
        if serves_another && !other.pool.is_default() {
            // With the heap locked, as in the search for such blocks before the pool falls asleep.
            cache.add_use(offset, BlockUser::OtherPool);
        }
        Some(FreeBlock(offset))
    };
    let giver = Giver { cache: of, least: request.bytes, drops_slabs: false };
    let Ok(taken) = take_from(request, reach, giver, select)? else { return Ok(None) };
    let offset = taken.memory.0;
    if let Some(stream) = &request.service.stream
        && !taken.is_in_order_with(request)
    {
        cache.add_use(offset, BlockUser::new(stream).fleeting());
    }
    taken.until.recycle(&cache.memory.events);
    Ok(Some(Allocation { cache, offset }))
}

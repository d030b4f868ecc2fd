//! A pool's reserve: how it is made, and how a cache gets pages of it without a driver call, as they stay where they
//! are. Pages that other streams of the pool have free return once the work that used them is done.

use super::extents::{map_new, out_of_addresses, retire_extents};
use super::take::{AllocationRequest, FreeMemory, Giver, Reach, take_from};
use super::trim::take_out;
use crate::error::Result;
use crate::memory::cache::ServingCache;
use crate::memory::device::{Patience, Remains, Reserve, Run, Until};
use crate::memory::pool::Pool;
use crate::memory::tuning::{LARGE_EXTENT_PAGES, PAGE};
use crate::observe::Activity;
use crate::observe::delivery::deliver;

/// The most pages of an extent of a reserve: each extent costs a creation and a mapping, and after the pool's end a
/// live block keeps a whole one.
const EXTENT_PAGES: u32 = LARGE_EXTENT_PAGES as u32 / 2;

/// Makes the reserve of a new pool, in whole pages.
///
/// # Errors
/// One for which [`is_no_memory`](super::extents::is_no_memory) holds if there is not enough; any other refusal of the driver.
/// Nothing is kept then.
pub(super) fn make_reserve(pool: &Pool, bytes: u64) -> Result<()> {
    let memory = pool.memory;
    let _activity = Activity::begin_of(bytes, format_args!("reserve memory"));
    let pages = u32::try_from(bytes.div_ceil(PAGE)).map_err(|_| out_of_addresses(memory))?;
    let reserve = Reserve::new(map_new(pool, pages, EXTENT_PAGES)?);
    let run = reserve.run;
    // Its pages are never moved.
    memory.pages.set_segment(run.start(), run.bytes(), run.start());
    // A pool is given one reserve, before any other thread sees it.
    let _ = pool.supply.reserve.set(reserve);
    Ok(())
}

/// Pages of a reserve that a cache has free. Those given back are where they were.
struct OfReserve(Vec<Run>);

impl FreeMemory for OfReserve {
    fn put_back(self, from: &ServingCache, until: Until) -> Result<()> {
        let left = match from.lock_awake() {
            Some(mut heap) => from.cache.add_reserve(&mut heap, self.0),
            None => self.0,
        };
        retire_runs(from.pool(), left, until);
        Ok(())
    }
}

/// Returns pages that no cache can take to the reserve once `until`, all work that may have used them, is done.
fn retire_runs(pool: &Pool, runs: Vec<Run>, until: Until) {
    if !runs.is_empty() {
        // SAFETY: these pages were taken out of their cache, and `until` is all work that may have used them.
        unsafe { pool.memory.retire(Remains::Reserve(runs), until, &pool.supply) };
    }
}

/// Serves the request from pages of its pool's reserve: the offset of the block. None if too few are in a row.
///
/// # Errors
/// Any refusal of the driver. Everything is then as it was.
pub(super) fn serve_from_reserve(request: &AllocationRequest, reach: &Reach) -> Result<Option<u64>> {
    let Some(reserve) = request.pool().supply.reserve() else { return Ok(None) };
    let needed = request.needed();
    if needed > reserve.run.bytes() {
        return Ok(None);
    }
    let _moving = request.memory.under_way.begin();
    let pages = needed.div_ceil(PAGE) as u32;
    if let Some(found) = take(request, reserve, reach, pages) {
        return Ok(Some(found));
    }
    if !request.may_move()? || !collect(request, reserve, reach)? {
        return Ok(None);
    }
    Ok(take(request, reserve, reach, pages))
}

/// Takes so many pages in a row for the request's cache, counting its own as free, and the block from them.
fn take(request: &AllocationRequest, reserve: &Reserve, reach: &Reach, pages: u32) -> Option<u64> {
    let cache = request.cache;
    let mut heap = request.lock_awake()?;
    if reach.waits {
        heap.drop_empty_slabs(&cache.memory.pages);
    }
    let mut own = cache.take_reserve(&mut heap, reserve);
    let found = reserve.take(&mut own, pages);
    own.extend(found);
    let left = cache.add_reserve(&mut heap, own);
    retire_runs(request.pool(), left, Until::recorded_later(cache.memory.location.device()));
    found.and_then(|_| cache.allocate_locked(&mut heap, request.bytes, reach.search()))
}

/// Takes back free pages of the reserve that no work uses from other caches of the pool: from all once memory has run
/// out, else from a few. Returns whether there were any.
fn collect(request: &AllocationRequest, reserve: &Reserve, reach: &Reach) -> Result<bool> {
    let pool = request.pool();
    let mut has_any = false;
    for cache in reach.caches_with_pages(pool).0 {
        let select = |heap: &mut _, _: &_| {
            let taken = cache.take_reserve(heap, reserve);
            (!taken.is_empty()).then_some(OfReserve(taken))
        };
        let giver = Giver { cache: &cache, least: PAGE, drops_slabs: false };
        let Ok(taken) = take_from(request, reach, giver, select)? else { continue };
        has_any = true;
        if taken.is_in_order_with(request) {
            let until = Until::recorded_later(cache.memory.location.device());
            taken.memory.put_back(request, until)?;
        } else {
            // Some go if the pool was closed meanwhile.
            retire_extents(pool, reserve.put_back(taken.memory.0));
        }
        taken.until.recycle(&cache.memory.events);
    }
    Ok(has_any)
}

/// Takes a cache's free pages of its pool's reserve, to return them once the stream is done.
pub(super) fn retire_reserve(of: &ServingCache) -> Result<()> {
    let Some(reserve) = of.pool().supply.reserve() else { return Ok(()) };
    let memory = of.memory;
    let _moving = memory.under_way.begin();
    let taken = take_out(of, Patience::Ask, |heap| of.cache.take_reserve(heap, reserve))?;
    let Some((runs, until)) = taken else { return Ok(()) };
    if runs.is_empty() {
        until.recycle(&memory.events);
    } else {
        deliver();
        retire_runs(of.pool(), runs, until);
    }
    Ok(())
}

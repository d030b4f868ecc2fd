//! Memory for pages of ranges: mapped at the addresses that a range names, and given up there. Free extents of the right
//! size are moved there, and created for what is missing.

use std::sync::Arc;

use super::acquire::{Need, Step, acquire};
use super::extents::{PagePlacement, is_no_memory, retire_extents};
use super::growth::Growth;
use super::pages::{Grown, fill};
use super::take::{AllocationRequest, Reach};
use super::trim::{self, leave_closed, settle_and_retire};
use crate::error::Result;
use crate::memory::cache::{Company, DeviceCaches, Freed, MovedPages, Portion, ServingCache, StreamCache, Waiting};
use crate::memory::device::{DeviceMemory, Invalid, Patience, Run};
use crate::memory::pool::{Pool, closed, out_of_service};
use crate::memory::tuning::PAGE;
use crate::observe::Activity;
use crate::observe::delivery::Delivery;
use crate::sync::{ThisThread, lock};

/// Maps memory at a run of a range's addresses, in extents of `each` pages, each of which is then a live block of the
/// pool's cache for ranges: free ones of the pool first, then new ones; then what others give back. Returns false if
/// something is mapped there still.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough; `ErrorKind::Asleep` or `ErrorKind::InvalidValue` if the pool fell
/// asleep or was closed meanwhile; any other refusal of the driver. Nothing is mapped there then.
pub(in crate::memory) fn commit_run(of: &Arc<ServingCache>, run: Run, each: u32) -> Result<bool> {
    let _delivery = Delivery::at_end();
    let (pool, request) = (of.pool(), AllocationRequest::new(Arc::clone(of), run.bytes()));
    let take = |step, reach: &Reach| match step {
        Step::Pages => grow_at(&request, reach, run, each),
        _ => Ok(Grown::Nothing),
    };
    let committed = acquire(Need { pool, bytes: request.bytes, request: Some(&request), take: &take })?;
    committed.ok_or_else(|| out_of_service(pool))
}

/// Frees blocks of a cache of ranges, which are free once what `waiting` waits for is done.
///
/// # Errors
/// `Invalid` if one is not live.
pub(in crate::memory) fn decommit_blocks(
    cache: &StreamCache,
    waiting: Waiting,
    thread: ThisThread,
) -> Result<(), Invalid> {
    let _delivery = Delivery::at_end();
    waiting.offsets().for_each(|offset| cache.note_free(offset, Freed::Later));
    let outcome = cache.begin_waiting_each(thread, &waiting);
    trim::wait(cache, waiting);
    // What earlier commits moved is unmapped where it was here, so that a commit, which work waits for, is not longer.
    cache.memory.try_end_retired();
    if cache.is_closing() {
        // What the driver refuses to take back now is tried again whenever memory is given back.
        let _ = leave_closed(cache, thread);
    }
    outcome
}

/// Gives the driver those of these places of a cache of ranges that are free.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses.
pub(in crate::memory) fn release_places(of: &ServingCache, places: &[u64]) -> Result<()> {
    let _moving = of.memory.under_way.begin();
    let taken = of.lock_awake().map(|mut heap| of.cache.take_mappings(&mut heap, Portion::At(places)));
    // Free blocks wait for nothing.
    retire_extents(of.pool(), taken.unwrap_or_default());
    of.memory.end_retired(Patience::Ask).map(drop)
}

/// Gives the driver what the device's pools have free at the addresses of ranges, so that those of freed ranges serve others.
/// With patience it waits for the work that uses it.
pub(in crate::memory) fn free_places(memory: &DeviceMemory, patience: Patience) {
    let Some(caches) = DeviceCaches::known(memory.location) else { return };
    let thread = ThisThread::get();
    let _ = memory.under_way.wait();
    for pool in caches.pools.all() {
        // What the driver refuses is tried again whenever memory is given back.
        let _ = DeviceCaches::ranges_of(&pool).map(|cache| settle_and_retire(&cache, thread, patience));
    }
    let _ = memory.end_retired(patience);
}

/// Returns the pool's cache for the pages of ranges; makes it when first needed.
///
/// # Errors
/// `ErrorKind::Unavailable` if there are too many caches; `ErrorKind::InvalidValue` if the pool is gone.
pub(in crate::memory) fn ranges_cache(pool: &Arc<Pool>) -> Result<Arc<ServingCache>> {
    DeviceCaches::make_ranges_of(pool)?.ok_or_else(|| closed(pool))
}

/// Maps memory at held addresses where nothing is mapped, and makes each extent of `each` pages a live block of the
/// request's cache: false if something is mapped there still, nothing if the driver has just refused as many.
///
/// # Errors
/// One for which [`is_no_memory`] holds if there is not enough; `ErrorKind::Asleep` or
/// `ErrorKind::InvalidValue` if the pool fell asleep or was closed meanwhile; any other refusal of the driver. Nothing
/// is mapped there then.
fn grow_at(request: &AllocationRequest, reach: &Reach, run: Run, each: u32) -> Result<Grown<bool>> {
    let memory = request.memory;
    let _moving = memory.under_way.begin();
    if !lock(&memory.space).map_held(run) {
        return Ok(Grown::Block(false));
    }
    let _activity = Activity::begin_of(request.bytes, format_args!("commit memory"));
    let of_each = Portion::Each { most: run.pages / each, pages: each };
    let own = request.lock_awake().map(|mut heap| request.cache.take_mappings(&mut heap, of_each));
    let place = PagePlacement { first: run.first, pages: run.pages, taken: run.pages };
    let mut growth = Growth::new(request, place, Company::WithMany);
    growth.each = Some(each);
    let filled = fill(&mut growth, own.unwrap_or_default(), reach, MovedPages::All);
    if !matches!(filled, Ok(true)) {
        let missing = growth.missing_pages();
        growth.undo();
        if filled.as_ref().is_err_and(is_no_memory) {
            reach.note_refusal(missing);
        }
        return filled.map(|_| Grown::Nothing);
    }
    let added = growth.finish_by(|of, start, bytes, _| of.add_live(start, bytes, u64::from(each) * PAGE));
    added.map(|()| Grown::Block(true)).map_err(|_| out_of_service(request.pool()))
}

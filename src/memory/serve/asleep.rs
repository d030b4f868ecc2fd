//! Memory of sleeping pools: the addresses that they still need, and extents for when they wake.

use std::mem;
use std::sync::Arc;

use super::extents::{claimed, retire_extents};
use super::make_room::with_room_made;
use crate::error::Result;
use crate::memory::cache::{DeviceCaches, StreamCache};
use crate::memory::device::{Run, without_all};
use crate::memory::pool::{Change, KeptExtents, Pool, Record};
use crate::memory::tuning::PAGE;
use crate::runtime::{self, Extent, RelaxedCapture};
use crate::sync::ThisThread;

/// Returns the pages that a sleeping pool needs when it wakes, in order: each run is of one cache, or of the pool's
/// reserve. With `may_let_go`, whole free pages are first taken out of its caches and their addresses released. A graph
/// that is replayed may use all that its caches have.
pub(in crate::memory) fn pages_asleep(pool: &Pool, thread: ThisThread, may_let_go: bool) -> Vec<Run> {
    let memory = pool.memory;
    let end = memory.range.bytes;
    let (mut free, mut needed) = (Vec::new(), Vec::new());
    DeviceCaches::each_asleep(pool, thread, |service, heap| {
        if may_let_go && !service.is_of_live_graph() {
            free.extend(heap.take_pages_asleep(&memory.pages, end));
        }
        needed.extend(heap.spans_below(end));
    });
    if let Some(reserve) = pool.supply.reserve() {
        let of_reserve = free.iter().filter_map(|run| run.common(reserve.run)).collect();
        free = without_all(free, &[reserve.run]);
        // None: the pool has no extents while it is asleep.
        retire_extents(pool, reserve.put_back(of_reserve));
        // A cache may have pages of the reserve and, beside them, others, whose extents are not the reserve's.
        let in_use: Vec<_> = needed.iter().filter_map(|run| run.common(reserve.run)).collect();
        needed = without_all(needed, &[reserve.run]);
        if !reserve.has_ended() {
            needed.push(reserve.run);
        } else {
            needed.extend(in_use);
            if may_let_go {
                free.extend(reserve.take_free());
            } else {
                needed.extend(reserve.free());
            }
        }
    }
    free.into_iter().for_each(|run| memory.put_back_pages(run));
    needed.sort_unstable();
    needed
}

/// Releases what a sleeping pool does not need any more: addresses and pinned memory; and, if nothing uses the pool,
/// what the driver did not take back when it fell asleep.
pub(super) fn let_go_asleep(pool: &Arc<Pool>, thread: ThisThread) {
    // A thread that changes the pool meanwhile does it again for this one: here, or by giving back what a closed pool has free.
    while let Some(change) = pool.sleep.try_change(thread) {
        let_go_of(pool, change, thread);
        if !pool.sleep.is_to_let_go() {
            return;
        }
    }
}

fn let_go_of(pool: &Arc<Pool>, mut change: Change<'_>, thread: ThisThread) {
    let Some(record) = &mut change.record else { return };
    if !record.kept.is_empty() && is_over(pool, thread) {
        // What the driver refuses to take back now is tried again whenever memory is given back.
        let _ = give_kept_back(pool, record);
    }
    let needed = pages_asleep(pool, thread, record.kept.is_empty());
    let unneeded = record.keep_only(&needed);
    drop(change);
    drop(unneeded);
}

/// Returns whether nothing uses the pool or any of its blocks.
fn is_over(pool: &Pool, thread: ThisThread) -> bool {
    let is_idle = |cache: &StreamCache| {
        cache.waiting.is_empty() && cache.lock(thread).live_ranges(&cache.memory.pages).is_empty()
    };
    pool.is_closed() && pool.use_count() == 0 && DeviceCaches::caches_of(pool).into_iter().all(is_idle)
}

/// Gives the driver what it did not take back when the pool fell asleep, once copies of it are done. Keeps what it
/// refuses again.
fn give_kept_back(pool: &Pool, record: &mut Record) -> Result<()> {
    if let Some(copies) = &record.copies {
        let _relaxed = RelaxedCapture::new(runtime::get()?)?;
        if !copies.query()? {
            return Ok(());
        }
        record.copies = None;
    }
    let (mapped, unmapped): (Vec<_>, Vec<_>) = mem::take(&mut record.kept).into_iter().partition(|kept| kept.is_mapped);
    let [mut mapped, mut unmapped] =
        [mapped, unmapped].map(|kept| kept.into_iter().flat_map(|kept| kept.extents).collect::<Vec<_>>());
    let (memory, supply) = (pool.memory, &pool.supply);
    let count = |bytes| memory.uncount(bytes, supply, &mut 0);
    // SAFETY: all work that used these was waited for before the pool fell asleep, copies of them are done, and no
    // block is there that could be used.
    let outcome = unsafe { memory.end_extents(&mut mapped, &mut unmapped, false, count) };
    for (extents, is_mapped) in [(mapped, true), (unmapped, false)] {
        let left = extents.into_iter().map(|extent| KeptExtents { extents: vec![extent], is_mapped, is_open: false });
        record.kept.extend(left);
    }
    outcome
}

/// Returns a new extent for a waking pool: from what the device has, else from what other pools and the user's
/// callbacks give back. The thread has the earlier ones under way.
///
/// # Errors
/// One for which [`is_no_memory`](super::is_no_memory) holds if there is not enough; any other refusal of the driver.
pub(in crate::memory) fn extent_for_waking(pool: &Pool, pages: u32) -> Result<Extent> {
    let bytes = u64::from(pages) * PAGE;
    with_room_made(pool, bytes, || claimed(pool, bytes, || pool.memory.range.create(pages)))
}

//! Giving memory back. Freed blocks that waited for other streams become free once those are done: events are queried only
//! when a request finds no free block, or memory is given back. Free pages and whole free segments go to the driver at once,
//! or as soon as their streams are done; so does what a pool does not need that is asleep. Abandoned caches are those of
//! streams that only caches still hold, and of foreign streams that are known to be gone or whose pages all serve others: they
//! end when a thread needs a cache that it does not know, so that streams made and dropped leave nothing behind.

use std::mem;
use std::sync::Arc;

use log::Level;

use super::extents::retire_extents;
use super::reserve::retire_reserve;
use super::segments::{retire, retire_segment};
use super::slabs::return_slabs;
use crate::error::{Bytes, Result};
use crate::memory::cache::{DeviceCaches, Heap, Portion, ServingCache, StreamCache, To, Waiting, is_recorded};
use crate::memory::device::{EndingExtents, ExtentEnd, Patience, Remains, Run, Until, log_out, without_all};
use crate::memory::pool::{Change, KeptExtents, Pool, Record, Stage};
use crate::memory::tuning::A_FEW;
use crate::observe::Activity;
use crate::observe::delivery::{Delivery, deliver};
use crate::process;
use crate::runtime::{self, RelaxedCapture, Stream};
use crate::sync::ThisThread;

/// Takes free memory out of a cache's heap. Returns it, and when all work that may use it is done; none if the cache
/// has ended, live graphs may use the memory, or the memory is segments whose work would have to be waited for with more
/// patience, as callbacks are told of their end. Empty slabs are dropped before the work is recorded, since slots that are
/// used and freed leave no trace in the heap.
///
/// # Errors
/// `ErrorKind::Library` if the driver records no work. Then nothing was taken.
pub(super) fn take_out<R>(
    of: &ServingCache,
    patience: Patience,
    take: impl FnOnce(&mut Heap) -> R,
) -> Result<Option<(R, Until)>> {
    let memory = of.memory;
    let turnover = {
        let Some(mut heap) = of.lock_to_take() else { return Ok(None) };
        heap.drop_empty_slabs(&memory.pages);
        heap.turnover()
    };
    let mut until = of.work_so_far(None)?;
    let must_be_done = patience == Patience::Ask && of.pool().segments.has_listeners();
    if must_be_done && !until.is_done(&memory.events, Patience::Ask)? {
        until.recycle(&memory.events);
        return Ok(None);
    }
    let Some(mut heap) = of.lock_to_take() else { return Ok(None) };
    if heap.turnover() != turnover {
        if must_be_done {
            return Ok(None);
        }
        // What was freed since may have later work, recorded when this is next checked.
        until = Until::recorded_later(memory.location.device());
    }
    Ok(Some((take(&mut heap), until)))
}

/// How much free memory leaves a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HowMuch {
    /// All there is, also segments and parts of a reserve.
    All,
    /// So many bytes, or, as mappings go whole, at most so many more.
    Bytes { wanted: u64, slack: u64 },
}

/// Frees the waiting blocks of a pool's cache whose streams are done, and takes all free memory out of it, also if the driver
/// refuses the first.
pub(super) fn settle_and_retire(cache: &ServingCache, thread: ThisThread, patience: Patience) -> Result<()> {
    let settled = settle_blocks(cache, thread, patience).map(drop);
    settled.and(retire_free(cache, patience))
}

/// Takes all free memory out of a cache, to go once the stream is done.
pub(super) fn retire_free(of: &ServingCache, patience: Patience) -> Result<()> {
    retire_some(of, HowMuch::All, patience).map(drop)
}

/// As [`retire_free`], for so much, and returns the bytes.
fn retire_some(of: &ServingCache, how_much: HowMuch, patience: Patience) -> Result<u64> {
    let (cache, pool, memory) = (of.cache, of.pool(), of.memory);
    // A sleeping pool has nothing to give.
    if pool.sleep.is_asleep() {
        return Ok(0);
    }
    {
        let mut heap = cache.lock(ThisThread::get());
        // Most of thousands of streams may have nothing, and are not queried.
        if !heap.has_memory() {
            heap.move_again();
            return Ok(0);
        }
    }
    let _moving = memory.under_way.begin();
    return_slabs(of)?;
    let (wanted, slack) = match how_much {
        HowMuch::All => (u64::MAX, 0),
        HowMuch::Bytes { wanted, slack } => (wanted, slack),
    };
    let taken = take_out(of, patience, |heap| {
        heap.move_again();
        let (mut mappings, mut spans) = (Vec::new(), Vec::new());
        if pool.source().is_pages() {
            mappings = cache.take_mappings(heap, Portion::Bytes { wanted, slack, kept: None });
        }
        if pool.source().has_segments() && how_much == HowMuch::All {
            spans = cache.take_free_spans(heap);
        }
        (mappings, spans)
    })?;
    let Some(((mappings, spans), until)) = taken else { return Ok(0) };
    let of_mappings: u64 = mappings.iter().map(|mapping| mapping.bytes()).sum();
    let of_spans: u64 = spans.iter().map(|(_, bytes)| bytes).sum();
    // Where that is done, so is the work on all that was taken.
    let is_done = matches!(&until, Until::Events(events) if events.is_empty());
    let mut until = Some(until);
    if !mappings.is_empty() {
        let until = until.take().unwrap_or(Until::at_once());
        // SAFETY: the mappings were taken out of the cache, and `until` is all work on the stream that it serves.
        unsafe { retire(pool, Remains::released(mappings), until) };
    }
    for (offset, bytes) in spans {
        let later = || if is_done { Until::at_once() } else { of.work_so_far_or_later() };
        let until = until.take().unwrap_or_else(later);
        // SAFETY: the segment was taken out of the cache, and `until` is all work on the stream that it serves.
        unsafe { retire_segment(of, offset, bytes, until) };
    }
    if let Some(until) = until {
        until.recycle(&memory.events);
    }
    if how_much == HowMuch::All {
        retire_reserve(of)?;
    }
    Ok(of_mappings + of_spans)
}

/// Gives back so many bytes of what a pool has free, at most `slack` more, without waiting. Returns those that went or go
/// once their streams are done. Of segments, all that a stream has go, or none.
///
/// # Errors
/// As [`trim`].
pub(in crate::memory) fn trim_some(pool: &Arc<Pool>, thread: ThisThread, wanted: u64, slack: u64) -> Result<u64> {
    let _delivery = Delivery::at_end();
    let most = wanted.saturating_add(slack);
    let (mut gone, mut outcome) = (pool.supply.ready.bytes(), Ok(()));
    if gone <= most {
        release_ready(pool);
    } else {
        gone = 0;
    }
    for cache in DeviceCaches::caches_of(pool) {
        outcome = outcome.and(settle(&cache, thread, Patience::Ask).map(drop));
        if gone >= wanted {
            continue;
        }
        let all_fits = pool.source().has_segments() && cache.lock(thread).unused() <= most - gone;
        let how_much = if all_fits { HowMuch::All } else { HowMuch::Bytes { wanted: wanted - gone, slack } };
        match retire_some(&cache, how_much, Patience::Ask) {
            Ok(bytes) => gone += bytes,
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    pool.memory.end_retired(Patience::Ask)?;
    outcome.map(|()| gone)
}

/// Gives back what a pool has free, and returns the physical bytes that went; pages of streams at work go later, unless
/// it waits. Segments at work whose end callbacks are told of stay, unless it waits for those.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses; what it did not refuse has gone.
pub(crate) fn trim(pool: &Arc<Pool>, thread: ThisThread, patience: Patience) -> Result<u64> {
    let memory = pool.memory;
    let activity = Activity::begin(format_args!("trim memory pool"));
    let _delivery = Delivery::at_end();
    let emptied = DeviceCaches::caches_of(pool).into_iter().map(|cache| settle_and_retire(&cache, thread, patience));
    let outcome = emptied.fold(Ok(()), Result::and);
    release_ready(pool);
    let_go_unneeded(pool, thread);
    let at_once = memory.end_retired(patience)?;
    let released = at_once + memory.begin_ending_pinned()?;
    if released > 0 {
        let (device, took) = (memory.location, activity.took());
        log_out(
            Level::Debug,
            format_args!("pool {} on {device}: trimmed, {} given back in {took}", pool.id, Bytes(released)),
        );
    }
    outcome.map(|()| released)
}

/// Gives back the extents that were made ahead of need.
pub(in crate::memory) fn release_ready(pool: &Pool) {
    retire_extents(pool, pool.supply.ready.take_all());
}

/// Frees the cache's waiting blocks whose streams are done, as [`settle_blocks`], and then gives back what a closed pool
/// has no more need of: who closed it may have found them waiting.
///
/// # Errors
/// As [`settle_blocks`].
pub(in crate::memory) fn settle(cache: &StreamCache, thread: ThisThread, patience: Patience) -> Result<bool> {
    let outcome = settle_blocks(cache, thread, patience);
    if matches!(outcome, Ok(true)) && cache.is_closing() {
        leave_closed(cache, thread)?;
    }
    outcome
}

/// Returns the sum of several calls' results. All are made, even if one fails.
pub(in crate::memory) fn sum_of_all(calls: impl Iterator<Item = Result<u64>>) -> Result<u64> {
    calls.reduce(|sum, bytes| Ok(sum? + bytes?)).unwrap_or(Ok(0))
}

/// Trims those pools of the device that `is_meant` selects, as [`trim`].
pub(in crate::memory) fn trim_pools(
    caches: &'static DeviceCaches,
    thread: ThisThread,
    patience: Patience,
    is_meant: impl Fn(&Pool) -> bool,
) -> Result<u64> {
    let pools = caches.pools.all();
    sum_of_all(pools.iter().filter(|pool| is_meant(pool)).map(|pool| trim(pool, thread, patience)))
}

/// Gives back the pages of a closed pool's cache in which a block was freed.
pub(super) fn leave_closed(cache: &StreamCache, thread: ThisThread) -> Result<()> {
    let Some(of) = cache.serving().filter(|of| of.pool().is_closed()) else { return Ok(()) };
    settle_blocks(cache, thread, Patience::Ask)?;
    retire_free(&of, Patience::Ask)?;
    let_go_unneeded(of.pool(), thread);
    cache.memory.end_retired(Patience::Ask).map(drop)
}

/// Releases what a closed or sleeping pool does not need, and forgets a pool that nothing uses and that has nothing
/// left. Memory that another thread has under way does not come back to it.
fn let_go_unneeded(pool: &Arc<Pool>, thread: ThisThread) {
    if pool.is_closed()
        && let Some(reserve) = pool.supply.reserve()
    {
        // Each extent goes once all of it is free.
        retire_extents(pool, reserve.end());
    }
    if pool.sleep.is_asleep() {
        let_go_asleep(pool, thread);
    }
    let has_ended = |cache: Arc<ServingCache>| DeviceCaches::end_if_empty(&cache);
    let is_over = pool.life.stage() == Stage::Ended && !pool.sleep.keeps_memory();
    if is_over && DeviceCaches::caches_of(pool).into_iter().all(has_ended) {
        DeviceCaches::remove_pool(pool);
    }
}

/// Keeps a freed block until what it waits for is done.
pub(super) fn wait(cache: &StreamCache, block: Waiting) {
    cache.waiting.change(|waiting| waiting.push(block));
}

/// Frees the cache's waiting blocks whose streams are done; returns whether there were any.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses. Blocks that were not asked about still wait.
pub(super) fn settle_blocks(cache: &StreamCache, thread: ThisThread, patience: Patience) -> Result<bool> {
    if cache.waiting.is_empty() {
        return Ok(false);
    }
    let _moving = cache.memory.under_way.begin();
    let mut asked = cache.waiting.change(std::mem::take);
    let mut outcome = Ok(());
    let is_done = |block: &mut Waiting| {
        let asked = block.is_done(&cache.memory.events, patience);
        asked.map_err(|error| outcome = Err(error)).unwrap_or(false)
    };
    let settled: Vec<_> = asked.extract_if(.., is_done).collect();
    let done: Vec<_> = settled.iter().flat_map(Waiting::offsets).collect();
    // Before an observer is called, which may want the others.
    cache.waiting.change(|waiting| {
        asked.append(waiting);
        *waiting = asked;
    });
    let has_settled = !done.is_empty();
    if has_settled {
        if process::state().is_observed() {
            // Before any thread can have the blocks.
            done.iter().for_each(|&offset| cache.note_completed(offset, To::Observer));
            deliver();
        }
        let mut heap = cache.lock(thread);
        for offset in done {
            if is_recorded() {
                cache.note_completed(offset, To::Recording);
            }
            if cache.is_lender() {
                heap.end_waiting(&cache.memory.pages, offset);
            } else {
                heap.release(&cache.memory.pages, offset);
            }
        }
    }
    outcome.map(|()| has_settled)
}

/// Ends the abandoned caches without live blocks among the next few, and goes on while half of them are abandoned.
pub(in crate::memory) fn end_abandoned(caches: &DeviceCaches, thread: ThisThread) {
    let ends = |cache: &Arc<ServingCache>| {
        let is_abandoned = match cache.service.stream.as_ref().and_then(Stream::clones) {
            // Each cache holds one clone.
            Some(clones) => clones == caches.pools.count_on(&cache.service),
            None => caches.pools.is_stream_gone(&cache.service) || cache.marks_work() && is_bare(cache, thread),
        };
        is_abandoned && end(cache, thread)
    };
    loop {
        let ended = caches.pools.next_serving(A_FEW).into_iter().filter(ends).count();
        if ended < A_FEW / 2 {
            break;
        }
    }
}

fn is_bare(cache: &StreamCache, thread: ThisThread) -> bool {
    cache.lock(thread).mapped() == 0
}

/// Takes the free memory out of a cache; if its pool keeps memory, only borrowed slabs and pages of the reserve.
fn leave_memory(of: &ServingCache) -> Result<()> {
    if of.pool().gives_way() {
        return retire_free(of, Patience::Ask);
    }
    return_slabs(of)?;
    retire_reserve(of)
}

/// Takes a cache without memory out of its pool. False if it has live blocks or memory that the pool keeps.
fn end(cache: &ServingCache, thread: ThisThread) -> bool {
    let is_idle = cache.waiting.is_empty() && cache.lock(thread).live() == 0;
    if !is_idle || !is_bare(cache, thread) && leave_memory(cache).is_err() {
        return false;
    }
    DeviceCaches::end_if_empty(cache)
}

/// Returns the pages that a sleeping pool needs when it wakes, in order: each run is of one cache, or of the pool's
/// reserve. Unless the driver did not take all back when it fell asleep, whole free pages are first taken out of its caches
/// and their addresses released. A graph that is replayed may use all that its caches have.
pub(in crate::memory) fn pages_asleep(pool: &Pool, record: &Record, thread: ThisThread) -> Vec<Run> {
    let (memory, may_let_go) = (pool.memory, record.kept.is_empty());
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
    let needed = pages_asleep(pool, record, thread);
    let unneeded = record.keep_only(&needed);
    drop(change);
    drop(unneeded);
}

/// Returns whether nothing uses the pool or any of its blocks.
fn is_over(pool: &Pool, thread: ThisThread) -> bool {
    let is_idle = |cache: Arc<ServingCache>| {
        cache.waiting.is_empty() && cache.lock(thread).live_ranges(&cache.memory.pages).is_empty()
    };
    pool.life.stage() == Stage::Ended && DeviceCaches::caches_of(pool).into_iter().all(is_idle)
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
    let [mapped, unmapped] =
        [mapped, unmapped].map(|kept| kept.into_iter().flat_map(|kept| kept.extents).collect::<Vec<_>>());
    let mut ending = EndingExtents::new(ExtentEnd::Asleep, mapped, unmapped);
    // SAFETY: all work that used these was waited for before the pool fell asleep, copies of them are done, and no
    // block is there that could be used.
    let outcome = unsafe { pool.memory.end_extents(&mut ending, &pool.supply) };
    for (extents, is_mapped) in [(ending.mapped, true), (ending.unmapped, false)] {
        let left = extents.into_iter().map(|extent| KeptExtents { extents: vec![extent], is_mapped, is_open: false });
        record.kept.extend(left);
    }
    outcome.map(drop)
}

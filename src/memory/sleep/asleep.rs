//! Falling asleep: streams are waited for, live memory is copied, and memory goes part by part; and what cannot sleep, and
//! when.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use std::{iter, thread};

use log::{debug, info};

use super::awake::{bring_back, trim_if_closed, wake_caches};
use super::backup::{Backup, Copying, to_copy};
use crate::error::{Bytes, Error, Result};
use crate::ids::{CaptureStatus, Device};
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{DeviceMemory, Mapping, Reserve, without_all};
use crate::memory::pool::{Change, KeptExtents, Pool, Record, SleepChange};
use crate::memory::range::why_fixed;
use crate::memory::serve::{Patience, release_ready, settle};
use crate::memory::shared_block::refuse_held;
use crate::memory::tuning::{LARGE_EXTENT_PAGES, PAGE, RETRY, WAIT_ASLEEP};
use crate::observe::delivery::Delivery;
use crate::observe::target::MEMORY;
use crate::observe::{Activity, Took};
use crate::process;
use crate::runtime::{self, Event, RelaxedCapture};
use crate::sync::{ThisThread, lock};

/// Puts a single pool to sleep; see [`put_to_sleep`].
///
/// # Errors
/// As [`put_to_sleep`]; `ErrorKind::Unavailable` also if other pools have blocks of it.
pub(crate) fn sleep(pool: &Arc<Pool>, backup: Backup) -> Result<u64> {
    put_to_sleep(pool, backup, end_serving_others)
}

/// Puts a pool that was offered to sleep for another process, with a backup, and returns the bytes that went; 0 if it is
/// in use, asleep, or its streams are not done by then.
///
/// # Errors
/// As [`sleep`].
pub(in crate::memory) fn sleep_for_others(pool: &Arc<Pool>, until: Instant) -> Result<u64> {
    if pool.sleep.is_asleep() || !is_idle(pool, until)? {
        return Ok(0);
    }
    put_to_sleep(pool, Backup::Host, take_up)
}

/// Takes up the pool's offer, unless a thread has a scope of it.
fn take_up(pool: &Pool, change: &Change<'_>, thread: ThisThread) -> Result<()> {
    if !pool.sleep.offer.take() {
        return Err(Error::unavailable(format!(
            "a thread has a scope of pool {} on {}, and may be about to use what it holds",
            pool.label(),
            pool.memory.location
        )));
    }
    end_serving_others(pool, change, thread)
}

/// Returns whether the work on the pool's streams is done, as far as they can be asked, or is so in time: falling asleep
/// would wait for it.
fn is_idle(pool: &Pool, until: Instant) -> Result<bool> {
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    let thread = ThisThread::get();
    refuse_captures(pool, thread)?;
    for stream in DeviceCaches::usable_streams_of(pool, thread) {
        while !stream.query()? {
            if Instant::now() >= until {
                return Ok(false);
            }
            thread::sleep(RETRY);
        }
    }
    Ok(true)
}

/// Puts a pool to sleep, and returns the bytes that went back to the driver; 0 if it is asleep. `check` runs before
/// requests are refused, and may prevent the sleep. Waits for other processes that keep its memory mapped, within
/// bounds.
///
/// # Errors
/// What the check returns; `ErrorKind::Unavailable` if memory of this kind cannot sleep, or other processes have attached some
/// of it; `ErrorKind::InvalidValue` while a stream is captured; `ErrorKind::OutOfMemory` if there is not enough pinned memory
/// for the backup; any other refusal of the driver. The pool is then awake with all that it had, unless the driver also refuses
/// to give back what went already: then it is asleep, with all of its backup.
pub(super) fn put_to_sleep(
    pool: &Arc<Pool>,
    backup: Backup,
    check: fn(&Pool, &Change<'_>, ThisThread) -> Result<()>,
) -> Result<u64> {
    process::refuse_forked()?;
    if let Some(reason) = why_not(pool) {
        return Err(Error::unavailable(reason));
    }
    let thread = ThisThread::get();
    if !pool.sleep.is_asleep() {
        // Before any request is refused, which may be the capture's.
        refuse_captures(pool, thread)?;
        refuse_held(pool)?;
    }
    let Some(mut change) = pool.sleep.begin(SleepChange::Sleep, thread)? else { return Ok(0) };
    if let Err(error) = check(pool, &change, thread) {
        drop(change);
        trim_if_closed(pool, thread);
        return Err(error);
    }
    change.close();
    let begun = Instant::now();
    let _activity = Activity::begin_of(pool.budget().reserved(), format_args!("put memory pool to sleep"));
    let _delivery = Delivery::at_end();
    let outcome = fall_asleep(pool, backup, thread, &mut change.record);
    let took = begun.elapsed();
    let backed_up = change.record.as_ref().map_or(0, Record::backup_bytes);
    if outcome.is_ok() {
        let mut times = lock(&pool.sleep.times);
        times.count += 1;
        times.asleep_in = took;
    }
    drop(change);
    trim_if_closed(pool, thread);
    let (label, device, took) = (pool.label(), pool.memory.location, Took(Some(took)));
    match &outcome {
        Ok(bytes) => {
            let (bytes, backed_up) = (Bytes(*bytes), Bytes(backed_up));
            info!(target: MEMORY, "pool {label} on {device}: asleep in {took}, {bytes} given back, {backed_up} backed up");
        }
        Err(error) => info!(target: MEMORY, "pool {label} on {device}: not put to sleep: {error}"),
    }
    outcome
}

/// Forbids other pools to take blocks of the pool; refused, with no change, if some have such blocks.
fn end_serving_others(pool: &Pool, change: &Change<'_>, thread: ThisThread) -> Result<()> {
    // A request that finds nothing meanwhile searches again, since this may be refused.
    let _moving = pool.memory.under_way.begin();
    change.let_serve_others(false);
    refuse_serving_others(pool, thread).inspect_err(|_| change.let_serve_others(true))
}

/// Puts a pool to sleep whose requests are refused by now. `kept` is what it keeps; none if it is awake again.
fn fall_asleep(pool: &Arc<Pool>, backup: Backup, thread: ThisThread, kept: &mut Option<Record>) -> Result<u64> {
    let ready = wait_for_work(pool, thread).and_then(|()| parts_and_live(pool, thread));
    let (parts, live) = ready.inspect_err(|_| wake_caches(pool, thread))?;
    let mut record = Record { kept: parts, ..Record::default() };
    match empty(pool, &live, backup, &mut record) {
        Ok(released) => {
            // The work that was awaited is what retired memory waits for.
            pool.memory.try_end_retired();
            pool.memory.elsewhere.wait_for_processes(WAIT_ASLEEP);
            *kept = Some(record);
            Ok(released)
        }
        Err(error) if bring_back(pool, &mut record, thread).is_ok() => Err(error),
        Err(error) => {
            *kept = Some(record);
            Err(error.advised(
                "What went already could not be taken again, so the pool is asleep, with its backup complete: wake it",
            ))
        }
    }
}

/// Returns all memory of a pool whose caches are asleep, in parts that one call each unmaps, and its live ranges, in
/// order. The pool's reserve gives up its extents.
///
/// # Errors
/// `ErrorKind::InternalError` if pages of it have no extent.
fn parts_and_live(pool: &Pool, thread: ThisThread) -> Result<(Vec<KeptExtents>, Vec<Range<u64>>)> {
    let memory = pool.memory;
    let end = memory.range.bytes;
    let reserve = pool.supply.reserve();
    let (mut extents, mut live, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    DeviceCaches::each_asleep(pool, thread, |_, heap| {
        heap.drop_empty_slabs(&memory.pages);
        live.extend(heap.live_ranges(&memory.pages));
        spans.extend(heap.spans_below(end));
    });
    if let Some(reserve) = reserve {
        spans = without_all(spans, &[reserve.run]);
    }
    for span in spans {
        let mut at = span.start();
        while at < span.end() {
            let Some(extent) = memory.pages.mapping(at) else {
                return Err(Error::internal("a page of a pool that falls asleep has no memory of its own"));
            };
            at = extent.end();
            extents.push(extent);
        }
    }
    extents.extend(reserve.map(Reserve::take_extents).unwrap_or_default());
    extents.sort_unstable_by_key(|extent| extent.run.first);
    live.sort_unstable_by_key(|range: &Range<u64>| range.start);
    Ok((parts(extents), live))
}

/// Groups extents in a row into parts.
fn parts(extents: Vec<Mapping>) -> Vec<KeptExtents> {
    let mut parts: Vec<KeptExtents> = Vec::new();
    for extent in extents {
        let has_room = |part: &&mut KeptExtents| {
            let run = part.run();
            run.end() == extent.start() && extent.end() - run.start() <= LARGE_EXTENT_PAGES * PAGE
        };
        match parts.last_mut().filter(has_room) {
            Some(last) => last.extents.push(extent),
            None => parts.push(KeptExtents { extents: vec![extent], is_mapped: true, is_open: true }),
        }
    }
    parts
}

/// Copies what is live, gives back the record's parts, and returns the bytes. On failure the record has all that is
/// needed to bring them back.
fn empty(pool: &Pool, live: &[Range<u64>], backup: Backup, record: &mut Record) -> Result<u64> {
    let _relaxed = runtime::get().and_then(RelaxedCapture::new);
    let done = match backup {
        Backup::Host => back_up(pool.memory, live, record)?,
        Backup::None => Vec::new(),
    };
    let released = give_back(pool, done, record)?;
    record.copies = None;
    Ok(released)
}

/// Makes the pool's caches hand out nothing more, and waits for all work that may use its memory: for that of unknown
/// streams, waits for all work on the device and on its peers.
fn wait_for_work(pool: &Pool, thread: ThisThread) -> Result<()> {
    let memory = pool.memory;
    // First, so that what is submitted into a capture is seen below, and any other work is waited for.
    if pool.sleep.door.is_used() {
        debug!(target: MEMORY, "pool {} on {}: falls asleep after work that is just being submitted", pool.label(), memory.location);
        pool.sleep.door.wait_until_empty();
    }
    for cache in DeviceCaches::caches_of(pool) {
        cache.lock(thread).fall_asleep();
    }
    release_ready(pool);
    // A process that attaches from now on finds the pool asleep.
    refuse_held(pool)?;
    refuse_captures(pool, thread)?;
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    for device in memory.location.device().into_iter().chain(memory.range.peers.devices()) {
        // A capture may have begun since.
        if !runtime::synchronize_unless_captured(device)? {
            return Err(captured(pool, device));
        }
    }
    for cache in DeviceCaches::caches_of(pool) {
        settle(&cache, thread, Patience::Wait)?;
    }
    // So that retired memory is not in the way once the pool wakes.
    memory.try_end_retired();
    Ok(())
}

/// Begins to copy what is live. Returns, for each part with copies, the event of their end.
fn back_up(memory: &DeviceMemory, live: &[Range<u64>], record: &mut Record) -> Result<Vec<Option<Event>>> {
    let ranges = to_copy(&record.kept, live);
    let bytes = ranges.iter().flatten().map(|range| range.end - range.start).sum();
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let mut copying = Copying::begin(memory, bytes)?;
    record.copies = Some(copying.stream.clone());
    let mut done = Vec::new();
    for ranges in &ranges {
        copying.copy(memory, ranges, record)?;
        let event = (!ranges.is_empty()).then(|| memory.events.record(&copying.stream));
        done.push(event.transpose()?);
    }
    Ok(done)
}

/// Gives the parts back to the driver, each once its copies are done, and returns the bytes. What the driver refuses
/// stays in the record, with all after it.
fn give_back(pool: &Pool, done: Vec<Option<Event>>, record: &mut Record) -> Result<u64> {
    let (mut released, mut outcome) = (0, Ok(()));
    let done = done.into_iter().chain(iter::repeat_with(|| None));
    for (part, event) in record.kept.iter_mut().zip(done) {
        if outcome.is_ok() {
            outcome = give_part_back(pool, part, event.as_ref(), &mut released);
        }
        pool.memory.events.put_back(event);
    }
    record.kept.retain(|part| !part.extents.is_empty());
    outcome.map(|()| released)
}

/// Gives a part back to the driver, and adds the bytes. If the driver refuses, the part has what is left.
fn give_part_back(pool: &Pool, part: &mut KeptExtents, event: Option<&Event>, released: &mut u64) -> Result<()> {
    let memory = pool.memory;
    event.map_or(Ok(()), Event::synchronize)?;
    // SAFETY: all work on the device was waited for, as was this part's copy; the caches hand out nothing of it, and
    // callers that hold blocks of it must submit no work to a sleeping pool.
    unsafe { memory.range.unmap(&memory.range.placed(&part.extents)) }?;
    (part.is_mapped, part.is_open) = (false, false);
    memory.pages.clear_mapping(part.run().start(), part.run().bytes());
    let mut gone = 0;
    let outcome = part.extents.iter().try_for_each(|mapping| {
        // SAFETY: the pool alone has the extent, which is unmapped and forgotten after this.
        unsafe { memory.range.release(mapping.extent) }?;
        memory.uncount(mapping.bytes(), &pool.supply);
        *released += mapping.bytes();
        gone += 1;
        Ok(())
    });
    part.extents.drain(..gone);
    outcome
}

/// Returns why a pool can never sleep, if it cannot.
pub(super) fn why_not(pool: &Pool) -> Option<String> {
    let reason = if pool.segments.has_listeners() {
        "callbacks of on_segment were called for its segments, which may be registered where they are. Remove the callbacks, and use \
         a pool without no_split, segments and allocator for what is to sleep"
    } else {
        &why_fixed(pool, "sleep")?
    };
    Some(format!("pool {} on {} cannot sleep: {reason}", pool.label(), pool.memory.location))
}

/// Refuses while a stream of the device, or of a peer, is known to be captured: waiting for it would spoil the capture,
/// and its graph would use memory that goes.
fn refuse_captures(pool: &Pool, thread: ThisThread) -> Result<()> {
    for device in pool.memory.location.device().into_iter().chain(pool.memory.range.peers.devices()) {
        if runtime::is_known_stream_capturing(runtime::get()?, device)? {
            return Err(captured(pool, device));
        }
    }
    for stream in DeviceCaches::usable_streams_of(pool, thread) {
        if stream.capture_status()? != CaptureStatus::None {
            return Err(captured(pool, stream.device()));
        }
    }
    Ok(())
}

/// Refuses while other pools, which had no memory, have blocks of the pool: their users have not asked for sleep. They
/// can take none meanwhile.
fn refuse_serving_others(pool: &Pool, thread: ThisThread) -> Result<()> {
    let mut blocks = Vec::new();
    for cache in DeviceCaches::caches_of(pool) {
        // A block that was just taken is noted by the time the heap can be locked.
        let _heap = cache.lock(thread);
        blocks.extend(cache.used_by_other_pools());
    }
    let Some(first) = blocks.iter().min() else { return Ok(()) };
    let device = pool.memory.location;
    Err(Error::unavailable(format!(
        "pool {} on {device} cannot fall asleep: other pools, which had no memory, have {} of its blocks, the first at {:#x}, and \
         still use them. Free those first, or put all memory of the device to sleep, by gpupool.sleep({})",
        pool.label(),
        blocks.len(),
        pool.memory.address(*first),
        device.number()
    )))
}

#[cold]
fn captured(pool: &Pool, device: Device) -> Error {
    Error::invalid_value(format!(
        "a stream of {device} is captured, and pool {} cannot fall asleep meanwhile: end the capture first",
        pool.label()
    ))
}

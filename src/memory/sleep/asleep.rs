//! Falling asleep: streams are waited for, live memory is copied, and memory goes part by part.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use std::{iter, thread};

use log::{debug, info};

use super::awake::{bring_back, trim_if_closed, wake_caches};
use super::backup::{Backup, Copying, to_copy};
use super::parts::parts_and_live;
use super::refusal::{captured, refuse_captures, refuse_serving_others, why_not};
use crate::error::{Bytes, Error, Result};
use crate::memory::cache::DeviceCaches;
use crate::memory::device::DeviceMemory;
use crate::memory::pool::{Change, KeptExtents, Pool, Record, SleepChange};
use crate::memory::serve::{Patience, release_ready, settle};
use crate::memory::share::refuse_held;
use crate::memory::tuning::{RETRY, WAIT_ASLEEP};
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
    let outcome = put_to_sleep(pool, Backup::Host, take_up);
    if !pool.sleep.is_asleep() {
        pool.offer.let_go();
    }
    outcome
}

/// Takes up the pool's offer, unless a thread has a scope of it.
fn take_up(pool: &Pool, change: &Change<'_>, thread: ThisThread) -> Result<()> {
    if !pool.offer.take() {
        return Err(Error::unavailable(format!(
            "a thread has a scope of pool {} on {}, and may be about to use what it holds",
            pool.label(),
            pool.memory.location
        )));
    }
    end_serving_others(pool, change, thread).inspect_err(|_| pool.offer.let_go())
}

/// Returns whether the work on the pool's streams is done, as far as they can be asked, or is so in time: falling asleep
/// would wait for it.
fn is_idle(pool: &Pool, until: Instant) -> Result<bool> {
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    let thread = ThisThread::get();
    refuse_captures(pool, thread)?;
    for cache in DeviceCaches::caches_of(pool) {
        let service = &cache.service;
        let Some(stream) = service.stream.as_ref().filter(|_| service.is_stream_usable(thread, None)) else { continue };
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
    unsafe { memory.range.unmap_row(&part.extents) }?;
    (part.is_mapped, part.is_open) = (false, false);
    memory.pages.clear_mapping(part.run().start(), part.run().bytes());
    let mut gone = 0;
    let outcome = part.extents.iter().try_for_each(|mapping| {
        // SAFETY: the pool alone has the extent, which is unmapped and forgotten after this.
        unsafe { memory.range.release(mapping.extent) }?;
        memory.uncount(mapping.bytes(), &pool.supply, released);
        gone += 1;
        Ok(())
    });
    part.extents.drain(..gone);
    outcome
}

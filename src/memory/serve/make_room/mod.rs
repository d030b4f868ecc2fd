//! Makes room when memory has run out: free memory of other pools goes back to the driver, and other processes are asked.

mod vicinity;

use std::sync::atomic::Ordering;

use super::extents::is_no_memory;
use super::out_of_memory::after_callbacks;
use super::settle::Patience;
use super::trim::trim_pools;
use crate::error::Result;
use crate::ids::Device;
use crate::library::in_use::release_idle;
use crate::memory::cache::DeviceCaches;
use crate::memory::pool::Pool;
use crate::memory::tuning::{A_FEW, WAIT};
use crate::sync::ThisThread;
pub(in crate::memory) use vicinity::{Vicinity, set_vicinity, wake_if_taken};
use vicinity::{ask_neighbours, ask_neighbours_on, others_help};
pub(super) use vicinity::{asked_neighbours, settle_in};

/// Gives as much as possible back to the driver: what the pools selected by `is_meant` have free, once the GPU is done
/// with it, and mappings of it by other processes, or of theirs by this one. A refusal does not stop the rest. It first
/// waits for memory that other threads have under way.
pub(in crate::memory::serve) fn make_room(
    caches: &'static DeviceCaches,
    thread: ThisThread,
    is_meant: impl Fn(&Pool) -> bool,
) {
    let _ = caches.memory.under_way.wait();
    let _ = trim_pools(caches, thread, Patience::Wait, is_meant);
    caches.memory.elsewhere.end_idle();
    caches.memory.elsewhere.wait_for_processes(WAIT);
}

/// Gives back what pools that help others have free on the device, after waiting for work that uses it.
fn release_unused(device: Device) {
    if let Some(caches) = DeviceCaches::known(device) {
        make_room(caches, ThisThread::get(), Pool::gives_way);
    }
}

/// As [`release_unused`], and asks other processes for so many bytes.
pub(crate) fn make_room_for(device: Device, bytes: u64) {
    release_unused(device);
    ask_neighbours_on(device, bytes);
}

/// Attempts what needs physical memory for a pool: first as things are, then after other pools, idle handles, other
/// processes and the user's callbacks gave memory back. The thread has nothing under way that another waits for.
///
/// # Errors
/// Those of the last try.
pub(super) fn with_room_made<R>(pool: &Pool, bytes: u64, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    let memory = pool.memory;
    let mut refused = match attempt() {
        Err(error) if is_no_memory(&error) => error,
        outcome => return outcome,
    };
    let mut try_again = || {
        memory.under_way.wait_with_own();
        if let Some(caches) = DeviceCaches::known(memory.location) {
            // Its own extents may be of another size than it needs.
            let is_meant = |other: &Pool| (other.number == pool.number && !other.no_split()) || other.gives_way();
            make_room(caches, ThisThread::get(), is_meant);
        }
        memory.retries.fetch_add(1, Ordering::Relaxed);
        match attempt() {
            Err(error) if is_no_memory(&error) => {
                refused = error;
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    };
    let mut found = try_again()?;
    if found.is_none() {
        let mut left = memory.total;
        found = after_discarding(pool, bytes, &mut left, &mut try_again)?;
    }
    if found.is_none() {
        found = after_handles(pool, bytes, &mut try_again)?;
    }
    if found.is_none() {
        found = after_neighbours(pool, bytes, &mut try_again)?;
    }
    if found.is_none() {
        match after_callbacks(pool, 0, bytes, try_again) {
            Ok(freed) => found = freed,
            Err(error) => return Err(error.while_refused(|| refused)),
        }
    }
    found.ok_or(refused)
}

/// Takes discardable pages for a pool's request, which go back to the driver, those of lowest priority first, and tries
/// again after each part. In all calls for one request at most `left`, at first all memory of the device: a callback may
/// commit what was taken anew.
pub(super) fn after_discarding<R>(
    pool: &Pool,
    bytes: u64,
    left: &mut u64,
    mut try_again: impl FnMut() -> Result<Option<R>>,
) -> Result<Option<R>> {
    let Some(caches) = DeviceCaches::known(pool.memory.location) else { return Ok(None) };
    while *left > 0 {
        // What others give up does not help a pool at its limit.
        let only = (!pool.budget().has_room_for(bytes)).then_some(pool.number);
        let gone = caches.discardable.discard(bytes.min(*left), u64::MAX, only, true);
        if gone == 0 {
            break;
        }
        *left = left.saturating_sub(gone);
        if let Some(found) = try_again()? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Destroys libraries' idle handles for a pool's request, and tries again if there were any: what they held may not be known.
pub(super) fn after_handles<R>(
    pool: &Pool,
    bytes: u64,
    mut try_again: impl FnMut() -> Result<Option<R>>,
) -> Result<Option<R>> {
    match pool.memory.location.device().filter(|_| others_help(pool, bytes)) {
        Some(device) if release_idle(device).is_some() => try_again(),
        _ => Ok(None),
    }
}

/// Asks other processes for memory for a pool's request, and tries again, as long as some comes.
pub(super) fn after_neighbours<R>(
    pool: &Pool,
    bytes: u64,
    mut try_again: impl FnMut() -> Result<Option<R>>,
) -> Result<Option<R>> {
    for _ in 0..A_FEW {
        let Some(given) = ask_neighbours(pool, bytes) else { break };
        // Also where nothing came in time: it may have come since.
        if let Some(found) = try_again()? {
            return Ok(Some(found));
        }
        if given == 0 {
            break;
        }
    }
    Ok(None)
}

//! Making room where memory has run out: what other pools have free goes back to the driver, so that it can be had here.

use std::sync::atomic::Ordering;

use super::grow::is_no_memory;
use super::out_of_memory::after_callbacks;
use super::settle::Patience;
use super::trim::trim_pools;
use crate::error::Result;
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::pool::Pool;
use crate::memory::tuning::WAIT;
use crate::sync::ThisThread;

/// Has the driver get as much back as can be had: what those pools have free for which `is_meant` is true, once the GPU is
/// done with it, and what other processes still map of that, or this one of theirs. What cannot be given back leaves the rest
/// to help. What other threads have in their hands is waited for, as it is in none of these places.
pub(super) fn make_room(caches: &'static DeviceCaches, thread: ThisThread, is_meant: impl Fn(&Pool) -> bool) {
    let _ = caches.memory.under_way.wait();
    let _ = trim_pools(caches, thread, Patience::Wait, is_meant);
    caches.memory.elsewhere.end_idle();
    caches.memory.elsewhere.wait_for_processes(WAIT);
}

/// Gives back what pools that help others have free on the device, after waiting for work that uses it.
pub(crate) fn release_unused(device: Device) {
    if let Some(caches) = DeviceCaches::known(device) {
        make_room(caches, ThisThread::get(), Pool::gives_way);
    }
}

/// Tries what needs physical memory for a pool: from what the device has, else from what other pools give back, else from what
/// the user's callbacks do. The thread has nothing in its hands that another waits for.
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
            make_room(caches, ThisThread::get(), Pool::gives_way);
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
    let found = match try_again()? {
        None => after_callbacks(pool, 0, bytes, try_again)?,
        found => found,
    };
    found.ok_or(refused)
}

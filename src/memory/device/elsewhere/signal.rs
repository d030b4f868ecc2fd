//! Wakes the thread that talks to other processes, which is in the module of shared blocks, and waits for its answer.
//! The thread starts with the first block that is shared or attached. Nothing is asked of it before.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::write;

use crate::ids::MemoryLocation;
use crate::sync::{InHand, lock};

/// Ready to be read once the thread was woken.
static WAKEUP: OnceLock<OwnedFd> = OnceLock::new();

/// The devices whose idle mappings are to end, each until the thread has tried to.
static ASKED: Mutex<Vec<MemoryLocation>> = Mutex::new(Vec::new());
/// Notified when it has tried.
static ANSWERED: Condvar = Condvar::new();

thread_local! {
    static IS_FOR_OTHERS: Cell<bool> = const { Cell::new(false) };
}

/// Declares this thread the one that talks to other processes, which wait for it. It never waits for itself, nor for others'
/// code.
pub(in crate::memory) fn be_thread_for_others() {
    InHand::begin().for_ever();
    let _ = IS_FOR_OTHERS.try_with(|is| is.set(true));
}

/// Returns whether this is that thread.
pub(in crate::memory) fn is_thread_for_others() -> bool {
    IS_FOR_OTHERS.try_with(Cell::get) == Ok(true)
}

/// Returns the descriptor that is ready to be read after [`wake`]. The first call makes it.
pub(in crate::memory) fn wakeup() -> rustix::io::Result<&'static OwnedFd> {
    if let Some(wakeup) = WAKEUP.get() {
        return Ok(wakeup);
    }
    let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    Ok(WAKEUP.get_or_init(|| wakeup))
}

/// Wakes the thread, which then looks what to do.
pub(in crate::memory) fn wake() {
    if let Some(wakeup) = WAKEUP.get() {
        // Fails only if the count is at its limit, and then the thread is being woken anyway.
        let _ = write(wakeup, &1_u64.to_ne_bytes());
    }
}

/// Makes the thread end the idle mappings for a device, and waits until it has tried, for a limited time, as it may be
/// in a logger that waits for the calling thread.
pub(super) fn end_idle(location: MemoryLocation, patience: Duration) {
    let mut asked = lock(&ASKED);
    asked.push(location);
    wake();
    drop(ANSWERED.wait_timeout_while(asked, patience, |asked| asked.contains(&location)));
}

/// Ends the idle mappings for each device asked for. The thread calls this whenever it is woken.
pub(in crate::memory) fn end_where_asked(end_idle: impl Fn(MemoryLocation)) {
    let locations = lock(&ASKED).clone();
    locations.iter().copied().for_each(end_idle);
    lock(&ASKED).drain(..locations.len());
    ANSWERED.notify_all();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::ids::Device;

    #[test]
    fn one_that_asks_goes_on_once_it_was_answered() {
        let (device, ended) = (Device::from_ordinal(70).into(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                end_idle(device, Duration::from_secs(600));
                ended.load(Ordering::SeqCst)
            });
            while !asking.is_finished() {
                end_where_asked(|asked| _ = ended.fetch_add(u64::from(asked == device), Ordering::SeqCst));
                std::thread::yield_now();
            }
            assert_eq!(asking.join().ok(), Some(1));
        });
        // It also goes on without an answer.
        end_idle(device, Duration::ZERO);
        end_where_asked(|_| ());
    }
}

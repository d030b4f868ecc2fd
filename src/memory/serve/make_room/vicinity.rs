//! What requests ask of this process's neighbours, which are other processes on the same device. The module of neighbours
//! is above this one, and puts itself here where a program begins; until neighbours are used, nothing here does anything.

use std::sync::{Arc, OnceLock};

use crate::error::{AskedNeighbours, Result};
use crate::ids::{Device, MemoryLocation};
use crate::memory::pool::Pool;
use crate::sync::ThisThread;

/// The neighbours. No lock is held during any of these calls.
pub(in crate::memory) trait Vicinity: Sync {
    /// Called once this process has memory on a device, which its neighbours are told of if the environment asks for it.
    fn settle_on(&self, device: Device);

    /// Asks the neighbours for so many bytes, and returns how many they have given back to the driver in time; none where nothing
    /// came that may be late either.
    fn ask(&self, device: Device, bytes: u64) -> Option<u64>;

    /// Returns what the neighbours hold of the device, and how asking them went.
    fn asked(&self, device: Device) -> Option<AskedNeighbours>;

    /// Wakes a pool.
    fn wake(&self, pool: &Arc<Pool>) -> Result<()>;
}

static VICINITY: OnceLock<&'static dyn Vicinity> = OnceLock::new();

/// Lets requests ask these neighbours from now on.
pub(in crate::memory) fn set_vicinity(vicinity: &'static dyn Vicinity) {
    let _ = VICINITY.set(vicinity);
}

fn on_device<R>(location: MemoryLocation, call: impl FnOnce(&dyn Vicinity, Device) -> R) -> Option<R> {
    let vicinity = VICINITY.get()?;
    location.device().map(|device| call(*vicinity, device))
}

/// Notes that this process has memory there.
pub(in crate::memory::serve) fn settle_in(location: MemoryLocation) {
    on_device(location, |vicinity, device| vicinity.settle_on(device));
}

/// Returns whether memory that is not gpupool's own would help a pool's request: not a pool at its limit, nor on a device
/// at the process's own.
pub(super) fn others_help(pool: &Pool, bytes: u64) -> bool {
    [pool.budget(), &pool.memory.budget].into_iter().all(|budget| budget.has_room_for(bytes))
}

/// Asks for memory for a pool's request, and returns the bytes that came in time. None if none comes, as where nobody is asked
/// since it would not help.
pub(super) fn ask_neighbours(pool: &Pool, bytes: u64) -> Option<u64> {
    if !others_help(pool, bytes) {
        return None;
    }
    on_device(pool.memory.location, |vicinity, device| vicinity.ask(device, bytes)).flatten()
}

/// Asks for memory of a device for something else, as a library's handle.
pub(super) fn ask_neighbours_on(device: Device, bytes: u64) {
    on_device(device.into(), |vicinity, device| {
        // It may have no memory there yet.
        vicinity.settle_on(device);
        vicinity.ask(device, bytes)
    });
}

pub(in crate::memory::serve) fn asked_neighbours(location: MemoryLocation) -> Option<AskedNeighbours> {
    on_device(location, |vicinity, device| vicinity.asked(device)).flatten()
}

/// Wakes a pool that sleeps for another process, if it wakes on use. Waits first for one that is just falling asleep so.
///
/// # Errors
/// Those of waking it; `ErrorKind::InvalidValue` in a callback that may not wait.
pub(in crate::memory) fn wake_if_taken(pool: &Arc<Pool>) -> Result<()> {
    pool.sleep.wait_for_change(ThisThread::get())?;
    match VICINITY.get() {
        Some(vicinity) if pool.offer.is_taken() && pool.offer.wakes_on_use && pool.sleep.is_asleep() => {
            vicinity.wake(pool)
        }
        _ => Ok(()),
    }
}

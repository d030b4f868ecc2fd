//! Pools that sleep, one or all of a device.

use std::ffi::c_int;

use super::handle::PoolHandle;
use super::pool_of;
use crate::error::{Error, Result};
use crate::memory::plug::c_api::call::{device_of, place, run};
use crate::memory::sleep::{self, Backup};

/// `GPUPOOL_BACKUP_NONE` and `GPUPOOL_BACKUP_HOST`.
const BACKUP_NONE: c_int = 0;
const BACKUP_HOST: c_int = 1;

fn backup_of(number: c_int) -> Result<Backup> {
    match number {
        BACKUP_NONE => Ok(Backup::None),
        BACKUP_HOST => Ok(Backup::Host),
        _ => Err(Error::invalid_value(format!(
            "{number} is not a backup: give GPUPOOL_BACKUP_HOST, or GPUPOOL_BACKUP_NONE to discard the content"
        ))),
    }
}

/// Runs a call that returns bytes, for which the place may be null.
///
/// # Safety
/// The place is one for a number, or null.
unsafe fn in_bytes(place: *mut u64, call: impl FnOnce() -> Result<u64>) -> c_int {
    run(|| {
        let bytes = call()?;
        // SAFETY: the caller passes a place for a number, or null.
        if let Some(place) = unsafe { place.as_mut() } {
            *place = bytes;
        }
        Ok(())
    })
}

/// Puts a pool to sleep.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn pool_sleep(
    pool: *mut PoolHandle,
    backup: c_int,
    bytes: *mut u64,
) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { in_bytes(bytes, || sleep::sleep_pool(&pool_of(pool)?, backup_of(backup)?)) }
}

/// Wakes a pool.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn pool_wake(pool: *mut PoolHandle, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { in_bytes(bytes, || sleep::wake_pool(&pool_of(pool)?)) }
}

/// Says whether a pool is asleep.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn pool_is_asleep(
    pool: *const PoolHandle,
    is_asleep: *mut c_int,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a place for an int.
        let place = unsafe { place(is_asleep, "is_asleep") }?;
        *place = pool_of(pool)?.sleep.is_asleep().into();
        Ok(())
    })
}

/// Puts all memory of a device to sleep.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn sleep_device(
    device: c_int,
    backup: c_int,
    bytes: *mut u64,
) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { in_bytes(bytes, || sleep::sleep(device_of(device)?, backup_of(backup)?)) }
}

/// Wakes all memory of a device.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn wake_device(device: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { in_bytes(bytes, || sleep::wake(device_of(device)?)) }
}

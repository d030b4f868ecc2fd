//! Pools that sleep, one or all of a device.

use std::ffi::c_int;

use super::{PoolHandle, pool_of};
use crate::error::{Error, Result};
use crate::memory::plug::call::{answer, count, device_of};
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

pub(in super::super) unsafe extern "C" fn pool_sleep(pool: *mut PoolHandle, backup: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, || sleep::sleep_pool(&pool_of(pool)?, backup_of(backup)?)) }
}

pub(in super::super) unsafe extern "C" fn pool_wake(pool: *mut PoolHandle, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, || sleep::wake_pool(&pool_of(pool)?)) }
}

pub(in super::super) unsafe extern "C" fn pool_is_asleep(pool: *const PoolHandle, is_asleep: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place for an int, or null.
    unsafe { answer(is_asleep, "is_asleep", || Ok(pool_of(pool)?.sleep.is_asleep().into())) }
}

pub(in super::super) unsafe extern "C" fn sleep_device(device: c_int, backup: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, || crate::sleep(device_of(device)?, backup_of(backup)?)) }
}

pub(in super::super) unsafe extern "C" fn wake_device(device: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, || sleep::wake(device_of(device)?)) }
}

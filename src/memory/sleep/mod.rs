//! Pools that sleep: their device memory goes back to the driver while their addresses stay, and returns when they
//! wake, so that programs can take turns on a device.
//!
//! Live memory is copied to pinned memory, or discarded. A sleeping heap hands out nothing, as if it were closed, and
//! its blocks can be freed, so requests and frees need no further check. Each part of the memory goes once its own
//! copies are done. Whatever the driver refuses, the pool is afterwards either awake with all that it had, or asleep
//! with all of its backup.

mod asleep;
mod awake;
mod backup;

use std::sync::Arc;

use log::info;

use crate::error::Result;
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::pool::Pool;
use crate::memory::serve::sum_of_all;
use crate::observe::target::MEMORY;
use crate::process;
use crate::runtime;
pub(crate) use asleep::sleep as sleep_pool;
pub(in crate::memory) use asleep::sleep_for_others;
use asleep::{put_to_sleep, why_not};
pub(crate) use awake::wake as wake_pool;
pub use backup::Backup;

/// Puts every pool of a device to sleep, as far as it can sleep.
pub(crate) fn sleep_pools(device: Device, backup: Backup) -> Result<()> {
    let mut fallen: Vec<Arc<Pool>> = Vec::new();
    for pool in pools(device) {
        if let Some(reason) = why_not(&pool) {
            info!(target: MEMORY, "{reason}; it stays awake");
            continue;
        }
        let was_asleep = pool.sleep.is_asleep();
        // Other pools that have blocks of it sleep with it.
        if let Err(error) = put_to_sleep(&pool, backup, |_, _, _| Ok(())) {
            for pool in fallen.iter().rev() {
                // A pool that finds no memory stays asleep, and requests get that as their error.
                let _ = wake_pool(pool);
            }
            return Err(error);
        }
        if !was_asleep {
            fallen.push(pool);
        }
    }
    Ok(())
}

/// Wakes all memory of a device that is asleep, and returns the number of bytes allocated from the driver.
///
/// # Errors
/// The first error of [`MemPool::wake`](crate::MemPool::wake). Each pool is then awake or still asleep: those for which
/// there was memory are awake, and another call wakes the rest.
pub fn wake(device: Device) -> Result<u64> {
    process::refuse_forked()?;
    let device = runtime::existing(device)?;
    sum_of_all(pools(device).iter().map(|pool| match wake_pool(pool) {
        // A pool that nothing used any more has ended instead.
        Err(_) if !pools(device).iter().any(|other| Arc::ptr_eq(other, pool)) => Ok(0),
        outcome => outcome,
    }))
}

/// Returns the device's pools, if its memory was used.
fn pools(device: Device) -> Vec<Arc<Pool>> {
    DeviceCaches::known(device).map(|caches| caches.pools.all()).unwrap_or_default()
}

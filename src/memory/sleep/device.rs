//! All memory of a device: every pool, those of graphs included, and the idle handles.

use std::sync::Arc;

use log::info;

use super::asleep::put_to_sleep;
use super::awake;
use super::backup::Backup;
use super::refusal::why_not;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::pool::Pool;
use crate::memory_users;
use crate::observe::target::MEMORY;
use crate::process;
use crate::runtime;

/// Puts all memory of a device to sleep: the default pool, every [`MemPool`](crate::MemPool), and the pools of graphs.
/// Idle handles are destroyed with their workspaces, as by [`trim`](crate::HandlePool::trim), and created again when
/// they are needed. Blocks of one pool that serve another fall asleep with the rest. Returns the number of bytes released
/// to the driver; 0 for what is asleep already. Pools that cannot sleep, those with their own allocator or `no_split`,
/// stay awake, and a log line names each.
///
/// # Errors
/// As [`MemPool::sleep`](crate::MemPool::sleep); then the pools that this call put to sleep are awake again, as far as
/// there is memory for them.
pub fn sleep(device: Device, backup: Backup) -> Result<u64> {
    process::refuse_forked()?;
    let device = runtime::existing(device)?;
    let before = used(device);
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
                // What finds no memory stays asleep, and says so to requests.
                let _ = awake::wake(pool);
            }
            return Err(error);
        }
        if !was_asleep {
            fallen.push(pool);
        }
    }
    memory_users::release(device);
    Ok(before.saturating_sub(used(device)))
}

/// Wakes all memory of a device that is asleep, and returns the number of bytes allocated from the driver.
///
/// # Errors
/// The first error of [`MemPool::wake`](crate::MemPool::wake). Each pool is then awake or still asleep: those for which
/// there was memory are awake, and another call wakes the rest.
pub fn wake(device: Device) -> Result<u64> {
    process::refuse_forked()?;
    let device = runtime::existing(device)?;
    let mut taken = 0;
    let mut refused: Option<Error> = None;
    for pool in pools(device) {
        match awake::wake(&pool) {
            Ok(bytes) => taken += bytes,
            // One that nothing used any more has ended instead.
            Err(_) if !pools(device).iter().any(|other| Arc::ptr_eq(other, &pool)) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    refused.map_or(Ok(taken), Err)
}

/// Returns the device's pools, if its memory was used.
fn pools(device: Device) -> Vec<Arc<Pool>> {
    DeviceCaches::known(device).map(|caches| caches.pools.all()).unwrap_or_default()
}

/// Returns what gpupool has of the device's memory, in bytes.
fn used(device: Device) -> u64 {
    memory_users::all(device.into()).iter().map(|used| used.bytes).sum()
}

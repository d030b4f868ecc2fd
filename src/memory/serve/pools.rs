//! Pools: made, found by their ids, and ended with their last use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::devices::device_caches;
use super::settle::Patience;
use super::trim::{mark_closed, trim};
use crate::error::Result;
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{Source, Supply};
use crate::memory::pool::{Ending, Pool, PoolId, Rules};
use crate::sync::ThisThread;

/// The numbers of pools, by which threads find their caches; 0 is a default pool's.
static NUMBERS: AtomicU32 = AtomicU32::new(1);

/// Makes a pool, known to its device. With no source its memory comes from where the device's does.
///
/// # Errors
/// As [`device_caches`].
pub(in crate::memory) fn make_pool(
    device: Device,
    id: PoolId,
    rules: Rules,
    source: Option<Source>,
    limit: Option<u64>,
) -> Result<Arc<Pool>> {
    let caches = device_caches(device)?;
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let supply = Supply::new(source.unwrap_or_else(|| caches.memory.default_source()), limit);
    let pool = Arc::new(Pool::new(id, number, &caches.memory, rules, supply, end_pool));
    caches.add_pool(&pool);
    Ok(pool)
}

/// Returns the live pool with this id on the device, if there is one.
///
/// # Errors
/// As [`device_caches`].
pub(in crate::memory) fn pool_with_id(device: Device, id: PoolId) -> Result<Option<Arc<Pool>>> {
    Ok(device_caches(device)?.pool_with_id(id).filter(|pool| !pool.is_closed()))
}

/// Ends a pool whose last use has ended: what is free goes, the rest when it is freed.
pub(super) fn end_pool(pool: &Arc<Pool>, ending: Ending) {
    mark_closed(pool);
    if ending == Ending::Now
        && let Some(caches) = DeviceCaches::known(pool.memory.device)
    {
        // What the driver refuses to take back now is tried again whenever memory is given back.
        let _ = trim(caches, pool, ThisThread::get(), Patience::Ask);
    }
}

//! Every pool that has been used: their total counts, and the release of idle handles.

use std::sync::Mutex;

use super::device_pool::DevicePool;
use super::pool::HandlePool;
use super::stats::HandleStats;
use crate::error::{MemoryUse, OneLine, Result};
use crate::ids::Device;
use crate::memory::{Help, Helper};
use crate::process;
use crate::runtime;
use crate::sync::lock;

/// In the order of their ids.
static POOLS: Mutex<Vec<HandlePool>> = Mutex::new(Vec::new());

/// Adds a pool, before its first handle is made.
pub(super) fn add(pool: HandlePool) {
    Help::IdleHandles.is_from(&AllPools);
    let mut pools = lock(&POOLS);
    let place = pools.partition_point(|other| other.id() < pool.id());
    pools.insert(place, pool);
}

#[derive(Debug)]
struct AllPools;

impl Helper for AllPools {
    /// Destroys the idle handles of a device, but for those of libraries that are the program's own code, however much is
    /// wanted. The bytes that they are known to have used may be none of many.
    fn give(&self, device: Device, _: u64) -> Option<u64> {
        let used = || self.users(device).iter().map(|used| used.bytes).sum::<u64>();
        let before = used();
        let count = release_where(device, |on| !on.library.is_of_program());
        let bytes = before.saturating_sub(used());
        // Workspaces go without a handle, too.
        (count > 0 || bytes > 0).then_some(bytes)
    }

    fn users(&self, device: Device) -> Vec<MemoryUse> {
        let all = handle_stats(Some(device)).unwrap_or_default();
        let used = all.into_iter().map(|(name, stats)| MemoryUse {
            pool: OneLine(&name).to_string(),
            count: (stats.created - stats.destroyed) as usize,
            bytes: stats.device_bytes + stats.workspace_bytes,
            live_bytes: None,
        });
        used.filter(|used| used.bytes > 0 || used.count > 0).collect()
    }
}

/// Returns every pool on a device. A copy, so that no lock is held while one is used.
fn all_on(device: Device) -> Vec<&'static DevicePool> {
    lock(&POOLS).iter().filter_map(|pool| pool.devices().get(device.ordinal())).collect()
}

/// Returns the devices on which handles were created. It calls no driver.
pub(crate) fn devices_in_use() -> Vec<Device> {
    let pools = lock(&POOLS).clone();
    let every = pools.into_iter().flat_map(HandlePool::devices);
    every.filter(|on| on.has_created()).map(|on| on.device).collect()
}

/// Resets the peaks of every pool's counts on a device.
pub(crate) fn reset_peak_stats(device: Device) {
    all_on(device).into_iter().for_each(DevicePool::reset_peaks);
}

/// Returns the counts of every pool that has been used, by name, on one device or summed over all. Pools of one name
/// are one line.
///
/// # Errors
/// As [`HandlePool::stats`](super::HandlePool::stats).
pub fn handle_stats(device: Option<Device>) -> Result<Vec<(String, HandleStats)>> {
    process::refuse_forked()?;
    let device = device.map(runtime::existing).transpose()?;
    let mut sums: Vec<(String, HandleStats)> = Vec::new();
    let pools = lock(&POOLS).clone();
    for pool in pools {
        let stats = pool.stats(device)?;
        match sums.iter_mut().find(|(name, _)| name == pool.name()) {
            Some((_, sum)) => *sum += stats,
            None => sums.push((pool.name().to_owned(), stats)),
        }
    }
    Ok(sums)
}

pub(crate) fn release_idle(device: Device) {
    release_where(device, |_| true);
}

/// Returns how many were destroyed.
fn release_where(device: Device, is_meant: impl Fn(&DevicePool) -> bool) -> usize {
    let Ok(runtime) = runtime::get() else { return 0 };
    let meant = all_on(device).into_iter().filter(|on| is_meant(on));
    // A failure to trim one pool does not stop the rest; it may have destroyed some.
    meant.map(|on| on.trim(runtime).unwrap_or(1)).sum()
}

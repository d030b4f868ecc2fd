//! Every pool that has been used: their total counts, and the release of idle handles.

use std::sync::Mutex;

use super::device_pool::DevicePool;
use super::pool::LibraryPool;
use super::stats::HandleStats;
use crate::error::Result;
use crate::ids::Device;
use crate::library::in_use::handles_in_use;
use crate::memory::{Help, Helper};
use crate::process;
use crate::runtime;
use crate::sync::lock;

/// In the order of their ids.
static POOLS: Mutex<Vec<&'static LibraryPool>> = Mutex::new(Vec::new());

/// Adds a pool, before its first handle is made.
pub(super) fn add(pool: &'static LibraryPool) {
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
        let used = || handles_in_use(device).iter().map(|used| used.bytes).sum::<u64>();
        let before = used();
        let count = release_where(device, |pool| !pool.library.is_of_program());
        let bytes = before.saturating_sub(used());
        // Workspaces go without a handle, too.
        (count > 0 || bytes > 0).then_some(bytes)
    }
}

/// Returns a copy, so that no lock is held while one is used.
fn all() -> Vec<&'static LibraryPool> {
    lock(&POOLS).clone()
}

/// Returns the devices on which handles were created. It calls no driver.
pub(crate) fn devices_in_use() -> Vec<Device> {
    let mut in_use = Vec::new();
    for pool in all() {
        let with_handles = (0..).zip(pool.devices()).filter(|(_, on_device)| on_device.has_created());
        in_use.extend(with_handles.map(|(ordinal, _)| Device::from_ordinal(ordinal)));
    }
    in_use
}

/// Resets the peaks of every pool's counts on a device.
pub(crate) fn reset_peak_stats(device: Device) {
    all().iter().filter_map(|pool| pool.on(device).ok()).for_each(DevicePool::reset_peaks);
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
    for pool in all() {
        let stats = match device {
            Some(device) => pool.stats(device)?,
            None => pool.total_stats()?,
        };
        match sums.iter_mut().find(|(name, _)| name == pool.library.name()) {
            Some((_, sum)) => *sum += stats,
            None => sums.push((pool.library.name().to_owned(), stats)),
        }
    }
    Ok(sums)
}

pub(crate) fn release_idle(device: Device) {
    release_where(device, |_| true);
}

/// Returns how many were destroyed.
fn release_where(device: Device, is_meant: impl Fn(&LibraryPool) -> bool) -> usize {
    let Ok(runtime) = runtime::get() else { return 0 };
    let meant = all().into_iter().filter(|pool| is_meant(pool));
    // A failure to trim one pool does not stop the rest; it may have destroyed some.
    meant.map(|pool| pool.trim(runtime, device).unwrap_or(1)).sum()
}

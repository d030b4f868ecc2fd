//! What this process holds, as its neighbours are told.

use super::claims::{claimed_on, devices_claimed};
use super::division::Division;
use super::settings::{Limits, devices_set, limits_on, name};
use super::system_limit::system_limit;
use super::wire::{Held, NeighbourPool, Told};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::limits::devices_in_use;
use crate::memory::report::{PoolSummary, summarize};
use crate::runtime::KnownUuids;

/// Returns what this process holds of every device that it uses or has said something about; of its claims those made
/// before a time.
pub(super) fn tell(before: u64) -> Told {
    let mut devices = devices_in_use().unwrap_or_default();
    devices.extend(devices_set());
    devices.extend(devices_claimed());
    devices.sort_unstable();
    devices.dedup();
    let held = devices.into_iter().filter_map(|device| held_of(device, before)).collect();
    Told { process: std::process::id(), name: name(), held }
}

/// Returns what this process holds of a device; none if the driver does not tell which that is.
pub(super) fn held_of(device: Device, before: u64) -> Option<Held> {
    let Limits { guarantee, most, priority } = limits_on(device);
    let division = Division::of(device);
    let Division { reserved, live, cached, asleep, free, discardable, offered, .. } = division;
    Some(Held {
        device: KnownUuids::Memory.of(device).ok()?,
        reserved,
        live,
        free: cached,
        asleep,
        spare: [free, discardable, offered],
        claimed: claimed_on(device, before, &division),
        guarantee,
        most,
        priority,
        system_limit: system_limit(device),
    })
}

/// Returns what the pools of this process hold of a device.
pub(super) fn pools_of(device: Device) -> Vec<NeighbourPool> {
    let pools = DeviceCaches::known(device).map_or_else(Vec::new, |caches| summarize(caches).1);
    let told = |PoolSummary { id, name, stats, .. }: PoolSummary| NeighbourPool {
        id,
        name: name.map(|name| name.to_string()),
        reserved_bytes: stats.reserved_bytes,
        live_bytes: stats.live_bytes,
        free_bytes: stats.cached_bytes,
        asleep_bytes: stats.asleep_bytes,
    };
    pools.into_iter().map(told).collect()
}

//! What this process holds, as its neighbours are told.

use std::cmp::Reverse;

use super::claims::{claimed_on, devices_claimed};
use super::codec::{DEVICES_MOST, Held, POOLS_MOST, PoolHeld, Told, cut_name};
use super::division::Division;
use super::settings::{Limits, devices_set, limits_on, name};
use super::system_limit::system_limit;
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
    let held = devices.into_iter().filter_map(|device| held_of(device, before)).take(DEVICES_MOST).collect();
    Told { process: std::process::id(), name: name(), held }
}

/// Returns what this process holds of a device; none if the driver does not tell which that is.
pub(super) fn held_of(device: Device, before: u64) -> Option<Held> {
    let Limits { guarantee, most, priority } = limits_on(device);
    let division = Division::of(device);
    let Division { reserved, live, cached, asleep, free, discardable, offered, .. } = division;
    let held = Held {
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
    };
    Some(held.limited())
}

/// Returns what the pools of this process hold of a device, as it is told.
pub(super) fn pools_of(device: Device) -> Vec<PoolHeld> {
    let pools = DeviceCaches::known(device).map_or_else(Vec::new, |caches| summarize(caches).1);
    let told = |PoolSummary { id, name, stats, .. }: PoolSummary| PoolHeld {
        id: (id.0, id.1),
        name: name.map(|name| cut_name(&name).to_owned()).filter(|name| !name.is_empty()),
        bytes: [stats.reserved_bytes, stats.live_bytes, stats.cached_bytes, stats.asleep_bytes],
    };
    largest(pools.into_iter().map(told).collect())
}

/// Returns as many of the pools as are told, the largest first.
fn largest(mut pools: Vec<PoolHeld>) -> Vec<PoolHeld> {
    // What sleeps will be reserved again.
    let size = |PoolHeld { bytes: [reserved, _, _, asleep], .. }: &PoolHeld| reserved.saturating_add(*asleep);
    pools.sort_by_key(|pool| (Reverse(size(pool)), pool.id));
    pools.truncate(POOLS_MOST);
    pools
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_pools_the_largest_are_told() {
        let pool = |number| PoolHeld { id: (0, number), name: None, bytes: [number, 2, 3, 4] };
        let asleep = PoolHeld { bytes: [0, 2, 3, 1 << 20], ..pool(0) };
        let told = largest((1..2 * POOLS_MOST as u64).map(pool).chain([asleep.clone()]).collect());
        assert_eq!((told.len(), told[0].id, told[1].id), (POOLS_MOST, asleep.id, (0, 127)));
        assert!(told[1..].is_sorted_by_key(|pool| Reverse(pool.bytes[0])));
    }
}

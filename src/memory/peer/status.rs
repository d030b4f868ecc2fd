//! What this process holds of a device: how it divides into what others could have and what they could not, and what
//! neighbours are told of it.

use std::cmp::Reverse;

use super::claims::{claimed_on, devices_claimed, is_claim_held, next};
use super::codec::{BYTES_MOST, DEVICES_MOST, Held, POOLS_MOST, PoolHeld, Told, cut_name};
use super::settings::{Limits, devices_set, limits_on, name};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::limits::devices_in_use;
use crate::memory::pool::Pool;
use crate::memory::report::{PoolStats, PoolSummary, summarize};
use crate::memory::serve::{held_by_others, holders};
use crate::memory::system_limit::system_limit;
use crate::runtime::{DeviceUuid, KnownUuids};

/// What a process has of a device, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Division {
    pub(super) reserved: u64,
    pub(super) live: u64,
    pub(super) cached: u64,
    pub(super) asleep: u64,
    /// What of that sleeps for others, which this process may wake at any time.
    pub(super) asleep_for_others: u64,
    /// Free memory that others could have.
    pub(super) free: u64,
    /// Free memory that they could not.
    own_free: u64,
    /// Pages of ranges that may be taken.
    pub(super) discardable: u64,
    /// Pools that may be put to sleep for others, but for what they have free.
    pub(super) offered: u64,
    /// The number of the first claim that was made after this was seen.
    pub(super) next_claim: u64,
}

impl Division {
    pub(super) fn of(device: Device) -> Self {
        let next_claim = next();
        let Some(caches) = DeviceCaches::known(device) else { return Self { next_claim, ..Self::default() } };
        let (stats, summaries, _) = summarize(caches);
        let PoolStats { live_bytes, cached_bytes, asleep_bytes, .. } = stats.total;
        let stats_of = |pool: &Pool| {
            let summary = summaries.iter().find(|summary| summary.id == pool.id);
            summary.map(|summary| summary.stats).unwrap_or_default()
        };
        let mut division = Self {
            reserved: caches.memory.budget.reserved(),
            live: live_bytes,
            cached: cached_bytes,
            asleep: asleep_bytes,
            discardable: caches.discardable.bytes(),
            next_claim,
            ..Self::default()
        };
        for pool in &caches.pools.all() {
            let stats = stats_of(pool);
            let (free, own_free) =
                if gives_free_memory(pool) { (stats.cached_bytes, 0) } else { (0, stats.cached_bytes) };
            division.free += free;
            division.own_free += own_free;
            if is_on_offer(pool) {
                division.offered += pool.budget().reserved().saturating_sub(free);
            }
            if pool.sleep.offer.is_taken() {
                division.asleep_for_others += stats.asleep_bytes;
            }
        }
        if is_claim_held(device) {
            division.offered = 0;
        }
        division
    }

    /// Returns what others could not have of it by asking for free memory. What sleeps for them is this process's, and what
    /// is on its way to the driver is not.
    pub(super) const fn kept(&self) -> u64 {
        let asleep_for_itself = self.asleep.saturating_sub(self.asleep_for_others);
        self.live.saturating_sub(asleep_for_itself).saturating_add(self.own_free)
    }

    /// Returns what no block uses, wherever it is.
    pub(super) fn unused(&self) -> u64 {
        self.reserved.saturating_add(self.asleep).saturating_sub(self.live).max(self.cached)
    }
}

/// Returns whether what a pool has free may go to another process: as to another pool, but for memory that an allocator of
/// the program's own would have to free, since the thread that serves neighbours calls no code of the program's.
pub(super) fn gives_free_memory(pool: &Pool) -> bool {
    (pool.gives_way() || pool.sleep.offer.is_made) && !pool.has_fixed_segments() && !pool.sleep.is_asleep()
}

/// Returns whether a pool was offered, and may be taken now.
pub(super) fn is_on_offer(pool: &Pool) -> bool {
    pool.sleep.offer.is_made && !pool.sleep.offer.is_in_use() && pool.is_in_service()
}

/// Returns what this process tells of every device that it uses or has said something about, or of one with its pools there; of
/// its claims those made before a time.
pub(super) fn tell(before: u64, with_pools: Option<DeviceUuid>) -> Told {
    let with_pools = with_pools.map(|uuid| KnownUuids::Memory.device_with(&uuid).ok().flatten());
    let mut devices = match with_pools {
        Some(device) => Vec::from_iter(device),
        None => devices_in_use().into_iter().flatten().chain(devices_set()).chain(devices_claimed()).collect(),
    };
    devices.sort_unstable();
    devices.dedup();
    let held = devices.into_iter().filter_map(|device| held_of(device, before)).map(Held::limited);
    let pools = with_pools.flatten().into_iter().flat_map(pools_of).map(PoolHeld::limited).collect();
    let others = with_pools.flatten().map_or_else(Vec::new, others_of);
    Told { process: std::process::id(), name: name(), held: held.take(DEVICES_MOST).collect(), pools, others }
}

/// Returns the names of other libraries of this process, and the bytes that each holds of a device: as many as are told, the
/// largest first.
pub(super) fn others_of(device: Device) -> Vec<(String, u64)> {
    let found = holders(device.into()).into_iter().filter(|holder| holder.bytes > 0).take(POOLS_MOST);
    found.map(|holder| (cut_name(&holder.name).to_owned(), holder.bytes.min(BYTES_MOST))).collect()
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
        of_others: held_by_others(device),
    })
}

/// Returns what the pools of this process hold of a device, as many as are told.
pub(super) fn pools_of(device: Device) -> Vec<PoolHeld> {
    let pools = DeviceCaches::known(device).map_or_else(Vec::new, |caches| summarize(caches).1);
    let told = |PoolSummary { id, name, stats, .. }: PoolSummary| PoolHeld {
        id: (id.0, id.1),
        name: name.map(|name| name.to_string()).filter(|name| !name.is_empty()),
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

//! What this process holds, as its neighbours are told.

use super::claims::{claimed_on, devices_claimed, reserved_on};
use super::identity::uuid_of;
use super::settings::{Limits, devices_set, limits_on, name};
use super::system_limit::system_limit;
use super::wire::{Held, Told};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::limits::devices_in_use;
use crate::memory::pool::Pool;
use crate::memory::report::{PoolStats, summarize};

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
    let uuid = uuid_of(device).ok()?;
    let (claimed, system_limit) = (claimed_on(device, before), system_limit(device));
    let none = Held { device: uuid, guarantee, most, priority, claimed, system_limit, ..Held::default() };
    let Some(caches) = DeviceCaches::known(device) else { return Some(none) };
    let (stats, summaries, _) = summarize(caches);
    let PoolStats { live_bytes, cached_bytes, asleep_bytes, .. } = stats.total;
    let pools = caches.pools.all();
    let cached = |pool: &Pool| {
        let summary = summaries.iter().find(|summary| summary.id == pool.id);
        summary.map_or(0, |summary| summary.stats.cached_bytes)
    };
    let free = pools.iter().filter(|pool| gives_free_memory(pool)).map(|pool| cached(pool)).sum();
    // Free memory of these counts as such.
    let beside = |pool: &Pool| if gives_free_memory(pool) { cached(pool) } else { 0 };
    let offered = pools.iter().filter(|pool| is_on_offer(pool));
    let offered = offered.map(|pool| pool.budget().reserved().saturating_sub(beside(pool))).sum();
    Some(Held {
        reserved: reserved_on(device),
        live: live_bytes,
        free: cached_bytes,
        asleep: asleep_bytes,
        spare: [free, caches.discardable.bytes(), offered],
        ..none
    })
}

/// Returns whether what a pool has free may go to another process: as to another pool, but for memory that an allocator of
/// the program's own would have to free, since the thread that serves neighbours calls no code of the program's.
pub(super) fn gives_free_memory(pool: &Pool) -> bool {
    (pool.gives_way() || pool.offer.is_made) && !pool.has_fixed_segments() && !pool.sleep.is_asleep()
}

/// Returns whether a pool was offered, and may be taken now.
pub(super) fn is_on_offer(pool: &Pool) -> bool {
    pool.offer.is_made && !pool.offer.is_in_use() && !pool.sleep.is_asleep() && !pool.is_closed()
}

//! How this process's memory of a device divides into what others could have of it, and what they could not.

use super::claims::{is_claim_held, next};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::pool::Pool;
use crate::memory::report::{PoolStats, summarize};

/// Returns what this process has reserved of a device.
pub(super) fn reserved_on(device: Device) -> u64 {
    DeviceCaches::known(device).map_or(0, |caches| caches.memory.budget.reserved())
}

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

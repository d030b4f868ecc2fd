//! Summaries: the memory of each pool of a device, by stream.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::stats::{MemoryStats, PoolStats};
use crate::counters::Sum;
use crate::ids::Device;
use crate::memory::cache::{ALL, Counts, DeviceCaches, Role};
use crate::memory::pool::{Pool, PoolId};
use crate::sync::{ThisThread, lock};

/// The memory of a pool that serves the requests of one stream, whichever threads they come from.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StreamStats {
    /// The stream's address: 0 for the legacy default stream, and for free memory in pages that streams share; 2 for
    /// all per-thread default streams together.
    pub stream: usize,
    /// Whether this is the stream of [`feed`](crate::memory::feed): its live memory is another allocator's.
    pub is_feed: bool,
    /// Whether these are the pages of memory ranges, which many streams may use.
    pub is_ranges: bool,
    /// Bytes of live blocks, with rounding.
    pub live_bytes: u64,
    /// The requested bytes of the same blocks.
    pub requested_bytes: u64,
    /// Free bytes, cached for the stream's next requests.
    pub cached_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
}

/// A pool, its statistics, and its memory by stream.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolSummary {
    /// The pool's id; [`PoolId::NONE`] for the device's default pool.
    pub id: PoolId,
    /// The name that it was given, if any.
    pub name: Option<String>,
    /// Whether the pool was closed or has no users any more, so that it only waits for its live blocks to be freed.
    pub is_closed: bool,
    /// Whether it is asleep, falling asleep or waking.
    pub is_asleep: bool,
    /// How many times it was put to sleep.
    pub sleeps: u64,
    /// How long falling asleep took the last time.
    pub sleep_took: Duration,
    /// How long waking took the last time.
    pub wake_took: Duration,
    /// The maximum number of bytes that it may reserve, if there is a limit.
    pub limit: Option<u64>,
    /// Its statistics.
    pub stats: PoolStats,
    /// Live and cached bytes of each stream, the largest first; together with the free memory of a reserve they add up
    /// to the pool's.
    pub streams: Vec<StreamStats>,
}

impl PoolSummary {
    /// Sums up a pool, with all its caches' counts. Locks one cache at a time, each for a few additions.
    pub(super) fn with_counts(pool: &Pool) -> (Self, Counts) {
        let thread = ThisThread::get();
        let (caches, mut total) = DeviceCaches::caches_and_past_of(pool);
        let mut stats = PoolStats::default();
        let mut streams = HashMap::new();
        for cache in caches {
            let (counts, cached, asleep) = {
                let heap = cache.lock(thread);
                let asleep = if heap.is_asleep() { heap.live() } else { 0 };
                (heap.counts(), if heap.is_asleep() { 0 } else { heap.unused() }, asleep)
            };
            total.add(counts);
            stats.cached_bytes += cached;
            stats.asleep_bytes += asleep;

            let address = cache.stream_address();
            let role = cache.service.role;
            let (is_feed, is_ranges) = (role.is_feed(), role == Role::Ranges);
            let of_none = StreamStats { stream: address, is_feed, is_ranges, ..Default::default() };
            let stream = streams.entry((address, is_ranges)).or_insert(of_none);
            let live = counts.now[ALL];
            stream.live_bytes += live.bytes;
            stream.requested_bytes += live.requested;
            stream.cached_bytes += cached;
            stream.live_blocks += live.blocks;
        }
        total.bound_peaks(pool.ledger.live.peak());
        stats.set_counts(&total);
        // Capped by what is reserved, as pages may have moved to a cache meanwhile.
        let free_in_reserve =
            pool.supply.reserve().map_or(0, |reserve| reserve.free().iter().map(|run| run.bytes()).sum());
        stats.cached_bytes += free_in_reserve.min(pool.budget().reserved().saturating_sub(stats.in_use()));
        stats.cached_bytes += pool.supply.ready.bytes();
        stats.backup_bytes = pool.sleep.backup_bytes();
        stats.set_reserved(pool.budget());
        let bytes = |stream: &StreamStats| stream.live_bytes + stream.cached_bytes;
        let mut streams: Vec<_> = streams.into_values().filter(|stream| bytes(stream) > 0).collect();
        streams.sort_unstable_by_key(|stream| (Reverse(bytes(stream)), stream.stream));
        let times = *lock(&pool.sleep.times);
        let summary = Self {
            id: pool.id,
            name: pool.name.clone(),
            is_closed: pool.is_closed(),
            is_asleep: pool.sleep.is_asleep(),
            sleeps: times.count,
            sleep_took: times.asleep_in,
            wake_took: times.awake_in,
            limit: pool.budget().limit(),
            stats,
            streams,
        };
        (summary, total)
    }
}

/// Returns the statistics of a used device's memory and of its pools, the default one first.
pub(crate) fn pool_summaries(device: Device) -> Option<(MemoryStats, Vec<PoolSummary>)> {
    DeviceCaches::known(device).map(summarize).map(|(stats, pools, _)| (stats, pools))
}

/// Returns the statistics of a device's memory and of its pools, the default one first, with their caches' counts.
pub(in crate::memory) fn summarize(caches: &DeviceCaches) -> (MemoryStats, Vec<PoolSummary>, Counts) {
    let (pools, mut counts) = caches.pools.all_and_past();
    let mut total = PoolStats::default();
    let sum_up = |pool: &Arc<Pool>| {
        let (summary, of_pool) = PoolSummary::with_counts(pool);
        // Counts of the whole device are set below.
        total.add(&summary.stats);
        counts.add(of_pool);
        summary
    };
    let pools: Vec<_> = pools.iter().map(sum_up).collect();
    counts.bound_peaks(caches.memory.live.peak());
    total.set_counts(&counts);
    total.set_reserved(&caches.memory.budget);
    let (out, back) = caches.reports.grow(counts.ever, counts.back());
    (total.allocations, total.frees) = (out[ALL].blocks, back[ALL].blocks);
    let (asked_neighbours, received_bytes, asking_time) = caches.neighbours.of_asking();
    let (asked_by_neighbours, given_bytes) = caches.neighbours.of_giving();
    let stats = MemoryStats {
        total,
        driver_calls: caches.memory.range.driver_calls.load(Ordering::Relaxed),
        moved_pages: caches.memory.moved_pages.load(Ordering::Relaxed),
        retries: caches.memory.retries.load(Ordering::Relaxed),
        failures: caches.memory.failures.load(Ordering::Relaxed),
        pools: pools.len() as u64,
        attached_bytes: caches.memory.attached.load(Ordering::Relaxed),
        sent_bytes: caches.memory.sent.load(Ordering::Relaxed),
        asked_neighbours,
        received_bytes,
        asking_time,
        asked_by_neighbours,
        given_bytes,
    };
    (stats, pools, counts)
}

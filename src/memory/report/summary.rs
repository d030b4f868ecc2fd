//! Summaries: what each pool of a device holds, and for which streams.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::stats::{MemoryStats, PoolStats};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::pool::{Pool, PoolId};
use crate::sync::ThisThread;

/// What a pool holds for the requests of one stream, whichever threads they come from.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StreamStats {
    /// The stream's address: 0 for the legacy default stream, and for what is free in pages that streams share; 2 for the
    /// per-thread ones together.
    pub stream: usize,
    /// Whether this is the stream of [`feed`](crate::memory::feed): what is live here is another allocator's.
    pub is_feed: bool,
    /// Bytes of blocks that callers hold, as cut.
    pub live_bytes: u64,
    /// The bytes that callers asked for, of the same blocks.
    pub requested_bytes: u64,
    /// Bytes that are free for the stream's next requests.
    pub cached_bytes: u64,
    /// Blocks that callers hold.
    pub live_blocks: u64,
}

/// A pool, what it holds, and for which streams.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolSummary {
    /// The pool's id; [`PoolId::NONE`] for the device's default pool.
    pub id: PoolId,
    /// What its maker calls it, if anything.
    pub name: Option<String>,
    /// Whether the pool was closed or has no use any more, so that it only waits for its live blocks to be freed.
    pub is_closed: bool,
    /// The most bytes that it may reserve, if there is a limit.
    pub limit: Option<u64>,
    /// What it holds and has done.
    pub stats: PoolStats,
    /// Live and cached bytes for each stream, the largest first; with what is free of a reserve their sums are the
    /// pool's.
    pub streams: Vec<StreamStats>,
}

impl PoolSummary {
    /// Sums up a pool. Locks one cache at a time, each for a few additions.
    pub(in crate::memory) fn of(pool: &Pool) -> Self {
        let thread = ThisThread::get();
        let (caches, past) = DeviceCaches::caches_and_past_of(pool);
        let mut stats = PoolStats {
            allocations: past.allocations,
            frees: past.frees,
            // If each cache was at its peak at the same time.
            peak_live_bytes: past.peak,
            ..PoolStats::default()
        };
        let mut streams = HashMap::new();
        for cache in caches {
            let (counts, cached) = {
                let heap = cache.lock(thread);
                (heap.counts(), heap.unused())
            };
            let blocks = counts.allocations - counts.frees;
            stats.live_bytes += counts.live;
            stats.requested_bytes += counts.requested;
            stats.cached_bytes += cached;
            stats.live_blocks += blocks;
            stats.allocations += counts.allocations;
            stats.frees += counts.frees;
            stats.peak_live_bytes = stats.peak_live_bytes.saturating_add(counts.peak);
            if !cache.is_lender() {
                stats.waiting_blocks += cache.waiting.change(|waiting| (waiting.len(), waiting.len())) as u64;
            }

            let address = cache.stream_address();
            let is_feed = cache.service().is_some_and(|service| service.is_feed);
            let new = StreamStats { stream: address, is_feed, ..StreamStats::default() };
            let stream = streams.entry(address).or_insert(new);
            stream.live_bytes += counts.live;
            stream.requested_bytes += counts.requested;
            stream.cached_bytes += cached;
            stream.live_blocks += blocks;
        }
        stats.peak_live_bytes = stats.peak_live_bytes.min(pool.ledger.live().peak());
        // Within what is reserved also where pages came from there to a cache meanwhile.
        let free_in_reserve =
            pool.supply.reserve().map_or(0, |reserve| reserve.free().iter().map(|(_, bytes)| bytes).sum());
        stats.cached_bytes +=
            free_in_reserve.min(pool.budget().reserved().saturating_sub(stats.live_bytes + stats.cached_bytes));
        stats.set_reserved(pool.budget());
        let bytes = |stream: &StreamStats| stream.live_bytes + stream.cached_bytes;
        let mut streams: Vec<_> = streams.into_values().filter(|stream| bytes(stream) > 0).collect();
        streams.sort_unstable_by_key(|stream| (Reverse(bytes(stream)), stream.stream));
        Self {
            id: pool.id,
            name: pool.name.clone(),
            is_closed: pool.is_closed(),
            limit: pool.budget().limit(),
            stats,
            streams,
        }
    }
}

/// Returns the statistics of a device's memory and of each of its pools, the default one first; none where no memory
/// was used.
pub(crate) fn pool_summaries(device: Device) -> Option<(MemoryStats, Vec<PoolSummary>)> {
    DeviceCaches::known(device).map(summarize)
}

/// Returns the statistics of a device's memory and of each of its pools, the default one first.
pub(in crate::memory) fn summarize(caches: &DeviceCaches) -> (MemoryStats, Vec<PoolSummary>) {
    let (pools, past) = caches.pools_and_past();
    let pools: Vec<_> = pools.iter().map(|pool| PoolSummary::of(pool)).collect();
    let mut total = PoolStats {
        allocations: past.allocations,
        frees: past.frees,
        // If each pool was at its peak at the same time.
        peak_live_bytes: past.peak,
        ..PoolStats::default()
    };
    for PoolSummary { stats, .. } in &pools {
        total.live_bytes += stats.live_bytes;
        total.peak_live_bytes = total.peak_live_bytes.saturating_add(stats.peak_live_bytes);
        total.requested_bytes += stats.requested_bytes;
        total.cached_bytes += stats.cached_bytes;
        total.live_blocks += stats.live_blocks;
        total.waiting_blocks += stats.waiting_blocks;
        total.allocations += stats.allocations;
        total.frees += stats.frees;
    }
    total.peak_live_bytes = total.peak_live_bytes.min(caches.memory.live.peak());
    total.set_reserved(&caches.memory.budget);
    // A cache that began to serve another stream between two looks was counted nowhere, and no counter goes back.
    let never_less = |reported: &AtomicU64, now: u64| reported.fetch_max(now, Ordering::Relaxed).max(now);
    total.allocations = never_less(&caches.reported_allocations, total.allocations);
    total.frees = never_less(&caches.reported_frees, total.frees);
    let stats = MemoryStats {
        total,
        driver_calls: caches.memory.range.driver_calls(),
        moved_pages: caches.memory.moved_pages.load(Ordering::Relaxed),
        pools: pools.len() as u64,
    };
    (stats, pools)
}

//! Statistics of a device as PyTorch has them: of all blocks, and of small and large ones apart, with peaks and sums.
//!
//! PyTorch's notion of a small segment is that of a piece of one page here, which says nothing of what stands in it. Free
//! blocks beside ones that are held are counted when they are asked about, and their peaks and sums are those of what was
//! found then.

use std::sync::atomic::Ordering;

use super::summary::summarize;
use crate::error::Result;
use crate::ids::Device;
use crate::memory::cache::{Amount, Amounts};
use crate::memory::device::Flow;
use crate::memory::serve::device_caches;
use crate::sync::ThisThread;

/// A number that rises and falls.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::memory) struct Stat {
    pub(in crate::memory) current: u64,
    pub(in crate::memory) peak: u64,
    /// By how much it rose since the process began.
    pub(in crate::memory) allocated: u64,
    /// By how much it fell.
    pub(in crate::memory) freed: u64,
}

impl From<Flow> for Stat {
    fn from(flow: Flow) -> Self {
        Self { current: flow.now(), peak: flow.peak, allocated: flow.came, freed: flow.went }
    }
}

/// Of all; of small ones; of large ones.
pub(in crate::memory) type Stats = [Stat; 3];

/// What a device's memory holds and has done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::memory) struct DeviceStats {
    /// Blocks that callers hold.
    pub(in crate::memory) held: Stats,
    pub(in crate::memory) held_bytes: Stats,
    /// Blocks that callers hold, or that wait for streams.
    pub(in crate::memory) active: Stats,
    pub(in crate::memory) active_bytes: Stats,
    /// The bytes that callers asked for, of the same blocks.
    pub(in crate::memory) requested_bytes: Stats,
    /// Free blocks beside ones that are held.
    pub(in crate::memory) free_beside_held: Stats,
    pub(in crate::memory) free_beside_held_bytes: Stats,
    /// Pieces of physical memory.
    pub(in crate::memory) pieces: Stats,
    pub(in crate::memory) reserved_bytes: Stats,
    /// Requests for which memory was given back, and that were tried again.
    pub(in crate::memory) retries: u64,
    /// Requests that failed for want of memory.
    pub(in crate::memory) failures: u64,
}

impl DeviceStats {
    /// Adds what another place has. Of the peaks too, so that they are bounds of what was at once.
    pub(in crate::memory) fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.held, &other.held),
            (&mut self.held_bytes, &other.held_bytes),
            (&mut self.active, &other.active),
            (&mut self.active_bytes, &other.active_bytes),
            (&mut self.requested_bytes, &other.requested_bytes),
            (&mut self.free_beside_held, &other.free_beside_held),
            (&mut self.free_beside_held_bytes, &other.free_beside_held_bytes),
            (&mut self.pieces, &other.pieces),
            (&mut self.reserved_bytes, &other.reserved_bytes),
        ] {
            for (sum, more) in sum.iter_mut().zip(more) {
                sum.current += more.current;
                sum.peak += more.peak;
                sum.allocated += more.allocated;
                sum.freed += more.freed;
            }
        }
        self.retries += other.retries;
        self.failures += other.failures;
    }
}

const fn blocks_of(amount: Amount) -> u64 {
    amount.blocks
}

const fn bytes_of(amount: Amount) -> u64 {
    amount.bytes
}

const fn requested_of(amount: Amount) -> u64 {
    amount.requested
}

/// Returns the statistics of a device's memory, as PyTorch has them.
///
/// # Errors
/// As [`device`](crate::device).
pub(in crate::memory) fn device_stats(device: Device) -> Result<DeviceStats> {
    let caches = device_caches(device)?;
    let (_, _, counts) = summarize(caches);
    let (out, back) = caches.reports.grow(counts.ever, counts.back());
    let held = counts.held();
    let stats = |of: fn(Amount) -> u64, now: Amounts, peak: Amounts, came: Amounts, went: Amounts| {
        std::array::from_fn(|kind| Stat {
            current: of(now[kind]),
            peak: of(peak[kind]).max(of(now[kind])),
            allocated: of(came[kind]),
            freed: of(went[kind]),
        })
    };
    // What waits has been freed.
    let freed = std::array::from_fn(|kind| back[kind].plus(counts.waiting[kind]));
    let active = |of| stats(of, counts.now, counts.peak, out, back);
    let held = |of| stats(of, held, counts.held_peak, out, freed);
    let pieces = caches.memory.pieces.get();
    let beside = caches.reports.find_free_beside_held(caches.pools.serving(), ThisThread::get());
    Ok(DeviceStats {
        held: held(blocks_of),
        held_bytes: held(bytes_of),
        active: active(blocks_of),
        active_bytes: active(bytes_of),
        requested_bytes: active(requested_of),
        free_beside_held: beside.map(|(blocks, _)| blocks.into()),
        free_beside_held_bytes: beside.map(|(_, bytes)| bytes.into()),
        pieces: pieces.map(|(pieces, _)| pieces.into()),
        reserved_bytes: pieces.map(|(_, bytes)| bytes.into()),
        retries: caches.memory.retries.load(Ordering::Relaxed),
        failures: caches.memory.failures.load(Ordering::Relaxed),
    })
}

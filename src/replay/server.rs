//! What serves a replay's requests: gpupool's allocator or one of the driver's; and a GPU that lags behind: each event of a
//! log is a piece of work on its stream, which is done a while later.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{ReplayAllocator, Slots};
use crate::error::Result;
use crate::ids::Device;
use crate::memory::{self, Allocation, empty_cache, reset_peak_memory_stats};
use crate::runtime::host::{complete, submit};
use crate::runtime::{self, Stream};
use crate::sync::{Mutex, lock};

/// A block of whichever allocator.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplayedBlock {
    Ours(Allocation),
    Driver(u64),
}

/// Serves a log's requests on a device.
pub(super) struct Server {
    pub(super) device: Device,
    pub(super) allocator: ReplayAllocator,
    /// Live bytes of the driver's allocations, the most of them, and calls, which the driver does not count.
    live: AtomicU64,
    peak: AtomicU64,
    calls: AtomicU64,
}

impl Server {
    pub(super) fn new(device: Device, allocator: ReplayAllocator) -> Self {
        let zero = || AtomicU64::new(0);
        Self { device, allocator, live: zero(), peak: zero(), calls: zero() }
    }

    pub(super) fn allocate(&self, bytes: u64, stream: &Stream) -> Result<ReplayedBlock> {
        let runtime = runtime::get()?;
        let address = match self.allocator {
            ReplayAllocator::Gpupool => return memory::allocate_block(bytes, stream).map(ReplayedBlock::Ours),
            ReplayAllocator::Driver => runtime.memory_allocate(bytes)?,
            // SAFETY: the stream is the replay's own.
            ReplayAllocator::Async => unsafe { runtime.allocate_async(bytes, stream.raw()) }?,
        };
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(ReplayedBlock::Driver(address))
    }

    pub(super) fn free(&self, block: ReplayedBlock, bytes: u64, stream: &Stream) -> Result<()> {
        let address = match block {
            ReplayedBlock::Ours(block) => return memory::free_block(block, None),
            ReplayedBlock::Driver(address) => address,
        };
        self.live.fetch_sub(bytes, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        let runtime = runtime::get()?;
        match self.allocator {
            // SAFETY: the address came from `allocate`, and the stream is the replay's own.
            ReplayAllocator::Async => unsafe { runtime.free_async(address, stream.raw()) },
            // SAFETY: the address came from `allocate`.
            _ => unsafe { runtime.memory_free(address) },
        }
    }

    /// Frees what is left in the slots. The driver's pool gives memory back only once the streams have passed.
    pub(super) fn free_all(&self, blocks: &mut Slots, streams: &[Stream]) -> Result<()> {
        let mut outcome = Ok(());
        for (block, bytes, stream) in blocks.iter_mut().filter_map(Option::take) {
            outcome = outcome.and(self.free(block, bytes, &streams[stream as usize]));
        }
        if self.allocator == ReplayAllocator::Async {
            let runtime = runtime::get()?;
            for stream in streams {
                // SAFETY: the stream is the replay's own.
                outcome = outcome.and(unsafe { runtime.stream_synchronize(stream.raw()) });
            }
        }
        outcome
    }

    /// Calls of the driver so far; gpupool counts its own.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the device that the allocator has. The current device is the replay's.
    pub(super) fn reserved(&self) -> Result<u64> {
        match self.allocator {
            ReplayAllocator::Gpupool => memory::reserved_bytes(self.device),
            ReplayAllocator::Driver => Ok(self.live.load(Ordering::Relaxed)),
            ReplayAllocator::Async => match runtime::get()?.pool_reserved()? {
                Some(pool) => Ok(pool.now),
                None => Ok(self.live.load(Ordering::Relaxed)),
            },
        }
    }

    /// Gives what was cached before back, and starts the peaks anew.
    pub(super) fn clear(&self) -> Result<()> {
        empty_cache()?;
        reset_peak_memory_stats(self.device)?;
        match self.allocator {
            ReplayAllocator::Async => runtime::get()?.trim_pool(),
            _ => Ok(()),
        }
    }

    /// Returns the most that was reserved, by the driver's allocators; gpupool counts its own.
    pub(super) fn peak_reserved(&self) -> Result<u64> {
        let peak = self.peak.load(Ordering::Relaxed);
        match self.allocator {
            ReplayAllocator::Async => Ok(runtime::get()?.pool_reserved()?.map_or(peak, |pool| pool.peak)),
            _ => Ok(peak),
        }
    }
}

/// The work of a replay on a simulated device.
pub(super) struct Lag {
    /// The most pieces that are under way.
    most: usize,
    /// The stream of each piece and its number there, in the order in which they were submitted, and end.
    under_way: Mutex<VecDeque<(u32, u64)>>,
}

impl Lag {
    pub(super) fn new(most: usize) -> Self {
        Self { most, under_way: Mutex::default() }
    }

    /// Submits a piece of work to one of the streams, and completes what is not to be under way any more.
    pub(super) fn submit(&self, stream: u32, streams: &[Stream]) -> Result<()> {
        if self.most == 0 {
            return Ok(());
        }
        let mut under_way = lock(&self.under_way);
        let number = submit(&streams[stream as usize])?;
        under_way.push_back((stream, number));
        let done = under_way.len().saturating_sub(self.most);
        under_way.drain(..done).try_for_each(|(stream, number)| complete(&streams[stream as usize], number))
    }

    /// Completes all work.
    pub(super) fn end(&self, streams: &[Stream]) -> Result<()> {
        let mut under_way = lock(&self.under_way);
        under_way.drain(..).try_for_each(|(stream, number)| complete(&streams[stream as usize], number))
    }
}

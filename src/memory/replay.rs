//! Replaying a log of allocations: the same requests, in the same order, on this machine.
//!
//! Peak and driver calls are those of the first pass over the log, times those of the first pass and the median of three
//! more, as PyTorch's allocator is measured.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use super::allocator::{self, Allocation};
use super::stats::{empty_cache, memory_stats, reset_peak_memory_stats};
use crate::error::{Error, Result};
use crate::runtime::{self, BoundDevice, Stream};
use crate::stream::Device;

/// One line of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayEvent {
    /// Which allocation, from 0 on.
    pub slot: u32,
    /// Its bytes, or none where it is freed.
    pub allocate: Option<u64>,
    /// Which of the log's streams, from 0 on.
    pub stream: u32,
}

/// What serves the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayAllocator {
    /// gpupool's default pool.
    Gpupool,
    /// The driver's plain allocations (`cuMemAlloc`).
    Driver,
    /// The driver's stream-ordered ones (`cuMemAllocAsync`).
    Async,
}

/// What a replay took.
#[derive(Clone, Copy, Debug)]
pub struct ReplayResult {
    /// The most physical bytes.
    pub peak_reserved: u64,
    /// Calls of the driver's memory functions in the first pass.
    pub driver_calls: u64,
    /// Pages of 2 MiB moved in the first pass.
    pub moved_pages: u64,
    /// Nanoseconds an event in the first pass.
    pub cold_ns: f64,
    /// Nanoseconds an event, median of three more passes.
    pub warm_ns: f64,
}

const PASSES: usize = 4;

/// A block of whichever allocator.
#[derive(Clone, Copy, Debug)]
enum Block {
    Ours(Allocation),
    Driver(u64),
}

/// Serves a log's requests on a device.
struct Server {
    device: Device,
    allocator: ReplayAllocator,
    /// Live bytes of the driver's allocations, the most of them, and calls, which the driver does not tell.
    live: AtomicU64,
    peak: AtomicU64,
    calls: AtomicU64,
}

impl Server {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<Block> {
        let runtime = runtime::get()?;
        let address = match self.allocator {
            ReplayAllocator::Gpupool => return allocator::allocate(bytes, stream).map(Block::Ours),
            ReplayAllocator::Driver => runtime.memory_allocate(bytes)?,
            // SAFETY: the stream is the replay's own.
            ReplayAllocator::Async => unsafe { runtime.memory_allocate_async(bytes, stream.raw()) }?,
        };
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(Block::Driver(address))
    }

    fn free(&self, block: Block, bytes: u64, stream: &Stream) -> Result<()> {
        let address = match block {
            Block::Ours(block) => return allocator::free(block.cache, block.offset, None),
            Block::Driver(address) => address,
        };
        self.live.fetch_sub(bytes, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        let runtime = runtime::get()?;
        match self.allocator {
            // SAFETY: the address came from `allocate`, and the stream is the replay's own.
            ReplayAllocator::Async => unsafe { runtime.memory_free_async(address, stream.raw()) },
            // SAFETY: the address came from `allocate`.
            _ => unsafe { runtime.memory_free(address) },
        }
    }
}

/// One thread's passes over the log; the barrier keeps the passes of all threads together.
fn run(
    server: &Server,
    events: &[ReplayEvent],
    streams: &[Stream],
    slots: usize,
    barrier: &Barrier,
) -> Result<Vec<f64>> {
    let runtime = runtime::get()?;
    let _bound = BoundDevice::new(runtime, server.device)?;
    let mut blocks: Vec<Option<(Block, u64, u32)>> = vec![None; slots];
    let mut times = Vec::new();
    let mut outcome = Ok(());
    for _ in 0..PASSES {
        barrier.wait();
        let start = Instant::now();
        if outcome.is_ok() {
            outcome = pass(server, events, streams, &mut blocks);
        }
        times.push(start.elapsed().as_nanos() as f64 / events.len().max(1) as f64);
        barrier.wait();
        for (block, bytes, stream) in blocks.iter_mut().filter_map(Option::take) {
            outcome = outcome.and(server.free(block, bytes, &streams[stream as usize]));
        }
        barrier.wait();
    }
    outcome.map(|()| times)
}

fn pass(
    server: &Server,
    events: &[ReplayEvent],
    streams: &[Stream],
    blocks: &mut [Option<(Block, u64, u32)>],
) -> Result<()> {
    for event in events {
        let stream = &streams[event.stream as usize];
        let slot = &mut blocks[event.slot as usize];
        match event.allocate {
            Some(bytes) => *slot = Some((server.allocate(bytes, stream)?, bytes, event.stream)),
            None => {
                if let Some((block, bytes, _)) = slot.take() {
                    server.free(block, bytes, stream)?;
                }
            }
        }
    }
    Ok(())
}

/// Replays a log in as many threads at once, on the calling thread's current device. Memory cached before is given back.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if the log does not fit; `ErrorKind::InvalidValue` for a log that allocates 0 bytes.
pub fn replay(events: &[ReplayEvent], threads: usize, allocator: ReplayAllocator) -> Result<ReplayResult> {
    if threads == 0 {
        return Err(Error::invalid_value("0 threads replay nothing"));
    }
    let device = runtime::get()?.current_device()?;
    let slots = events.iter().map(|event| event.slot as usize + 1).max().unwrap_or(0);
    let count = events.iter().map(|event| event.stream as usize + 1).max().unwrap_or(0);
    let mut streams = vec![Stream::legacy(device)];
    while streams.len() < count {
        streams.push(Stream::new(device)?);
    }
    let zero = || AtomicU64::new(0);
    let server = Server { device, allocator, live: zero(), peak: zero(), calls: zero() };
    empty_cache()?;
    reset_peak_memory_stats(device)?;
    let before = memory_stats(device)?;
    // This thread is one more at the barrier, to read the figures between the passes.
    let barrier = Barrier::new(threads + 1);
    let (outcomes, first) = thread::scope(|scope| {
        let (server, streams, barrier) = (&server, &streams, &barrier);
        let spawn = |_| scope.spawn(move || run(server, events, streams, slots, barrier));
        let running: Vec<_> = (0..threads).map(spawn).collect();
        let mut first = None;
        for _ in 0..PASSES {
            barrier.wait();
            barrier.wait();
            if first.is_none() {
                first = Some((memory_stats(device), server.calls.load(Ordering::Relaxed)));
            }
            barrier.wait();
        }
        let outcomes: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        (outcomes, first)
    });
    let mut times = vec![Vec::new(); PASSES];
    for outcome in outcomes {
        let panicked = |_| Error::invalid_value("a replaying thread ended early");
        for (pass, time) in outcome.map_err(panicked)??.into_iter().enumerate() {
            times[pass].push(time);
        }
    }
    // A pass takes as long as its slowest thread.
    let mut per_pass: Vec<f64> = times.iter().map(|times| times.iter().copied().fold(0.0, f64::max)).collect();
    let cold_ns = per_pass.remove(0);
    per_pass.sort_by(f64::total_cmp);
    let warm_ns = per_pass[per_pass.len() / 2];
    let (after, calls) = first.ok_or_else(|| Error::invalid_value("nothing was replayed"))?;
    let after = after?;
    Ok(match allocator {
        ReplayAllocator::Gpupool => ReplayResult {
            peak_reserved: after.total.peak_reserved_bytes,
            driver_calls: after.driver_calls - before.driver_calls,
            moved_pages: after.moved_pages - before.moved_pages,
            cold_ns,
            warm_ns,
        },
        ReplayAllocator::Driver | ReplayAllocator::Async => {
            let peak_reserved = server.peak.load(Ordering::Relaxed);
            ReplayResult { peak_reserved, driver_calls: calls, moved_pages: 0, cold_ns, warm_ns }
        }
    })
}

//! Replaying a log of allocations: the same requests, in the same order, on this machine.
//!
//! The peak and the driver calls are those of the first pass over the log. Times are those of the first pass, and the
//! median of three more, as PyTorch's allocator is measured. If the caller also asks for the reserved memory, a pass
//! before all others reads it after every event, so that reading costs the timed passes nothing. The peak and the
//! driver calls are then from that pass.

mod reserved;
mod server;

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Instant;

use self::reserved::{Progress, look, watched};
use self::server::{Lag, ReplayedBlock, Server};
use crate::error::{Error, Result};
use crate::memory::memory_stats;
use crate::runtime::{self, BoundDevice, Kind, Stream};

pub use self::reserved::replay_reserved;

/// One line of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayEvent {
    /// The number of the allocation, from 0.
    pub slot: u32,
    /// Its size in bytes, or none if it is freed.
    pub allocate: Option<u64>,
    /// The number of the stream in the log, from 0.
    pub stream: u32,
}

/// What serves the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayAllocator {
    /// gpupool's default pool.
    Gpupool,
    /// The driver's plain allocations (`cuMemAlloc`).
    Driver,
    /// The driver's stream-ordered allocations (`cuMemAllocAsync`).
    Async,
}

/// What a log is replayed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplaySettings {
    /// What serves the requests.
    pub allocator: ReplayAllocator,
    /// How far a simulated device lags behind: each allocation, and each free before it frees, is a piece of work on its
    /// stream, which is done when so many more have been submitted, by any thread on any stream. At most a million; with
    /// 0 no work is ever under way.
    pub lag: usize,
}

/// The measurements of a replay.
#[derive(Clone, Debug)]
pub struct ReplayResult {
    /// The maximum number of bytes that the allocator had reserved on the device. The driver does not report what
    /// `cuMemAlloc` uses beyond the requested bytes, and HIP not what its pool uses: then the requested bytes.
    pub peak_reserved: u64,
    /// Calls of the driver's memory functions in the first pass.
    pub driver_calls: u64,
    /// Pages of 2 MiB moved in the first pass.
    pub moved_pages: u64,
    /// Nanoseconds per event in the first pass.
    pub cold_ns: f64,
    /// Nanoseconds per event, median of three more passes.
    pub warm_ns: f64,
    /// The bytes that the allocator had reserved, at each change: (event, bytes after it), if requested.
    pub reserved: Vec<(usize, u64)>,
}

const PASSES: usize = 4;
/// The most threads of a replay.
const MAX_THREADS: usize = 1024;
/// The most pieces of work under way: more than streams hold before a launch waits.
const MAX_LAG: usize = 1_000_000;
/// Events between two looks at whether the replay is to end: too many for the look to show in the times.
const CHUNK: usize = 512;

/// Each slot's block, its bytes and its stream.
type Slots = Vec<Option<(ReplayedBlock, u64, u32)>>;

/// Returns as many empty slots.
fn empty_slots(count: usize) -> Result<Slots> {
    let mut slots = Slots::new();
    slots.try_reserve_exact(count).map_err(|_| {
        Error::unavailable(format!("this process has no memory to replay {count} allocations; take fewer threads"))
    })?;
    slots.resize(count, None);
    Ok(slots)
}

/// Where a log is replayed: the calling thread's current device.
struct ReplayPlace {
    server: Server,
    lag: Lag,
    streams: Vec<Stream>,
    slots: usize,
}

impl ReplayPlace {
    fn new(events: &[ReplayEvent], settings: ReplaySettings) -> Result<Self> {
        let ReplaySettings { allocator, lag } = settings;
        if lag > MAX_LAG {
            return Err(Error::invalid_value(format!("a replay lags by at most {MAX_LAG} pieces of work, not {lag}")));
        }
        if lag > 0 {
            runtime::require(Kind::Host)?;
        }
        let device = runtime::get()?.current_device()?;
        let slots = events.iter().map(|event| event.slot as usize + 1).max().unwrap_or(0);
        let count = events.iter().map(|event| event.stream as usize + 1).max().unwrap_or(0);
        let mut streams = vec![Stream::default_of(device)];
        while streams.len() < count {
            streams.push(Stream::new(device)?);
        }
        Ok(Self { server: Server::new(device, allocator), lag: Lag::new(lag), streams, slots })
    }

    fn step(&self, event: &ReplayEvent, blocks: &mut Slots) -> Result<()> {
        let stream = &self.streams[event.stream as usize];
        let slot = &mut blocks[event.slot as usize];
        if let Some(bytes) = event.allocate {
            *slot = Some((self.server.allocate(bytes, stream)?, bytes, event.stream));
            return self.lag.submit(event.stream, &self.streams);
        }
        let Some((block, bytes, _)) = slot.take() else { return Ok(()) };
        let submitted = self.lag.submit(event.stream, &self.streams);
        submitted.and(self.server.free(block, bytes, stream))
    }

    /// Ends the work of a pass, and frees what is left.
    fn end_pass(&self, blocks: &mut Slots) -> Result<()> {
        self.lag.end(&self.streams).and(self.server.free_all(blocks, &self.streams))
    }
}

/// Returns one thread's passes over the log; the barrier keeps the passes of all threads together.
fn run(place: &ReplayPlace, events: &[ReplayEvent], progress: &Progress, barrier: &Barrier) -> Result<Vec<f64>> {
    let bound = runtime::get().and_then(|runtime| BoundDevice::of(runtime, place.server.device));
    let mut times = Vec::new();
    let (_bound, mut blocks, mut outcome) = match bound.and_then(|bound| Ok((bound, empty_slots(place.slots)?))) {
        Ok((bound, blocks)) => (Some(bound), blocks, Ok(())),
        // The other threads wait for this one at the barrier all the same.
        Err(error) => (None, Slots::new(), Err(error)),
    };
    for _ in 0..PASSES {
        barrier.wait();
        let start = Instant::now();
        if outcome.is_ok() && !progress.is_stopped() {
            outcome = pass(place, events, &mut blocks, progress);
        }
        times.push(start.elapsed().as_nanos() as f64 / events.len().max(1) as f64);
        barrier.wait();
        outcome = outcome.and(place.end_pass(&mut blocks));
        barrier.wait();
    }
    outcome.map(|()| times)
}

fn pass(place: &ReplayPlace, events: &[ReplayEvent], blocks: &mut Slots, progress: &Progress) -> Result<()> {
    for chunk in events.chunks(CHUNK) {
        for event in chunk {
            place.step(event, blocks)?;
        }
        if !progress.advance(chunk.len()) {
            break;
        }
    }
    Ok(())
}

/// Replays a log in this many threads at once, on the calling thread's current device. Memory cached before is
/// released. For one thread it also returns the memory reserved over the events, in at most `changes` points if that is
/// not 0: as [`replay_reserved`].
///
/// The watcher is called about ten times a second, on the calling thread, with the fraction of the work that is done,
/// from 0 to 1. If it returns false, the replay ends and returns none.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if the log does not fit; `ErrorKind::InvalidValue` for a log that allocates 0 bytes, for 0
/// threads or more than 1024, for a lag of more than a million, and if the reserved memory of several threads is
/// requested; `ErrorKind::RuntimeUnavailable` for a lag on a GPU; `ErrorKind::Unavailable` if the system cannot start
/// that many threads.
pub fn replay(
    events: &[ReplayEvent],
    threads: usize,
    settings: ReplaySettings,
    changes: usize,
    watch: &mut dyn FnMut(f64) -> bool,
) -> Result<Option<ReplayResult>> {
    if threads == 0 {
        return Err(Error::invalid_value("0 threads replay nothing"));
    }
    if threads > MAX_THREADS {
        return Err(Error::invalid_value(format!("a replay has at most {MAX_THREADS} threads, not {threads}")));
    }
    if threads > 1 && changes > 0 {
        return Err(Error::invalid_value(
            "what is reserved over the events can be read only of a replay on one thread",
        ));
    }
    let place = ReplayPlace::new(events, settings)?;
    let progress = Progress::new((PASSES * threads + usize::from(changes > 0)) * events.len());
    watched(&progress, watch, || {
        let _bound = BoundDevice::of(runtime::get()?, place.server.device)?;
        place.server.clear()?;
        if changes == 0 {
            let (figures, cold_ns, warm_ns) = passes(&place, events, threads, &progress)?;
            return Ok(figures.with(cold_ns, warm_ns, Vec::new()));
        }
        let counted = PassCounts::new(&place.server)?;
        let reserved = look(&place, events, changes, &progress)?;
        let figures = counted.figures(&place.server)?;
        place.server.clear()?;
        let (_, cold_ns, warm_ns) = passes(&place, events, threads, &progress)?;
        Ok(figures.with(cold_ns, warm_ns, reserved))
    })
}

/// What was counted before a pass.
struct PassCounts {
    driver_calls: u64,
    moved_pages: u64,
}

/// What a pass took, but for its time.
struct Figures {
    peak_reserved: u64,
    driver_calls: u64,
    moved_pages: u64,
}

impl PassCounts {
    fn new(server: &Server) -> Result<Self> {
        let stats = memory_stats(server.device)?;
        Ok(Self { driver_calls: stats.driver_calls, moved_pages: stats.moved_pages })
    }

    /// Returns what a pass took that began then and has just ended, the first after `clear`.
    fn figures(&self, server: &Server) -> Result<Figures> {
        Ok(match server.allocator {
            ReplayAllocator::Gpupool => {
                let stats = memory_stats(server.device)?;
                Figures {
                    peak_reserved: stats.total.peak_reserved_bytes,
                    driver_calls: stats.driver_calls - self.driver_calls,
                    moved_pages: stats.moved_pages - self.moved_pages,
                }
            }
            ReplayAllocator::Driver | ReplayAllocator::Async => {
                Figures { peak_reserved: server.peak_reserved()?, driver_calls: server.calls(), moved_pages: 0 }
            }
        })
    }
}

impl Figures {
    fn with(self, cold_ns: f64, warm_ns: f64, reserved: Vec<(usize, u64)>) -> ReplayResult {
        let Self { peak_reserved, driver_calls, moved_pages } = self;
        ReplayResult { peak_reserved, driver_calls, moved_pages, cold_ns, warm_ns, reserved }
    }
}

fn not_started(threads: usize, error: &std::io::Error) -> Error {
    Error::unavailable(format!("{threads} threads cannot be started for a replay, take fewer: {error}"))
}

/// Goes over the log in all passes that are timed, and returns what the first took, its nanoseconds an event, and those
/// of the others. The current device is the place's, with nothing cached.
fn passes(
    place: &ReplayPlace,
    events: &[ReplayEvent],
    threads: usize,
    progress: &Progress,
) -> Result<(Figures, f64, f64)> {
    let server = &place.server;
    let counted = PassCounts::new(server)?;
    // This thread is one more at the barrier, to read the figures between the passes.
    let barrier = Barrier::new(threads + 1);
    let (outcomes, first) = thread::scope(|scope| {
        let barrier = &barrier;
        let mut running = Vec::with_capacity(threads);
        // A thread begins only when all are there, for without one the others would wait at the barrier for ever.
        let mut starts = Vec::with_capacity(threads);
        for _ in 0..threads {
            let (start, started) = mpsc::channel();
            let work =
                move || started.recv().map_or_else(|_| Ok(Vec::new()), |()| run(place, events, progress, barrier));
            running.push(thread::Builder::new().spawn_scoped(scope, work).map_err(|e| not_started(threads, &e))?);
            starts.push(start);
        }
        for start in &starts {
            // It waits for this.
            let _ = start.send(());
        }
        let mut first = None;
        for _ in 0..PASSES {
            barrier.wait();
            barrier.wait();
            if first.is_none() {
                first = Some(counted.figures(server));
            }
            barrier.wait();
        }
        let outcomes: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        Ok::<_, Error>((outcomes, first))
    })?;
    let mut times = vec![Vec::new(); PASSES];
    for outcome in outcomes {
        let panicked = |_| Error::internal("a replaying thread panicked");
        for (pass, time) in outcome.map_err(panicked)??.into_iter().enumerate() {
            times[pass].push(time);
        }
    }
    // A pass takes as long as its slowest thread.
    let mut per_pass: Vec<f64> = times.iter().map(|times| times.iter().copied().fold(0.0, f64::max)).collect();
    let cold_ns = per_pass.remove(0);
    per_pass.sort_by(f64::total_cmp);
    let warm_ns = per_pass[per_pass.len() / 2];
    let figures = first.ok_or_else(|| Error::internal("a replay had no first pass"))??;
    Ok((figures, cold_ns, warm_ns))
}

//! What the allocator does step by step, as a digest of every thousand steps, to compare two builds: `cargo run --example
//! steps -- STEPS LOG.csv.gz... > file`, in both, and `diff`.
//!
//! The digest is of each step's driver calls in their order, the block's place, what is reserved and its peak, and pages
//! moved. The steps are those of the logs, on a device that lags behind and on one that does not, and so many random ones
//! with one seed: on streams of gpupool's and of others, by two threads in turns, in pools of every kind, with
//! captures, ranges, sleep, callbacks and calls that fail.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use common::memory::{MIB, PAGE, Random};
use gpupool::memory::memory_stats;
use gpupool::runtime::host::{
    Call, Fault, before_call, begin_capture, clear_faults, complete, complete_all, create_stream, destroy_stream,
    driver_calls, end_capture, inject, simulate, submit,
};
use gpupool::runtime::{self, RelaxedCapture};
use gpupool::{
    Backup, CaptureMode, CaptureScope, CommitOptions, Device, DeviceBuffer, Error, GraphMemory, MemPool, MemoryRange,
    Simulated, StatusKind, Stream, empty, empty_cache, on_oom,
};

const DEVICE: Device = Device::from_ordinal(0);
const MEMORY: u64 = 256 << 20;
const LOG_MEMORY: u64 = 140 << 30;
const STREAMS: usize = 6;
/// The first streams are gpupool's; the others may be gone at any time.
const OWN_STREAMS: usize = 3;
const POOLS: usize = 5;
/// Half of the least that gpupool reserves of addresses.
const HALF: u64 = 1 << 39;
const EACH: u64 = 1000;

/// The driver's calls since the last step, as one number.
static CALLS: AtomicU64 = AtomicU64::new(0);

fn note(call: Call) {
    let before = CALLS.load(Ordering::Relaxed);
    CALLS.store(before.wrapping_mul(0x100_0000_01b3) ^ (call as u64 + 1), Ordering::Relaxed);
    before_call(call, 0, move || note(call));
}

/// Returns the size of a block, small ones more often than large ones.
fn bytes_of_block(random: &mut Random) -> u64 {
    let most = [512, 8 << 10, 128 << 10, MIB, 3 * MIB, 8 * MIB, 20 * MIB, 90 * MIB];
    let most = most[random.below(8) * random.below(8) / 7];
    1 + random.below(most as usize) as u64
}

struct Digest {
    hasher: DefaultHasher,
    steps: u64,
    base: u64,
}

impl Digest {
    /// The first block is in the middle of gpupool's range.
    fn new() -> Self {
        let first = empty(1, &Stream::new(DEVICE).expect("a stream")).expect("memory");
        Self { hasher: DefaultHasher::new(), steps: 0, base: first.ptr() }
    }

    /// Returns where an address is in gpupool's range. Where a segment is no two processes have alike.
    fn place(&self, address: u64) -> Option<i64> {
        let place = address.wrapping_sub(self.base) as i64;
        (place.unsigned_abs() < HALF).then_some(place)
    }

    fn add(&mut self, what: &str, outcome: &str, address: u64) {
        let stats = memory_stats(DEVICE).expect("statistics");
        let total = &stats.total;
        let calls = (CALLS.swap(0, Ordering::Relaxed), driver_calls(), stats.driver_calls, stats.moved_pages);
        let bytes = (total.reserved_bytes, total.peak_reserved_bytes, total.live_bytes, total.peak_live_bytes);
        let step = (what, outcome, self.place(address), calls, bytes);
        if std::env::var_os("GPUPOOL_EACH_STEP").is_some() {
            println!("{} {step:?}", self.steps);
        }
        step.hash(&mut self.hasher);
        self.steps += 1;
        if self.steps.is_multiple_of(EACH) {
            let (reserved, live) = (total.peak_reserved_bytes, total.live_bytes);
            println!(
                "{} {:016x} {} calls, {} moved, {reserved} at most reserved, {live} live",
                self.steps,
                self.hasher.finish(),
                driver_calls(),
                stats.moved_pages,
            );
        }
    }
}

fn outcome<T>(outcome: &Result<T, Error>) -> String {
    match outcome {
        Ok(_) => String::new(),
        // What processes do not have alike is left out.
        Err(error) => error.to_string().split_whitespace().filter(|word| !word.contains("0x")).collect(),
    }
}

fn foreign() -> Stream {
    let raw = create_stream(DEVICE).expect("a stream");
    // SAFETY: nothing but this program destroys it, and a simulated stream can be asked for even then.
    unsafe { Stream::from_raw_on(raw.as_ptr(), DEVICE) }.expect("a stream")
}

type Work = Box<dyn FnOnce() -> Result<DeviceBuffer, Error> + Send>;

/// A thread that allocates in place of the first one.
struct Helper {
    work: Sender<Work>,
    done: Receiver<Result<DeviceBuffer, Error>>,
}

impl Helper {
    fn new() -> Self {
        let (work, received) = channel::<Work>();
        let (sender, done) = channel();
        std::thread::spawn(move || received.into_iter().for_each(|work| sender.send(work()).expect("a receiver")));
        Self { work, done }
    }

    fn run(&self, work: impl FnOnce() -> Result<DeviceBuffer, Error> + Send + 'static) -> Result<DeviceBuffer, Error> {
        self.work.send(Box::new(work)).expect("a helper");
        self.done.recv().expect("an answer")
    }
}

struct Capturing {
    scope: CaptureScope,
    stream: usize,
}

/// What a random program does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AsksFor {
    All,
    /// For nothing that has pages at an address of its own: no ranges, reserves and sleep.
    Blocks,
}

struct Program {
    asks: AsksFor,
    random: Random,
    streams: Vec<Stream>,
    pools: Vec<Option<MemPool>>,
    made: u64,
    live: Vec<DeviceBuffer>,
    ranges: Vec<Option<MemoryRange>>,
    capturing: Option<Capturing>,
    graphs: Vec<GraphMemory>,
    submitted: [u64; STREAMS],
    completed: [u64; STREAMS],
    helper: Helper,
    /// What the callback frees.
    spare: Arc<Mutex<Vec<DeviceBuffer>>>,
}

impl Program {
    fn new(asks: AsksFor) -> Self {
        let streams =
            (0..STREAMS).map(|n| if n < OWN_STREAMS { Stream::new(DEVICE).expect("a stream") } else { foreign() });
        let spare = Arc::new(Mutex::new(Vec::new()));
        let freed = Arc::clone(&spare);
        on_oom(move |_, _| freed.lock().expect("no panic").pop().is_some()).keep();
        Self {
            asks,
            random: Random(0x9e37_79b9_7f4a_7c15),
            streams: streams.collect(),
            pools: (0..POOLS).map(|_| None).collect(),
            made: 0,
            live: Vec::new(),
            ranges: (0..3).map(|_| None).collect(),
            capturing: None,
            graphs: Vec::new(),
            submitted: [0; STREAMS],
            completed: [0; STREAMS],
            helper: Helper::new(),
            spare,
        }
    }

    /// The pool in a place, which is made of another kind each time; none for the default pool.
    fn pool(&mut self, place: usize) -> Option<&MemPool> {
        if place == 0 {
            return None;
        }
        if self.pools[place].is_none() {
            self.made += 1;
            let builder = MemPool::builder().device(DEVICE);
            let builder = match self.made % 9 {
                4 | 6 if self.asks == AsksFor::Blocks => builder,
                1 => builder.use_on_oom(true),
                2 => builder.no_split(true),
                3 => builder.limit(48 << 20),
                4 => builder.reserve(12 << 20).limit(24 << 20),
                5 => builder.segments(true),
                6 => builder.reserve(30 << 20),
                7 => builder.use_on_oom(true).limit(100 << 20),
                _ => builder,
            };
            self.pools[place] = builder.build().ok();
        }
        self.pools[place].as_ref()
    }

    fn is_captured(&self, stream: usize) -> bool {
        self.capturing.as_ref().is_some_and(|capturing| capturing.stream == stream)
    }

    fn submit(&mut self, stream: usize) {
        if !self.is_captured(stream) && submit(&self.streams[stream]).is_ok() {
            self.submitted[stream] += 1;
        }
    }

    fn allocate(&mut self) -> (&'static str, String, u64) {
        let (stream, place, bytes) =
            (self.random.below(STREAMS), self.random.below(POOLS), bytes_of_block(&mut self.random));
        let by_helper = self.random.below(8) == 0 && self.capturing.is_none();
        let named = self.streams[stream].clone();
        let token = self.pool(place).map(MemPool::token);
        let work = move || {
            let _scope = token.map(|token| token.enter()).transpose()?;
            empty(bytes, &named)
        };
        let made = if by_helper { self.helper.run(work) } else { work() };
        let said = outcome(&made);
        let address = made.as_ref().map_or(0, DeviceBuffer::ptr);
        self.submit(stream);
        match made {
            Ok(buffer) if self.random.below(200) == 0 => self.spare.lock().expect("no panic").push(buffer),
            Ok(buffer) => self.live.push(buffer),
            Err(_) => {}
        }
        ("allocate", said, address)
    }

    fn free(&mut self) -> (&'static str, String, u64) {
        if self.live.is_empty() {
            return ("nothing", String::new(), 0);
        }
        let place = self.random.below(self.live.len());
        let buffer = self.live.swap_remove(place);
        let (address, stream) = (buffer.ptr(), self.random.below(STREAMS));
        let said = match self.random.below(4) {
            0 if !self.is_captured(stream) => outcome(&buffer.free_on(&self.streams[stream])),
            // SAFETY: nothing uses it any more.
            1 => outcome(&unsafe { gpupool::memory::deallocate(buffer.into_ptr(), None) }),
            _ => {
                drop(buffer);
                String::new()
            }
        };
        ("free", said, address)
    }

    fn commit(&mut self) -> String {
        let (place, pool, stream) = (self.random.below(3), self.random.below(POOLS), self.random.below(STREAMS));
        if self.ranges[place].is_none() {
            let page_bytes = if place == 0 { 2 * PAGE } else { PAGE };
            let Some(pool) = self.pool(pool) else { return String::new() };
            self.ranges[place] = pool.reserve_range(16 * page_bytes, page_bytes).ok();
        }
        let Some(range) = &self.ranges[place] else { return String::new() };
        let pages: Vec<u32> = (0..1 + self.random.below(6)).map(|_| self.random.below(16) as u32).collect();
        let priority = (self.random.below(2) == 0).then(|| self.random.below(3) as i32);
        match self.random.below(7) {
            0..5 => outcome(&range.commit(&pages, &self.streams[stream], CommitOptions { priority, fill: None })),
            _ => outcome(&range.decommit(&pages, (!self.is_captured(stream)).then_some(&self.streams[stream]))),
        }
    }

    fn fault(&mut self) -> Fault {
        let calls = [
            Call::Bind,
            Call::MemoryInfo,
            Call::ExchangeCaptureMode,
            Call::StreamQuery,
            Call::StreamCaptureStatus,
            Call::EventCreate,
            Call::EventRecord,
            Call::EventRecordContext,
            Call::EventQuery,
            Call::EventSynchronize,
            Call::ExtentCreate,
            Call::ExtentRelease,
            Call::MemoryMap,
            Call::MemorySetAccess,
            Call::MemoryUnmap,
        ];
        let kinds = [StatusKind::Other, StatusKind::OutOfMemory, StatusKind::NotSupported];
        let (call, kind) = (calls[self.random.below(calls.len())], kinds[self.random.below(3)]);
        Fault { call, kind, after: self.random.below(6) as u32, times: 1 + self.random.below(3) as u32 }
    }

    fn step(&mut self) -> (&'static str, String, u64) {
        let (stream, place) = (self.random.below(STREAMS), self.random.below(POOLS));
        // Less and less room, and then more again.
        let most_live = 40 + self.random.below(400);
        let nothing = String::new();
        match self.random.below(200) {
            173..184 | 191..195 if self.asks == AsksFor::Blocks => ("nothing", nothing, 0),
            0..80 if self.live.len() < most_live => self.allocate(),
            0..140 => self.free(),
            140..150 => {
                self.submit(stream);
                ("submit", nothing, 0)
            }
            150..165 => {
                let left = self.submitted[stream] - self.completed[stream];
                self.completed[stream] += left.div_ceil(1 + self.random.below(4) as u64);
                ("complete", outcome(&complete(&self.streams[stream], self.completed[stream])), 0)
            }
            165..173 => match self.live.last() {
                Some(buffer) if !self.is_captured(stream) => {
                    ("record", outcome(&buffer.record_stream(&self.streams[stream])), 0)
                }
                _ => ("nothing", nothing, 0),
            },
            173..183 => ("commit", self.commit(), 0),
            183 => {
                let range = self.random.below(3);
                drop(self.ranges[range].take());
                ("drop a range", nothing, 0)
            }
            184 => match self.pool(place) {
                Some(pool) => ("trim", outcome(&pool.trim()), 0),
                None => ("empty", outcome(&empty_cache()), 0),
            },
            185..187 => {
                drop(self.pools[place].take());
                ("drop a pool", nothing, 0)
            }
            187 if self.capturing.is_none() => {
                let named = self.streams[stream].clone();
                let Some(pool) = self.pool(place) else { return ("nothing", nothing, 0) };
                let scope = pool.capture(&named);
                let said = outcome(&scope);
                if let Ok(scope) = scope {
                    begin_capture(&named, CaptureMode::Global).expect("a capture");
                    self.capturing = Some(Capturing { scope, stream });
                }
                ("capture", said, 0)
            }
            187..189 => {
                let Some(Capturing { scope, stream }) = self.capturing.take() else { return ("nothing", nothing, 0) };
                end_capture(&self.streams[stream]).expect("nothing spoils a capture");
                self.graphs.extend(scope.end());
                ("end a capture", nothing, 0)
            }
            189 if !self.graphs.is_empty() => {
                let graph = self.random.below(self.graphs.len());
                self.graphs.swap_remove(graph).reset();
                ("reset", nothing, 0)
            }
            190 => {
                let stream = OWN_STREAMS + self.random.below(STREAMS - OWN_STREAMS);
                if !self.is_captured(stream) {
                    {
                        let _relaxed = RelaxedCapture::new(runtime::get().expect("a runtime"));
                        self.streams[stream].synchronize().expect("no error");
                    }
                    destroy_stream(self.streams[stream].raw(), DEVICE).expect("a stream");
                    self.streams[stream] = foreign();
                    (self.submitted[stream], self.completed[stream]) = (0, 0);
                }
                ("replace", nothing, 0)
            }
            191 => {
                let pool = self.pool(place);
                ("sleep", pool.map_or(nothing, |pool| outcome(&pool.sleep(Backup::None))), 0)
            }
            192..195 => {
                let pool = self.pool(place);
                ("wake", pool.map_or(nothing, |pool| outcome(&pool.wake())), 0)
            }
            195 => {
                let lease = gpupool::lease::<Simulated>(&self.streams[0]);
                ("lease", outcome(&lease), 0)
            }
            _ => {
                let fault = self.fault();
                inject(fault);
                let found = self.allocate();
                clear_faults();
                found
            }
        }
    }
}

fn random_steps(asks: AsksFor, steps: u64) {
    simulate(1, MEMORY).expect("a simulated device");
    println!("{}", if asks == AsksFor::All { "random" } else { "blocks" });
    let mut digest = Digest::new();
    Call::ALL.into_iter().for_each(note);
    let mut program = Program::new(asks);
    for _ in 0..steps {
        let (what, said, address) = program.step();
        digest.add(what, &said, address);
    }
}

fn log_steps(path: &str, lag: usize) {
    simulate(1, LOG_MEMORY).expect("a simulated device");
    println!("{path} {lag}");
    let text = Command::new("gzip").args(["-dcf", path]).output().expect("gzip").stdout;
    let (mut streams, mut live) = (HashMap::new(), HashMap::new());
    let mut digest = Digest::new();
    Call::ALL.into_iter().for_each(note);
    for (number, line) in String::from_utf8(text).expect("text").lines().skip(1).enumerate() {
        let fields: Vec<&str> = line.split(',').collect();
        let stream: &Stream =
            streams.entry(fields[5].to_owned()).or_insert_with(|| Stream::new(DEVICE).expect("a stream"));
        if lag > 0 {
            submit(stream).expect("work");
        }
        if fields[2] == "allocate" {
            let buffer = empty(fields[4].parse().expect("bytes"), stream).expect("memory");
            let address = buffer.ptr();
            live.insert(fields[3].to_owned(), buffer);
            digest.add("allocate", "", address);
        } else if let Some(buffer) = live.remove(fields[3]) {
            drop(buffer);
            digest.add("free", "", 0);
        }
        if lag > 0 && number % lag == 0 {
            complete_all().expect("no error");
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["random", steps] => random_steps(AsksFor::All, steps.parse().expect("a number of steps")),
        ["blocks", steps] => random_steps(AsksFor::Blocks, steps.parse().expect("a number of steps")),
        ["log", lag, path] => log_steps(path, lag.parse().expect("how far the device lags behind")),
        _ => {
            // A process has one simulated device for its life.
            let program = std::env::current_exe().expect("this program");
            let run = |arguments: &[&str]| {
                let status = Command::new(&program).args(arguments).status().expect("it starts");
                assert!(status.success(), "{arguments:?}: {status}");
            };
            let Some((steps, logs)) = arguments.split_first() else { return };
            run(&["random", steps]);
            run(&["blocks", steps]);
            for log in logs {
                run(&["log", "0", log]);
                run(&["log", "3000", log]);
            }
        }
    }
}

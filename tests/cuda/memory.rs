//! Device memory on a real GPU: no block is two callers' at once, whatever streams and threads do, and nothing waits.
//! Without a GPU every test says so and passes.
//!
//! `GPUPOOL_SOAK_OPERATIONS` sets how long the soak is, `GPUPOOL_REPLAYS` how often a graph is replayed.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use crate::common::wait_until;
use crate::driver::{
    DEVICE, Filled, Kernels, MIB, Random, bind, instantiate, ok, raw, read, setting, synchronize, word, write,
};
use cudarc::driver::sys;
use gpupool::memory::{get_per_process_memory_fraction, reset_peak_memory_stats, set_per_process_memory_fraction};
use gpupool::runtime::{self, BoundDevice, RelaxedCapture};
use gpupool::{CaptureStatus, ErrorKind, Event, MemPool, Stream, empty, empty_cache, memory_snapshot, memory_stats};

/// The GPU's turn for this test, with the kernels, and no memory cached.
macro_rules! gpu {
    () => {{
        let turn = crate::driver::turn();
        let bound = bind(DEVICE);
        let kernels = Kernels::of(DEVICE);
        give_all_back();
        kernels.reset();
        (kernels, bound, turn)
    }};
}

/// Gives back what is free, also what the GPU was still using.
fn give_all_back() {
    for _ in 0..2 {
        synchronize();
        empty_cache().unwrap();
    }
}

fn reserved() -> u64 {
    memory_stats(DEVICE).unwrap().total.reserved_bytes
}

// ---- the soak ----

const THREADS: usize = 16;
const STREAMS: usize = 4;
const POOLS: usize = 4;

/// What the threads of the soak share.
struct Soak {
    kernels: &'static Kernels,
    /// Pools that come and go, of the kinds in [`Soak::make_pool`].
    pools: Vec<Mutex<Arc<MemPool>>>,
    pools_made: AtomicU64,
    reserves_made: AtomicU64,
    /// Bytes that a thread may hold.
    most: u64,
    /// Allocations and frees of each thread.
    operations: u64,
    seeds: AtomicU32,
    refused: AtomicU64,
}

impl Soak {
    /// A pool that keeps what it has, one that helps others, one with a reserve, and one with all of that.
    fn make_pool(&self) -> Arc<MemPool> {
        let builder = || MemPool::builder().device(DEVICE);
        let number = self.pools_made.fetch_add(1, Ordering::Relaxed);
        let builder_of_turn = match number % 4 {
            0 => builder(),
            1 => builder().use_on_oom(true),
            2 => builder().reserve(256 * MIB),
            _ => builder().reserve(128 * MIB).limit(1024 * MIB).use_on_oom(true),
        };
        match builder_of_turn.build() {
            Ok(pool) => {
                self.reserves_made.fetch_add(u64::from(pool.reserve() > 0), Ordering::Relaxed);
                Arc::new(pool)
            }
            // Others may have all memory just then.
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
                Arc::new(builder().build().unwrap())
            }
        }
    }

    fn replace_pool(&self, place: usize) {
        let fresh = self.make_pool();
        let former = std::mem::replace(&mut *self.pools[place].lock().unwrap(), fresh);
        assert!(former.stats().unwrap().reserved_bytes >= former.reserve());
        drop(former);
    }
}

/// One thread of the soak.
struct Worker<'a> {
    soak: &'a Soak,
    random: Random,
    streams: Vec<Stream>,
    live: Vec<Filled>,
    bytes: u64,
    done: u64,
    next: Sender<Filled>,
    previous: Receiver<Filled>,
}

impl Worker<'_> {
    fn allocate(&mut self) {
        let stream = &self.streams[self.random.below(STREAMS)];
        let bytes = self.random.bytes(9.0, 25.0);
        let place = self.random.below(8);
        let pool = self.soak.pools.get(place).map(|pool| Arc::clone(&pool.lock().unwrap()));
        let _scope = pool.as_ref().map(|pool| pool.enter().unwrap());
        let seed = self.soak.seeds.fetch_add(0x0100_0193, Ordering::Relaxed);
        match Filled::new(self.soak.kernels, stream, bytes, seed) {
            Ok(filled) => {
                self.bytes += bytes;
                self.live.push(filled);
                self.done += 1;
            }
            // What is live fits, but small blocks may keep many pages. Then half of it goes.
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
                self.soak.refused.fetch_add(1, Ordering::Relaxed);
                for _ in 0..self.live.len() / 2 {
                    self.free();
                }
            }
        }
    }

    /// Checks a block and frees it, in one of the ways there are.
    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let place = self.random.below(self.live.len());
        let filled = self.live.swap_remove(place);
        self.bytes -= filled.buffer.nbytes();
        self.done += 1;
        let kernels = self.soak.kernels;
        match self.random.below(8) {
            // Another stream reads it last, and late.
            way @ (0 | 1) => {
                let other = &self.streams[self.random.below(STREAMS)];
                let event = Event::new(DEVICE).unwrap();
                event.record(&filled.buffer.stream()).unwrap();
                other.wait(&event).unwrap();
                kernels.spin(other, 20_000);
                filled.check_on(kernels, other);
                if way == 0 {
                    filled.buffer.record_stream(other).unwrap();
                } else {
                    filled.buffer.free_on(other).unwrap();
                }
            }
            // Another thread checks and frees it.
            2 => self.next.send(filled).unwrap(),
            _ => filled.check(kernels),
        }
    }

    fn run(mut self) {
        let _bound = bind(DEVICE);
        while self.done < self.soak.operations {
            if self.bytes < self.soak.most && self.random.below(100) < 70 {
                self.allocate();
            } else {
                self.free();
            }
            for filled in self.previous.try_iter() {
                filled.check(self.soak.kernels);
            }
            match self.random.below(4000) {
                0 | 1 => drop(empty_cache().unwrap()),
                2 | 3 => self.soak.replace_pool(self.random.below(POOLS)),
                _ => {}
            }
        }
        while !self.live.is_empty() {
            self.free();
        }
        // Their streams may be gone but for the memory that was allocated on them.
        let Self { soak, next, previous, .. } = self;
        drop(next);
        for filled in previous {
            filled.check(soak.kernels);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn every_word_is_right_while_threads_and_streams_share_the_memory() {
    let (kernels, _bound, _turn) = gpu!();
    let total = runtime::get().unwrap().total_memory(DEVICE.into()).unwrap();
    let operations = setting("GPUPOOL_SOAK_OPERATIONS", 20_000);
    // Half as much again as may be live at once, so that pages must move, also from thread to thread.
    let most = (total / 2 / THREADS as u64).min(1024 * MIB);
    let limit = most * THREADS as u64 * 3 / 2;
    let before = (get_per_process_memory_fraction(DEVICE).unwrap(), memory_stats(DEVICE).unwrap());
    set_per_process_memory_fraction(limit as f64 / total as f64, DEVICE).unwrap();
    reset_peak_memory_stats(DEVICE).unwrap();
    let mut soak = Soak {
        kernels,
        pools: Vec::new(),
        pools_made: AtomicU64::new(0),
        reserves_made: AtomicU64::new(0),
        most,
        operations: operations / THREADS as u64,
        seeds: AtomicU32::new(1),
        refused: AtomicU64::new(0),
    };
    soak.pools = (0..POOLS).map(|_| Mutex::new(soak.make_pool())).collect();
    let start = Instant::now();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
    thread::scope(|scope| {
        for (index, previous) in receivers.into_iter().enumerate() {
            let (soak, next) = (&soak, senders[(index + 1) % THREADS].clone());
            scope.spawn(move || {
                let streams = (0..STREAMS).map(|_| Stream::new(DEVICE).unwrap()).collect();
                let (random, live) = (Random(index as u64), Vec::new());
                Worker { soak, random, streams, live, bytes: 0, done: 0, next, previous }.run();
            });
        }
        drop(senders);
    });
    let wrong = kernels.wrong_words();
    let after = memory_stats(DEVICE).unwrap();
    let moved = after.moved_pages - before.1.moved_pages;
    let refused = soak.refused.load(Ordering::Relaxed);
    println!(
        "soak: {operations} operations in {:.1} s, {wrong} wrong words, {moved} pages moved, {} driver calls, \
         at most {} of {} MiB reserved, {refused} requests refused, {} pools, {} of them with a reserve",
        start.elapsed().as_secs_f64(),
        after.driver_calls - before.1.driver_calls,
        after.total.peak_reserved_bytes / MIB,
        limit / MIB,
        soak.pools_made.load(Ordering::Relaxed),
        soak.reserves_made.load(Ordering::Relaxed),
    );
    drop(soak);
    set_per_process_memory_fraction(before.0, DEVICE).unwrap();
    assert_eq!(wrong, 0);
    assert!(after.total.peak_reserved_bytes <= limit);
    assert!(moved > 0);
    assert!(refused * 100 <= operations, "{refused} requests refused");
    give_all_back();
    let stats = memory_stats(DEVICE).unwrap();
    assert_eq!((stats.total.reserved_bytes, stats.total.live_blocks, stats.pools), (0, 0, before.1.pools), "{stats:?}");
}

// ---- nothing waits ----

const SPIN: u64 = 30_000_000;

/// Runs this while a kernel runs on the stream, which it must not wait for.
#[track_caller]
fn without_waiting<R>(kernels: &Kernels, stream: &Stream, what: &str, run: impl FnOnce() -> R) -> R {
    synchronize();
    kernels.spin(stream, SPIN);
    let start = Instant::now();
    let result = run();
    let elapsed = start.elapsed();
    assert!(!stream.query().unwrap(), "{what} waited for the kernel: {elapsed:?}");
    println!("while a kernel runs, {what}: {elapsed:?}");
    result
}

#[test]
#[ignore = "needs a GPU"]
fn growing_moving_and_giving_back_do_not_wait_for_a_kernel() {
    let (kernels, _bound, _turn) = gpu!();
    let (a, b) = (Stream::new(DEVICE).unwrap(), Stream::new(DEVICE).unwrap());
    let pool = MemPool::builder().device(DEVICE).build().unwrap();
    let grown = without_waiting(kernels, &a, "growing on its stream", || empty(64 * MIB, &a).unwrap());
    without_waiting(kernels, &a, "growing on another stream", || empty(64 * MIB, &b).map(drop).unwrap());
    without_waiting(kernels, &a, "giving back", || {
        drop(grown);
        empty_cache().unwrap()
    });

    // Every other one is freed: 64 MiB in pieces, for a block of 64 MiB.
    let fill = |seed| Filled::new(kernels, &a, 4 * MIB, seed).unwrap();
    let (kept, freed): (Vec<_>, Vec<_>) = (0..32).map(fill).partition(|filled| filled.seed % 2 == 0);
    let before = memory_stats(DEVICE).unwrap();
    let moved = without_waiting(kernels, &a, "moving pages", || {
        // The kernel is before all of this in the stream's order, and the old blocks are still being checked.
        freed.into_iter().for_each(|filled| filled.check(kernels));
        let moved = Filled::new(kernels, &a, 64 * MIB, 77).unwrap();
        moved.check(kernels);
        moved
    });
    let after = memory_stats(DEVICE).unwrap();
    println!("{} pages moved", after.moved_pages - before.moved_pages);
    assert!(after.moved_pages > before.moved_pages);
    let created = after.total.reserved_bytes.saturating_sub(before.total.reserved_bytes);
    assert!(created <= 8 * MIB, "{created} bytes were created, not moved");
    kept.iter().for_each(|filled| filled.check(kernels));
    without_waiting(kernels, &a, "giving moved pages back", || {
        moved.check(kernels);
        drop(moved);
        empty_cache().unwrap()
    });
    kept.iter().for_each(|filled| filled.check(kernels));

    let in_pool = {
        let _scope = pool.enter().unwrap();
        Filled::new(kernels, &a, 32 * MIB, 5).unwrap()
    };
    without_waiting(kernels, &a, "trimming a pool", || {
        in_pool.check(kernels);
        drop(in_pool);
        pool.trim().unwrap()
    });
    without_waiting(kernels, &a, "dropping a pool", || drop(pool));
    without_waiting(kernels, &a, "making and ending a reserve", || {
        drop(MemPool::builder().device(DEVICE).reserve(1024 * MIB).build().unwrap());
    });
    assert_eq!(kernels.wrong_words(), 0);
    drop(kept);
    give_all_back();
    assert_eq!(reserved(), 0);
}

// ---- capture ----

const MODES: [sys::CUstreamCaptureMode; 3] = [
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

fn begin_capture(stream: &Stream, mode: sys::CUstreamCaptureMode) {
    // SAFETY: the stream is alive.
    ok(unsafe { sys::cuStreamBeginCapture_v2(raw(stream), mode) });
}

/// Allocates, fills, checks and frees until told to stop, as a program does beside a graph.
fn churn(kernels: &Kernels, index: u64, stop: &AtomicBool) {
    let _bound = bind(DEVICE);
    let (stream, other) = (Stream::new(DEVICE).unwrap(), Stream::new(DEVICE).unwrap());
    let (mut random, mut live) = (Random(1000 + index), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        if live.len() < 50 {
            let (bytes, seed) = (random.bytes(9.0, 23.0), random.next() as u32);
            live.push(Filled::new(kernels, &stream, bytes, seed).unwrap());
            continue;
        }
        let filled: Filled = live.swap_remove(random.below(live.len()));
        if random.below(4) == 0 {
            let event = Event::new(DEVICE).unwrap();
            event.record(&stream).unwrap();
            other.wait(&event).unwrap();
            filled.check_on(kernels, &other);
            filled.buffer.record_stream(&other).unwrap();
        } else {
            filled.check(kernels);
        }
    }
    live.iter().for_each(|filled| filled.check(kernels));
    stream.synchronize().unwrap();
    other.synchronize().unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn a_graphs_memory_is_its_own_until_it_is_reset() {
    let (kernels, _bound, _turn) = gpu!();
    for mode in MODES {
        let pool = MemPool::builder().device(DEVICE).build().unwrap();
        let stream = Stream::new(DEVICE).unwrap();
        begin_capture(&stream, mode);
        let scope = pool.capture(&stream).unwrap();
        let blocks: Vec<_> = [(3 * MIB, 1), (4096, 2), (20 * MIB, 3)]
            .into_iter()
            .map(|(bytes, seed)| Filled::new(kernels, &stream, bytes, seed).unwrap())
            .collect();
        // Freed inside the capture: the graph may use it again, nobody else.
        let temporary = Filled::new(kernels, &stream, 8 * MIB, 4).unwrap();
        temporary.check(kernels);
        let freed = temporary.buffer.ptr();
        drop(temporary);
        let reused = Filled::new(kernels, &stream, 8 * MIB, 5).unwrap();
        assert_eq!(reused.buffer.ptr(), freed, "{mode:?}");
        blocks.iter().chain([&reused]).for_each(|filled| filled.check(kernels));
        assert_eq!(stream.capture_status().unwrap(), CaptureStatus::Active, "{mode:?}");
        let memory = scope.end().unwrap();
        let graph = instantiate(&stream);
        // As a program drops its tensors: the graph goes on writing there.
        let ranges: Vec<_> = blocks
            .into_iter()
            .chain([reused])
            .map(|filled| (filled.buffer.ptr(), filled.buffer.nbytes() as usize / 4, filled.seed))
            .collect();

        let stop = AtomicBool::new(false);
        let replays = setting("GPUPOOL_REPLAYS", 1000);
        thread::scope(|threads| {
            for index in 0..8 {
                let stop = &stop;
                threads.spawn(move || churn(kernels, index, stop));
            }
            let outcome = std::panic::catch_unwind(|| {
                for replay in 1..=replays {
                    let is_read = replay % 100 == 0;
                    for &(address, words, _) in ranges.iter().filter(|_| is_read) {
                        // SAFETY: the range is the graph's, which is not running after the synchronisation below.
                        ok(unsafe { sys::cuMemsetD32Async(address, 0, words, raw(&stream)) });
                    }
                    // SAFETY: the graph is ready and the stream alive.
                    ok(unsafe { sys::cuGraphLaunch(graph, raw(&stream)) });
                    if !is_read {
                        continue;
                    }
                    stream.synchronize().unwrap();
                    for &(address, words, seed) in &ranges {
                        let found = read(address, words);
                        let wrong = (0..words).filter(|&index| found[index] != word(index, seed)).count();
                        assert_eq!(wrong, 0, "{mode:?}, replay {replay}, range {seed}");
                    }
                }
            });
            stop.store(true, Ordering::Relaxed);
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        assert_eq!(kernels.wrong_words(), 0, "{mode:?}");
        let held = pool.stats().unwrap().reserved_bytes;
        assert!(held >= 31 * MIB, "{held} bytes");
        pool.trim().unwrap();
        synchronize();
        assert_eq!(pool.stats().unwrap().reserved_bytes, held, "a graph's memory was given back");

        // SAFETY: the graph is not running and not used again.
        ok(unsafe { sys::cuGraphExecDestroy(graph) });
        memory.reset();
        let again = {
            let _scope = pool.enter().unwrap();
            Filled::new(kernels, &stream, 3 * MIB, 9).unwrap()
        };
        again.check(kernels);
        println!("{mode:?}: {held} bytes held by the graph, {} after its reset", pool.stats().unwrap().reserved_bytes);
        drop(again);
        drop(pool);
        assert_eq!(kernels.wrong_words(), 0, "{mode:?}");
        give_all_back();
        assert_eq!(reserved(), 0, "{mode:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_spoiled_capture_releases_everything() {
    let (kernels, _bound, _turn) = gpu!();
    for mode in MODES {
        let pool = MemPool::builder().device(DEVICE).build().unwrap();
        let stream = Stream::new(DEVICE).unwrap();
        begin_capture(&stream, mode);
        let scope = pool.capture(&stream).unwrap();
        let before = Filled::new(kernels, &stream, 5 * MIB, 1).unwrap();
        // Waiting for a captured stream is forbidden and spoils the capture.
        let forbidden = stream.synchronize().unwrap_err();
        assert_eq!(stream.capture_status().unwrap(), CaptureStatus::Invalidated, "{mode:?}: {forbidden}");
        let after = empty(7 * MIB, &stream).unwrap();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive and the place valid.
        let ended = unsafe { sys::cuStreamEndCapture(raw(&stream), &mut graph) };
        println!("{mode:?}: {forbidden}; the capture ended with {ended:?}");
        assert_ne!(ended, sys::CUresult::CUDA_SUCCESS);
        drop((before, after));
        drop(scope);
        assert_eq!(pool.use_count(), 1);
        pool.trim().unwrap();
        synchronize();
        pool.trim().unwrap();
        assert_eq!(pool.stats().unwrap().reserved_bytes, 0, "{mode:?}");
        // The stream works again.
        let _scope = pool.enter().unwrap();
        Filled::new(kernels, &stream, 5 * MIB, 2).unwrap().check(kernels);
    }
    assert_eq!(kernels.wrong_words(), 0);
}

#[test]
#[ignore = "needs a GPU"]
fn other_threads_use_memory_during_a_capture() {
    let (kernels, _bound, _turn) = gpu!();
    for mode in MODES {
        let pool = MemPool::builder().device(DEVICE).build().unwrap();
        let (stream, busy) = (Stream::new(DEVICE).unwrap(), Stream::new(DEVICE).unwrap());
        let other = Stream::new(DEVICE).unwrap();
        // Pages that the GPU is using when they are given back: somebody must ask later whether it is done.
        drop(Filled::new(kernels, &busy, 64 * MIB, 1).unwrap());
        synchronize();
        kernels.spin(&busy, SPIN);
        begin_capture(&stream, mode);
        let scope = pool.capture(&stream).unwrap();
        let captured = Filled::new(kernels, &stream, 3 * MIB, 2).unwrap();
        let steps: Vec<(&str, gpupool::Result<()>, CaptureStatus)> = thread::scope(|threads| {
            let (stream, busy, other) = (&stream, &busy, &other);
            let in_other_thread = move || {
                let _bound = bind(DEVICE);
                let mut steps = Vec::new();
                let mut step = |name, outcome| steps.push((name, outcome, stream.capture_status().unwrap()));
                step("giving back what is in use", empty_cache().map(drop));
                step("asking whether it is done", empty_cache().map(drop));
                step("growing", empty(10 * MIB, other).map(drop));
                let shared = empty(8 * MIB, other).unwrap();
                step("a second stream", shared.record_stream(busy));
                step("freeing after it", shared.free_on(busy));
                step("asking for that block", empty(64 * MIB, other).map(drop));
                wait_until("the kernel on the busy stream is done", || {
                    // A plain question from any thread could spoil a capture in global mode.
                    let _relaxed = RelaxedCapture::new(runtime::get().unwrap()).unwrap();
                    busy.query().unwrap()
                });
                step("giving back what is done", empty_cache().map(drop));
                step("statistics", memory_stats(DEVICE).map(drop));
                step("a snapshot", memory_snapshot().map(drop));
                steps
            };
            threads.spawn(in_other_thread).join().unwrap()
        });
        let outcome: Vec<_> =
            steps.iter().filter(|(_, result, status)| result.is_err() || *status != CaptureStatus::Active).collect();
        if !outcome.is_empty() {
            let mut graph = std::ptr::null_mut();
            // SAFETY: the stream is alive and the place valid. Other tests need the capture ended.
            let _ = unsafe { sys::cuStreamEndCapture(raw(&stream), &mut graph) };
            panic!("{mode:?}: {outcome:?}");
        }
        captured.check(kernels);
        let memory = scope.end().unwrap();
        let graph = instantiate(&stream);
        for _ in 0..3 {
            // SAFETY: the graph is ready and the stream alive.
            ok(unsafe { sys::cuGraphLaunch(graph, raw(&stream)) });
        }
        assert_eq!(kernels.wrong_words(), 0, "{mode:?}");
        // SAFETY: the graph is not running and not used again.
        ok(unsafe { sys::cuGraphExecDestroy(graph) });
        drop((captured, memory));
    }
}

// ---- the rest ----

#[test]
#[ignore = "needs a GPU"]
fn memory_of_plain_allocations_and_uncut_segments_holds_data() {
    let (kernels, _bound, _turn) = gpu!();
    let builder = || MemPool::builder().device(DEVICE);
    for (segments, no_split) in [(true, false), (false, true), (true, true)] {
        let pool = builder().segments(segments).no_split(no_split).build().unwrap();
        let stream = Stream::new(DEVICE).unwrap();
        let buffers: Vec<_> = {
            let _scope = pool.enter().unwrap();
            [512, 3 * MIB, 5 * MIB, 40 * MIB].into_iter().map(|bytes| empty(bytes, &stream).unwrap()).collect()
        };
        for (buffer, seed) in buffers.iter().zip(0..) {
            let words: Vec<u32> = (0..buffer.nbytes() as usize / 4).map(|index| word(index, seed)).collect();
            write(buffer.ptr(), &words);
        }
        for (buffer, seed) in buffers.iter().zip(0..) {
            kernels.check(&stream, buffer.ptr(), buffer.nbytes(), seed);
            stream.synchronize().unwrap();
            let found = read(buffer.ptr(), buffer.nbytes() as usize / 4);
            assert!(found.iter().enumerate().all(|(index, &value)| value == word(index, seed)));
        }
        let views = pool.snapshot().unwrap();
        assert!(views.iter().all(|segment| segment.is_movable != (segments || no_split)), "{views:?}");
        if no_split {
            for segment in &views {
                assert!(segment.blocks.iter().filter(|block| block.is_live).count() <= 1, "{segment:?}");
            }
        }
        drop(buffers);
        pool.trim().unwrap();
        synchronize();
        pool.trim().unwrap();
        assert_eq!(pool.stats().unwrap().reserved_bytes, 0, "segments {segments}, no_split {no_split}");
    }
    assert_eq!(kernels.wrong_words(), 0);
}

#[test]
#[ignore = "needs a GPU"]
fn a_request_that_cannot_be_met_says_who_holds_the_memory() {
    let (_kernels, _bound, _turn) = gpu!();
    let stream = Stream::new(DEVICE).unwrap();
    let total = runtime::get().unwrap().total_memory(DEVICE.into()).unwrap();
    let held = empty(64 * MIB, &stream).unwrap();
    let error = empty(total, &stream).unwrap_err();
    println!("{error}");
    assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)));
    assert!(error.to_string().contains("default memory pool"), "{error}");
    // Nothing of the attempt is left.
    assert!(reserved() <= 128 * MIB, "{}", reserved());
    drop(held);
    empty(64 * MIB, &stream).unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn one_call_unmaps_adjacent_mappings() {
    let (_kernels, _bound, _turn) = gpu!();
    let driver = runtime::get().unwrap();
    if !driver.supports_virtual_memory(DEVICE.into()).unwrap() {
        eprintln!("skipped: needs virtual memory");
        return;
    }
    let _bound = BoundDevice::new(driver, DEVICE).unwrap();
    let page = driver.page_bytes(DEVICE.into()).unwrap();
    let base = driver.address_reserve(8 * page).unwrap();
    let handles: Vec<_> =
        [1, 1, 4].map(|pages| (pages * page, driver.extent_create(DEVICE.into(), pages * page).unwrap())).into();
    for round in 0..2 {
        let mut address = base + page;
        for &(bytes, extent) in &handles {
            // SAFETY: the addresses are reserved and free, and the handle has this many bytes.
            unsafe { driver.memory_map(address, bytes, extent) }.unwrap();
            address += bytes;
        }
        // SAFETY: the whole range is mapped.
        unsafe { driver.memory_set_access(base + page, 6 * page, &[DEVICE.into()]) }.unwrap();
        let words = (6 * page / 4) as usize;
        if round == 0 {
            write(base + page, &(0..words).map(|index| word(index, 3)).collect::<Vec<_>>());
        }
        let found = read(base + page, words);
        assert!(found.iter().enumerate().all(|(index, &value)| value == word(index, 3)));
        // SAFETY: the range consists of whole mappings, which nothing uses.
        let unmapped = unsafe { driver.memory_unmap(base + page, 6 * page) };
        println!("cuMemUnmap of three adjacent mappings in one call: {unmapped:?}");
        unmapped.unwrap();
    }
    // SAFETY: nothing is mapped, and nothing is used again.
    unsafe {
        for (_, extent) in handles {
            driver.extent_release(extent).unwrap();
        }
        driver.address_free(base, 8 * page).unwrap();
    }
}

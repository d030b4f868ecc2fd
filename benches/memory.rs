//! The cost of the allocator: allocation and freeing of one size, a random mix on several threads, a recording, many live
//! blocks, and the replay of trace files. It prints one JSON object a line, as benches/memory_peers.py does.
//!
//! `memory pair | c_abi | pinned THREADS... | mix THREADS... | devices THREADS_EACH... | recording THREADS... | random |
//! replay TRACE.csv[.gz]...`; without arguments it measures all but the replay.

use std::collections::HashMap;
use std::hint::black_box;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use gpupool::c_api::C_API;
use gpupool::memory::{self, allocate};
use gpupool::replay::{ReplayAllocator, ReplayEvent, ReplaySettings, replay};
use gpupool::{Recording, Stream};

/// A small generator of random numbers (splitmix64), which gives every allocator the same ones.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn deallocate(address: u64) {
    // SAFETY: each block is freed once, by the code that allocated it, and nothing uses it.
    unsafe { memory::deallocate(address, None) }.expect("ours");
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn stream_on(device: u32) -> Stream {
    Stream::legacy(gpupool::device(device.into()).expect("a device")).expect("a device")
}

fn stream() -> Stream {
    stream_on(0)
}

fn timed(count: usize, mut run: impl FnMut()) -> f64 {
    let mut time = || {
        let start = Instant::now();
        for _ in 0..count {
            run();
        }
        start.elapsed().as_nanos() as f64 / count as f64
    };
    median((0..9).map(|_| time()).collect())
}

fn pair() {
    let stream = stream();
    for size in [512, 65536, 1 << 20, 32 << 20] {
        let raw = timed(200_000, || deallocate(allocate(size, &stream).expect("memory")));
        let buffer = timed(200_000, || drop(black_box(gpupool::empty(size, &stream).expect("memory"))));
        println!(
            r#"{{"peer":"gpupool","work":"pair","size":{size},"ns_per_pair":{raw:.1},"buffer_ns_per_pair":{buffer:.1}}}"#
        );
    }
}

/// Prints the nanoseconds that allocating and freeing pinned memory takes the slowest thread; and on one thread where a stream
/// was recorded on it, whose work is done.
fn pinned(threads: usize) {
    for size in [512, 65536, 1 << 20, 32 << 20] {
        let barrier = Barrier::new(threads);
        let pair = || drop(black_box(gpupool::empty_pinned(size, None).expect("memory")));
        let work = || {
            // All at once, so that there is one for each.
            let held = gpupool::empty_pinned(size, None).expect("memory");
            barrier.wait();
            drop(held);
            barrier.wait();
            timed(200_000, pair)
        };
        let times: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let slowest = times.into_iter().fold(0.0, f64::max);
        let stream = stream();
        let recorded = timed(20_000, || drop(black_box(gpupool::empty_pinned(size, Some(&stream)).expect("memory"))));
        println!(
            r#"{{"peer":"gpupool","work":"pinned","threads":{threads},"size":{size},"ns_per_pair":{slowest:.1},"recorded_ns_per_pair":{recorded:.1}}}"#
        );
    }
}

fn c_abi() {
    for size in [512_isize, 65536, 1 << 20, 32 << 20] {
        let null = std::ptr::null_mut();
        let time = timed(200_000, || {
            // SAFETY: the stream is the default one, and malloc just returned the pointer.
            unsafe { (C_API.free)((C_API.malloc)(size, 0, null), size, 0, null) };
        });
        let table = timed(200_000, || {
            let mut pointer = null;
            // SAFETY: the stream is the default one, and allocate just filled the place.
            unsafe { (C_API.allocate)(size as u64, 0, null, &raw mut pointer) };
            // SAFETY: allocate just returned the pointer.
            unsafe { (C_API.deallocate)(pointer) };
        });
        println!(
            r#"{{"peer":"gpupool","work":"c_abi","size":{size},"ns_per_pair":{time:.1},"table_ns_per_pair":{table:.1}}}"#
        );
    }
}

/// What a step of the random mix took the slowest thread in each round, in wall nanoseconds and in those of the processor.
struct MixRounds {
    wall: Vec<f64>,
    processor: Vec<f64>,
}

/// Returns the nanoseconds that this thread has had a processor.
fn processor_nanoseconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place for the time is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Runs the random mix in so many threads on each of the first devices at once. Each thread keeps 100 to 200 live blocks of
/// log-uniform size 512 B to 8 MiB; all of a device are on one stream.
fn mix_on(devices: u32, threads: usize, round_count: usize, steps: usize) -> MixRounds {
    let barrier = Barrier::new(devices as usize * threads);
    let all: Vec<Vec<(f64, f64)>> = thread::scope(|scope| {
        let spawn = |index: usize| {
            let barrier = &barrier;
            scope.spawn(move || {
                // So that the threads of one device have the same seeds as those of each other one.
                let (device, place) = ((index / threads) as u32, index % threads);
                let (stream, mut random, mut live) = (stream_on(device), Random(42 + place as u64), Vec::new());
                let mut step = || {
                    if live.len() < 100 || (live.len() < 200 && random.next() & 1 == 1) {
                        let size = (9.0 + 14.0 * random.uniform()).exp2() as u64;
                        live.push(allocate(size, &stream).expect("memory"));
                    } else {
                        let place = random.next() as usize % live.len();
                        deallocate(live.swap_remove(place));
                    }
                };
                (0..5000).for_each(|_| step());
                let round = |_| {
                    barrier.wait();
                    let (start, before) = (Instant::now(), processor_nanoseconds());
                    (0..steps).for_each(|_| step());
                    let wall = start.elapsed().as_nanos() as f64;
                    (wall / steps as f64, (processor_nanoseconds() - before) / steps as f64)
                };
                let rounds = (0..round_count).map(round).collect();
                live.into_iter().for_each(deallocate);
                rounds
            })
        };
        let running: Vec<_> = (0..devices as usize * threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let slowest = |figure: fn(&(f64, f64)) -> f64| {
        (0..round_count).map(|round| all.iter().map(|times| figure(&times[round])).fold(0.0, f64::max)).collect()
    };
    MixRounds { wall: slowest(|times| times.0), processor: slowest(|times| times.1) }
}

/// Prints the wall nanoseconds that one step of the random mix takes the slowest thread: in the first round, in which threads
/// still grow, and in the median of nine.
fn mix(threads: usize) {
    let rounds = mix_on(1, threads, 9, 20_000).wall;
    let (first, time) = (rounds[0], median(rounds));
    println!(
        r#"{{"peer":"gpupool","work":"mix","threads":{threads},"ns_per_step":{time:.1},"first_ns_per_step":{first:.1}}}"#
    );
}

/// Prints what a step of the random mix takes with so many threads on each of 1, 2, 4, 8, ... devices and of all that are
/// there, and what that is of one device's, by medians of five turns.
///
/// The counts take turns, and with each is compared what one device took in the same turn. Where there are fewer cores than
/// threads the wall time of many devices is longer for that alone: then the processor's time says whether they share
/// anything, for a thread that waits for a lock takes little of it and one that reads what others write takes more.
fn devices(threads: usize) {
    const TURNS: usize = 5;
    let runtime = gpupool::runtime::get().expect("a runtime");
    let (there, runtime) = (runtime.device_count(), runtime.kind().name());
    let counts: Vec<u32> = (0..).map(|power| 1 << power).take_while(|count| *count < there).chain([there]).collect();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut turns: Vec<Vec<(f64, f64)>> = vec![Vec::new(); counts.len()];
    for _ in 0..TURNS {
        for (count, turns) in counts.iter().zip(&mut turns) {
            let rounds = mix_on(*count, threads, 3, 100_000);
            turns.push((median(rounds.wall), median(rounds.processor)));
        }
    }
    for (count, of_count) in counts.iter().zip(&turns) {
        let of = |figure: fn(&(f64, f64)) -> f64| {
            let time = median(of_count.iter().map(figure).collect());
            let ratios = of_count.iter().zip(&turns[0]).map(|(all, one)| figure(all) / figure(one).max(1.0));
            (time, median(ratios.collect()))
        };
        let ((wall, ratio), (processor, processor_ratio)) = (of(|times| times.0), of(|times| times.1));
        println!(
            r#"{{"peer":"gpupool","work":"mix on devices","runtime":"{runtime}","devices":{count},"threads_each":{threads},"cores":{cores},"ns_per_step":{wall:.1},"ratio":{ratio:.3},"processor_ns_per_step":{processor:.1},"processor_ratio":{processor_ratio:.3}}}"#
        );
    }
}

/// Prints the nanoseconds that allocating and freeing 4 KiB takes the slowest thread, with and without recording, each
/// thread on a stream of its own, and those that each of the three events adds.
fn recording(threads: usize) {
    let pair = || {
        const PAIRS: usize = 100_000;
        let barrier = Barrier::new(threads);
        let run = || {
            let stream = Stream::new(gpupool::device(0).expect("a device")).expect("a stream");
            let step = || deallocate(allocate(4096, &stream).expect("memory"));
            (0..1000).for_each(|_| step());
            let round = || {
                barrier.wait();
                let start = Instant::now();
                (0..PAIRS).for_each(|_| step());
                start.elapsed().as_nanos() as f64 / PAIRS as f64
            };
            median((0..9).map(|_| round()).collect())
        };
        thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            running.into_iter().map(|thread| thread.join().expect("no panic")).fold(0.0, f64::max)
        })
    };
    let off = pair();
    Recording::new().max_entries(100_000).start().expect("no other process");
    let on = pair();
    Recording::stop().expect("no other process");
    println!(
        r#"{{"peer":"gpupool","work":"recording","threads":{threads},"off_ns_per_pair":{off:.1},"on_ns_per_pair":{on:.1},"ns_per_event":{:.1},"ratio":{:.2}}}"#,
        (on - off) / 3.0,
        on / off
    );
}

/// Prints the milliseconds of RMM's random_allocations: `count` allocations of up to 1 MiB and `count` frees, in random
/// order.
///
/// Left alone, 100 000 of them have 33 GiB live at their peak. No more than three quarters of the device's memory is live
/// at a time: where that is reached, as on the simulated device of 16 GiB, a block is freed before the next is allocated.
/// On a device of 48 GiB or more it is never reached, so that the requests are the same as ever and results comparable.
fn random(count: usize) {
    let stream = stream();
    let most = gpupool::device_info(stream.device()).expect("a device").total_bytes / 4 * 3;
    let mut times = Vec::new();
    for _ in 0..5 {
        let (mut random, mut live, mut made) = (Random(7), Vec::with_capacity(count), 0);
        let mut live_bytes = 0;
        let start = Instant::now();
        while made < count || !live.is_empty() {
            let has_room = live_bytes + (1 << 20) <= most;
            if made < count && (live.is_empty() || (has_room && random.next() & 3 != 0)) {
                let size = 1 + random.next() % (1 << 20);
                live.push((allocate(size, &stream).expect("memory"), size));
                live_bytes += size;
                made += 1;
            } else {
                let place = random.next() as usize % live.len();
                let (address, size) = live.swap_remove(place);
                deallocate(address);
                live_bytes -= size;
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1e3);
        gpupool::empty_cache().expect("given back");
    }
    println!(r#"{{"peer":"gpupool","work":"random_allocations","count":{count},"ms":{:.2}}}"#, median(times));
}

fn read(path: &str) -> Vec<ReplayEvent> {
    let text = Command::new("gzip").args(["-dcf", path]).output().expect("gzip").stdout;
    let (mut live, mut streams, mut slots, mut events) = (HashMap::new(), HashMap::new(), 0, Vec::new());
    for line in String::from_utf8(text).expect("text").lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let count = streams.len() as u32;
        let stream = *streams.entry(fields[5].to_owned()).or_insert(count);
        if fields[2] == "allocate" {
            live.insert(fields[3].to_owned(), slots);
            events.push(ReplayEvent { slot: slots, allocate: fields[4].parse().ok(), stream });
            slots += 1;
        } else if let Some(slot) = live.remove(fields[3]) {
            events.push(ReplayEvent { slot, allocate: None, stream });
        }
    }
    events
}

fn replay_trace(path: &str) {
    let events = read(path);
    let (mut sizes, mut now, mut peak) = (HashMap::new(), 0, 0);
    for event in &events {
        match event.allocate {
            Some(bytes) => {
                sizes.insert(event.slot, bytes);
                now += bytes;
            }
            None => now -= sizes[&event.slot],
        }
        peak = peak.max(now);
    }
    let settings = ReplaySettings { allocator: ReplayAllocator::Gpupool, lag: 0 };
    let result = replay(&events, 1, settings, 0, &mut |_| true);
    let result = result.expect("the trace fits").expect("it runs to its end");
    let name = path.rsplit('/').next().unwrap_or(path);
    println!(
        r#"{{"peer":"gpupool","trace":"{name}","events":{},"peak_live":{peak},"peak_reserved":{},"ratio":{:.4},"driver_calls":{},"moved_pages":{},"cold_ns":{:.1},"warm_ns":{:.1}}}"#,
        events.len(),
        result.peak_reserved,
        result.peak_reserved as f64 / peak as f64,
        result.driver_calls,
        result.moved_pages,
        result.cold_ns,
        result.warm_ns,
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if gpupool::runtime::get().is_ok_and(|runtime| runtime.kind() == gpupool::runtime::Kind::Host) {
        eprintln!("on the simulated device");
    }
    match arguments.first().map(String::as_str) {
        None => {
            pair();
            c_abi();
            [1, 2].into_iter().for_each(pinned);
            [1, 2].into_iter().for_each(mix);
            [1, 2].into_iter().for_each(devices);
            [1, 2].into_iter().for_each(recording);
            random(100_000);
        }
        Some("pair") => pair(),
        Some("c_abi") => c_abi(),
        Some("pinned") => {
            arguments[1..].iter().for_each(|threads| pinned(threads.parse().expect("a number of threads")))
        }
        Some("mix") => arguments[1..].iter().for_each(|threads| mix(threads.parse().expect("a number of threads"))),
        Some("devices") => {
            arguments[1..].iter().for_each(|threads| devices(threads.parse().expect("a number of threads")));
        }
        Some("recording") => {
            arguments[1..].iter().for_each(|threads| recording(threads.parse().expect("a number of threads")));
        }
        Some("random") => random(100_000),
        Some("replay") => arguments[1..].iter().for_each(|path| replay_trace(path)),
        Some(other) => panic!("{other} is no work"),
    }
}

//! Memory ranges on a real GPU: every word of a committed page is its own, whatever threads, streams and other ranges do,
//! and nothing waits for a kernel.
//!
//! `GPUPOOL_SOAK_OPERATIONS` sets how long the soak is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::driver::{DEVICE, Kernels, MIB, Random, bind, setting, synchronize, two_devices};
use gpupool::{
    Backup, CommitOptions, Device, ErrorKind, Event, MemPool, MemoryRange, Stream, empty_cache, memory_stats,
};

const PAGE: u64 = 2 * MIB;
const THREADS: u64 = 16;
const STREAMS: usize = 4;
const RANGES: usize = 4;
/// Pages of a range that one thread names.
const OWN: u64 = 64;
/// Pages that a thread has at most, and those that all may have: fewer than they ask for.
const MOST: usize = 24;
const LIMIT: u64 = THREADS * 16 * PAGE;

struct Committed {
    range: usize,
    page: u32,
    seed: u32,
    stream: usize,
    is_discardable: bool,
}

/// What the threads share of a device.
struct Shared {
    device: Device,
    kernels: &'static Kernels,
    pools: Vec<MemPool>,
    ranges: Vec<Arc<MemoryRange>>,
    taken: AtomicU64,
    refused: AtomicU64,
}

impl Shared {
    fn new(device: Device) -> Self {
        let _bound = bind(device);
        let kernels = Kernels::of(device);
        kernels.reset();
        let pool = || MemPool::builder().device(device).limit(LIMIT / 2).build().unwrap();
        let pools = vec![pool(), pool()];
        let reserve = |at: usize| Arc::new(pools[at % 2].reserve_range(OWN * THREADS * PAGE, PAGE).unwrap());
        let ranges = (0..RANGES).map(reserve).collect();
        Self { device, kernels, pools, ranges, taken: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }
}

struct Worker<'a> {
    of: &'a Shared,
    place: u64,
    random: Random,
    streams: Vec<Stream>,
    held: Vec<Committed>,
}

impl<'a> Worker<'a> {
    fn new(of: &'a Shared, place: u64) -> Self {
        let streams = (0..STREAMS).map(|_| Stream::new(of.device).unwrap()).collect();
        Self { of, place, random: Random(place), streams, held: Vec::new() }
    }

    fn address(&self, committed: &Committed) -> u64 {
        self.of.ranges[committed.range].ptr() + u64::from(committed.page) * PAGE
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next() % end
    }

    fn step(&mut self) {
        match self.below(8) {
            0..=3 => self.commit(),
            4 => self.check(),
            5 => self.allocate(),
            _ => self.decommit(),
        }
    }

    fn commit(&mut self) {
        if self.held.len() >= MOST {
            return self.decommit();
        }
        let (range, stream) = (self.below(RANGES as u64) as usize, self.below(STREAMS as u64) as usize);
        let count = 1 + self.below(4);
        let first = self.below(OWN - count);
        let pages: Vec<_> = (first..first + count).map(|own| (own * THREADS + self.place) as u32).collect();
        let is_new = |page: &u32| !self.held.iter().any(|held| held.range == range && held.page == *page);
        let pages: Vec<_> = pages.into_iter().filter(is_new).collect();
        let priority = (self.below(4) == 0).then_some(self.random.next() as i32 % 3);
        let options = CommitOptions { priority, fill: None };
        if let Err(error) = self.of.ranges[range].commit(&pages, &self.streams[stream], options) {
            assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
            self.of.refused.fetch_add(1, Ordering::Relaxed);
            return self.decommit();
        }
        for page in pages {
            let (seed, is_discardable) = (self.random.next() as u32, priority.is_some());
            let committed = Committed { range, page, seed, stream, is_discardable };
            if is_discardable && !self.pin(&committed) {
                continue;
            }
            self.of.kernels.fill(&self.streams[stream], self.address(&committed), PAGE, seed);
            if is_discardable {
                self.of.ranges[range].unpin(&[page], Some(&self.streams[stream])).unwrap();
            }
            self.held.push(committed);
        }
    }

    /// Returns whether a page is there still, and pins it.
    fn pin(&self, committed: &Committed) -> bool {
        let is_there = self.of.ranges[committed.range].pin(&[committed.page], None).unwrap() == [1];
        if !is_there {
            self.of.taken.fetch_add(1, Ordering::Relaxed);
        }
        is_there
    }

    fn check(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.below(self.held.len() as u64) as usize;
        if !self.pin(&self.held[at]) {
            self.held.swap_remove(at);
            return;
        }
        let other = self.below(STREAMS as u64) as usize;
        let (committed, streams) = (&self.held[at], &self.streams);
        let filled = Event::new(self.of.device).unwrap();
        filled.record(&streams[committed.stream]).unwrap();
        streams[other].wait(&filled).unwrap();
        self.of.kernels.check(&streams[other], self.address(committed), PAGE, committed.seed);
        self.of.ranges[committed.range].unpin(&[committed.page], Some(&streams[other])).unwrap();
    }

    fn decommit(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.below(self.held.len() as u64) as usize;
        let committed = self.held.swap_remove(at);
        let stream = &self.streams[committed.stream];
        let range = &self.of.ranges[committed.range];
        if committed.is_discardable && !self.pin(&committed) {
            return;
        }
        self.of.kernels.check(stream, self.address(&committed), PAGE, committed.seed);
        if committed.is_discardable {
            range.unpin(&[committed.page], Some(stream)).unwrap();
        }
        range.decommit(&[committed.page], Some(stream)).unwrap();
    }

    /// A block of the same memory, for a moment.
    fn allocate(&mut self) {
        let (pool, stream) = (self.below(self.of.pools.len() as u64) as usize, self.below(STREAMS as u64) as usize);
        let (bytes, seed) = ((1 + self.below(3)) * PAGE - 512, self.random.next() as u32);
        let Ok(block) = self.of.pools[pool].empty(bytes, &self.streams[stream]) else {
            self.of.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.of.kernels.fill(&self.streams[stream], block.ptr(), bytes, seed);
        self.of.kernels.check(&self.streams[stream], block.ptr(), bytes, seed);
    }
}

/// As many threads for each device, all at once.
fn soak(devices: &[Device]) {
    let operations = setting("GPUPOOL_SOAK_OPERATIONS", 20_000);
    let before: Vec<_> = devices.iter().map(|&device| memory_stats(device).unwrap()).collect();
    let shared: Vec<_> = devices.iter().map(|&device| Shared::new(device)).collect();
    let start = Instant::now();
    thread::scope(|scope| {
        for of in &shared {
            for place in 0..THREADS {
                scope.spawn(move || {
                    let _bound = bind(of.device);
                    let mut worker = Worker::new(of, place);
                    (0..operations / THREADS).for_each(|_| worker.step());
                    while !worker.held.is_empty() {
                        worker.decommit();
                    }
                });
            }
        }
    });
    for (of, before) in shared.into_iter().zip(before) {
        let Shared { device, kernels, pools, ranges, taken, refused } = of;
        let _bound = bind(device);
        let (wrong, after) = (kernels.wrong_words(), memory_stats(device).unwrap());
        println!(
            "soak: {operations} operations on ranges of {device} in {:.1} s, {wrong} wrong words, {} pages moved, {} driver \
             calls, {} pages taken, {} calls refused",
            start.elapsed().as_secs_f64(),
            after.moved_pages - before.moved_pages,
            after.driver_calls - before.driver_calls,
            taken.into_inner(),
            refused.into_inner(),
        );
        assert_eq!(wrong, 0);
        for range in ranges {
            assert_eq!(range.committed_bytes().unwrap(), 0);
            range.free(None).unwrap();
        }
        drop(pools);
        synchronize();
        empty_cache().unwrap();
        assert_eq!(memory_stats(device).unwrap().total.live_blocks, before.total.live_blocks);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn every_word_of_ranges_is_right_while_threads_and_streams_share_their_memory() {
    let _turn = crate::driver::turn();
    let _bound = bind(DEVICE);
    soak(&[DEVICE]);
}

#[test]
#[ignore = "needs two GPUs"]
fn every_word_of_ranges_is_right_on_two_devices_at_once() {
    let _turn = crate::driver::turn();
    if let Some(devices) = two_devices() {
        soak(&devices);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn pages_come_and_go_while_a_kernel_runs_and_what_it_uses_stays() {
    let _turn = crate::driver::turn();
    let _bound = bind(DEVICE);
    let kernels = Kernels::of(DEVICE);
    kernels.reset();
    let pool = MemPool::builder().device(DEVICE).build().unwrap();
    let (busy, other) = (Stream::new(DEVICE).unwrap(), Stream::new(DEVICE).unwrap());
    let range = pool.reserve_range(1024 * PAGE, PAGE).unwrap();
    let at = |page: u64| range.ptr() + page * PAGE;
    range.commit(0..8 * PAGE, &busy, CommitOptions::default()).unwrap();
    kernels.fill(&busy, at(0), 8 * PAGE, 3);
    kernels.spin(&busy, 1_000_000_000);
    // The words are checked by work that waits behind the kernel, when the pages were decommitted long before.
    kernels.check(&busy, at(0), 8 * PAGE, 3);
    range.decommit(0..8 * PAGE, Some(&busy)).unwrap();
    range.commit(16 * PAGE..32 * PAGE, &other, CommitOptions::default()).unwrap();
    kernels.fill(&other, at(16), 16 * PAGE, 4);
    kernels.check(&other, at(16), 16 * PAGE, 4);
    range.decommit(16 * PAGE..24 * PAGE, Some(&other)).unwrap();
    other.synchronize().unwrap();
    range.commit(40 * PAGE..48 * PAGE, &other, CommitOptions::default()).unwrap();
    kernels.fill(&other, at(40), 8 * PAGE, 5);
    // Taken back while its former work still runs, in the order of another stream.
    range.commit(&[2], &other, CommitOptions::default()).unwrap();
    kernels.fill(&other, at(2), PAGE, 6);
    assert!(!busy.query().unwrap(), "something waited for the kernel");
    kernels.check(&other, at(2), PAGE, 6);
    kernels.check(&other, at(40), 8 * PAGE, 5);
    assert_eq!(kernels.wrong_words(), 0);
    drop((range, pool));
    synchronize();
    empty_cache().unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn a_sleeping_pool_brings_the_words_of_its_ranges_back() {
    let _turn = crate::driver::turn();
    let _bound = bind(DEVICE);
    let kernels = Kernels::of(DEVICE);
    kernels.reset();
    let pool = MemPool::builder().device(DEVICE).build().unwrap();
    let stream = Stream::new(DEVICE).unwrap();
    let range = pool.reserve_range(1024 * PAGE, PAGE).unwrap();
    let pages: Vec<u32> = (0..200).map(|page| page * 5).collect();
    range.commit(&pages, &stream, CommitOptions::default()).unwrap();
    let at = |page: u32| range.ptr() + u64::from(page) * PAGE;
    pages.iter().for_each(|&page| kernels.fill(&stream, at(page), PAGE, page));
    pool.sleep(Backup::Host).unwrap();
    assert_eq!(pool.stats().unwrap().reserved_bytes, 0);
    pool.wake().unwrap();
    pages.iter().for_each(|&page| kernels.check(&stream, at(page), PAGE, page));
    assert_eq!(kernels.wrong_words(), 0);
    // Each page goes by itself still.
    range.decommit(&pages[..100], Some(&stream)).unwrap();
    stream.synchronize().unwrap();
    let before = memory_stats(DEVICE).unwrap().moved_pages;
    range.commit(&(2..102).map(|page| page * 5 + 1).collect::<Vec<_>>(), &stream, CommitOptions::default()).unwrap();
    assert_eq!(memory_stats(DEVICE).unwrap().moved_pages - before, 100);
    drop((range, pool));
    synchronize();
    empty_cache().unwrap();
}

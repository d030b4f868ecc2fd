//! Two GPUs that get access to each other's memory at any moment: threads allocate, free, move, sleep and wake on both, and
//! from that moment on kernels of both read and write every block. Without two such GPUs the test says so and passes.
//!
//! Nothing takes access back, so that each process has one such moment for either GPU: the soak has several processes.
//! `GPUPOOL_SOAK_OPERATIONS` sets how many blocks they have together.

use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use crate::common::wait_until;
use crate::driver::{Filled, Kernels, MIB, Random, bind, setting, synchronize, two_devices};
use gpupool::memory::set_per_process_memory_fraction;
use gpupool::runtime;
use gpupool::{
    Backup, Device, DeviceBuffer, ErrorKind, Event, MemPool, Stream, empty_cache, enable_peer_access, memory_stats,
};

const PROCESSES: u64 = 8;
const THREADS: usize = 8;
/// Streams of a thread on each device.
const STREAMS: usize = 3;
/// Bytes that a thread holds, on both devices together.
const MOST: u64 = 384 * MIB;
/// Bytes that are reserved of each device: more than all threads can hold on one, so that what sleeps can wake.
const LIMIT: u64 = 8192 * MIB;
/// What tells a process of the soak its number.
const NUMBER: &str = "GPUPOOL_PEERS_PROCESS";

/// What the threads share. A device is its place in `devices` here.
struct Soak {
    devices: [Device; 2],
    kernels: [&'static Kernels; 2],
    /// Whether the other device has access to all memory of this one.
    is_open: [AtomicBool; 2],
    /// Blocks of each thread.
    blocks: u64,
    seeds: AtomicU32,
    refused: AtomicU64,
    across: AtomicU64,
    sleeps: AtomicU64,
}

/// A block, on which device, and whether it is of its thread's own pool.
struct Held {
    filled: Filled,
    home: usize,
    is_private: bool,
}

impl Held {
    fn buffer(&self) -> &DeviceBuffer {
        &self.filled.buffer
    }
}

struct Worker<'a> {
    soak: &'a Soak,
    random: Random,
    streams: [Vec<Stream>; 2],
    pools: [MemPool; 2],
    live: Vec<Held>,
    bytes: u64,
    done: u64,
    /// After how many blocks the thread gives access to the memory of each device, until it has.
    opens_at: [Option<u64>; 2],
    next: Sender<Held>,
    previous: Receiver<Held>,
}

impl<'a> Worker<'a> {
    fn new(soak: &'a Soak, number: u64, next: Sender<Held>, previous: Receiver<Held>) -> Self {
        let mut random = Random(number);
        let streams = soak.devices.map(|device| (0..STREAMS).map(|_| Stream::new(device).unwrap()).collect());
        let pools = soak.devices.map(|device| MemPool::builder().device(device).build().unwrap());
        // Before half of the blocks are done, so that as many are used by both devices.
        let opens_at = [(); 2].map(|()| Some(random.below(1 + soak.blocks as usize / 2) as u64));
        Self { soak, random, streams, pools, live: Vec::new(), bytes: 0, done: 0, opens_at, next, previous }
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.random.below(many) == 0
    }

    fn stream_on(&mut self, device: usize) -> Stream {
        self.streams[device][self.random.below(STREAMS)].clone()
    }

    /// Gives each device access to the other's memory, once it is time.
    fn open(&mut self) {
        let devices = self.soak.devices;
        for home in 0..2 {
            if self.opens_at[home].take_if(|at| *at <= self.done).is_some() {
                enable_peer_access(devices[home], devices[1 - home]).unwrap();
                self.soak.is_open[home].store(true, Ordering::Release);
            }
        }
    }

    fn allocate(&mut self, is_private: bool) {
        let home = self.random.below(2);
        let device = self.soak.devices[home];
        let stream = if self.one_in(16) { Stream::new(device).unwrap() } else { self.stream_on(home) };
        let bytes = self.random.bytes(2.0, 26.0);
        let seed = self.soak.seeds.fetch_add(1, Ordering::Relaxed);
        let _bound = bind(device);
        let _scope = is_private.then(|| self.pools[home].enter().unwrap());
        match Filled::new(self.soak.kernels[home], &stream, bytes, seed) {
            Ok(filled) => {
                self.live.push(Held { filled, home, is_private });
                self.bytes += bytes;
                self.done += 1;
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
                self.soak.refused.fetch_add(1, Ordering::Relaxed);
                (0..self.live.len() / 2).for_each(|_| self.free());
            }
        }
    }

    /// A device that can use the block: the other one, if it may.
    fn user_of(&mut self, held: &Held) -> usize {
        let is_across = self.soak.is_open[held.home].load(Ordering::Acquire) && !self.one_in(4);
        self.soak.across.fetch_add(u64::from(is_across), Ordering::Relaxed);
        if is_across { 1 - held.home } else { held.home }
    }

    /// Checks a block on a stream of one of the devices, behind what its own stream has to do. Returns that stream.
    fn check(&mut self, held: &Held) -> (usize, Stream) {
        let user = self.user_of(held);
        let stream = self.stream_on(user);
        let behind = Event::new(self.soak.devices[held.home]).unwrap();
        behind.record(&held.buffer().stream()).unwrap();
        stream.wait(&behind).unwrap();
        let _bound = bind(self.soak.devices[user]);
        if self.one_in(8) {
            self.soak.kernels[user].spin(&stream, 20_000);
        }
        held.filled.check_on(self.soak.kernels[user], &stream);
        (user, stream)
    }

    /// Checks a block on either device, and may write it anew there. Its own stream goes on behind that.
    fn visit(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let place = self.random.below(self.live.len());
        let mut held = self.live.swap_remove(place);
        let (user, stream) = self.check(&held);
        if self.one_in(2) {
            held.filled.seed = self.soak.seeds.fetch_add(1, Ordering::Relaxed);
            let _bound = bind(self.soak.devices[user]);
            let (address, bytes) = (held.buffer().ptr(), held.buffer().nbytes());
            self.soak.kernels[user].fill(&stream, address, bytes, held.filled.seed);
        }
        let done = Event::new(self.soak.devices[user]).unwrap();
        done.record(&stream).unwrap();
        held.buffer().stream().wait(&done).unwrap();
        self.live.push(held);
    }

    /// Checks a block on either device and frees it, in one of the ways there are.
    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let place = self.random.below(self.live.len());
        let held = self.live.swap_remove(place);
        self.bytes -= held.buffer().nbytes();
        if !held.is_private && self.one_in(4) {
            // Another thread does.
            self.next.send(held).unwrap();
        } else {
            self.end(held);
        }
    }

    fn end(&mut self, held: Held) {
        let (_, stream) = self.check(&held);
        if self.one_in(2) {
            held.buffer().record_stream(&stream).unwrap();
        } else {
            held.filled.buffer.free_on(&stream).unwrap();
        }
    }

    fn end_what_came(&mut self) {
        let came: Vec<_> = self.previous.try_iter().collect();
        came.into_iter().for_each(|held| self.end(held));
    }

    /// Has one of the thread's pools sleep, with its blocks, while the thread goes on with the others.
    fn sleep(&mut self) {
        let home = self.random.below(2);
        let is_asleep = |held: &mut Held| held.is_private && held.home == home;
        let asleep: Vec<_> = self.live.extract_if(.., is_asleep).collect();
        self.pools[home].sleep(Backup::Host).unwrap();
        self.soak.sleeps.fetch_add(1, Ordering::Relaxed);
        for _ in 0..self.random.below(8) {
            self.open();
            match self.random.below(3) {
                0 => self.allocate(false),
                1 => self.visit(),
                _ => self.free(),
            }
        }
        wait_until("there is memory to wake", || match self.pools[home].wake() {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
                empty_cache().unwrap();
                false
            }
        });
        self.live.extend(asleep);
    }

    fn run(mut self) {
        while self.done < self.soak.blocks {
            self.open();
            match self.random.below(8) {
                0..=3 if self.bytes < MOST => {
                    let is_private = self.one_in(2);
                    self.allocate(is_private);
                }
                4 | 5 => self.visit(),
                _ => self.free(),
            }
            self.end_what_came();
            // Seldom: what sleeps is copied to memory of the host that is made for it, which takes longer than all else.
            match self.random.below(2000) {
                0 | 1 => self.sleep(),
                2 => drop(empty_cache().unwrap()),
                _ => {}
            }
        }
        while !self.live.is_empty() {
            self.free();
        }
        // No other thread waits for this one's end.
        self.next = channel().0;
        while let Ok(held) = self.previous.recv() {
            self.end(held);
        }
    }
}

/// One process of the soak.
fn soak(devices: [Device; 2], number: u64, blocks: u64) {
    let kernels = devices.map(|device| {
        let _bound = bind(device);
        let total = runtime::get().unwrap().total_memory(device.into()).unwrap();
        set_per_process_memory_fraction((LIMIT as f64 / total as f64).min(1.0), device).unwrap();
        let kernels = Kernels::of(device);
        kernels.reset();
        kernels
    });
    let soak = Soak {
        devices,
        kernels,
        is_open: [const { AtomicBool::new(false) }; 2],
        blocks: blocks.div_ceil(THREADS as u64),
        seeds: AtomicU32::new(1),
        refused: AtomicU64::new(0),
        across: AtomicU64::new(0),
        sleeps: AtomicU64::new(0),
    };
    let start = Instant::now();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
    thread::scope(|scope| {
        for (index, previous) in receivers.into_iter().enumerate() {
            let (soak, next) = (&soak, senders[(index + 1) % THREADS].clone());
            scope.spawn(move || Worker::new(soak, number * THREADS as u64 + index as u64, next, previous).run());
        }
        drop(senders);
    });
    let wrong = [0, 1].map(|place| {
        let _bound = bind(devices[place]);
        kernels[place].wrong_words()
    });
    let moved: u64 = devices.iter().map(|&device| memory_stats(device).unwrap().moved_pages).sum();
    let [refused, across, sleeps] = [soak.refused, soak.across, soak.sleeps].map(AtomicU64::into_inner);
    println!(
        "soak: peers, process {number}: {blocks} blocks in {:.1} s, {wrong:?} wrong words, {across} times used across, \
         {moved} pages moved, {sleeps} sleeps, {refused} requests refused",
        start.elapsed().as_secs_f64(),
    );
    assert_eq!(wrong, [0, 0]);
    assert!(across > blocks / 8 && moved > 0 && sleeps > 0 && refused * 20 <= blocks);
    for home in 0..2 {
        tells_right_from_wrong(&devices, &kernels, home);
    }
    for device in devices {
        for _ in 0..2 {
            let _bound = bind(device);
            synchronize();
            empty_cache().unwrap();
        }
        let stats = memory_stats(device).unwrap();
        assert_eq!((stats.total.live_blocks, stats.total.reserved_bytes, stats.pools), (0, 0, 1), "{stats:?}");
    }
}

/// The other device finds words wrong that are, so that it has looked at all of the above.
fn tells_right_from_wrong(devices: &[Device; 2], kernels: &[&Kernels; 2], home: usize) {
    let _bound = bind(devices[home]);
    let stream = Stream::new(devices[home]).unwrap();
    let filled = Filled::new(kernels[home], &stream, 400, 1).unwrap();
    stream.synchronize().unwrap();
    let _bound = bind(devices[1 - home]);
    let stream = Stream::new(devices[1 - home]).unwrap();
    kernels[1 - home].reset();
    kernels[1 - home].check(&stream, filled.buffer.ptr(), 400, 2);
    assert_eq!(kernels[1 - home].wrong_words(), 100);
}

#[test]
#[ignore = "needs two GPUs"]
fn every_word_is_right_on_both_devices_whenever_they_become_peers() {
    let _turn = crate::driver::turn();
    let Some(devices) = two_devices() else { return };
    let blocks = setting("GPUPOOL_SOAK_OPERATIONS", 40_000).div_ceil(PROCESSES);
    if env::var_os(NUMBER).is_some() {
        return soak(devices, setting(NUMBER, 0), blocks * PROCESSES);
    }
    for number in 0..PROCESSES {
        let done = Command::new(env::current_exe().unwrap())
            .args(["--include-ignored", "--exact", "--nocapture"])
            .arg("peers::every_word_is_right_on_both_devices_whenever_they_become_peers")
            .env(NUMBER, number.to_string())
            .env("GPUPOOL_SOAK_OPERATIONS", blocks.to_string())
            .output()
            .unwrap();
        let (told, complained) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        told.lines().filter(|line| line.contains("soak:")).for_each(|line| println!("{line}"));
        assert!(
            done.status.success() && told.contains("soak:"),
            "process {number}: {}\n{told}{complained}",
            done.status
        );
    }
}

//! Pools that come and go while threads move the memory among them: nothing is handed out twice, and nothing is lost.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::memory::{MIB, Random, assert_all_back};
use crate::common::{device, stream, turns};
use gpupool::runtime::host::{complete_all, submit};
use gpupool::{DeviceBuffer, ErrorKind, MemPool, Stream, empty, empty_cache};

const THREADS: u64 = 8;
const STREAMS: usize = 3;
const POOLS: usize = 4;
const OPERATIONS: u32 = 400;
/// What a thread may hold: together three quarters of the device, so that pages must move.
const MOST: u64 = 96 * MIB;

/// A pool of each kind in turn: one that keeps what it has, one that helps, one with a reserve, one with segments.
fn make_pool(number: u32) -> Arc<MemPool> {
    let builder = || MemPool::builder().device(device(0));
    let made = match number % 4 {
        0 => builder().build(),
        1 => builder().use_on_oom(true).build(),
        2 => builder().reserve(24 * MIB).use_on_oom(number % 8 == 2).build(),
        _ => builder().segments(true).build(),
    };
    // Others may have all memory just then.
    Arc::new(made.unwrap_or_else(|_| builder().build().unwrap()))
}

struct Worker<'a> {
    pools: &'a [Mutex<Arc<MemPool>>; POOLS],
    made: &'a AtomicU32,
    random: Random,
    streams: Vec<Stream>,
    live: Vec<DeviceBuffer>,
    bytes: u64,
    next: Sender<DeviceBuffer>,
    previous: Receiver<DeviceBuffer>,
}

impl Worker<'_> {
    fn allocate(&mut self) {
        let stream = &self.streams[self.random.below(STREAMS)];
        let bytes = 1 << self.random.below(23) | self.random.below(1 << 22) as u64;
        let pool = self.pools.get(self.random.below(POOLS + 2)).map(|pool| Arc::clone(&pool.lock().unwrap()));
        let _scope = pool.as_ref().map(|pool| pool.enter().unwrap());
        match empty(bytes, stream) {
            Ok(buffer) => {
                // SAFETY: the block has at least eight bytes, of real memory.
                unsafe { word(&buffer).write_volatile(buffer.ptr()) };
                self.bytes += bytes;
                self.live.push(buffer);
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
                (0..self.live.len() / 2).for_each(|_| self.free());
            }
        }
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let buffer = self.live.swap_remove(self.random.below(self.live.len()));
        // SAFETY: the block has at least eight bytes, of real memory.
        assert_eq!(unsafe { word(&buffer).read_volatile() }, buffer.ptr(), "two callers had one block");
        self.bytes = self.bytes.saturating_sub(buffer.nbytes());
        match self.random.below(6) {
            0 => buffer.free_on(&self.streams[self.random.below(STREAMS)]).unwrap(),
            1 => self.next.send(buffer).unwrap(),
            _ => drop(buffer),
        }
    }

    fn run(mut self) {
        for _ in 0..OPERATIONS {
            if self.bytes < MOST && self.random.below(10) < 6 {
                self.allocate();
            } else {
                self.free();
            }
            self.previous.try_iter().for_each(drop);
            match self.random.below(200) {
                0 => drop(empty_cache().unwrap()),
                1..4 => {
                    let fresh = make_pool(self.made.fetch_add(1, Ordering::Relaxed));
                    drop(std::mem::replace(&mut *self.pools[self.random.below(POOLS)].lock().unwrap(), fresh));
                }
                4..40 => drop(submit(&self.streams[self.random.below(STREAMS)]).unwrap()),
                40..44 => complete_all().unwrap(),
                _ => {}
            }
        }
        while !self.live.is_empty() {
            self.free();
        }
        let Self { next, previous, .. } = self;
        drop(next);
        previous.into_iter().for_each(drop);
    }
}

fn word(buffer: &DeviceBuffer) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(buffer.ptr() as usize)
}

#[test]
fn pools_that_come_and_go_among_threads_lose_no_memory() {
    memory!();
    let made = AtomicU32::new(0);
    for round in turns(1) {
        let pools = [(); POOLS].map(|()| Mutex::new(make_pool(made.fetch_add(1, Ordering::Relaxed))));
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
        thread::scope(|scope| {
            for (number, previous) in (0..THREADS).zip(receivers) {
                let (pools, made) = (&pools, &made);
                let next = senders[((number + 1) % THREADS) as usize].clone();
                scope.spawn(move || {
                    let streams = (0..STREAMS).map(|_| stream(0)).collect();
                    let random = Random((round * THREADS + number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    Worker { pools, made, random, streams, live: Vec::new(), bytes: 0, next, previous }.run();
                });
            }
            drop(senders);
        });
        drop(pools);
        complete_all().unwrap();
        empty_cache().unwrap();
        assert_all_back();
    }
}

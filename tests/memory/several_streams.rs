//! Programs with several streams, whose GPU lags behind: their streams have no more memory together than each needs for itself at
//! its most, and less where they take turns.

use std::collections::VecDeque;

use crate::common::memory::{MIB, PAGE, Random, empty_in, reserved};
use crate::common::{device, stream};
use gpupool::memory::empty_cache;
use gpupool::runtime::host::{complete, submit};
use gpupool::{DeviceBuffer, MemPool, Stream, empty};

const MEMORY: u64 = 140 << 30;

/// A program of some streams, of which as much work is not done yet as the lag says, and the bytes that they have.
struct Program {
    streams: Vec<Stream>,
    /// Whose memory the streams take in turn; the default pool's if there are none.
    pools: Vec<MemPool>,
    random: Random,
    lag: usize,
    submitted: VecDeque<(usize, u64)>,
    live: Vec<u64>,
    peaks: Vec<u64>,
    reserved: u64,
}

impl Program {
    fn new(seed: u64, lag: usize) -> Self {
        let mut random = Random(seed);
        let streams: Vec<_> = (0..2 + random.below(7)).map(|_| stream(0)).collect();
        let (live, peaks) = (vec![0; streams.len()], vec![0; streams.len()]);
        Self { streams, pools: Vec::new(), random, lag, submitted: VecDeque::new(), live, peaks, reserved: 0 }
    }

    /// Returns a size of up to so many MiB, and at least a third.
    fn size(&mut self, most: usize) -> u64 {
        (most as u64 * MIB / 3) + self.random.below(most * MIB as usize * 2 / 3) as u64
    }

    fn take(&mut self, on: usize, bytes: u64) -> (usize, DeviceBuffer) {
        let stream = &self.streams[on];
        let block = match self.pools.get(on % self.pools.len().max(1)) {
            Some(pool) => empty_in(pool, bytes, stream),
            None => empty(bytes, stream),
        };
        let block = block.unwrap();
        self.live[on] += block.nbytes();
        self.peaks[on] = self.peaks[on].max(self.live[on]);
        self.reserved = self.reserved.max(reserved());
        self.submitted.push_back((on, submit(&self.streams[on]).unwrap()));
        self.wait_for_all_but(self.lag);
        (on, block)
    }

    fn take_some(&mut self, on: usize, most: usize) -> (usize, DeviceBuffer) {
        let bytes = self.size(most);
        self.take(on, bytes)
    }

    /// Takes blocks, works with each, and frees them.
    fn burst(&mut self, on: usize, sizes: &[u64]) {
        let blocks: Vec<_> = sizes.iter().map(|&bytes| self.take(on, bytes)).collect();
        blocks.into_iter().for_each(|block| self.free(block));
    }

    fn free(&mut self, (on, block): (usize, DeviceBuffer)) {
        self.live[on] -= block.nbytes();
    }

    fn wait_for_all_but(&mut self, lag: usize) {
        while self.submitted.len() > lag {
            let (on, number) = self.submitted.pop_front().unwrap();
            complete(&self.streams[on], number).unwrap();
        }
    }

    /// Ends the program. Returns the most that its streams had together, of what each of them alone had at its most.
    fn end(mut self) -> f64 {
        self.wait_for_all_but(0);
        self.pools.clear();
        empty_cache().unwrap();
        // Of each stream's bytes a page at most is begun, and its small blocks have one.
        self.reserved as f64 / self.peaks.iter().map(|peak| peak.next_multiple_of(PAGE) + PAGE).sum::<u64>() as f64
    }
}

/// In each step every stream takes two blocks of one size, and works with them; then all is waited for.
fn steps(program: &mut Program) {
    for _ in 0..16 {
        for on in 0..program.streams.len() {
            let bytes = program.size(120);
            program.burst(on, &[bytes, bytes]);
        }
        program.wait_for_all_but(0);
    }
}

/// Each stream in turn takes a few blocks, and nothing is waited for.
fn rounds(program: &mut Program) {
    for round in 0..40 {
        let sizes: Vec<_> = (0..2 + program.random.below(2)).map(|_| program.size(60)).collect();
        program.burst(round % program.streams.len(), &sizes);
    }
}

/// One stream works long, then the next.
fn phases(program: &mut Program) {
    for on in 0..program.streams.len() {
        for _ in 0..12 {
            let sizes: Vec<_> = (0..2 + program.random.below(6)).map(|_| program.size(40)).collect();
            program.burst(on, &sizes);
        }
    }
}

/// A stream uses what the one before it made.
fn pipeline(program: &mut Program) {
    for round in 0..60 {
        let (on, next) = (round % program.streams.len(), (round + 1) % program.streams.len());
        let made = program.take_some(on, 60);
        let used = program.take_some(next, 60);
        program.free(made);
        program.free(used);
    }
}

/// Steps of streams that take turns in two pools.
fn two_pools(program: &mut Program) {
    program.pools = (0..2).map(|_| MemPool::builder().device(device(0)).build().unwrap()).collect();
    steps(program);
}

/// Steps in a pool whose limit is less than two of its streams need.
fn within_a_limit(program: &mut Program) {
    let limit = 256 * MIB;
    program.pools = vec![MemPool::builder().device(device(0)).limit(limit).build().unwrap()];
    steps(program);
    assert!(program.reserved <= limit, "{} reserved", program.reserved);
}

/// Each request has a stream of its own, which ends with it.
fn requests(program: &mut Program) {
    for _ in 0..100 {
        program.streams.push(stream(0));
        program.live.push(0);
        program.peaks.push(0);
        let on = program.streams.len() - 1;
        let sizes = [program.size(60), program.size(60)];
        program.burst(on, &sizes);
    }
}

/// Every stream has blocks of random sizes, which it frees in any order.
fn random_sizes(program: &mut Program) {
    let mut held: Vec<Vec<_>> = program.streams.iter().map(|_| Vec::new()).collect();
    for _ in 0..300 {
        let on = program.random.below(held.len());
        let count = held[on].len();
        if count > 0 && (count == 12 || program.random.below(2) == 0) {
            let block = held[on].swap_remove(program.random.below(count));
            program.free(block);
        } else {
            held[on].push(program.take_some(on, 60));
        }
    }
    held.into_iter().flatten().for_each(|block| program.free(block));
}

/// A program's kind, the lag of its GPU, and how much twenty programs have at most of what their streams would have apart: the one
/// in the middle, and the worst.
struct Bound(&'static str, fn(&mut Program), usize, f64, f64);

fn check(bounds: &[Bound]) {
    for &Bound(name, run, lag, middle, worst) in bounds {
        let mut found: Vec<_> = (1..=20)
            .map(|seed| {
                let mut program = Program::new(seed, lag);
                run(&mut program);
                program.end()
            })
            .collect();
        found.sort_by(f64::total_cmp);
        assert!(found[10] <= middle && found[19] <= worst, "{name}, lag {lag}: {found:.3?}");
    }
}

#[test]
fn streams_that_all_work_in_a_step_have_no_more_than_apart() {
    host!(1, MEMORY);
    check(&[Bound("steps", steps, 0, 0.60, 1.00), Bound("steps", steps, 30, 1.00, 1.00)]);
}

#[test]
fn streams_of_two_pools_or_with_a_limit_have_no_more_than_apart() {
    host!(1, MEMORY);
    check(&[
        Bound("within a limit", within_a_limit, 30, 0.45, 0.70),
        Bound("two pools", two_pools, 0, 0.71, 1.00),
        Bound("two pools", two_pools, 30, 1.00, 1.00),
    ]);
}

#[test]
fn streams_that_work_in_rounds_have_no_more_than_apart() {
    host!(1, MEMORY);
    check(&[Bound("rounds", rounds, 0, 0.29, 0.75), Bound("rounds", rounds, 30, 1.00, 1.00)]);
}

#[test]
fn streams_that_take_turns_have_less_than_apart() {
    host!(1, MEMORY);
    check(&[
        Bound("phases", phases, 0, 0.24, 0.55),
        Bound("phases", phases, 30, 0.43, 1.00),
        Bound("pipeline", pipeline, 0, 0.78, 1.00),
        Bound("pipeline", pipeline, 30, 0.99, 0.99),
        Bound("requests", requests, 0, 0.04, 0.04),
        Bound("requests", requests, 30, 0.20, 0.21),
    ]);
}

#[test]
fn streams_with_random_sizes_have_little_more_than_apart() {
    host!(1, MEMORY);
    check(&[Bound("random sizes", random_sizes, 0, 0.89, 1.00), Bound("random sizes", random_sizes, 30, 1.04, 1.06)]);
}

//! Programs with several streams, whose GPU lags behind: their streams have no more memory together than each needs for itself at
//! its most, and less where they take turns.

use std::collections::VecDeque;

use crate::common::memory::{PAGE, Random, reserved};
use crate::common::stream;
use gpupool::memory::empty_cache;
use gpupool::runtime::host::{complete, submit};
use gpupool::{DeviceBuffer, Stream, empty};

const MEMORY: u64 = 140 << 30;
const MIB: u64 = 1 << 20;

/// A program of some streams, of which as much work is not done yet as the lag says, and the bytes that they have.
struct Program {
    streams: Vec<Stream>,
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
        Self { streams, random, lag, submitted: VecDeque::new(), live, peaks, reserved: 0 }
    }

    /// Takes a block of up to so many bytes and at least a third.
    fn take(&mut self, on: usize, most: u64) -> (usize, DeviceBuffer) {
        let bytes = most / 3 + self.random.below((most / 3 * 2) as usize) as u64;
        let block = empty(bytes, &self.streams[on]).unwrap();
        self.live[on] += block.nbytes();
        self.peaks[on] = self.peaks[on].max(self.live[on]);
        self.reserved = self.reserved.max(reserved());
        (on, block)
    }

    fn free(&mut self, (on, block): (usize, DeviceBuffer)) {
        self.live[on] -= block.nbytes();
    }

    fn work(&mut self, on: usize) {
        self.submitted.push_back((on, submit(&self.streams[on]).unwrap()));
        self.wait_for_all_but(self.lag);
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
        empty_cache().unwrap();
        // Of each stream's bytes a page at most is begun, and its small blocks have one.
        self.reserved as f64 / self.peaks.iter().map(|peak| peak.next_multiple_of(PAGE) + PAGE).sum::<u64>() as f64
    }
}

/// In each step every stream takes two blocks of one size, and works with them; then all is waited for.
fn steps(program: &mut Program) {
    let most = (300 + program.random.below(600) as u64) * MIB;
    for _ in 0..40 {
        for on in 0..program.streams.len() {
            let blocks = [program.take(on, most), program.take(on, most)];
            program.work(on);
            blocks.into_iter().for_each(|block| program.free(block));
        }
        program.wait_for_all_but(0);
    }
}

/// One stream works long, then the next.
fn phases(program: &mut Program) {
    for on in 0..program.streams.len() {
        for _ in 0..20 {
            let mut blocks = Vec::new();
            for _ in 0..2 + program.random.below(6) {
                blocks.push(program.take(on, 100 * MIB));
                program.work(on);
            }
            blocks.into_iter().for_each(|block| program.free(block));
        }
    }
}

/// Each stream's blocks are used by the next stream, too, before they are freed.
fn pipeline(program: &mut Program) {
    for round in 0..80 {
        let (on, next) = (round % program.streams.len(), (round + 1) % program.streams.len());
        let made = program.take(on, 200 * MIB);
        program.work(on);
        let used = program.take(next, 200 * MIB);
        program.work(next);
        program.free(made);
        program.free(used);
    }
}

#[test]
fn they_have_no_more_together_than_each_needs_at_its_most() {
    host!(1, MEMORY);
    let programs: [(&str, fn(&mut Program), f64); 3] = [("steps", steps, 0.0), ("phases", phases, 0.0), ("pipeline", pipeline, 0.0)];
    for (name, run, bound) in programs {
        for lag in [0, 12, 30] {
            let mut all: Vec<_> = (1..=20)
                .map(|seed| {
                    let mut program = Program::new(seed, lag);
                    run(&mut program);
                    program.end()
                })
                .collect();
            all.sort_by(f64::total_cmp);
            println!("{name} lag {lag}: median {:.3} worst {:.3} {bound}", all[10], all[19]);
        }
    }
}

//! Programs with several streams, whose GPU lags behind: their streams have no more memory together than each needs for itself at
//! its most, and less where they take turns.

use std::collections::VecDeque;

use crate::common::memory::{MIB, PAGE, Random, builder, empty_in, pool, reserved};
use crate::common::stream;
use gpupool::memory::empty_cache;
use gpupool::runtime::host::{complete, driver_calls, submit};
use gpupool::{CommitOptions, DeviceBuffer, MemPool, Stream, empty};

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
    program.pools = (0..2).map(|_| pool()).collect();
    steps(program);
}

/// Steps in a pool whose limit is less than two of its streams need.
fn within_a_limit(program: &mut Program) {
    let limit = 256 * MIB;
    program.pools = vec![builder().limit(limit).build().unwrap()];
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
    memory!(1, MEMORY);
    check(&[Bound("steps", steps, 0, 0.57, 1.00), Bound("steps", steps, 30, 0.99, 1.00)]);
}

#[test]
fn streams_of_two_pools_or_with_a_limit_have_no_more_than_apart() {
    memory!(1, MEMORY);
    check(&[
        Bound("within a limit", within_a_limit, 30, 0.45, 0.70),
        Bound("two pools", two_pools, 0, 0.77, 1.00),
        Bound("two pools", two_pools, 30, 1.00, 1.00),
    ]);
}

#[test]
fn streams_that_work_in_rounds_have_no_more_than_apart() {
    memory!(1, MEMORY);
    check(&[Bound("rounds", rounds, 0, 0.35, 0.95), Bound("rounds", rounds, 30, 1.00, 1.00)]);
}

#[test]
fn streams_that_take_turns_have_less_than_apart() {
    memory!(1, MEMORY);
    check(&[
        Bound("phases", phases, 0, 0.24, 0.55),
        Bound("phases", phases, 30, 0.43, 1.00),
        Bound("pipeline", pipeline, 0, 0.80, 1.00),
        Bound("pipeline", pipeline, 30, 0.99, 0.99),
        Bound("requests", requests, 0, 0.04, 0.04),
        Bound("requests", requests, 30, 0.20, 0.21),
    ]);
}

#[test]
fn streams_with_random_sizes_have_little_more_than_apart() {
    memory!(1, MEMORY);
    check(&[Bound("random sizes", random_sizes, 0, 0.89, 1.00), Bound("random sizes", random_sizes, 30, 1.04, 1.06)]);
}

/// So many streams, each with blocks of these sizes.
fn small_blocks(streams: usize, sizes: &[u64]) -> Vec<(Stream, Vec<DeviceBuffer>)> {
    let with_blocks = |_| {
        let stream = stream(0);
        let blocks = sizes.iter().map(|&bytes| empty(bytes, &stream).unwrap()).collect();
        (stream, blocks)
    };
    (0..streams).map(with_blocks).collect()
}

#[test]
fn small_blocks_are_where_another_stream_has_free_pages_for_no_driver_call() {
    memory!(1, MEMORY);
    let first = stream(0);
    drop(empty(256 * MIB, &first).unwrap());
    let (before, calls) = (reserved(), driver_calls());
    // Many streams, each with little: what is lent to them, in pieces of two sizes, does not fill its pages.
    let _many: Vec<_> = (0..400).flat_map(|number| small_blocks(1, &[[1, 10_000][number % 2]])).collect();
    assert_eq!((reserved(), driver_calls()), (before, calls), "many streams");
    // A few streams, each with a block of every size: most of what those blocks are cut from is free.
    let sizes: Vec<_> = (0..8).flat_map(|step| (9..16).map(move |bits| (8 + step) << (bits - 3))).collect();
    let _few = small_blocks(8, &sizes);
    assert_eq!((reserved(), driver_calls()), (before, calls), "few streams");
}

/// Returns whether every other part of a large block that is free again is put together for half as large a one: not where
/// extents are larger than the parts.
fn is_put_together(pool: &MemPool, stream: &Stream) -> bool {
    let take = |bytes| empty_in(pool, bytes, stream).unwrap();
    drop(take(2560 * MIB));
    let before = reserved();
    let parts: Vec<_> = (0..160).map(|_| take(16 * MIB)).collect();
    let parts: Vec<_> = parts.into_iter().step_by(2).collect();
    let whole = take(1280 * MIB);
    let together = reserved() == before;
    drop((whole, parts));
    together
}

#[test]
fn a_stream_whose_pool_has_few_pages_of_other_streams_has_small_extents() {
    memory!(1, MEMORY);
    let (own, other) = (stream(0), stream(0));
    let with_range = pool();
    let range = with_range.reserve_range(8 * PAGE, PAGE).unwrap();
    range.commit(0..8 * PAGE, &own, CommitOptions::default()).unwrap();
    assert!(is_put_together(&pool(), &own) && is_put_together(&with_range, &own));
    with_range.trim().unwrap();
    // Another one that has given all back, the most of it to this one.
    drop(empty_in(&with_range, 64 * MIB, &other).unwrap());
    drop(empty_in(&with_range, 64 * MIB, &own).unwrap());
    with_range.trim().unwrap();
    assert!(is_put_together(&with_range, &own));
    let with_reserve = builder().reserve(4 * PAGE).build().unwrap();
    assert!(is_put_together(&with_reserve, &own));
    // One that has little.
    let with_little = pool();
    let _little = empty_in(&with_little, 1, &other).unwrap();
    assert!(is_put_together(&with_little, &own));
}

//! Pages that are moved to requests, until a program's sizes have much of what it asks for moved.

use crate::common::memory::{MIB, Random};
use crate::common::{device, stream};
use gpupool::memory::memory_stats;
use gpupool::{DeviceBuffer, PinnedBuffer, Stream, empty, empty_cache, empty_pinned, pinned_stats};

/// A program whose blocks have random sizes of up to 64 MiB, 1 GiB of which are live at most.
struct Program<B> {
    random: Random,
    live: Vec<(B, u64)>,
    bytes: u64,
}

impl<B> Program<B> {
    const LIVE_MOST: u64 = 1024 * MIB;

    fn new() -> Self {
        Self { random: Random(7), live: Vec::new(), bytes: 0 }
    }

    fn run(&mut self, steps: usize, allocate: impl Fn(u64) -> B) {
        for _ in 0..steps {
            let bytes = 1 + self.random.below(64 * MIB as usize) as u64;
            while self.bytes + bytes > Self::LIVE_MOST {
                let place = self.random.below(self.live.len());
                self.bytes -= self.live.swap_remove(place).1;
            }
            self.bytes += bytes;
            self.live.push((allocate(bytes), bytes));
        }
    }
}

impl Program<DeviceBuffer> {
    /// Returns how many pages were moved in so many steps.
    fn moved_in(&mut self, steps: usize, stream: &Stream) -> u64 {
        let before = memory_stats(device(0)).unwrap().moved_pages;
        self.run(steps, |bytes| empty(bytes, stream).unwrap());
        memory_stats(device(0)).unwrap().moved_pages - before
    }
}

impl Program<PinnedBuffer> {
    /// Returns how many pages were moved in so many steps.
    fn moved_in(&mut self, steps: usize) -> u64 {
        let before = pinned_stats(None).unwrap().moved_pages;
        self.run(steps, |bytes| empty_pinned(bytes, None).unwrap());
        pinned_stats(None).unwrap().moved_pages - before
    }
}

#[test]
fn blocks_of_random_sizes_get_new_pages_once_as_much_as_there_is_was_moved() {
    memory!(1, 4096 * MIB);
    let (mut program, stream) = (Program::<DeviceBuffer>::new(), stream(0));
    assert!(program.moved_in(1000, &stream) > 512);
    program.moved_in(1000, &stream);
    assert_eq!(program.moved_in(1000, &stream), 0);
    // From then on it is as it was at first.
    empty_cache().unwrap();
    assert!(program.moved_in(1000, &stream) > 512);
}

/// Every other one of 64 blocks is freed, and 16 twice as large ones take the pages, a half of what there is: what a program
/// does now and then, as its sizes vary.
#[test]
fn half_of_what_there_is_may_be_moved_before_more_is_taken() {
    memory!(1, 4096 * MIB);
    let stream = stream(0);
    let blocks: Vec<_> = (0..64).map(|_| empty(4 * MIB, &stream).unwrap()).collect();
    let reserved = memory_stats(device(0)).unwrap().total.reserved_bytes;
    let _kept: Vec<_> = blocks.into_iter().skip(1).step_by(2).collect();
    let larger: Vec<_> = (0..16).map(|_| empty(8 * MIB, &stream).unwrap()).collect();
    let stats = memory_stats(device(0)).unwrap();
    assert_eq!((stats.total.reserved_bytes, stats.moved_pages), (reserved, 64), "{} blocks", larger.len());
}

#[test]
fn streams_with_blocks_of_random_sizes_come_to_move_little() {
    memory!(1, 16384 * MIB);
    let mut programs: Vec<_> = (0..4).map(|_| (Program::<DeviceBuffer>::new(), stream(0))).collect();
    let mut moved_in_pass = || -> u64 {
        (0..1000).map(|_| programs.iter_mut().map(|(program, stream)| program.moved_in(1, stream)).sum::<u64>()).sum()
    };
    let first = moved_in_pass();
    let later = [(); 3].map(|()| moved_in_pass());
    assert!(later[2] < first / 10, "{first} pages at first, then {later:?}");
    let stats = memory_stats(device(0)).unwrap();
    assert!(stats.total.peak_reserved_bytes < 8 * stats.total.peak_live_bytes / 5, "{stats:?}");
}

#[test]
fn pages_are_moved_where_no_new_ones_can_be_had() {
    // What is free beside live blocks in the same extents stays where it is.
    memory!(1, 1152 * MIB);
    let (mut program, stream) = (Program::<DeviceBuffer>::new(), stream(0));
    program.moved_in(1000, &stream);
    assert!(program.moved_in(1000, &stream) > 512);
}

#[test]
fn pinned_memory_is_moved_however_often() {
    memory!(1, 4096 * MIB);
    let mut program = Program::<PinnedBuffer>::new();
    for _ in 0..3 {
        assert!(program.moved_in(1000) > 512);
    }
    let stats = pinned_stats(None).unwrap();
    assert!(stats.total.peak_reserved_bytes < 5 * stats.total.peak_live_bytes / 4, "{stats:?}");
}

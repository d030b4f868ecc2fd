//! Pinned memory on a real GPU: what is copied through it is whole, however soon its blocks are used again, and neither
//! growth nor giving back waits for a kernel. Without a GPU every test says so and passes.
//!
//! `GPUPOOL_SOAK_OPERATIONS` sets how long the soak is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::VecDeque;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::driver::{DEVICE, Kernels, MIB, Random, bind, ok, raw, setting, word};
use cudarc::driver::sys;
use gpupool::{
    PinnedBuffer, Stream, empty, empty_cache, empty_pinned, empty_pinned_on_node, pinned_stats, set_pinned_limit,
};

const THREADS: usize = 16;
const STREAMS: usize = 4;
/// How many copies to the host a thread lets be under way.
const UNDER_WAY: usize = 8;
/// Less than the threads would take, so that blocks pass from one to another.
const LIMIT: u64 = 1024 * MIB;

/// The GPU's turn for this test, with the kernels, and no pinned memory cached.
macro_rules! gpu {
    () => {{
        let turn = crate::driver::turn();
        let bound = bind(DEVICE);
        let kernels = Kernels::of(DEVICE);
        crate::driver::synchronize();
        empty_cache().unwrap();
        kernels.reset();
        (kernels, bound, turn)
    }};
}

fn words(buffer: &mut PinnedBuffer) -> &mut [u32] {
    // SAFETY: the caller copies from or to it only before or after.
    let bytes = unsafe { buffer.as_mut_slice() };
    // SAFETY: blocks are aligned to 512 bytes, and any bits are a number.
    unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / 4) }
}

/// A copy to the host that is under way, and what it brings.
struct Coming<'a> {
    stream: &'a Stream,
    buffer: PinnedBuffer,
    seed: u32,
}

impl Coming<'_> {
    /// Waits for it, and returns how many words are wrong.
    fn wrong_words(mut self) -> u64 {
        self.stream.synchronize().unwrap();
        let seed = self.seed;
        words(&mut self.buffer).iter().enumerate().filter(|&(index, &found)| found != word(index, seed)).count() as u64
    }
}

/// Copies there and back so many times, and returns how many words were wrong on the host.
fn copy_both_ways(kernels: &Kernels, thread: u64, operations: u64) -> u64 {
    let _bound = bind(DEVICE);
    let streams: Vec<_> = (0..STREAMS).map(|_| Stream::new(DEVICE).unwrap()).collect();
    let (mut random, mut coming, mut wrong) = (Random(thread), VecDeque::new(), 0);
    for _ in 0..operations {
        let stream = &streams[random.below(STREAMS)];
        let (bytes, seed) = (random.bytes(10.0, 22.0), random.next() as u32);
        let mut going = empty_pinned(bytes, Some(stream)).unwrap();
        words(&mut going).iter_mut().enumerate().for_each(|(index, place)| *place = word(index, seed));
        let device = empty(bytes, stream).unwrap();
        // SAFETY: both ranges are as long as said, and stay until the copy is done.
        ok(unsafe { sys::cuMemcpyHtoDAsync_v2(device.ptr(), going.as_ptr().cast(), bytes as usize, raw(stream)) });
        // While the copy is under way.
        drop(going);
        kernels.check(stream, device.ptr(), bytes, seed);
        let seed = random.next() as u32;
        kernels.fill(stream, device.ptr(), bytes, seed);
        let buffer = empty_pinned(bytes, Some(stream)).unwrap();
        // SAFETY: both ranges are as long as said, and stay until the copy is done.
        ok(unsafe { sys::cuMemcpyDtoHAsync_v2(buffer.as_ptr().cast(), device.ptr(), bytes as usize, raw(stream)) });
        if random.below(4) > 0 {
            coming.push_back(Coming { stream, buffer, seed });
        }
        if coming.len() > UNDER_WAY
            && let Some(oldest) = coming.pop_front()
        {
            wrong += oldest.wrong_words();
        }
    }
    wrong + coming.into_iter().map(Coming::wrong_words).sum::<u64>()
}

#[test]
#[ignore = "needs a GPU"]
fn every_word_is_right_while_threads_copy_both_ways_through_reused_blocks() {
    let (kernels, _bound, _turn) = gpu!();
    let operations = setting("GPUPOOL_SOAK_OPERATIONS", 20_000);
    set_pinned_limit(Some(LIMIT)).unwrap();
    let (before, wrong) = (pinned_stats(None).unwrap(), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let wrong = &wrong;
            scope.spawn(move || {
                wrong.fetch_add(copy_both_ways(kernels, thread, operations / THREADS as u64), Ordering::Relaxed);
            });
        }
    });
    let (after, on_host, on_device) = (pinned_stats(None).unwrap(), wrong.into_inner(), kernels.wrong_words());
    set_pinned_limit(None).unwrap();
    let made = after.total.allocations - before.total.allocations;
    println!(
        "soak: {operations} copies each way, {on_host} words wrong on the host and {on_device} on the device, {made} \
         blocks in at most {} MiB",
        after.total.peak_reserved_bytes / MIB
    );
    assert_eq!((on_host, on_device), (0, 0));
    assert_eq!(made, operations / THREADS as u64 * THREADS as u64 * 2);
    assert!(after.total.peak_reserved_bytes <= LIMIT);
    empty_cache().unwrap();
    assert_eq!(pinned_stats(None).unwrap().total.live_blocks, 0);
}

#[test]
#[ignore = "needs a GPU"]
fn growing_and_giving_back_do_not_wait_for_a_kernel() {
    let (kernels, _bound, _turn) = gpu!();
    let stream = Stream::new(DEVICE).unwrap();
    // The first of all asks the driver what it can.
    let node = empty_pinned(4096, None).unwrap().numa();
    empty_cache().unwrap();
    kernels.spin(&stream, 3_000_000_000);
    let buffer = empty_pinned_on_node(64 * MIB, node, None).unwrap();
    assert!(!stream.query().unwrap(), "growth waited for the kernel");
    drop(buffer);
    let before = pinned_stats(None).unwrap().total.reserved_bytes;
    empty_cache().unwrap();
    assert!(!stream.query().unwrap(), "giving back waited for the kernel");
    assert!(pinned_stats(None).unwrap().total.reserved_bytes < before);
    stream.synchronize().unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn what_a_kernel_uses_is_not_given_out_before_it_is_done() {
    let (kernels, _bound, _turn) = gpu!();
    let stream = Stream::new(DEVICE).unwrap();
    kernels.spin(&stream, 500_000_000);
    let buffer = empty_pinned(MIB, Some(&stream)).unwrap();
    let address = buffer.ptr();
    kernels.fill(&stream, address, MIB, 7);
    drop(buffer);
    let mut other = empty_pinned(MIB, None).unwrap();
    assert!(!stream.query().unwrap());
    assert_ne!(other.ptr(), address);
    words(&mut other).fill(1);
    stream.synchronize().unwrap();
    assert!(words(&mut other).iter().all(|&found| found == 1));
}

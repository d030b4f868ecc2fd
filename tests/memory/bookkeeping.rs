//! What the allocator keeps in host memory for each live block.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use gpupool::runtime::host::{begin_capture, end_capture};
use gpupool::{CaptureMode, Device, Stream, empty_pinned, memory};

use crate::common::memory::deallocate;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes of bookkeeping for each of so many live blocks.
fn bytes_a_block(count: usize, size: impl Fn(usize) -> u64) -> usize {
    let stream = Stream::legacy(Device::from_ordinal(0)).unwrap();
    let mut addresses = Vec::with_capacity(count);
    let before = HELD.load(Ordering::Relaxed);
    addresses.extend((0..count).map(|index| memory::allocate(size(index), &stream).unwrap()));
    let held = HELD.load(Ordering::Relaxed) - before;
    addresses.into_iter().for_each(|address| deallocate(address, None).unwrap());
    memory::empty_cache().unwrap();
    held / count
}

#[test]
fn a_live_block_takes_at_most_100_bytes_of_host_memory() {
    memory!(1, 1500 << 30);
    drop(gpupool::empty(1, &Stream::legacy(Device::from_ordinal(0)).unwrap()).unwrap());
    // The first of each kind, so that what it needs is not there already.
    let large = bytes_a_block(5_000, |_| 2 << 20);
    let mixed = bytes_a_block(25_000, |index| 1 + (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (1 << 20));
    let small = bytes_a_block(250_000, |_| 512);
    assert!(small <= 100, "{small}");
    // What the simulated driver keeps for each extent, of which a block of 2 MiB has one, is counted too.
    assert!(mixed <= 110 && large <= 400, "{mixed} {large}");
}

#[test]
fn graphs_that_are_gone_leave_nothing_behind() {
    memory!();
    let stream = Stream::new(Device::from_ordinal(0)).unwrap();
    let [_, before, after] = [(); 3].map(|()| {
        for _ in 0..200 {
            begin_capture(&stream, CaptureMode::Relaxed).unwrap();
            drop(empty_pinned(4096, Some(&stream)).unwrap());
            drop(end_capture(&stream).unwrap());
        }
        memory::empty_cache().unwrap();
        HELD.load(Ordering::Relaxed)
    });
    assert!(after <= before, "{} bytes", after - before);
}

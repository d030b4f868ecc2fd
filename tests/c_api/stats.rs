//! Statistics by the C interface: PyTorch's notions, exact for one thread, and the same numbers as `memory_stats`.

use std::sync::Barrier;
use std::thread;

use crate::common::c_pools::{allocate, deallocate, device_stats, try_allocate};
use crate::common::memory::MIB;
use crate::common::{MEMORY, device, stream};
use gpupool::c_api::{C_API, DeviceStats, Stat, Stats};
use gpupool::runtime::host::{Call, Fault, clear_faults, complete_all, inject, submit};
use gpupool::{MemPool, StatusKind, empty_cache, memory_stats};

const ALL: usize = 0;
const SMALL: usize = 1;
const LARGE: usize = 2;

/// Nothing is live or cached, and the peaks begin here.
fn begin() -> DeviceStats {
    complete_all().unwrap();
    empty_cache().unwrap();
    // SAFETY: the device is there.
    assert_eq!(unsafe { (C_API.reset_peak_stats)(0) }, 0);
    let stats = device_stats(0);
    assert_eq!((stats.active[ALL].current, stats.reserved_bytes[ALL].current), (0, 0), "{stats:?}");
    stats
}

/// What happened since, of one kind: now, peak, came, went.
fn since(now: Stat, before: Stat) -> [i64; 4] {
    [now.current, now.peak, now.allocated - before.allocated, now.freed - before.freed]
}

#[track_caller]
fn assert_consistent(stats: &DeviceStats) {
    let all = |stats: &DeviceStats| -> [Stats; 9] {
        [
            stats.allocation,
            stats.segment,
            stats.active,
            stats.inactive_split,
            stats.allocated_bytes,
            stats.reserved_bytes,
            stats.active_bytes,
            stats.inactive_split_bytes,
            stats.requested_bytes,
        ]
    };
    for one in all(stats) {
        for kind in one {
            assert_eq!(kind.current, kind.allocated - kind.freed, "{stats:?}");
            assert!(kind.peak >= kind.current && kind.current >= 0, "{stats:?}");
        }
        assert_eq!(one[ALL].current, one[SMALL].current + one[LARGE].current, "{stats:?}");
    }
    // But for what is reserved, which passes from one kind to the other.
    let each_is_of_a_kind =
        [stats.allocation, stats.segment, stats.active, stats.allocated_bytes, stats.requested_bytes];
    for one in each_is_of_a_kind {
        assert_eq!(one[ALL].allocated, one[SMALL].allocated + one[LARGE].allocated, "{stats:?}");
    }
    let ours = memory_stats(device(0)).unwrap().total;
    let numbers = |numbers: [u64; 7]| numbers.map(u64::cast_signed);
    assert_eq!(
        [
            stats.active_bytes[ALL].current,
            stats.active_bytes[ALL].peak,
            stats.requested_bytes[ALL].current,
            stats.reserved_bytes[ALL].current,
            stats.reserved_bytes[ALL].peak,
            stats.active[ALL].current,
            stats.active[ALL].allocated,
        ],
        numbers([
            ours.live_bytes,
            ours.peak_live_bytes,
            ours.requested_bytes,
            ours.reserved_bytes,
            ours.peak_reserved_bytes,
            ours.live_blocks,
            ours.allocations,
        ])
    );
    assert_eq!(stats.active[ALL].current - stats.allocation[ALL].current, ours.waiting_blocks.cast_signed());
}

#[test]
fn small_and_large_blocks_are_counted_apart_as_they_come_and_go() {
    memory!();
    let (before, stream) = (begin(), stream(0));
    let (small, large) = (allocate(1000, &stream), allocate(5 * MIB, &stream));
    deallocate(small);
    let other = allocate(64 << 10, &stream);
    let now = device_stats(0);
    assert_consistent(&now);
    let (mib, kib) = (MIB.cast_signed(), 64 << 10);
    assert_eq!(since(now.allocation[SMALL], before.allocation[SMALL]), [1, 1, 2, 1]);
    assert_eq!(since(now.allocation[LARGE], before.allocation[LARGE]), [1, 1, 1, 0]);
    assert_eq!(since(now.allocation[ALL], before.allocation[ALL]), [2, 2, 3, 1]);
    assert_eq!(since(now.requested_bytes[SMALL], before.requested_bytes[SMALL]), [kib, kib, kib + 1000, 1000]);
    let both = 5 * mib + kib;
    assert_eq!(since(now.requested_bytes[ALL], before.requested_bytes[ALL]), [both, both, both + 1000, 1000]);
    assert_eq!(since(now.allocated_bytes[ALL], before.allocated_bytes[ALL]), [both, both, both + 1024, 1024]);
    assert_eq!((now.active, now.active_bytes), (now.allocation, now.allocated_bytes));
    [large, other].into_iter().for_each(deallocate);
    let after = device_stats(0);
    assert_consistent(&after);
    assert_eq!((after.allocated_bytes[ALL].current, after.allocated_bytes[ALL].peak), (0, both));
    // SAFETY: the device is there.
    assert_eq!(unsafe { (C_API.reset_peak_stats)(0) }, 0);
    let reset = device_stats(0);
    assert_eq!((reset.allocated_bytes[ALL].peak, reset.allocation[SMALL].peak), (0, 0));
    assert_eq!(reset.allocation[ALL].allocated, after.allocation[ALL].allocated, "sums go on");
}

#[test]
fn what_waits_for_a_stream_is_active_and_allocated_no_more() {
    memory!();
    let before = begin();
    let (own, other) = (stream(0), stream(0));
    for bytes in [1000, 4 * MIB] {
        let pointer = allocate(bytes, &own);
        // SAFETY: the stream is alive and of the device.
        assert_eq!(unsafe { (C_API.record_stream)(pointer, 0, other.raw().as_ptr()) }, 0);
        submit(&other).unwrap();
        deallocate(pointer);
    }
    let now = device_stats(0);
    assert_consistent(&now);
    assert_eq!(since(now.allocation[ALL], before.allocation[ALL]), [0, 1, 2, 2]);
    assert_eq!(since(now.active[ALL], before.active[ALL]), [2, 2, 2, 0]);
    assert_eq!((now.allocated_bytes[ALL].current, now.active_bytes[ALL].current), (0, 4 * (1 << 20) + 1024));
    assert_eq!((now.allocated_bytes[ALL].peak, now.active_bytes[ALL].peak), (4 << 20, (4 << 20) + 1024));
    complete_all().unwrap();
    let pointer = allocate(8 * MIB, &own);
    let now = device_stats(0);
    assert_consistent(&now);
    assert_eq!(
        (now.active[ALL].current, now.active_bytes[ALL].peak, now.allocated_bytes[ALL].peak),
        (1, 8 << 20, 8 << 20)
    );
    deallocate(pointer);
}

#[test]
fn the_drivers_pieces_are_counted_as_they_come_and_go() {
    memory!();
    let (before, stream) = (begin(), stream(0));
    let pointers = [1000, 40 * MIB].map(|bytes| allocate(bytes, &stream));
    let now = device_stats(0);
    assert_consistent(&now);
    let pieces = now.segment[ALL].current;
    assert!(pieces >= 2, "{pieces}");
    assert_eq!(since(now.segment[ALL], before.segment[ALL]), [pieces, pieces, pieces, 0]);
    assert_eq!(now.device_allocs - before.device_allocs, pieces);
    assert_eq!(now.device_frees, before.device_frees);
    assert!(now.reserved_bytes[ALL].current >= 42 << 20);
    pointers.into_iter().for_each(deallocate);
    empty_cache().unwrap();
    let after = device_stats(0);
    assert_consistent(&after);
    assert_eq!(since(after.segment[ALL], before.segment[ALL]), [0, pieces, pieces, pieces]);
    assert_eq!(after.device_frees - before.device_frees, pieces);
    assert_eq!(after.reserved_bytes[ALL].current, 0);
}

#[test]
fn memory_from_the_drivers_plain_allocation_is_a_piece_too() {
    memory!();
    let (before, stream) = (begin(), stream(0));
    let pool = MemPool::builder().segments(true).build().unwrap();
    let pointer = {
        let _scope = pool.enter().unwrap();
        allocate(3 * MIB, &stream)
    };
    let now = device_stats(0);
    assert_consistent(&now);
    assert_eq!(since(now.segment[LARGE], before.segment[LARGE]), [1, 1, 1, 0]);
    assert_eq!(now.inactive_split_bytes[ALL].current, 1 << 20);
    assert_eq!((now.inactive_split[SMALL].current, now.inactive_split[LARGE].current), (0, 1));
    deallocate(pointer);
    drop(pool);
    let after = device_stats(0);
    assert_consistent(&after);
    assert_eq!((after.segment[ALL].current, after.reserved_bytes[ALL].current), (0, 0));
}

#[test]
fn what_is_free_beside_live_blocks_is_found() {
    memory!();
    let (_, stream) = (begin(), stream(0));
    // Other tests may have had more.
    // SAFETY: it takes an ordinal.
    assert_eq!(unsafe { (C_API.reset_peak_stats)(0) }, 0);
    let pointers = [512 << 10; 4].map(|bytes| allocate(bytes, &stream));
    assert_eq!(device_stats(0).inactive_split[ALL].current, 0);
    deallocate(pointers[1]);
    let now = device_stats(0);
    assert_consistent(&now);
    assert_eq!((now.inactive_split[ALL].current, now.inactive_split_bytes[LARGE].current), (1, 512 << 10));
    [pointers[0], pointers[2], pointers[3]].into_iter().for_each(deallocate);
    let after = device_stats(0);
    assert_consistent(&after);
    assert_eq!((after.inactive_split[ALL].current, after.inactive_split_bytes[ALL].current), (0, 0), "a page is free");
    assert_eq!(after.inactive_split_bytes[ALL].peak, 512 << 10);
}

#[test]
fn retries_and_failures_are_counted() {
    memory!();
    let (before, stream) = (begin(), stream(0));
    let held = allocate(MEMORY / 4, &stream);
    inject(Fault { call: Call::ExtentCreate, kind: StatusKind::OutOfMemory, after: 0, times: 1000 });
    let status = try_allocate(MEMORY / 2, &stream).unwrap_err();
    clear_faults();
    let now = device_stats(0);
    assert_eq!((status, now.alloc_retries - before.alloc_retries, now.ooms - before.ooms), (1, 1, 1));
    let status = try_allocate(2 * MEMORY, &stream).unwrap_err();
    let more = device_stats(0);
    assert_eq!((status, more.alloc_retries - now.alloc_retries, more.ooms - now.ooms), (1, 0, 1));
    deallocate(held);
    inject(Fault { call: Call::ExtentCreate, kind: StatusKind::Other, after: 0, times: 1 });
    let status = try_allocate(MEMORY / 2, &stream).unwrap_err();
    clear_faults();
    assert_eq!((status, device_stats(0).ooms), (3, more.ooms), "a refusal of the driver is no want of memory");
    assert_consistent(&device_stats(0));
}

#[test]
fn many_threads_and_streams_add_up() {
    memory!();
    let before = begin();
    let (threads, rounds) = (4, 200);
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let stream = stream(0);
                barrier.wait();
                for round in 0..rounds {
                    let pointers = [700, 100 << 10, 3 * MIB].map(|bytes| allocate(bytes + round, &stream));
                    pointers.into_iter().for_each(deallocate);
                }
            });
        }
    });
    let now = device_stats(0);
    assert_consistent(&now);
    let blocks = (threads as u64 * rounds * 3).cast_signed();
    assert_eq!(
        (now.allocation[ALL].allocated - before.allocation[ALL].allocated, now.allocation[ALL].current),
        (blocks, 0)
    );
    assert!(now.allocated_bytes[ALL].peak >= 3 << 20, "{now:?}");
    assert!(now.allocated_bytes[ALL].peak <= now.reserved_bytes[ALL].peak, "{now:?}");
}

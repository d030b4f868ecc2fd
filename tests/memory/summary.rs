//! The summary: every byte that the driver says is used is somebody's, and once only.

use crate::common::memory::{MIB, builder};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;

use crate::common::{device, on_thread, stream};
use gpupool::library::simulated::{set_handle_bytes, set_workspace_bytes};
use gpupool::memory::feed;
use gpupool::runtime::host::{Call, Fault, clear_faults, complete_all, inject, submit};
use gpupool::runtime::{self, BoundDevice};
use gpupool::{
    ErrorKind, HandlePool, HandleStats, MemorySummary, PoolId, PoolSummary, Pooled, Simulated, StatusKind, Stream,
    devices_in_use, empty, empty_cache, memory_stats, memory_summary, reset_peak_stats,
};

fn summary() -> MemorySummary {
    memory_summary(device(0)).unwrap()
}

fn pool_of(summary: &MemorySummary, id: PoolId) -> &PoolSummary {
    summary.pools.iter().find(|pool| pool.id == id).unwrap()
}

/// All parts add up to what they are parts of.
#[track_caller]
fn assert_adds_up(summary: &MemorySummary) {
    for pool in &summary.pools {
        let stats = pool.stats;
        assert_eq!(stats.reserved_bytes, stats.live_bytes + stats.cached_bytes + stats.releasing_bytes, "{pool:?}");
        assert_eq!(stats.live_bytes, pool.streams.iter().map(|stream| stream.live_bytes).sum::<u64>(), "{pool:?}");
        assert_eq!(stats.cached_bytes, pool.streams.iter().map(|stream| stream.cached_bytes).sum::<u64>(), "{pool:?}");
        assert_eq!(stats.live_blocks, pool.streams.iter().map(|stream| stream.live_blocks).sum::<u64>(), "{pool:?}");
        assert!(stats.requested_bytes <= stats.live_bytes, "{pool:?}");
    }
    let total = summary.memory.total;
    assert_eq!(total.reserved_bytes, total.live_bytes + total.cached_bytes + total.releasing_bytes, "{total:?}");
}

/// What the driver says is used beyond all that gpupool knows of.
#[track_caller]
fn others(summary: &MemorySummary) -> u64 {
    assert_adds_up(summary);
    let info = summary.info.as_ref().unwrap();
    let known = summary.memory.total.reserved_bytes + summary.handle_bytes() + summary.workspace_bytes();
    assert_eq!(info.total - info.free, known + summary.other_bytes().unwrap());
    let pools: u64 = summary.pools.iter().map(|pool| pool.stats.reserved_bytes).sum();
    assert!(pools <= summary.memory.total.reserved_bytes);
    summary.other_bytes().unwrap()
}

#[test]
fn every_used_byte_is_a_pools_a_handles_a_workspaces_or_anothers() {
    memory!();
    // Handles that other tests left idle have no workspace.
    Simulated::pool().trim(None).unwrap();
    let (one, two) = (stream(0), stream(0));
    let pool = builder().build().unwrap();
    let segments = builder().segments(true).limit(64 * MIB).build().unwrap();
    let mut buffers = vec![empty(3 * MIB, &one).unwrap(), empty(700, &two).unwrap()];
    for pool in [&pool, &segments] {
        let _scope = pool.enter().unwrap();
        buffers.extend([5 * MIB, 100, 70_000].map(|bytes| empty(bytes, &one).unwrap()));
    }
    buffers.remove(0);
    set_workspace_bytes(4 * MIB);
    let lease = Simulated::pool().lease(&one).unwrap();
    set_workspace_bytes(0);
    drop(Simulated::pool().lease(&two).unwrap());
    assert_eq!(others(&summary()), 0);

    let runtime = runtime::get().unwrap();
    let address = {
        let _bound = BoundDevice::new(runtime, device(0)).unwrap();
        runtime.memory_allocate(6 * MIB).unwrap()
    };
    let found = summary();
    assert_eq!(others(&found), 6 * MIB);
    assert_eq!((pool_of(&found, segments.id()).limit, pool_of(&found, pool.id()).limit), (Some(64 * MIB), None));
    assert!(pool_of(&found, pool.id()).stats.live_bytes >= 5 * MIB + 70_100);
    assert!(found.workspace_bytes() >= 4 * MIB && found.handle_bytes() >= MIB, "{:?}", found.handles);

    // SAFETY: it was allocated above and nothing uses it.
    unsafe { runtime.memory_free(address) }.unwrap();
    drop((lease, buffers, pool, segments));
    Simulated::pool().trim(None).unwrap();
    empty_cache().unwrap();
    let found = summary();
    assert_eq!((others(&found), found.memory.total.reserved_bytes, found.workspace_bytes()), (0, 0, 0));
}

#[test]
fn what_goes_back_once_the_gpu_is_done_is_neither_live_nor_cached() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let buffer = {
        let _scope = pool.enter().unwrap();
        empty(8 * MIB, &stream).unwrap()
    };
    submit(&stream).unwrap();
    drop(buffer);
    let before = summary();
    assert_eq!(pool_of(&before, pool.id()).stats.cached_bytes, 8 * MIB);
    pool.trim().unwrap();
    let found = summary();
    let stats = pool_of(&found, pool.id()).stats;
    assert_eq!((stats.live_bytes, stats.cached_bytes, stats.releasing_bytes), (0, 0, 8 * MIB));
    assert_eq!(others(&found), others(&before));
    // Also once its pool is gone.
    drop(pool);
    let found = summary();
    assert_eq!(found.memory.total.releasing_bytes, 8 * MIB);
    assert_eq!(others(&found), others(&before));
    complete_all().unwrap();
    empty_cache().unwrap();
    assert_eq!(summary().memory.total.releasing_bytes, 0);
}

#[test]
fn a_dropped_pool_is_reported_as_long_as_it_has_blocks() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let id = pool.id();
    let buffer = {
        let _scope = pool.enter().unwrap();
        empty(MIB, &stream).unwrap()
    };
    assert!(!pool_of(&summary(), id).is_closed);
    drop(pool);
    let found = summary();
    assert!(pool_of(&found, id).is_closed);
    assert_eq!(pool_of(&found, id).stats.live_bytes, MIB);
    drop(buffer);
    assert!(summary().pools.iter().all(|pool| pool.id != id));
}

#[test]
fn each_stream_has_its_part_and_the_largest_comes_first() {
    memory!();
    let (small, large) = (stream(0), stream(0));
    let pool = builder().build().unwrap();
    let scope = pool.enter().unwrap();
    let first = empty(MIB, &small).unwrap();
    let other = on_thread({
        let (token, large) = (pool.token(), large.clone());
        move || {
            let _scope = token.enter().unwrap();
            empty(4 * MIB, &large).unwrap()
        }
    });
    let second = empty(6 * MIB, &large).unwrap();
    drop(scope);
    let (malloc, free) = feed(Some(&pool.token())).unwrap();
    // SAFETY: called as a pluggable allocator is.
    let fed = unsafe { malloc(2 * MIB as isize, 0, std::ptr::null_mut()) };
    let found = summary();
    assert_adds_up(&found);
    let streams = &pool_of(&found, pool.id()).streams;
    let live: Vec<_> = streams.iter().map(|stream| (stream.stream, stream.is_feed, stream.live_bytes)).collect();
    assert_eq!(live[0], (large.raw().address(), false, 10 * MIB));
    assert!(live.contains(&(small.raw().address(), false, MIB)));
    assert_eq!(live.iter().filter(|(_, is_feed, _)| *is_feed).map(|(_, _, live)| *live).sum::<u64>(), 2 * MIB);
    drop((first, second, other));
    // SAFETY: called as a pluggable allocator is, for memory of `malloc`'s that nothing uses.
    unsafe { free(fed, 2 * MIB as isize, 0, std::ptr::null_mut()) };
    assert_eq!(pool_of(&summary(), pool.id()).stats.live_bytes, 0);
}

#[test]
fn counters_do_not_go_back_when_pools_go() {
    memory!();
    let stream = stream(0);
    let counts = || {
        let total = memory_stats(device(0)).unwrap().total;
        (total.allocations, total.frees)
    };
    drop(empty(64, &stream).unwrap());
    let (allocations, frees) = counts();
    for round in 1..=20 {
        let pool = builder().build().unwrap();
        let scope = pool.enter().unwrap();
        drop((empty(64, &stream).unwrap(), empty(MIB, &stream).unwrap()));
        drop((scope, pool));
        assert_eq!(counts(), (allocations + 2 * round, frees + 2 * round));
    }
}

#[test]
fn a_driver_that_does_not_answer_leaves_the_rest_to_be_reported() {
    memory!();
    let _buffer = empty(MIB, &stream(0)).unwrap();
    inject(Fault { call: Call::MemoryInfo, kind: StatusKind::Other, after: 0, times: 1 });
    let found = summary();
    clear_faults();
    assert!(found.info.as_ref().is_err_and(|error| error.to_string().contains("MemoryInfo")), "{found:?}");
    assert_eq!(found.other_bytes(), None);
    assert!(found.memory.total.live_bytes >= MIB);
}

#[test]
fn others_are_never_negative() {
    memory!();
    let pool = pool();
    drop(pool.lease(&stream(0)).unwrap());
    // The next handle takes less than the last one measured, which is what is taken for its size.
    set_handle_bytes(0);
    inject(Fault { call: Call::MemoryInfo, kind: StatusKind::Other, after: 0, times: 1 });
    pool.warm(2, device(0)).unwrap();
    clear_faults();
    empty_cache().unwrap();
    let found = summary();
    let info = found.info.as_ref().unwrap();
    assert!(found.handle_bytes() > info.total - info.free);
    assert_eq!(found.other_bytes(), Some(0));
    pool.trim(None).unwrap();
}

#[test]
fn devices_in_use_are_those_with_memory_or_handles() {
    host!();
    drop(Simulated::pool().lease(&stream(1)).unwrap());
    assert!(devices_in_use().unwrap().contains(&device(1)));
    let error = memory_summary(device(2)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
    assert!(reset_peak_stats(device(2)).is_err());
}

#[test]
fn a_summary_adds_up_while_threads_allocate_and_free() {
    memory!();
    let pool = builder().build().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = mpsc::sync_channel(16);
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let (token, is_over, sender) = (pool.token(), Arc::clone(&is_over), sender.clone());
            thread::spawn(move || {
                let stream = Stream::new(device(0)).unwrap();
                let _scope = token.enter().unwrap();
                let mut state = number;
                while !is_over.load(Ordering::Relaxed) {
                    state = (state * 5 + 1) % 64;
                    let buffers = [state * 1000 + 1, state * 100_000 + 1].map(|bytes| empty(bytes, &stream).unwrap());
                    // Every other one is freed by the main thread.
                    let [first, second] = buffers;
                    drop(first);
                    if state % 2 == 0 {
                        // Refused at the end, when nobody takes any more.
                        let _ = sender.send(second);
                    }
                }
            })
        })
        .collect();
    for _ in 0..200 {
        assert_adds_up(&summary());
        // No more than wait there: the threads could go on sending until the memory is used up.
        drop(receiver.try_iter().take(16).collect::<Vec<_>>());
    }
    is_over.store(true, Ordering::Relaxed);
    drop(receiver);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let found = summary();
    assert_eq!(pool_of(&found, pool.id()).stats.live_bytes, 0);
    let pools: u64 = found.pools.iter().map(|pool| pool.stats.reserved_bytes).sum();
    assert_eq!(pools, found.memory.total.reserved_bytes);
    others(&found);
}

/// The counts of a pool on device 0.
fn stats(pool: HandlePool) -> HandleStats {
    pool.stats(Some(device(0))).unwrap()
}

/// The pool without any handle, nor peaks of former tests.
fn pool() -> HandlePool {
    let pool = Simulated::pool();
    pool.trim(None).unwrap();
    pool.reset_peak_stats(None).unwrap();
    pool
}

#[test]
fn the_peak_of_handles_is_how_many_were_in_use_at_once() {
    host!();
    let (pool, one) = (pool(), stream(0));
    pool.warm(6, device(0)).unwrap();
    assert_eq!(stats(pool).peak_in_use, 0);
    for _ in 0..5 {
        drop(pool.lease(&one).unwrap());
    }
    assert_eq!(stats(pool).peak_in_use, 1);
    let shared = one.clone();
    on_thread(move || {
        pool.handle(&shared).unwrap();
        drop((pool.lease(&shared).unwrap(), pool.lease(&shared).unwrap()));
    });
    assert_eq!(stats(pool).peak_in_use, 3);
    // What is destroyed or discarded leaves its place to others.
    pool.trim(None).unwrap();
    pool.lease(&one).unwrap().discard();
    drop((pool.lease(&one).unwrap(), pool.lease(&one).unwrap()));
    assert_eq!(stats(pool).peak_in_use, 3);
    drop([(); 4].map(|()| pool.lease(&one).unwrap()));
    assert_eq!(stats(pool).peak_in_use, 4);
}

#[test]
fn peaks_of_handles_begin_anew_from_what_is_in_use() {
    memory!();
    let (pool, one) = (pool(), stream(0));
    drop([(); 5].map(|()| pool.lease(&one).unwrap()));
    let kept = [(); 2].map(|()| pool.lease(&one).unwrap());
    pool.trim(None).unwrap();
    assert_eq!((stats(pool).peak_in_use, stats(pool).peak_device_bytes), (5, 5 * MIB));
    pool.reset_peak_stats(Some(device(1))).unwrap();
    assert_eq!(stats(pool).peak_in_use, 5);
    pool.reset_peak_stats(None).unwrap();
    assert_eq!((stats(pool).peak_in_use, stats(pool).peak_device_bytes), (2, 2 * MIB));
    drop(kept);
    // By the way that touches nothing that threads share, too.
    reset_peak_stats(device(0)).unwrap();
    assert_eq!(stats(pool).peak_in_use, 0);
    drop(pool.lease(&one).unwrap());
    assert_eq!(stats(pool).peak_in_use, 1);
    pool.trim(None).unwrap();
    assert_eq!((stats(pool).device_bytes, stats(pool).peak_device_bytes), (0, 2 * MIB));
}

#[test]
fn leases_of_many_threads_at_once_are_all_in_the_peak() {
    host!();
    let pool = pool();
    pool.warm(20, device(0)).unwrap();
    for _ in 0..3 {
        let all = Arc::new(Barrier::new(8));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let all = Arc::clone(&all);
                thread::spawn(move || {
                    let stream = stream(0);
                    drop(pool.lease(&stream).unwrap());
                    let lease = pool.lease(&stream).unwrap();
                    all.wait();
                    drop(lease);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let peak = stats(pool).peak_in_use;
        assert!((8..=20).contains(&peak), "{peak}");
        pool.reset_peak_stats(None).unwrap();
    }
}

#[test]
fn one_reset_is_for_the_peaks_of_memory_too() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let scope = pool.enter().unwrap();
    let _kept = empty(MIB, &stream).unwrap();
    drop(empty(32 * MIB, &stream).unwrap());
    drop(scope);
    assert!(pool.stats().unwrap().peak_live_bytes >= 33 * MIB);
    pool.reset_peak_stats().unwrap();
    assert_eq!(pool.stats().unwrap().peak_live_bytes, MIB);
    pool.trim().unwrap();
    assert!(pool.stats().unwrap().peak_reserved_bytes > 32 * MIB);
    reset_peak_stats(device(0)).unwrap();
    let stats = pool.stats().unwrap();
    assert_eq!(stats.peak_reserved_bytes, stats.reserved_bytes);
}

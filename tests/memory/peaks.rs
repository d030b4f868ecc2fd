//! The peak of live memory, where several threads and streams have part in it: never less than callers held at once, and
//! never more than was reserved.

use crate::common::memory::{MIB, pool};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use crate::common::{device, on_thread, stream};
use gpupool::memory::{empty_cache, memory_stats, reset_peak_memory_stats};
use gpupool::{DeviceBuffer, MemPool, PoolStats, empty};

/// The statistics of the pool, and of all of the device, whose peaks began anew with the pool.
fn both(pool: &MemPool) -> [PoolStats; 2] {
    [pool.stats().unwrap(), memory_stats(device(0)).unwrap().total]
}

#[test]
fn the_peak_of_threads_that_free_each_others_blocks_is_between_what_they_held_and_what_was_reserved() {
    memory!();
    empty_cache().unwrap();
    reset_peak_memory_stats(device(0)).unwrap();
    let pool = pool();
    static HELD: AtomicU64 = AtomicU64::new(0);
    static MOST_HELD: AtomicU64 = AtomicU64::new(0);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..8).map(|_| channel::<DeviceBuffer>()).unzip();
    let threads: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(number, receiver)| {
            let (token, stream) = (pool.token(), stream(0));
            let next = senders[(number + 1) % senders.len()].clone();
            thread::spawn(move || {
                let _scope = token.enter().unwrap();
                let free = |buffer: DeviceBuffer| {
                    HELD.fetch_sub(buffer.nbytes(), Ordering::SeqCst);
                    drop(buffer);
                };
                for turn in 0..2000_u64 {
                    let bytes = ((turn * 7919 + number as u64 * 104_729) % 256 + 1) * 512;
                    let buffer = empty(bytes, &stream).unwrap();
                    let held = HELD.fetch_add(bytes, Ordering::SeqCst) + bytes;
                    MOST_HELD.fetch_max(held, Ordering::SeqCst);
                    next.send(buffer).unwrap();
                    if turn % 50 == 49 {
                        receiver.try_iter().for_each(free);
                    }
                }
                drop(next);
                receiver.iter().for_each(free);
            })
        })
        .collect();
    drop(senders);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for stats in both(&pool) {
        assert!(stats.peak_live_bytes >= MOST_HELD.load(Ordering::SeqCst), "{stats:?} {MOST_HELD:?}");
        assert!(stats.peak_live_bytes <= stats.peak_reserved_bytes, "{stats:?}");
        assert_eq!(stats.live_bytes, 0, "{stats:?}");
    }
}

#[test]
fn the_peak_of_one_thread_on_one_stream_is_exact() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let _scope = pool.enter().unwrap();
    let mut peak = 0;
    for turn in 0..3000_u64 {
        // Rises and falls, by small and large blocks.
        let buffers: Vec<_> = (0..turn % 40).map(|n| empty(512 * (1 + n * turn % 300), &stream).unwrap()).collect();
        peak = peak.max(pool.stats().unwrap().live_bytes);
        drop(buffers);
        assert_eq!(pool.stats().unwrap().peak_live_bytes, peak);
    }
}

#[test]
fn the_peak_is_not_the_sum_of_what_streams_held_one_after_the_other() {
    memory!();
    empty_cache().unwrap();
    reset_peak_memory_stats(device(0)).unwrap();
    let pool = pool();
    let _scope = pool.enter().unwrap();
    let streams: Vec<_> = (0..20).map(|_| stream(0)).collect();
    for stream in &streams {
        drop(empty(10 * MIB, stream).unwrap());
    }
    for stats in both(&pool) {
        assert_eq!(stats.peak_live_bytes, 10 * MIB, "{stats:?}");
    }
}

#[test]
fn the_peak_of_a_device_is_not_the_sum_of_pools_that_followed_each_other() {
    memory!();
    empty_cache().unwrap();
    reset_peak_memory_stats(device(0)).unwrap();
    let stream = stream(0);
    for _ in 0..10 {
        let pool = pool();
        let _scope = pool.enter().unwrap();
        drop(empty(10 * MIB, &stream).unwrap());
    }
    let total = memory_stats(device(0)).unwrap().total;
    assert_eq!(total.peak_live_bytes, 10 * MIB, "{total:?}");
}

/// As FSDP's streams do: each has memory of its own, so that none is moved, and they use it in turns.
#[test]
fn the_peak_of_streams_that_take_turns_is_what_they_held_at_once() {
    memory!();
    empty_cache().unwrap();
    let pool = pool();
    let _scope = pool.enter().unwrap();
    let streams: Vec<_> = (0..4).map(|_| stream(0)).collect();
    // The first alone, whose fall nobody needs to know then.
    drop(empty(100 * MIB, &streams[0]).unwrap());
    let own: Vec<_> = streams.iter().map(|stream| empty(40 * MIB, stream).unwrap()).collect();
    drop(own);
    reset_peak_memory_stats(device(0)).unwrap();
    for _ in 0..5 {
        for stream in &streams {
            let blocks = (empty(30 * MIB, stream).unwrap(), empty(5 * MIB, stream).unwrap());
            drop(blocks.0);
            drop((empty(20 * MIB, stream).unwrap(), blocks.1));
        }
    }
    for stats in both(&pool) {
        assert!((35 * MIB..=39 * MIB).contains(&stats.peak_live_bytes), "{stats:?}");
    }
}

#[test]
fn a_stream_with_much_free_memory_is_counted_as_closely() {
    memory!();
    empty_cache().unwrap();
    let pool = pool();
    let _scope = pool.enter().unwrap();
    let (large, other) = (stream(0), stream(0));
    drop((empty(640 * MIB, &large).unwrap(), empty(40 * MIB, &other).unwrap()));
    reset_peak_memory_stats(device(0)).unwrap();
    for stream in [&large, &other] {
        drop(empty(30 * MIB, stream).unwrap());
    }
    for stats in both(&pool) {
        assert!((30 * MIB..=32 * MIB).contains(&stats.peak_live_bytes), "{stats:?}");
    }
}

#[test]
fn peaks_begin_anew_from_what_every_thread_holds() {
    memory!();
    empty_cache().unwrap();
    let (pool, stream) = (pool(), stream(0));
    let _scope = pool.enter().unwrap();
    let _kept = empty(3 * MIB, &stream).unwrap();
    let (token, other) = (pool.token(), stream.clone());
    let _sent = on_thread(move || {
        let _scope = token.enter().unwrap();
        drop(empty(30 * MIB, &other).unwrap());
        empty(2 * MIB, &other).unwrap()
    });
    drop(empty(20 * MIB, &stream).unwrap());
    reset_peak_memory_stats(device(0)).unwrap();
    for stats in both(&pool) {
        assert_eq!(stats.peak_live_bytes, 5 * MIB, "{stats:?}");
    }
}

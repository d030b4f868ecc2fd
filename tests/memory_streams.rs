//! Streams and threads come and go, and leave nothing behind.

mod common;

use common::{device, host, on_thread, stream};
use gpupool::memory::{empty_cache, memory_stats};
use gpupool::{DeviceBuffer, MemPool, empty};

fn reserved() -> u64 {
    memory_stats(device(0)).unwrap().total.reserved_bytes
}

#[test]
fn memory_of_streams_that_were_dropped_is_used_by_others() {
    let _host = host();
    for _ in 0..200 {
        let stream = stream(0);
        drop(empty(20 << 20, &stream).unwrap());
    }
    // Two generations at most: one is given back when the next is made.
    assert!(reserved() <= 64 << 20, "{}", reserved());
    empty_cache().unwrap();
    assert_eq!(reserved(), 0);
}

#[test]
fn a_buffer_outlives_its_stream() {
    let _host = host();
    let buffers: Vec<DeviceBuffer> = (0..20).map(|_| empty(1 << 20, &stream(0)).unwrap()).collect();
    let addresses: std::collections::HashSet<u64> = buffers.iter().map(DeviceBuffer::address).collect();
    assert_eq!(addresses.len(), 20);
    drop(buffers);
    empty_cache().unwrap();
    assert_eq!(reserved(), 0);
}

#[test]
fn a_thread_takes_over_the_memory_of_one_that_ended() {
    let _host = host();
    let stream = stream(0);
    for _ in 0..50 {
        let stream = stream.clone();
        on_thread(move || drop(empty(4 << 20, &stream).unwrap()));
    }
    assert!(reserved() <= 8 << 20, "{}", reserved());
    empty_cache().unwrap();
}

#[test]
fn pools_made_and_dropped_by_one_thread_leave_nothing() {
    let _host = host();
    let stream = stream(0);
    let kept = empty(1 << 20, &stream).unwrap();
    for _ in 0..100 {
        let pool = MemPool::builder().device(device(0)).build().unwrap();
        let scope = pool.enter().unwrap();
        drop(empty(3 << 20, &stream).unwrap());
        drop(scope);
    }
    assert_eq!(memory_stats(device(0)).unwrap().pools, 1);
    drop(kept);
    empty_cache().unwrap();
    assert_eq!(reserved(), 0);
}

#[test]
fn blocks_of_every_size_come_back_from_other_streams_and_threads() {
    let _host = host();
    let (first, second) = (stream(0), stream(0));
    for bytes in [512, 90 << 10, 1 << 20, (3 << 20) + 512, 24 << 20] {
        let (recorded, sent) = (empty(bytes, &first).unwrap(), empty(bytes, &first).unwrap());
        recorded.record_stream(&second).unwrap();
        drop(recorded);
        empty(bytes, &first).unwrap().free_on(&second).unwrap();
        on_thread(move || drop(sent));
    }
    empty_cache().unwrap();
    let stats = memory_stats(device(0)).unwrap().total;
    assert_eq!((stats.live_blocks, stats.waiting_blocks, stats.reserved_bytes), (0, 0, 0), "{stats:?}");
}

#[test]
fn the_peak_counts_what_lived_at_once_on_all_streams() {
    let _host = host();
    let pool = MemPool::builder().device(device(0)).build().unwrap();
    let scope = pool.enter().unwrap();
    for _ in 0..50 {
        let (first, second) = (stream(0), stream(0));
        drop((empty(10 << 20, &first).unwrap(), empty(10 << 20, &second).unwrap()));
    }
    drop(empty(512, &stream(0)).unwrap());
    // Neither forgotten with the streams nor added up over them.
    assert_eq!(pool.stats().unwrap().peak_live_bytes, 20 << 20);
    drop((scope, pool));
    empty_cache().unwrap();
}

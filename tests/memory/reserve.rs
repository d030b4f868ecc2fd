//! Pools with a reserve: physical memory that is theirs from birth to end, at addresses in one piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::memory::{MIB, assert_all_back, builder, empty_in, memory_calls, out_of_memory, used};
use crate::common::{MEMORY, device, on_thread, stream};
use gpupool::runtime::host::{Call, before_call, begin_capture, complete_all, end_capture, submit};
use gpupool::{
    CaptureMode, DeviceBuffer, ErrorKind, MemPool, MemPoolBuilder, PoolId, empty, empty_cache, memory_stats, on_oom,
};

const RESERVE: u64 = 256 * MIB;

/// A pool that can have no more than it reserves.
fn reserved() -> MemPool {
    builder().reserve(RESERVE).limit(RESERVE).build().unwrap()
}

#[test]
fn it_is_there_from_birth_and_serves_without_a_driver_call() {
    memory!();
    let stream = stream(0);
    let pool = reserved();
    let stats = pool.stats().unwrap();
    assert_eq!(
        (pool.reserve(), stats.reserved_bytes, stats.cached_bytes, used(0)),
        (RESERVE, RESERVE, RESERVE, RESERVE)
    );
    let before = memory_calls();
    let whole = empty_in(&pool, RESERVE, &stream).unwrap();
    let start = whole.ptr();
    assert_eq!((whole.pool_id(), pool.stats().unwrap().cached_bytes), (pool.id(), 0));
    drop(whole);
    for bytes in [700, 100 << 10, 5 * MIB, 60 * MIB] {
        let blocks: Vec<_> = (0..4).map(|_| empty_in(&pool, bytes, &stream).unwrap()).collect();
        let is_inside = |block: &DeviceBuffer| (start..start + RESERVE).contains(&block.ptr());
        assert!(blocks.iter().all(is_inside));
    }
    drop(empty_in(&pool, RESERVE, &stream).unwrap());
    assert_eq!(memory_calls(), before);
}

#[test]
fn a_size_that_is_no_multiple_of_a_page_is_rounded_up() {
    memory!();
    let pool = builder().reserve(3 * MIB).build().unwrap();
    assert_eq!((pool.reserve(), used(0)), (4 * MIB, 4 * MIB));
    drop(pool);
    assert_all_back();
    let pool = builder().reserve(0).build().unwrap();
    assert_eq!((pool.reserve(), used(0)), (0, 0));
}

#[test]
fn neither_trim_nor_empty_cache_nor_others_take_any_of_it() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    for use_on_oom in [false, true] {
        let pool = builder().reserve(RESERVE).use_on_oom(use_on_oom).build().unwrap();
        for part in [100 * MIB, RESERVE] {
            drop(empty_in(&pool, part, &own).unwrap());
            assert_eq!((pool.trim().unwrap(), empty_cache().unwrap(), used(0)), (0, 0, RESERVE));
        }
        drop(empty_in(&pool, 100 * MIB, &own).unwrap());
        out_of_memory(empty(MEMORY - RESERVE + 2 * MIB, &other));
        assert_eq!(pool.stats().unwrap().reserved_bytes, RESERVE);
        drop(empty(MEMORY - RESERVE, &other).unwrap());
        // More than the reserve goes by `trim`, and the reserve does not.
        empty_cache().unwrap();
        drop([RESERVE, 64 * MIB].map(|bytes| empty_in(&pool, bytes, &own).unwrap()));
        assert_eq!((pool.trim().unwrap(), used(0)), (64 * MIB, RESERVE));
        drop(pool);
        assert_all_back();
    }
}

#[test]
fn all_of_it_is_in_one_piece_again_after_many_streams_used_it() {
    memory!();
    let pool = reserved();
    let streams: Vec<_> = (0..8).map(|_| stream(0)).collect();
    let addresses: Vec<_> = (0..3)
        .map(|_| {
            let blocks: Vec<_> =
                (0..32).map(|n| empty_in(&pool, 7 * MIB + n, &streams[n as usize % 8]).unwrap()).collect();
            let small: Vec<_> = streams.iter().map(|stream| empty_in(&pool, 100, stream).unwrap()).collect();
            drop((blocks, small));
            let before = memory_calls();
            let whole = empty_in(&pool, RESERVE, &streams[3]).unwrap();
            assert_eq!(memory_calls(), before);
            whole.ptr()
        })
        .collect();
    assert_eq!(addresses, [addresses[0]; 3]);
}

#[test]
fn what_one_stream_freed_serves_another_once_its_work_is_done() {
    memory!();
    let (own, other, bystander) = (stream(0), stream(0), stream(0));
    for has_limit in [true, false] {
        let pool = if has_limit { reserved() } else { builder().reserve(RESERVE).build().unwrap() };
        let first = empty_in(&pool, RESERVE, &own).unwrap();
        let address = first.ptr();
        submit(&own).unwrap();
        submit(&bystander).unwrap();
        drop(first);
        let second = empty_in(&pool, RESERVE, &other).unwrap();
        // Without a limit there is more, and nothing is waited for.
        assert_eq!((second.ptr() == address, own.query().unwrap()), (has_limit, has_limit));
        assert!(!bystander.query().unwrap());
        complete_all().unwrap();
        drop((second, pool));
        assert_all_back();
    }
}

#[test]
fn it_is_refused_at_once_where_there_is_not_enough() {
    memory!();
    let stream = stream(0);
    let held = empty(MEMORY - RESERVE + 2 * MIB, &stream).unwrap();
    let before = (used(0), memory_stats(device(0)).unwrap().pools);
    for bytes in [RESERVE, MEMORY, MEMORY + 1, u64::MAX] {
        let error = out_of_memory(builder().reserve(bytes).build());
        let ErrorKind::OutOfMemory(out) = error.kind() else { panic!("{error}") };
        assert!(error.to_string().contains(&bytes.to_string()), "{error}");
        assert!(out.users.iter().any(|user| user.pool == "default memory pool"), "{error}");
        assert_eq!((used(0), memory_stats(device(0)).unwrap().pools), before);
    }
    // What is only cached is not in the way, nor what a callback frees.
    drop(held);
    let pool = builder().reserve(MEMORY).build().unwrap();
    assert_eq!(used(0), MEMORY);
    drop(pool);
    let held = std::sync::Mutex::new(Some(empty(900 * MIB, &stream).unwrap()));
    let callback = on_oom(move |_, bytes| bytes == RESERVE && held.lock().unwrap().take().is_some());
    drop((builder().reserve(RESERVE).build().unwrap(), callback));
}

#[test]
fn what_cannot_be_reserved_says_why() {
    memory!();
    let refused = |builder: MemPoolBuilder, word: &str| {
        let error = builder.reserve(RESERVE).build().expect_err("it cannot be reserved");
        assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)) && error.to_string().contains(word), "{error}");
    };
    refused(builder().limit(RESERVE - 1), "limit");
    refused(builder().no_split(true), "no_split");
    refused(builder().segments(true), "segments");
}

#[test]
fn blocks_outlive_the_pool_and_the_rest_goes() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    let pool = reserved();
    let (_first, middle) = (empty_in(&pool, MIB, &own).unwrap(), empty_in(&pool, 130 * MIB, &other).unwrap());
    drop(middle);
    drop(pool);
    complete_all().unwrap();
    empty_cache().unwrap();
    // An extent of 128 MiB has the live block.
    assert_eq!(used(0), 128 * MIB);
    let theirs = stream(0);
    on_thread(move || drop(empty(MEMORY - 128 * MIB, &theirs).unwrap()));
}

#[test]
fn a_pool_that_ends_with_its_thread_gives_it_back_later() {
    memory!();
    let own = stream(0);
    on_thread(move || {
        thread_local!(static LEFT: std::cell::RefCell<Option<(MemPool, DeviceBuffer)>> = const { std::cell::RefCell::new(None) });
        let pool = reserved();
        let block = empty_in(&pool, MIB, &own).unwrap();
        LEFT.set(Some((pool, block)));
    });
}

#[test]
fn a_graphs_memory_comes_from_it_and_is_the_graphs_until_its_reset() {
    memory!();
    let (captured, other) = (stream(0), stream(0));
    let pool = reserved();
    let before = memory_calls();
    let scope = pool.capture(&captured).unwrap();
    begin_capture(&captured, CaptureMode::Global).unwrap();
    drop(empty(200 * MIB, &captured).unwrap());
    end_capture(&captured).unwrap();
    let graph = scope.end().unwrap();
    assert_eq!(memory_calls(), before);
    pool.trim().unwrap();
    for stream in [&captured, &other] {
        out_of_memory(empty_in(&pool, 100 * MIB, stream));
    }
    graph.reset();
    drop(empty_in(&pool, RESERVE, &other).unwrap());
}

#[test]
fn a_pool_with_a_reserve_that_helps_others_lends_blocks_and_keeps_its_pages() {
    memory!();
    let own = stream(0);
    let helper = builder().reserve(RESERVE).limit(RESERVE).use_on_oom(true).build().unwrap();
    drop(empty_in(&helper, RESERVE, &own).unwrap());
    let held = empty(MEMORY - RESERVE, &own).unwrap();
    let found = empty(100 * MIB, &own).unwrap();
    assert_eq!((found.pool_id(), held.pool_id()), (helper.id(), PoolId::NONE));
    drop(found);
    drop(empty_in(&helper, RESERVE, &own).unwrap());
}

#[test]
fn memory_of_a_stream_that_is_gone_is_the_pools_again() {
    memory!();
    let pool = reserved();
    for _ in 0..100 {
        let gone = stream(0);
        submit(&gone).unwrap();
        drop(empty_in(&pool, RESERVE / 2, &gone).unwrap());
    }
    drop(empty_in(&pool, RESERVE, &stream(0)).unwrap());
}

#[test]
fn a_pool_that_is_closed_while_a_request_collects_its_reserve_leaves_nothing() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    let pool = Arc::new(reserved());
    drop(empty_in(&pool, RESERVE, &own).unwrap());
    let closed = Arc::clone(&pool);
    // What the other stream has free is taken from it, and not the reserve's again yet.
    before_call(Call::EventRecord, 0, move || {
        closed.close().unwrap();
    });
    let error = empty_in(&pool, RESERVE, &other).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
}

#[test]
fn a_pool_made_while_others_fill_the_device_gets_all_or_nothing() {
    memory!();
    let is_over = Arc::new(AtomicBool::new(false));
    let fillers: Vec<_> = (0..2)
        .map(|_| {
            let (is_over, own) = (Arc::clone(&is_over), stream(0));
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = empty(300 * MIB, &own);
                }
            })
        })
        .collect();
    for _ in 0..50 {
        match builder().reserve(500 * MIB).build() {
            Ok(pool) => assert_eq!(pool.stats().unwrap().reserved_bytes, 500 * MIB),
            Err(error) => drop(out_of_memory::<()>(Err(error))),
        }
    }
    is_over.store(true, Ordering::Relaxed);
    fillers.into_iter().for_each(|thread| thread.join().unwrap());
}

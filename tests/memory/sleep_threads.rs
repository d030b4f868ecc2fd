//! Threads that put pools to sleep and wake them, against each other and against threads that allocate and free.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::common::memory::{MIB, assert_all_back, empty_in, pool, read, used, write};
use crate::common::{stream, turns, wait_until};
use gpupool::runtime::host::{Call, Fault, clear_faults, complete_all, inject};
use gpupool::{Backup, DeviceBuffer, ErrorKind, MemPool, StatusKind, empty_cache, on_oom, pinned_stats};

/// Waits for the pool to be awake and to hold a block there, which must hold its number.
fn check(pool: &MemPool, block: &DeviceBuffer, number: u64) {
    // The pool is this thread's to wake: nothing puts it to sleep meanwhile.
    pool.wake().unwrap();
    assert_eq!(read(block.ptr()), number);
}

#[test]
fn requests_find_the_pool_awake_or_asleep_and_nothing_between() {
    memory!();
    let pool = pool();
    let kept = empty_in(&pool, 3 * MIB, &stream(0)).unwrap();
    write(kept.ptr(), 7);
    let is_over = AtomicBool::new(false);
    let (served, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for part in 0..3_u64 {
            let (pool, is_over, served, refused) = (&pool, &is_over, &served, &refused);
            scope.spawn(move || {
                let stream = stream(0);
                let mut held = Vec::new();
                for turn in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let bytes = [700, 60 << 10, 300 << 10, 3 * MIB][(turn % 4) as usize] + part;
                    match empty_in(pool, bytes, &stream) {
                        Ok(block) => {
                            served.fetch_add(1, Ordering::Relaxed);
                            held.push(block);
                        }
                        Err(error) => {
                            assert!(matches!(error.kind(), ErrorKind::Asleep(_)), "{error}");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    // Also what is asleep, in an order of its own.
                    if held.len() > 20 || turn % 7 == 0 && !held.is_empty() {
                        let place = turn as usize * 13 % held.len();
                        drop(held.swap_remove(place));
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in turns(8) {
                pool.sleep(Backup::Host).unwrap();
                if round % 5 == 0 {
                    pool.trim().unwrap();
                    empty_cache().unwrap();
                }
                pool.wake().unwrap();
                check(&pool, &kept, 7);
                let before = served.load(Ordering::Relaxed);
                wait_until("a request is served", || served.load(Ordering::Relaxed) > before);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
    assert!(served.into_inner() > 0);
    let stats = pool.stats().unwrap();
    assert_eq!((stats.live_blocks, stats.requested_bytes, stats.asleep_bytes), (1, 3 * MIB, 0));
    complete_all().unwrap();
    drop((kept, pool));
    assert_all_back();
    assert_eq!(pinned_stats(None).unwrap().total.live_bytes, 0);
}

#[test]
fn a_callback_that_is_asked_for_memory_may_not_change_the_pool_that_wakes() {
    memory!();
    let pool = std::sync::Arc::new(pool());
    let block = empty_in(&pool, 3 * MIB, &stream(0)).unwrap();
    pool.sleep(Backup::Host).unwrap();
    let (asked, same) = (std::sync::Arc::new(AtomicU64::new(0)), std::sync::Arc::clone(&pool));
    let counted = std::sync::Arc::clone(&asked);
    let guard = on_oom(move |_, _| {
        for outcome in [same.sleep(Backup::Host), same.wake()] {
            let error = outcome.unwrap_err();
            assert!(error.to_string().contains("leave that pool alone"), "{error}");
        }
        counted.fetch_add(1, Ordering::Relaxed);
        false
    });
    inject(Fault { call: Call::ExtentCreate, kind: StatusKind::OutOfMemory, after: 0, times: 100 });
    let outcome = pool.wake();
    clear_faults();
    assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::OutOfMemory(_)));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    pool.wake().unwrap();
    drop((guard, block, pool));
    assert_eq!(used(0), 0);
}

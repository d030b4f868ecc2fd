//! Caches end while threads know them: what such a thread gets next is its own pool's.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use crate::common::memory::{PAGE, empty_in, foreign, pool};
use crate::common::{on_thread, stream};
use gpupool::memory::empty_cache;
use gpupool::runtime::host::complete_all;
use gpupool::{DeviceBuffer, ErrorKind, MemPool, PoolId, Stream, empty};

fn live_in(pool: &MemPool) -> u64 {
    pool.stats().unwrap().live_bytes
}

/// Makes requests of a pool, each with a cache of its own: so caches of others end, and are used again if nobody names them.
fn blocks_on_new_streams(pool: &MemPool) -> Vec<(Stream, DeviceBuffer)> {
    let with_block = || {
        let stream = stream(0);
        let block = empty_in(pool, 512, &stream).unwrap();
        (stream, block)
    };
    (0..20).map(|_| with_block()).collect()
}

#[test]
fn a_thread_whose_cache_was_ended_by_another_one_gets_a_new_one_of_its_pool() {
    memory!(1, 64 * PAGE);
    let foreign = foreign();
    // This thread knows the cache, and had its last request there.
    drop(empty(4 * PAGE, &foreign).unwrap());
    let pool = Arc::new(pool());
    let _others = {
        let pool = Arc::clone(&pool);
        on_thread(move || {
            // A request passes over what a foreign stream has free, whose work is marked from then on; then that goes.
            drop(empty(PAGE, &stream(0)).unwrap());
            complete_all().unwrap();
            empty_cache().unwrap();
            blocks_on_new_streams(&pool)
        })
    };
    let before = live_in(&pool);
    let block = empty(512, &foreign).unwrap();
    assert_eq!((block.pool_id(), live_in(&pool)), (PoolId::NONE, before));
}

#[test]
fn a_thread_in_the_scope_of_a_pool_that_ends_gets_nothing_of_another_one() {
    memory!(1, 64 * PAGE);
    let (stream, (to_thread, from_main), (to_main, from_thread)) = (stream(0), channel(), channel());
    let first = Arc::new(pool());
    let thread = {
        let (first, stream) = (Arc::clone(&first), stream.clone());
        thread::spawn(move || {
            let _scope = first.enter().unwrap();
            drop(empty(512, &stream).unwrap());
            to_main.send(()).unwrap();
            from_main.recv().unwrap();
            empty(512, &stream).map(drop).map_err(|error| matches!(error.kind(), ErrorKind::InvalidValue(_)))
        })
    };
    from_thread.recv().unwrap();
    first.close().unwrap();
    complete_all().unwrap();
    let second = pool();
    let (_others, before) = (blocks_on_new_streams(&second), live_in(&second));
    to_thread.send(()).unwrap();
    let refused = thread.join().unwrap();
    assert_eq!(refused, Err(true), "an invalid value");
    assert_eq!(live_in(&second), before);
}

/// Who knows a cache as it ends, besides the thread that ends it.
#[derive(Clone, Copy)]
enum Knower {
    Nobody,
    AnotherThread,
}

/// Ends a cache, then has free memory on two streams, the second of which may get what the cache was; returns whether a third
/// stream's request gets the first one's memory.
fn is_first_asked_first(knower: Knower) -> bool {
    let (ending, lasting) = (Arc::new(pool()), pool());
    let (old, first, second, third) = (stream(0), stream(0), stream(0), stream(0));
    drop(empty_in(&ending, PAGE, &old).unwrap());
    let (until, end) = channel::<()>();
    let thread = matches!(knower, Knower::AnotherThread).then(|| {
        let ((to_main, known), pool, old) = (channel(), Arc::clone(&ending), old.clone());
        let thread = thread::spawn(move || {
            drop(empty_in(&pool, PAGE, &old).unwrap());
            drop((pool, old));
            to_main.send(()).unwrap();
            let _ = end.recv();
        });
        known.recv().unwrap();
        thread
    });
    let of_first = empty_in(&lasting, 4 * PAGE, &first).unwrap();
    drop((ending, old));
    let of_second = empty_in(&lasting, 4 * PAGE, &second).unwrap();
    let place = of_first.ptr()..of_first.ptr() + of_first.nbytes();
    drop((of_first, of_second));
    complete_all().unwrap();
    let of_third = empty_in(&lasting, 4 * PAGE, &third).unwrap();
    let is_of_first = place.contains(&of_third.ptr());
    drop((of_third, until));
    thread.into_iter().for_each(|thread| thread.join().unwrap());
    is_of_first
}

#[test]
fn which_stream_gives_memory_first_does_not_depend_on_who_knows_a_cache_that_ended() {
    memory!(1, 64 * PAGE);
    assert!(is_first_asked_first(Knower::Nobody), "nobody");
    assert!(is_first_asked_first(Knower::AnotherThread), "another thread");
}

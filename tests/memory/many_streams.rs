//! Thousands of streams, and of captures in pools of their own: each has a page at most, streams that hold little a part of
//! one, for no more driver calls than the first.

use crate::common::memory::{PAGE, pool, reserved};
use crate::common::{device, stream, turns};
use gpupool::memory::{
    begin_allocate_to_pool, empty_cache, end_allocate_to_pool, graph_pool_handle, memory_stats, release_pool,
};
use gpupool::runtime::host::{Call, Fault, clear_faults, create_stream, destroy_stream, driver_calls, inject, submit};
use gpupool::{StatusKind, Stream, empty};

/// What a page costs: an extent is created, mapped, and made accessible.
const CALLS_A_PAGE: u64 = 3;

/// More memory than any device has.
const MEMORY: u64 = 256 << 30;

#[test]
fn one_byte_on_each_of_thousands_of_streams_takes_a_part_of_a_page_each() {
    memory!(2, MEMORY);
    for count in [250, 1000, 4000] {
        let streams: Vec<_> = (0..count).map(|_| stream(0)).collect();
        let before = driver_calls();
        let buffers: Vec<_> = streams.iter().map(|stream| empty(1, stream).unwrap()).collect();
        // The first sixteen, and one more, have a page each.
        let pages = 18 + count / 32;
        assert!(reserved() <= pages * PAGE, "{} bytes for {count} streams", reserved());
        assert!(driver_calls() - before <= pages * CALLS_A_PAGE, "{}", driver_calls() - before);
        drop((buffers, streams));
        empty_cache().unwrap();
        assert_eq!(reserved(), 0);
    }
}

#[test]
fn a_stream_that_may_be_gone_takes_a_page_at_most() {
    memory!(2, MEMORY);
    // SAFETY: a simulated stream can be asked for also when it is gone.
    let foreign = || unsafe { Stream::from_raw_on(create_stream(device(0)).unwrap().as_ptr(), device(0)) }.unwrap();
    let streams: Vec<_> = (0..4000).map(|_| foreign()).collect();
    let buffers: Vec<_> = streams.iter().map(|stream| empty(1, stream).unwrap()).collect();
    assert!(reserved() <= 4000 * PAGE, "{}", reserved());
    drop(buffers);
    for stream in streams {
        destroy_stream(stream.raw(), device(0)).unwrap();
    }
}

#[test]
fn a_block_of_several_pages_on_each_of_thousands_of_streams_takes_no_more_than_the_block() {
    memory!(2, MEMORY);
    let streams: Vec<_> = (0..4000).map(|_| stream(0)).collect();
    let buffers: Vec<_> = streams.iter().map(|stream| empty(2 * PAGE, stream).unwrap()).collect();
    assert_eq!(reserved(), 4000 * 2 * PAGE);
    drop(buffers);
    empty_cache().unwrap();
    // Streams that have nothing are not asked about their work.
    inject(Fault { call: Call::StreamCaptureStatus, kind: StatusKind::Other, after: 0, times: 1 });
    empty_cache().unwrap();
    assert_eq!(clear_faults(), 1);
}

#[test]
fn thousands_of_streams_made_and_dropped_one_after_the_other_leave_little_behind() {
    memory!(2, MEMORY);
    // Live ones beside them, so that the dropped ones are found among many.
    let kept: Vec<_> = (0..1000).map(|_| stream(0)).collect();
    let _buffers: Vec<_> = kept.iter().map(|stream| empty(1, stream).unwrap()).collect();
    let before = reserved();
    for _ in 0..5000 {
        drop(empty(1, &stream(0)).unwrap());
    }
    assert!(reserved() - before <= 100 * PAGE, "{}", reserved() - before);
}

#[test]
fn a_request_asks_few_of_thousands_of_busy_streams_for_their_pages() {
    memory!(2, MEMORY);
    let streams: Vec<_> = (0..2000).map(|_| stream(0)).collect();
    for stream in &streams {
        drop(empty(PAGE, stream).unwrap());
        submit(stream).unwrap();
    }
    let other = stream(0);
    inject(Fault { call: Call::StreamQuery, kind: StatusKind::Other, after: 64, times: u32::MAX });
    let _buffer = empty(PAGE, &other).unwrap();
    clear_faults();
}

#[test]
fn pages_that_thousands_of_streams_have_free_are_found_by_the_next_requests() {
    memory!(2, MEMORY);
    let streams: Vec<_> = (0..2000).map(|_| stream(0)).collect();
    drop(streams.iter().map(|stream| empty(PAGE, stream).unwrap()).collect::<Vec<_>>());
    let before = reserved();
    let others: Vec<_> = (0..50).map(|_| stream(0)).collect();
    let _buffers: Vec<_> = others.iter().map(|stream| empty(40 * PAGE, stream).unwrap()).collect();
    assert_eq!(reserved(), before);
}

/// More mappings than this the system gives no process, by default.
const MOST_CAPTURES: u64 = 60_000;

/// Thousands of captures on a stream, each in a pool of its own and with a block that lives.
fn capture(stream: &Stream) {
    let before = driver_calls();
    let captured: Vec<_> = (1..=MOST_CAPTURES)
        .zip(turns(3000))
        .map(|_| {
            let pool = pool();
            let scope = pool.capture(stream).unwrap();
            let buffer = empty(1, stream).unwrap();
            (scope.end().unwrap(), buffer, pool)
        })
        .collect();
    let count = captured.len() as u64;
    assert_eq!(reserved(), count * PAGE);
    assert_eq!(driver_calls() - before, count * CALLS_A_PAGE);
    drop(captured);
}

#[test]
fn thousands_of_live_captures_take_a_page_each() {
    memory!(2, MEMORY);
    let stream = stream(0);
    capture(&stream);
}

#[test]
fn thousands_of_pools_that_are_used_by_id_take_a_page_each() {
    memory!(2, MEMORY);
    let stream = stream(0);
    let begun: Vec<_> = (0..3000)
        .map(|_| {
            let id = graph_pool_handle(false);
            begin_allocate_to_pool(device(0), id).unwrap();
            let buffer = empty(1, &stream).unwrap();
            end_allocate_to_pool(device(0), id).unwrap();
            (id, buffer)
        })
        .collect();
    assert_eq!(reserved(), 3000 * PAGE);
    for (id, buffer) in begun {
        drop(buffer);
        release_pool(device(0), id).unwrap();
    }
    empty_cache().unwrap();
    assert_eq!((reserved(), memory_stats(device(0)).unwrap().pools), (0, 1));
}

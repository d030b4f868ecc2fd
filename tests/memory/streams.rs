//! Streams and threads come and go, and leave nothing behind.

use crate::common::memory::{foreign, reserved};
use crate::common::{device, stream};
use gpupool::memory::memory_stats;
use gpupool::runtime::host::{begin_capture, complete, complete_all, destroy_stream, end_capture, submit};
use gpupool::{CaptureMode, Stream, empty};

#[test]
fn memory_of_streams_that_were_dropped_is_used_by_others() {
    memory!();
    for _ in 0..200 {
        let stream = stream(0);
        drop(empty(20 << 20, &stream).unwrap());
    }
    // Two generations at most: one is given back when the next is made.
    assert!(reserved() <= 64 << 20, "{}", reserved());
}

/// Two foreign streams, one of which knows that the other looks for memory.
fn two_that_share() -> (Stream, Stream) {
    let (first, second) = (foreign(), foreign());
    empty(4 << 20, &first).unwrap().free_on(&first).unwrap();
    // Passes over what is free on the first.
    empty(4 << 20, &second).unwrap().free_on(&second).unwrap();
    (first, second)
}

#[test]
fn a_foreign_stream_for_each_piece_of_work_takes_the_memory_of_those_before() {
    memory!();
    for _ in 0..50 {
        let stream = foreign();
        let small = empty(1 << 10, &stream).unwrap();
        for bytes in [20 << 20, 3 << 20] {
            let buffer = empty(bytes, &stream).unwrap();
            submit(&stream).unwrap();
            buffer.free_on(&stream).unwrap();
        }
        small.free_on(&stream).unwrap();
        complete_all().unwrap();
        destroy_stream(stream.raw(), device(0)).unwrap();
    }
    // The first did not know that others would look.
    assert!(reserved() <= (2 * 28) << 20, "{}", reserved());
}

#[test]
fn memory_freed_on_a_foreign_stream_serves_others_once_its_work_is_done() {
    memory!();
    let (first, second) = two_that_share();
    let buffer = empty(40 << 20, &first).unwrap();
    let work = submit(&first).unwrap();
    buffer.free_on(&first).unwrap();
    let before = reserved();
    let beside = empty(30 << 20, &second).unwrap();
    assert!(reserved() > before, "pages moved while their stream was at work");
    drop(beside);
    complete(&first, work).unwrap();
    let before = reserved();
    drop(empty(60 << 20, &second).unwrap());
    assert_eq!(reserved(), before);
}

#[test]
fn a_captured_foreign_stream_lends_nothing() {
    memory!();
    let (first, second) = two_that_share();
    let buffer = empty(20 << 20, &first).unwrap();
    begin_capture(&first, CaptureMode::Relaxed).unwrap();
    buffer.free_on(&first).unwrap();
    let before = reserved();
    drop(empty(16 << 20, &second).unwrap());
    assert!(reserved() > before);
    end_capture(&first).expect("nothing spoils the capture");
}

/// Work on two streams in turn, each of which takes all that the other has free. Returns the driver's calls.
fn in_turn(streams: &[Stream; 2], turns: usize) -> u64 {
    let before = memory_stats(device(0)).unwrap().driver_calls;
    for turn in 0..turns {
        drop((0..4).map(|_| empty(10 << 20, &streams[turn % 2]).unwrap()).collect::<Vec<_>>());
    }
    memory_stats(device(0)).unwrap().driver_calls - before
}

#[test]
fn streams_that_take_turns_have_each_others_memory_where_it_stands() {
    memory!();
    let streams = [stream(0), stream(0)];
    in_turn(&streams, 1);
    let had = reserved();
    assert_eq!(in_turn(&streams, 100), 0);
    assert_eq!(reserved(), had);
    // Not while the GPU is at work on it.
    let work = submit(&streams[0]).unwrap();
    drop(empty(30 << 20, &streams[0]).unwrap());
    let beside = empty(30 << 20, &streams[1]).unwrap();
    assert!(reserved() > had, "memory of a stream at work went to another");
    drop(beside);
    complete(&streams[0], work).unwrap();
}

//! A recording that begins or ends while threads free and take blocks, in random schedules of the real code: a snapshot
//! shows what is live.

use std::ffi::c_int;
use std::iter;
use std::ptr;
use std::sync::{Arc, Mutex};

use gpupool::c_api::{self, C_API};
use gpupool::memory::MemoryAction;
use gpupool::runtime::host::schedule::{self, Body};
use gpupool::runtime::host::{complete_all, submit};
use gpupool::{Device, DeviceBuffer, Recording, Stream, empty, snapshot};

use crate::common::turns;

const PAGE: u64 = 2 << 20;
const BYTES: u64 = 512 << 10;

/// Returns whether a snapshot shows a live block as one that is held.
fn is_shown(block: &DeviceBuffer) -> bool {
    let segments = snapshot(None).unwrap().memory.segments;
    let mut views = segments.iter().flat_map(|segment| &segment.blocks);
    views.any(|view| view.address == block.ptr() && view.is_live && !view.is_waiting)
}

#[test]
fn a_block_taken_while_a_recording_begins_is_in_snapshots() {
    host!(1, PAGE);
    let stream = Stream::new(Device::from_ordinal(0)).unwrap();
    let mut blocks: Vec<_> = iter::from_fn(|| empty(BYTES, &stream).ok()).collect();
    for seed in turns(50) {
        let freed = blocks.pop().unwrap();
        let taken = Arc::new(Mutex::new(None));
        let (again, of_taker) = (stream.clone(), Arc::clone(&taken));
        let taker: Body = Box::new(move || *of_taker.lock().unwrap() = empty(BYTES, &again).ok());
        let recording: Body = Box::new(|| Recording::new().start().unwrap());
        let freeing: Body = Box::new(move || drop(freed));
        assert!(schedule::run(seed, vec![taker, recording, freeing]).is_ok(), "schedule {seed}");
        let taken = taken.lock().unwrap().take();
        if let Some(block) = &taken {
            assert!(is_shown(block), "schedule {seed}: a live block is said to be free");
        }
        Recording::stop().unwrap();
        blocks.extend(taken.or_else(|| empty(BYTES, &stream).ok()));
    }
}

#[test]
fn blocks_that_threads_take_at_once_are_recorded_as_theirs() {
    host!(1, PAGE);
    let stream = Stream::new(Device::from_ordinal(0)).unwrap();
    drop(empty(BYTES, &stream).unwrap());
    Recording::new().start().unwrap();
    for seed in 1..=50 {
        let takers =
            [(); 2].map(|()| stream.clone()).map(|stream| -> Body { Box::new(move || drop(empty(BYTES, &stream))) });
        assert!(schedule::run(seed, takers.into()).is_ok(), "schedule {seed}");
        let events = snapshot(None).unwrap().memory.events;
        let taken: Vec<_> = events.iter().rev().filter(|event| event.action == MemoryAction::Alloc).take(2).collect();
        assert_ne!(taken[0].thread, taken[1].thread, "schedule {seed}: one thread is said to have taken both");
    }
}

/// The stack of a program in C, which a block keeps when the recording ends.
extern "C" fn take_stack(_: c_int) -> u32 {
    1 << 31 | 1
}

fn record(settings: *const c_api::Recording) {
    // SAFETY: the settings are alive or null, and any thread may call the function for stacks.
    assert_eq!(unsafe { (C_API.record)(settings) }, 0);
}

#[test]
fn a_block_freed_while_a_recording_ends_leaves_nothing_to_the_next_one_there() {
    host!(1, PAGE);
    let [stream, other] = [(); 2].map(|()| Stream::new(Device::from_ordinal(0)).unwrap());
    let settings = c_api::Recording {
        size: size_of::<c_api::Recording>() as u64,
        most_events: 100,
        live_stacks: 1,
        alloc_stacks: 0,
        free_stacks: 0,
        skipped_actions: 0,
        take_stack: Some(take_stack),
        forget: 1,
    };
    for seed in turns(50) {
        record(&raw const settings);
        let block = empty(BYTES, &stream).unwrap();
        let address = block.ptr();
        // So that it waits once it is freed.
        block.record_stream(&other).unwrap();
        submit(&other).unwrap();
        let freeing: Body = Box::new(move || drop(block));
        let ending: Body = Box::new(|| record(ptr::null()));
        assert!(schedule::run(seed, vec![freeing, ending]).is_ok(), "schedule {seed}");
        complete_all().unwrap();
        let held: Vec<_> = iter::from_fn(|| empty(BYTES, &stream).ok()).collect();
        let next = held.iter().find(|block| block.ptr() == address).expect("a block where that one was");
        record(&raw const settings);
        assert!(is_shown(next), "schedule {seed}: a live block is said to be free");
        record(ptr::null());
    }
}

//! A recording that begins while one thread frees a block and another takes it, in random schedules of the real code: a
//! snapshot shows what is live.

use std::iter;
use std::sync::{Arc, Mutex};

use gpupool::runtime::host::schedule::{self, Body};
use gpupool::{Device, Recording, Stream, empty, snapshot};

const PAGE: u64 = 2 << 20;
const BYTES: u64 = 512 << 10;

#[test]
fn a_block_taken_while_a_recording_begins_is_in_snapshots() {
    host!(1, PAGE);
    let stream = Stream::new(Device::from_ordinal(0)).unwrap();
    let mut blocks: Vec<_> = iter::from_fn(|| empty(BYTES, &stream).ok()).collect();
    for seed in 1..=2000 {
        let freed = blocks.pop().unwrap();
        let taken = Arc::new(Mutex::new(None));
        let (again, of_taker) = (stream.clone(), Arc::clone(&taken));
        let taker: Body = Box::new(move || *of_taker.lock().unwrap() = empty(BYTES, &again).ok());
        let recording: Body = Box::new(|| Recording::new().start().unwrap());
        let freeing: Body = Box::new(move || drop(freed));
        assert!(schedule::run(seed, vec![taker, recording, freeing]).is_ok(), "schedule {seed}");
        let taken = taken.lock().unwrap().take();
        if let Some(block) = &taken {
            let segments = snapshot(None).unwrap().memory.segments;
            let views = segments.iter().flat_map(|segment| &segment.blocks);
            let is_live = views.filter(|view| view.address == block.address()).all(|view| view.is_live);
            assert!(is_live, "schedule {seed}: a live block is said to be free");
        }
        Recording::stop().unwrap();
        blocks.extend(taken.or_else(|| empty(BYTES, &stream).ok()));
    }
}

//! Slots of one slab freed by two threads at once on a device that is full, in random schedules of the real code: what a thread
//! has freed serves its next request, whatever the other one has just begun.

use std::iter;

use gpupool::runtime::host::schedule::{self, Body};
use gpupool::{Device, Stream, empty};

use crate::common::turns;

const PAGE: u64 = 2 << 20;
const BYTES: u64 = 512;

#[test]
fn a_slot_serves_the_thread_that_freed_it() {
    host!(1, PAGE);
    let stream = Stream::new(Device::from_ordinal(0)).unwrap();
    let mut blocks: Vec<_> = iter::from_fn(|| empty(BYTES, &stream).ok()).collect();
    assert_eq!(blocks.len() as u64, PAGE / BYTES);
    for seed in turns(50) {
        let (first, second) = (blocks.pop().unwrap(), blocks.pop().unwrap());
        let again = stream.clone();
        let other: Body = Box::new(move || drop(first));
        let asking: Body = Box::new(move || {
            drop(second);
            drop(empty(BYTES, &again).unwrap());
        });
        assert!(schedule::run(seed, vec![other, asking]).is_ok(), "schedule {seed}");
        blocks.extend(iter::from_fn(|| empty(BYTES, &stream).ok()));
    }
}

//! A little of all that threads do to each other's memory, in few enough steps for an interpreter: `make miri`.

use std::sync::mpsc::channel;
use std::thread;

use crate::common::memory::{MIB, deallocate, pool};
use crate::common::{device, stream};
use gpupool::memory::memory_stats;
use gpupool::runtime::host::submit;
use gpupool::{empty, empty_cache};

const ROUNDS: usize = 3;

#[test]
fn what_one_thread_allocates_others_use_free_and_look_for() {
    memory!(1, 64 * MIB);
    let (theirs, own) = (stream(0), stream(0));
    let pool = pool();
    let (sender, passed_on) = channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let sender = sender;
            let _scope = pool.enter().unwrap();
            for bytes in [700, 3 * MIB].repeat(ROUNDS) {
                let kept = empty(bytes, &theirs).unwrap();
                sender.send(empty(bytes, &theirs).unwrap()).unwrap();
                kept.record_stream(&own).unwrap();
            }
        });
        scope.spawn(|| {
            for buffer in passed_on {
                submit(&own).unwrap();
                buffer.record_stream(&own).unwrap();
                deallocate(buffer.into_ptr(), None).unwrap();
                drop(empty(900, &theirs).unwrap());
            }
        });
        for _ in 0..ROUNDS {
            empty_cache().unwrap();
            let stats = memory_stats(device(0)).unwrap().total;
            assert!(stats.live_bytes <= stats.reserved_bytes);
        }
    });
}

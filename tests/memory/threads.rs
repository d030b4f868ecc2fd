//! Threads that work on one stream one after the other, as PyTorch's backward passes do with its forward ones, need the memory
//! that one thread would.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self};

use crate::common::memory::{MIB, Random, assert_all_back, empty_in, pool};
use crate::common::{Worker, stream};
use gpupool::memory::MemoryAction;
use gpupool::runtime::host::{Call, before_call, submit};
use gpupool::{DeviceBuffer, MemPool, PoolStats, Recording, Stream, empty, snapshot};

/// A thread in a scope of the pool.
fn worker_in(pool: &MemPool) -> Worker {
    let (worker, token) = (Worker::start(), pool.token());
    // It ends with the thread.
    worker.run(move || std::mem::forget(token.enter().unwrap()));
    worker
}

/// Allocates and frees a block on a thread, and returns its address.
fn pair(worker: &Worker, bytes: u64, stream: &Stream) -> u64 {
    let stream = stream.clone();
    worker.run(move || empty(bytes, &stream).unwrap().ptr())
}

/// A step of a program: the place of the block that it frees, or the bytes that it allocates.
#[derive(Clone, Copy)]
enum Step {
    Free(usize),
    Allocate(u64),
}

/// Runs turns of steps, each on the next of so many threads, and returns the pool's statistics.
fn take_turns(turns: &[Vec<Step>], threads: usize) -> PoolStats {
    let (pool, stream) = (pool(), stream(0));
    let workers: Vec<_> = (0..threads).map(|_| worker_in(&pool)).collect();
    let mut live: Vec<DeviceBuffer> = Vec::new();
    for (turn, worker) in turns.iter().zip(workers.iter().cycle()) {
        let (turn, stream) = (turn.clone(), stream.clone());
        live = worker.run(move || {
            for step in turn {
                match step {
                    Step::Free(place) => drop(live.swap_remove(place)),
                    Step::Allocate(bytes) => live.push(empty(bytes, &stream).unwrap()),
                }
            }
            live
        });
    }
    let stats = pool.stats().unwrap();
    drop((live, workers, pool));
    assert_all_back();
    stats
}

#[test]
fn programs_of_threads_that_take_turns_peak_as_if_they_had_one_thread() {
    memory!(1, 64 << 30);
    for seed in 0..20 {
        let (mut random, mut live) = (Random(seed), 0);
        let mut step = || {
            if live > 0 && (live >= 150 || random.below(2) == 0) {
                live -= 1;
                Step::Free(random.below(live + 1))
            } else {
                live += 1;
                Step::Allocate((512 + random.below(1536) as u64) << random.below(15))
            }
        };
        let turns: Vec<Vec<_>> = (0..40).map(|_| (0..60).map(|_| step()).collect()).collect();
        let [one, two, three] = [1, 2, 3].map(|threads| take_turns(&turns, threads));
        assert_eq!((two, three), (one, one), "seed {seed}");
    }
}

#[test]
fn a_large_request_moves_its_streams_own_pages() {
    const LARGE: u64 = 116 * MIB;
    memory!();
    let pool = pool();
    let workers: Vec<_> = (0..4).map(|_| (worker_in(&pool), stream(0))).collect();
    let on_each = |sizes: &'static [u64]| -> Vec<_> {
        let allocate = |(worker, stream): &(Worker, Stream)| {
            let stream = stream.clone();
            worker.run(move || sizes.iter().map(|mib| empty(mib * MIB, &stream).unwrap()).collect::<Vec<_>>())
        };
        workers.iter().map(allocate).collect()
    };
    let mut kept = on_each(&[24, 96, 24]);
    for ((worker, _), kept) in workers.iter().zip(&mut kept) {
        let freed = kept.remove(1);
        worker.run(|| drop(freed));
    }
    let reserved = pool.stats().unwrap().reserved_bytes;
    let _large = on_each(&[LARGE / MIB]);
    let grown = pool.stats().unwrap().reserved_bytes - reserved;
    assert_eq!(grown, 4 * (LARGE - 96 * MIB), "{} MiB", grown / MIB);
}

#[test]
fn a_block_is_recorded_as_the_allocating_threads() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let workers = [worker_in(&pool), worker_in(&pool)];
    let addresses = workers.each_ref().map(|worker| pair(worker, 4 * MIB, &stream));
    assert_eq!(addresses[0], addresses[1]);
    Recording::new().start().unwrap();
    for worker in &workers {
        pair(worker, 4 * MIB, &stream);
    }
    let events = snapshot(None).unwrap().memory.events;
    Recording::stop().unwrap();
    let of = |action| events.iter().filter(move |event| event.action == action).map(|event| event.thread);
    let (allocated, freed): (Vec<_>, Vec<_>) =
        (of(MemoryAction::Alloc).collect(), of(MemoryAction::FreeCompleted).collect());
    assert_eq!(allocated.len(), 2, "{events:?}");
    assert_ne!(allocated[0], allocated[1]);
    assert_eq!(allocated, freed);
}

/// A page that has moved is unmapped at its old place by whichever thread looks next, while others move it on. CUDA's driver
/// bears only one of these calls at a time, and so does the simulated one.
#[test]
fn no_two_calls_of_the_driver_work_on_one_extent_at_once() {
    memory!();
    let pass_on = |thread: u64| {
        let (streams, mut random) = ([(); 4].map(|()| stream(0)), Random(thread + 1));
        let mut held = VecDeque::new();
        for _ in 0..10_000 {
            let stream = &streams[random.below(4)];
            held.push_back((stream, empty(1024 << random.below(13), stream).unwrap()));
            submit(stream).unwrap();
            if held.len() > 8
                && let Some((stream, buffer)) = held.pop_front()
            {
                drop(buffer);
                stream.synchronize().unwrap();
            }
        }
    };
    thread::scope(|scope| (0..16).for_each(|thread| drop(scope.spawn(move || pass_on(thread)))));
}

/// Before a thread creates an extent for the pool, another one takes what stands free, each time.
fn rob(pool: Weak<MemPool>, stream: Stream, taken: Arc<Mutex<Vec<DeviceBuffer>>>) {
    before_call(Call::ExtentCreate, 0, move || {
        let (Some(robbed), on, into) = (pool.upgrade(), stream.clone(), Arc::clone(&taken)) else { return };
        let thief = move || {
            let stats = robbed.stats().unwrap();
            let free = stats.reserved_bytes - stats.live_bytes;
            into.lock().unwrap().push(empty_in(&robbed, free, &on).unwrap());
        };
        thread::spawn(thief).join().unwrap();
        rob(pool, stream, taken);
    });
}

#[test]
fn a_request_that_is_robbed_of_what_stands_beside_its_new_pages_comes_through() {
    memory!();
    let (pool, stream) = (Arc::new(pool()), stream(0));
    let taken = Arc::default();
    // One MiB is free beside it, on which the next request counts.
    let _first = empty_in(&pool, 3 * MIB, &stream).unwrap();
    rob(Arc::downgrade(&pool), stream.clone(), Arc::clone(&taken));
    let _second = empty_in(&pool, 5 * MIB / 2, &stream).unwrap();
    let taken = std::mem::take(&mut *taken.lock().unwrap());
    assert!((1..=2).contains(&taken.len()), "robbed {} times", taken.len());
}

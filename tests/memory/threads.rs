//! Threads that work on one stream one after the other, as PyTorch's backward passes do with its forward ones, need no more
//! memory than one thread would; those that work at once stay apart.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use crate::common::memory::{MIB, Random, assert_all_back};
use crate::common::{device, stream};
use gpupool::memory::{MemoryAction, memory_snapshot};
use gpupool::runtime::host::submit;
use gpupool::{DeviceBuffer, MemPool, PoolStats, Recording, Stream, empty, empty_cache, snapshot};

const LAYERS: u64 = 24;
const STEPS: u64 = 12;

/// A thread that runs what it is sent in a scope of the pool, for as long as this lives.
struct Worker {
    sender: Option<Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn new(pool: &MemPool) -> Self {
        let token = pool.token();
        let (sender, sent) = channel::<Box<dyn FnOnce() + Send>>();
        let thread = thread::spawn(move || {
            let _scope = token.enter().unwrap();
            sent.iter().for_each(|run| run());
        });
        Self { sender: Some(sender), thread: Some(thread) }
    }

    fn run<R: Send + 'static>(&self, run: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, result) = channel();
        self.sender.as_ref().unwrap().send(Box::new(move || sender.send(run()).unwrap())).unwrap();
        result.recv().unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.sender.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn pool() -> MemPool {
    MemPool::builder().device(device(0)).build().unwrap()
}

/// Returns the bytes of a layer's activation in a step, whose batches differ.
fn activation(step: u64, layer: u64) -> u64 {
    (3 + step * 5 % 7) * (1 + layer % 3) * 331 * 1024
}

/// Returns the bytes of a layer's weights.
fn weights(layer: u64) -> u64 {
    (1 + layer % 4) * 700 * 1024
}

/// Allocates a step's activations, with what is used in between.
fn forward(stream: &Stream, step: u64) -> Vec<DeviceBuffer> {
    let layer = |layer| {
        let between = empty(2 * activation(step, layer), stream).unwrap();
        let kept = empty(activation(step, layer), stream).unwrap();
        drop(between);
        kept
    };
    (0..LAYERS).map(layer).collect()
}

/// Frees a step's activations while it allocates the gradients, which it returns.
fn backward(stream: &Stream, step: u64, mut activations: Vec<DeviceBuffer>) -> Vec<DeviceBuffer> {
    let mut gradients = Vec::new();
    let mut above = empty(activation(step, LAYERS - 1), stream).unwrap();
    for layer in (0..LAYERS).rev() {
        gradients.push(empty(weights(layer), stream).unwrap());
        let below = empty(activation(step, layer), stream).unwrap();
        drop(activations.pop());
        above = below;
    }
    drop(above);
    gradients
}

/// Trains for a few steps in a pool, with the forward passes on one thread and the backward ones on another or the same,
/// and returns the pool's statistics.
fn train(threads: usize) -> PoolStats {
    let (pool, stream) = (pool(), stream(0));
    let workers: Vec<_> = (0..threads).map(|_| Worker::new(&pool)).collect();
    let (main, other) = (&workers[0], workers.last().unwrap());
    let of = stream.clone();
    let kept: Vec<_> = main.run(move || (0..LAYERS).map(|layer| empty(weights(layer), &of).unwrap()).collect());
    for step in 0..STEPS {
        let of = stream.clone();
        let activations = main.run(move || forward(&of, step));
        let of = stream.clone();
        let gradients = other.run(move || backward(&of, step, activations));
        main.run(move || drop(gradients));
    }
    drop(kept);
    let stats = pool.stats().unwrap();
    drop((workers, pool));
    assert_all_back();
    stats
}

#[test]
fn forward_and_backward_passes_on_two_threads_need_no_more_memory_than_on_one() {
    host!();
    empty_cache().unwrap();
    let (one, two) = (train(1), train(2));
    assert_eq!(two.peak_reserved_bytes, one.peak_reserved_bytes, "{two:?}\n{one:?}");
    // On one thread it is exact.
    assert_eq!(two.peak_live_bytes, one.peak_live_bytes);
}

/// Allocates and frees a block on a thread, and returns its address.
fn pair(worker: &Worker, bytes: u64, stream: &Stream) -> u64 {
    let stream = stream.clone();
    worker.run(move || empty(bytes, &stream).unwrap().address())
}

#[test]
fn threads_that_free_their_own_blocks_stay_apart() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    let workers = [Worker::new(&pool), Worker::new(&pool)];
    // Each turn is long enough that the other thread is away for most of it.
    let turn = |worker: &Worker| -> HashSet<u64> {
        let stream = stream.clone();
        worker.run(move || (0..100).map(|_| empty(5 * MIB, &stream).unwrap().address()).collect())
    };
    let turns = |count| {
        let mut addresses = [HashSet::new(), HashSet::new()];
        for _ in 0..count {
            for (seen, worker) in addresses.iter_mut().zip(&workers) {
                seen.extend(turn(worker));
            }
        }
        addresses
    };
    // Before it is known whether they do, they share.
    turns(20);
    let [one, other] = turns(5);
    assert!(one.is_disjoint(&other), "{one:x?} {other:x?}");
    drop((workers, pool));
    assert_all_back();
}

#[test]
fn a_large_request_moves_its_threads_own_pages_whatever_other_threads_do() {
    const LARGE: u64 = 116 * MIB;
    host!();
    let pool = pool();
    let workers: Vec<_> = (0..4).map(|_| (Worker::new(&pool), stream(0))).collect();
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
    let large = on_each(&[LARGE / MIB]);
    // Of what each has freed, 64 MiB at least are whole extents.
    let grown = pool.stats().unwrap().reserved_bytes - reserved;
    assert!(grown <= 4 * (LARGE - 64 * MIB), "{} MiB", grown / MIB);
    drop((large, kept));
}

#[test]
fn a_thread_that_stays_away_leaves_its_pages_to_the_one_that_goes_on() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    let workers = [Worker::new(&pool), Worker::new(&pool)];
    let of = stream.clone();
    let passed: Vec<_> = workers[0].run(move || (0..8).map(|_| empty(6 * MIB, &of).unwrap()).collect());
    // Each thread's memory is a segment of its own.
    let segments = || memory_snapshot().unwrap().into_iter().filter(|segment| segment.pool == pool.id()).count();
    let counted = || (pool.stats().unwrap().reserved_bytes, segments());
    let (reserved, segments) = counted();
    workers[1].run(move || drop(passed));
    let pairs = |count| {
        let of = stream.clone();
        workers[1].run(move || (0..count).for_each(|_| drop(empty(6 * MIB, &of).unwrap())));
    };
    pairs(500);
    assert_eq!(counted(), (reserved, segments));
    pairs(20_000);
    assert_eq!(counted(), (reserved, segments + 1));
    drop((workers, pool));
    assert_all_back();
}

#[test]
fn a_graph_takes_nothing_of_other_threads_and_leaves_them_nothing() {
    host!();
    let (pool, stream) = (Arc::new(pool()), stream(0));
    let workers = [Worker::new(&pool), Worker::new(&pool)];
    let plain = pair(&workers[0], 4 * MIB, &stream);
    let of = stream.clone();
    let (memory, captured) = {
        let pool = Arc::clone(&pool);
        workers[1].run(move || {
            let capture = pool.capture(&of).unwrap();
            let captured = empty(4 * MIB, &of).unwrap().address();
            (capture.end().unwrap(), captured)
        })
    };
    assert_ne!(captured, plain);
    let of = stream.clone();
    let two = workers[0].run(move || [(); 2].map(|()| empty(4 * MIB, &of).unwrap()));
    assert!(two.iter().all(|block| block.address() != captured));
    drop(two);
    memory.reset();
    drop((workers, pool));
    assert_all_back();
}

#[test]
fn a_block_of_another_threads_cache_is_recorded_as_the_allocating_threads() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    let workers = [Worker::new(&pool), Worker::new(&pool)];
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
    drop((workers, pool));
    assert_all_back();
}

/// A page that has moved is unmapped at its old place by whichever thread looks next, while others move it on. CUDA's driver
/// bears only one of these calls at a time, and so does the simulated one.
#[test]
fn no_two_calls_of_the_driver_work_on_one_extent_at_once() {
    host!();
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
    assert_all_back();
}

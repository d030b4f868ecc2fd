//! Pages that many streams share, each of which holds little: a slab is one stream's at a time, and another's only once
//! the first one's work is done.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::memory::{PAGE, deallocate, reserved};
use crate::common::{device, on_thread, stream};
use gpupool::memory::{allocate, empty_cache, memory_snapshot, memory_stats};
use gpupool::runtime::host::{Call, Fault, clear_faults, complete, complete_all, inject, submit};
use gpupool::{DeviceBuffer, ErrorKind, MemPool, StatusKind, Stream, empty};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn page_of(address: u64) -> u64 {
    address / PAGE
}

fn write(address: u64, value: u64) {
    // SAFETY: every block has at least 512 bytes at its address, of real memory.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(address as usize).write_volatile(value) }
}

fn read(address: u64) -> u64 {
    // SAFETY: every block has at least 512 bytes at its address, of real memory.
    unsafe { std::ptr::with_exposed_provenance::<u64>(address as usize).read_volatile() }
}

/// So many streams, each with a small block; those behind the first few share pages.
fn crowd(count: usize) -> Vec<(Stream, DeviceBuffer)> {
    let with_block = |_| {
        let stream = stream(0);
        let buffer = empty(1, &stream).unwrap();
        (stream, buffer)
    };
    (0..count).map(with_block).collect()
}

#[test]
fn streams_that_hold_little_share_pages() {
    memory!();
    let held = crowd(400);
    // Sixteen with a page each and some more, the others 32 to a page.
    assert!(reserved() <= 40 * PAGE, "{}", reserved());
    let pages: HashSet<_> = held[300..].iter().map(|(_, buffer)| page_of(buffer.ptr())).collect();
    assert!(pages.len() <= 5, "{pages:?}");
    // With a block of another size each has two slabs, 16 streams to a page.
    let _others: Vec<_> = held.iter().map(|(stream, _)| empty(1024, stream).unwrap()).collect();
    assert!(reserved() <= 50 * PAGE, "{}", reserved());
}

#[test]
fn what_there_is_to_lend_is_lent_however_few_streams_are_left() {
    memory!();
    let mut held = crowd(40);
    held.drain(..39);
    empty_cache().unwrap();
    let before = reserved();
    held.extend(crowd(10));
    assert_eq!(reserved(), before);
}

#[test]
fn a_stream_that_holds_more_has_pages_of_its_own() {
    memory!();
    let held = crowd(40);
    let stream = stream(0);
    let buffers: Vec<_> = (0..4000).map(|_| empty(512, &stream).unwrap()).collect();
    let pages = |buffers: &[DeviceBuffer]| page_of(buffers[buffers.len() - 1].ptr());
    let own = pages(&buffers);
    assert!(held.iter().all(|(_, buffer)| page_of(buffer.ptr()) != own));
}

#[test]
fn a_slab_serves_another_stream_once_the_work_of_the_first_is_done() {
    memory!();
    let _held = crowd(40);
    let (first, second) = (stream(0), stream(0));
    let buffer = empty(1, &first).unwrap();
    let address = buffer.ptr();
    let work = submit(&first).unwrap();
    drop(buffer);
    // Its own stream has it again at once.
    let buffer = empty(1, &first).unwrap();
    assert_eq!(buffer.ptr(), address);
    drop(buffer);
    empty_cache().unwrap();
    let other = empty(1, &second).unwrap();
    assert_ne!(other.ptr(), address, "another stream has memory that is still worked with");
    drop(other);
    complete(&first, work).unwrap();
    empty_cache().unwrap();
    let addresses: Vec<_> = crowd(40).iter().map(|(_, buffer)| buffer.ptr()).collect();
    assert!(addresses.contains(&address), "what is done serves others");
}

#[test]
fn shared_pages_go_back_once_every_stream_is_done() {
    memory!();
    let held = crowd(100);
    for (stream, _) in &held {
        submit(stream).unwrap();
    }
    drop(held.into_iter().map(|(stream, buffer)| (buffer, stream)).collect::<Vec<_>>());
}

#[test]
fn blocks_of_shared_pages_are_freed_by_address_from_any_thread_and_once() {
    memory!();
    let held = crowd(40);
    let stream = stream(0);
    let addresses: Vec<_> = (0..20).map(|_| allocate(512, &stream).unwrap()).collect();
    let beside = crowd(31);
    let mut others = held.iter().chain(&beside).map(|(_, buffer)| page_of(buffer.ptr()));
    assert!(others.any(|page| page == page_of(addresses[0])));
    let refusal = |address: u64| {
        let error = deallocate(address, None).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
        error.to_string()
    };
    assert!(refusal(addresses[0] + 8).contains("is not the start of a block"));
    let (ours, theirs) = addresses.split_at(10);
    ours.iter().for_each(|&address| deallocate(address, None).unwrap());
    let sent = theirs.to_vec();
    on_thread(move || sent.into_iter().for_each(|address| deallocate(address, None).unwrap()));
    for &address in &addresses {
        assert!(refusal(address).contains("was freed before"), "{address:#x}");
    }
    empty_cache().unwrap();
    // The slab has gone back.
    for &address in &addresses {
        refusal(address);
    }
}

#[test]
fn snapshots_and_statistics_have_every_byte_of_shared_pages_once() {
    memory!();
    let held = crowd(60);
    let stats = memory_stats(device(0)).unwrap().total;
    assert_eq!(stats.live_bytes + stats.cached_bytes + stats.releasing_bytes, stats.reserved_bytes, "{stats:?}");
    assert_eq!((stats.live_bytes, stats.live_blocks, stats.waiting_blocks), (60 * 512, 60, 0), "{stats:?}");
    let mut segments = memory_snapshot().unwrap();
    segments.sort_by_key(|segment| segment.address);
    assert!(segments.windows(2).all(|pair| pair[0].address + pair[0].nbytes <= pair[1].address));
    assert_eq!(segments.iter().map(|segment| segment.nbytes).sum::<u64>(), stats.reserved_bytes);
    for (stream, buffer) in &held {
        let segment = segments.iter().find(|segment| segment.stream == stream.raw().address()).unwrap();
        let block = segment.blocks.iter().find(|block| block.is_live).unwrap();
        assert_eq!((block.address, block.requested), (buffer.ptr(), 1));
    }
    drop(held);
    // Returned slabs that wait for nothing are cached.
    let stats = memory_stats(device(0)).unwrap().total;
    assert_eq!(stats.cached_bytes, stats.reserved_bytes, "{stats:?}");
}

#[test]
fn a_pool_that_ends_gives_its_shared_pages_back_as_its_blocks_die() {
    memory!();
    let pool = MemPool::builder().device(device(0)).build().unwrap();
    let scope = pool.enter().unwrap();
    let held = crowd(100);
    drop((scope, pool));
    assert!(reserved() >= PAGE);
    for (stream, buffer) in held {
        submit(&stream).unwrap();
        complete_all().unwrap();
        drop(buffer);
    }
    empty_cache().unwrap();
    let stats = memory_stats(device(0)).unwrap();
    assert_eq!((stats.total.reserved_bytes, stats.pools), (0, 1), "{stats:?}");
}

#[test]
fn threads_that_free_the_last_blocks_of_a_pool_end_it_once() {
    memory!();
    for _ in 0..20 {
        let pool = MemPool::builder().device(device(0)).build().unwrap();
        let scope = pool.enter().unwrap();
        let mut held = crowd(48);
        drop((scope, pool));
        let threads: Vec<_> = (0..6)
            .map(|_| {
                let part = held.split_off(held.len() - 8);
                thread::spawn(move || drop(part))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    empty_cache().unwrap();
    let stats = memory_stats(device(0)).unwrap();
    assert_eq!((stats.total.reserved_bytes, stats.pools), (0, 1), "{stats:?}");
}

#[test]
fn threads_with_streams_of_their_own_share_pages_while_memory_is_given_back() {
    memory!();
    let _held = crowd(20);
    let is_over = Arc::new(AtomicBool::new(false));
    let disturber = {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                empty_cache().unwrap();
            }
        })
    };
    let threads: Vec<_> = (1..=8_u64)
        .map(|number| {
            thread::spawn(move || {
                for round in 0..60 {
                    let stream = stream(0);
                    let buffers: Vec<_> =
                        (0..20).map(|n| empty(512 * (1 + (n * number + round) % 12), &stream).unwrap()).collect();
                    let mark = number << 32 | round;
                    buffers.iter().for_each(|buffer| write(buffer.ptr(), mark));
                    thread::yield_now();
                    assert!(buffers.iter().all(|buffer| read(buffer.ptr()) == mark), "a block was given out twice");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    is_over.store(true, Ordering::Relaxed);
    disturber.join().unwrap();
}

#[test]
fn whatever_the_driver_refuses_no_slab_is_lost() {
    memory!();
    let calls = [
        Call::EventCreate,
        Call::EventRecord,
        Call::EventRecordContext,
        Call::EventQuery,
        Call::StreamCaptureStatus,
        Call::Bind,
        Call::ExtentCreate,
        Call::MemoryMap,
        Call::MemorySetAccess,
        Call::MemoryUnmap,
        Call::ExtentRelease,
    ];
    let _held = crowd(20);
    for call in calls {
        for (after, kind) in (0..6).flat_map(|after| [(after, StatusKind::Other), (after, StatusKind::OutOfMemory)]) {
            let streams: Vec<_> = (0..40).map(|_| stream(0)).collect();
            inject(Fault { call, kind, after, times: 2 });
            let buffers: Vec<_> = streams.iter().filter_map(|stream| empty(1, stream).ok()).collect();
            assert!(buffers.len() >= 38, "{call:?}: {}", buffers.len());
            for stream in &streams {
                submit(stream).unwrap();
            }
            drop(buffers);
            // A refusal is the injected fault.
            let _ = empty_cache();
            clear_faults();
            complete_all().unwrap();
            let stats = memory_stats(device(0)).unwrap().total;
            assert_eq!(stats.live_blocks, 20, "{call:?}: {stats:?}");
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Allocate { bytes: u64, stream: usize },
    Free { which: usize },
    Use { which: usize, stream: usize },
    Complete { stream: usize },
    Replace { stream: usize },
    EmptyCache,
}

const STREAMS: usize = 24;

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![6 => 1..=4096_u64, 2 => 1..=(16_u64 << 10), 1 => 1..=(1_u64 << 20)];
    prop_oneof![
        30 => (bytes, 0..STREAMS).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        26 => (0..1000_usize).prop_map(|which| Op::Free { which }),
        6 => (0..1000_usize, 0..STREAMS).prop_map(|(which, stream)| Op::Use { which, stream }),
        8 => (0..STREAMS).prop_map(|stream| Op::Complete { stream }),
        3 => (0..STREAMS).prop_map(|stream| Op::Replace { stream }),
        4 => Just(Op::EmptyCache),
    ]
}

/// A block that was handed out, by the number that its memory is marked with.
#[derive(Debug)]
struct Block {
    buffer: Option<DeviceBuffer>,
    bytes: u64,
    /// The name of its stream, and the work on it, and on others, that must be done before another stream has the memory.
    stream: u64,
    work: Vec<(u64, u64)>,
}

/// What is known of streams, by name: how much was submitted and completed.
#[derive(Debug, Default)]
struct Model {
    streams: Vec<(u64, Stream)>,
    submitted: Vec<u64>,
    completed: Vec<u64>,
    blocks: Vec<Block>,
}

const MARK: u64 = 0x5a5a << 32;

impl Model {
    fn new() -> Self {
        let mut model = Self::default();
        for _ in 0..STREAMS {
            let named = model.new_stream();
            model.streams.push(named);
        }
        model
    }

    fn new_stream(&mut self) -> (u64, Stream) {
        self.submitted.push(0);
        self.completed.push(0);
        (self.submitted.len() as u64 - 1, stream(0))
    }

    fn submit(&mut self, place: usize) -> (u64, u64) {
        let (name, stream) = &self.streams[place];
        let work = submit(stream).unwrap();
        self.submitted[*name as usize] = work;
        (*name, work)
    }

    fn complete(&mut self, place: usize) {
        let (name, stream) = &self.streams[place];
        complete(stream, self.submitted[*name as usize]).unwrap();
        self.completed[*name as usize] = self.submitted[*name as usize];
    }

    fn pick(&self, which: usize) -> Option<usize> {
        let live: Vec<_> = (0..self.blocks.len()).filter(|&n| self.blocks[n].buffer.is_some()).collect();
        (!live.is_empty()).then(|| live[which % live.len()])
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Allocate { bytes, stream } => {
                let buffer = empty(bytes, &self.streams[stream].1).unwrap();
                let name = self.streams[stream].0;
                let number = self.blocks.len() as u64;
                for place in (buffer.ptr()..buffer.ptr() + bytes).step_by(512) {
                    self.check(read(place), name);
                    write(place, MARK | number);
                }
                let work = vec![self.submit(stream)];
                self.blocks.push(Block { buffer: Some(buffer), bytes, stream: name, work });
            }
            Op::Free { which } => {
                let Some(number) = self.pick(which) else { return };
                let block = &mut self.blocks[number];
                let buffer = block.buffer.take().unwrap();
                let places = (buffer.ptr()..buffer.ptr() + block.bytes).step_by(512);
                assert!(
                    places.into_iter().all(|place| read(place) == MARK | number as u64),
                    "{number} was overwritten"
                );
                drop(buffer);
            }
            Op::Use { which, stream } => {
                let Some(number) = self.pick(which) else { return };
                self.blocks[number].buffer.as_ref().unwrap().record_stream(&self.streams[stream].1).unwrap();
                let work = self.submit(stream);
                self.blocks[number].work.push(work);
            }
            Op::Complete { stream } => self.complete(stream),
            Op::Replace { stream } => {
                // The simulated device takes the work of a stream that is destroyed as done.
                self.complete(stream);
                self.streams[stream] = self.new_stream();
            }
            Op::EmptyCache => {
                empty_cache().unwrap();
            }
        }
    }

    /// Checks that a stream may have memory with this mark.
    fn check(&self, mark: u64, name: u64) {
        let Some(block) = (mark & MARK == MARK).then(|| self.blocks.get((mark ^ MARK) as usize)).flatten() else {
            return;
        };
        assert!(block.buffer.is_none(), "memory of a block that is live");
        for &(other, work) in &block.work {
            let is_done = work <= self.completed[other as usize];
            assert!(is_done || other == name, "stream {name} has memory that {other} works with");
            assert!(is_done || block.stream == name, "stream {name} has memory of {} before it is done", block.stream);
        }
    }
}

#[test]
fn no_stream_has_memory_of_another_before_its_work_is_done() {
    memory!();
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&proptest::collection::vec(op(), 1..500), |ops| {
        let mut model = Model::new();
        ops.iter().for_each(|op| model.run(op));
        let total = memory_stats(device(0)).unwrap().total;
        prop_assert_eq!(total.live_bytes + total.cached_bytes + total.releasing_bytes, total.reserved_bytes);
        drop(model);
        complete_all().unwrap();
        empty_cache().unwrap();
        // Caches of streams that are gone went only now.
        empty_cache().unwrap();
        prop_assert_eq!(reserved(), 0);
        Ok(())
    });
    outcome.unwrap();
}

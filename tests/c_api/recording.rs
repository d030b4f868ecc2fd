//! Snapshots, recordings and observers by the C interface.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use crate::common::c_pools::{device_stats, end_observing, for_graphs, observe};
use crate::common::memory::{MIB, Mapped, deallocate};
use crate::common::{MEMORY, device, stream};
use gpupool::c_api::{Block, C_API, Event, Recording, Segment, SnapshotVisitor};
use gpupool::memory::{MemoryAction, allocate, record_stream};
use gpupool::runtime::host::{Call, Fault, accessible, clear_faults, complete_all, inject, submit};
use gpupool::{MemPool, PoolId, StatusKind, Stream, empty_cache};

/// Set in the numbers of a program's stacks.
const OURS: u32 = 1 << 31;

/// What a visitor was told.
#[derive(Debug, Default)]
struct Visited {
    segments: Vec<(Segment, Vec<Block>)>,
    events: Vec<Event>,
}

impl Visited {
    fn block(&self, address: u64) -> Block {
        let blocks = self.segments.iter().flat_map(|(_, blocks)| blocks);
        *blocks.into_iter().find(|block| block.address.addr() as u64 == address).unwrap()
    }

    /// The actions at an address, with the stack of each.
    fn actions(&self, address: u64) -> Vec<(c_int, u32)> {
        self.events.iter().filter(|event| event.address == address).map(|event| (event.action, event.stack)).collect()
    }
}

unsafe extern "C" fn visit_segment(context: *mut c_void, segment: *const Segment) {
    // SAFETY: the test passes its `Visited`, and gpupool a segment.
    unsafe { (*context.cast::<Visited>()).segments.push((*segment, Vec::new())) };
}

unsafe extern "C" fn visit_block(context: *mut c_void, block: *const Block) {
    // SAFETY: the test passes its `Visited`, and gpupool a block, after its segment.
    unsafe { (*context.cast::<Visited>()).segments.last_mut().unwrap().1.push(*block) };
}

unsafe extern "C" fn visit_event(context: *mut c_void, event: *const Event) {
    // SAFETY: the test passes its `Visited`, and gpupool an event.
    unsafe { (*context.cast::<Visited>()).events.push(*event) };
}

fn snapshot(device: c_int, pool: Option<PoolId>) -> Visited {
    let mut visited = Visited::default();
    let visitor = SnapshotVisitor {
        size: size_of::<SnapshotVisitor>() as u64,
        context: (&raw mut visited).cast(),
        segment: Some(visit_segment),
        block: Some(visit_block),
        event: Some(visit_event),
    };
    let pool = pool.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the visitor's functions take what its context is.
    assert_eq!(unsafe { (C_API.snapshot)(device, pool, &raw const visitor) }, 0);
    visited
}

thread_local! {
    static NEXT: Cell<u32> = const { Cell::new(0) };
}

/// The stack that the test has set; takes locks of gpupool's, none of which is held.
unsafe extern "C" fn take_stack(_is_free: c_int) -> u32 {
    device_stats(0);
    NEXT.get()
}

fn recording() -> Recording {
    Recording {
        size: size_of::<Recording>() as u64,
        most_events: 1000,
        live_stacks: 1,
        alloc_stacks: 1,
        free_stacks: 1,
        skipped_actions: 0,
        take_stack: Some(take_stack),
        forget: 0,
    }
}

fn record(recording: Option<Recording>) -> c_int {
    // SAFETY: the recording says its size, and its function may be called by any thread.
    unsafe { (C_API.record)(recording.as_ref().map_or(ptr::null(), ptr::from_ref)) }
}

/// Ends what a test recorded and observed, also where it fails.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        record(None);
        end_observing();
    }
}

fn under<R>(stack: u32, run: impl FnOnce() -> R) -> R {
    NEXT.set(stack);
    let result = run();
    NEXT.set(0);
    result
}

fn stacks() -> BTreeSet<u32> {
    unsafe extern "C" fn visit(context: *mut c_void, stack: u32) {
        // SAFETY: the context is the set below.
        unsafe { (*context.cast::<BTreeSet<u32>>()).insert(stack) };
    }
    let mut stacks = BTreeSet::new();
    // SAFETY: the function takes this context.
    assert_eq!(unsafe { (C_API.visit_stacks)((&raw mut stacks).cast(), Some(visit)) }, 0);
    stacks
}

/// PyTorch's tests add up the segments of each kind, and compare.
#[test]
fn what_statistics_say_of_small_and_large_blocks_is_the_sum_of_such_segments() {
    memory!();
    empty_cache().unwrap();
    // As many streams as share pages, and some with pages of their own.
    let streams: Vec<_> = (0..20).map(|_| stream(0)).collect();
    let mut kept = Vec::new();
    for (number, stream) in streams.iter().enumerate() {
        let sizes = [500, 3000, 10_000, 40_000, 64 << 10, 70_000, MIB, 5 * MIB + 512];
        let taken = sizes[..if number < 4 { 8 } else { 3 }].iter().map(|bytes| allocate(*bytes, stream).unwrap());
        let mut taken: Vec<_> = taken.collect();
        taken.extend((0..30 * (number as u64 % 4)).map(|count| allocate(1000 + 16 * count, stream).unwrap()));
        let (waits, goes) = (taken.swap_remove(number % taken.len()), taken.swap_remove(0));
        gpupool::memory::record_stream(waits, &streams[(number + 1) % 20]).unwrap();
        submit(&streams[(number + 1) % 20]).unwrap();
        [waits, goes].into_iter().for_each(|block| deallocate(block, None).unwrap());
        kept.extend(taken);
    }

    let mut sums = [[0; 4]; 2];
    for (segment, blocks) in &snapshot(0, None).segments {
        let sum = &mut sums[usize::from(segment.is_small == 0)];
        sum[0] += segment.bytes;
        for block in blocks {
            sum[1] += if block.is_live == 1 { block.bytes } else { 0 };
            sum[2] += if block.is_live == 1 || block.is_waiting == 1 { block.bytes } else { 0 };
            sum[3] += block.requested;
        }
    }
    let stats = device_stats(0);
    let of_kind = |kind: usize| {
        [stats.reserved_bytes, stats.allocated_bytes, stats.active_bytes, stats.requested_bytes]
            .map(|stats| stats[kind].current.cast_unsigned())
    };
    assert_eq!([of_kind(1), of_kind(2)], sums);
    kept.into_iter().for_each(|block| deallocate(block, None).unwrap());
}

#[test]
fn a_snapshot_has_each_segment_and_block_by_address() {
    memory!();
    empty_cache().unwrap();
    let (own, other) = (stream(0), stream(0));
    let pool = MemPool::builder().device(device(0)).build().unwrap();
    let small = allocate(1000, &own).unwrap();
    let large = allocate(5 * MIB, &own).unwrap();
    let waiting = allocate(6 * MIB, &own).unwrap();
    let private = {
        let _scope = pool.enter().unwrap();
        allocate(MIB, &own).unwrap()
    };
    let elsewhere = allocate(MIB, &stream(1)).unwrap();
    gpupool::memory::record_stream(waiting, &other).unwrap();
    submit(&other).unwrap();
    deallocate(waiting, None).unwrap();

    let all = snapshot(-1, None);
    assert!(all.segments.is_sorted_by_key(|(segment, _)| (segment.device, segment.address)));
    for (segment, blocks) in &all.segments {
        let mut at = segment.address.addr() as u64;
        for block in blocks {
            assert_eq!(
                (block.address.addr() as u64, block.segment, block.device),
                (at, segment.address, segment.device)
            );
            assert_eq!((block.pool, block.stream), (segment.pool, segment.stream));
            at += block.bytes;
        }
        assert_eq!(at, segment.address.addr() as u64 + segment.bytes);
        let are_small =
            blocks.iter().map(|block| block.requested == 1000 || block.bytes < 64 << 10).collect::<BTreeSet<_>>();
        assert_eq!(are_small.into_iter().collect::<Vec<_>>(), [segment.is_small == 1], "{segment:?}");
    }
    let kind = |address| {
        let Block { requested, is_live, is_waiting, device, pool, .. } = all.block(address);
        (requested, is_live, is_waiting, device, pool)
    };
    assert_eq!(kind(small), (1000, 1, 0, 0, PoolId::NONE));
    assert_eq!(kind(large), (5 * MIB, 1, 0, 0, PoolId::NONE));
    assert_eq!(kind(waiting), (6 * MIB, 0, 1, 0, PoolId::NONE));
    assert_eq!(kind(private), (MIB, 1, 0, 0, pool.id()));
    assert_eq!(kind(elsewhere), (MIB, 1, 0, 1, PoolId::NONE));
    assert_eq!(all.block(large).stream, own.raw().as_ptr());
    assert!(all.events.is_empty());

    let of_pool = snapshot(0, Some(pool.id())).segments;
    assert!(!of_pool.is_empty() && of_pool.iter().all(|(segment, _)| segment.pool == pool.id()));
    assert!(snapshot(1, None).segments.iter().all(|(segment, _)| segment.device == 1));
    let of_an_older_program =
        SnapshotVisitor { size: 16, context: ptr::null_mut(), segment: None, block: None, event: None };
    // SAFETY: a visitor without functions is told nothing.
    assert_eq!(unsafe { (C_API.snapshot)(-1, ptr::null(), &raw const of_an_older_program) }, 0);
    complete_all().unwrap();
    [small, large, private, elsewhere].into_iter().for_each(|address| deallocate(address, None).unwrap());
}

#[test]
fn a_recording_names_the_stacks_that_the_program_takes() {
    memory!();
    let (_ending, stream) = (Ending, stream(0));
    let before = allocate(3 * MIB, &stream).unwrap();
    assert_eq!(record(Some(recording())), 0);
    let block = under(OURS | 7, || allocate(1000, &stream).unwrap());
    let gone = under(OURS | 8, || allocate(64 * MIB, &stream).unwrap());
    under(OURS | 9, || deallocate(gone, None).unwrap());
    let visited = snapshot(0, None);
    assert_eq!((visited.block(block).stack, visited.block(before).stack), (OURS | 7, 0));
    let [alloc, requested, completed] =
        [MemoryAction::Alloc, MemoryAction::FreeRequested, MemoryAction::FreeCompleted].map(|action| action as c_int);
    let blocks = |address| -> Vec<_> {
        visited
            .actions(address)
            .into_iter()
            .filter(|(action, _)| [alloc, requested, completed].contains(action))
            .collect()
    };
    assert_eq!(blocks(block), [(alloc, OURS | 7)]);
    assert_eq!(blocks(gone), [(alloc, OURS | 8), (requested, OURS | 9), (completed, OURS | 9)]);
    let mapped = visited.events.iter().find(|event| event.action == MemoryAction::SegmentMap as c_int).unwrap();
    assert_eq!(mapped.stack, OURS | 8, "the request for which pages came");
    assert_eq!(visited.events.last().unwrap().action, MemoryAction::Snapshot as c_int);
    assert_eq!(stacks(), BTreeSet::from([OURS | 7, OURS | 8, OURS | 9]));
    // SAFETY: numbers and pointers, all of which may be zero.
    let mut found = Block { size: size_of::<Block>() as u64, ..unsafe { std::mem::zeroed() } };
    // SAFETY: the block says its size.
    assert_eq!(unsafe { (C_API.find_block)(ptr::without_provenance(block as usize), &raw mut found) }, 0);
    assert_eq!(found.stack, OURS | 7);

    assert_eq!(record(Some(Recording { forget: 1, ..recording() })), 0);
    assert_eq!(stacks(), BTreeSet::from([OURS | 7]), "what lives keeps its stack");
    assert_eq!(record(None), 0);
    assert_eq!(stacks(), BTreeSet::from([OURS | 7]), "also when the recording has ended");
    assert_eq!(snapshot(0, None).block(block).stack, OURS | 7);
    [before, block].into_iter().for_each(|address| deallocate(address, None).unwrap());
    assert!(stacks().is_empty(), "until it is freed");
}

unsafe extern "C" fn see_nothing(_context: *mut c_void, _event: *const Event) {}

#[test]
fn a_block_where_another_was_has_not_its_stack_once_a_recording_has_ended() {
    memory!();
    let (_ending, stream) = (Ending, stream(0));
    assert_eq!(record(Some(recording())), 0);
    let [small, large, kept] = [1000, 3 * MIB, 2000].map(|bytes| under(OURS | 1, || allocate(bytes, &stream).unwrap()));
    // One that waits for a stream is freed, and keeps nothing.
    let waiting = under(OURS | 2, || allocate(5 * MIB, &stream).unwrap());
    let other = self::stream(0);
    record_stream(waiting, &other).unwrap();
    deallocate(waiting, None).unwrap();
    assert_eq!(record(None), 0);
    assert_eq!(stacks(), BTreeSet::from([OURS | 1]));

    deallocate(small, None).unwrap();
    thread::scope(|threads| threads.spawn(|| deallocate(large, None).unwrap()).join().unwrap());
    let [again_small, again_large] = [1000, 3 * MIB].map(|bytes| allocate(bytes, &stream).unwrap());
    assert_eq!((again_small, again_large), (small, large));
    let visited = snapshot(0, None);
    assert_eq!([small, large, kept].map(|block| visited.block(block).stack), [0, 0, OURS | 1]);

    // An observer, and the next recording, know what the last one has left, and leave it.
    observe(see_nothing, ptr::null_mut());
    end_observing();
    assert_eq!(stacks(), BTreeSet::from([OURS | 1]));
    assert_eq!(record(Some(recording())), 0);
    assert_eq!(stacks(), BTreeSet::from([OURS | 1]));
    assert_eq!(record(None), 0);
    [small, large, kept].into_iter().for_each(|block| deallocate(block, None).unwrap());
    assert!(stacks().is_empty());
}

#[test]
fn what_restoring_a_checkpoint_drops_keeps_no_stack_of_an_ended_recording() {
    memory!();
    let (_ending, stream, pool) = (Ending, stream(0), for_graphs());
    let checkpoint = pool.checkpoint();
    assert_eq!(record(Some(recording())), 0);
    under(OURS | 3, || pool.allocate(MIB, &stream));
    assert_eq!(record(None), 0);
    assert_eq!(stacks(), BTreeSet::from([OURS | 3]));
    pool.restore(&checkpoint);
    assert!(stacks().is_empty());
    pool.release();
}

#[test]
fn what_takes_stacks_may_allocate() {
    unsafe extern "C" fn allocating(is_free: c_int) -> u32 {
        assert!(is_free == 0 || is_free == 1);
        let stream = stream(1);
        deallocate(allocate(1000, &stream).unwrap(), None).unwrap();
        OURS | 4
    }
    memory!();
    let (_ending, stream) = (Ending, stream(0));
    assert_eq!(record(Some(Recording { take_stack: Some(allocating), ..recording() })), 0);
    let block = allocate(1000, &stream).unwrap();
    deallocate(block, None).unwrap();
    let visited = snapshot(-1, None);
    let stacks = |device| -> BTreeSet<u32> {
        let of_blocks = visited.events.iter().filter(|event| event.device == device && event.action <= 2);
        of_blocks.map(|event| event.stack).collect()
    };
    assert_eq!((stacks(0), stacks(1)), (BTreeSet::from([OURS | 4]), BTreeSet::from([0])));
}

#[test]
fn a_recording_leaves_out_what_it_is_told_to() {
    memory!();
    let (_ending, stream) = (Ending, stream(0));
    let skipped = 1 << MemoryAction::FreeRequested as u32;
    assert_eq!(record(Some(Recording { skipped_actions: skipped, free_stacks: 0, alloc_stacks: 0, ..recording() })), 0);
    let block = under(OURS | 1, || allocate(MIB, &stream).unwrap());
    assert_eq!(snapshot(0, None).block(block).stack, OURS | 1);
    deallocate(block, None).unwrap();
    let actions = snapshot(0, None).actions(block);
    let expected = [MemoryAction::Alloc, MemoryAction::FreeCompleted].map(|action| (action as c_int, 0));
    assert_eq!(actions.into_iter().filter(|(action, _)| *action <= 2).collect::<Vec<_>>(), expected);
    assert_eq!(record(Some(Recording { most_events: 0, forget: 1, ..recording() })), 0);
    let block = under(OURS | 2, || allocate(MIB, &stream).unwrap());
    let visited = snapshot(0, None);
    assert_eq!((visited.block(block).stack, visited.events.len()), (OURS | 2, 0));
    deallocate(block, None).unwrap();
}

#[test]
fn stacks_of_others_are_not_taken_for_the_programs() {
    memory!();
    let (_ending, stream) = (Ending, stream(0));
    assert_eq!(record(Some(recording())), 0);
    // Without the highest bit it is a number of Python's.
    let block = under(7, || allocate(MIB, &stream).unwrap());
    assert_eq!(snapshot(0, None).block(block).stack, 0);
    assert!(stacks().is_empty());
    // gpupool's own calls change the same recording.
    gpupool::Recording::new().start().unwrap();
    let other = under(OURS | 3, || allocate(MIB, &stream).unwrap());
    assert_eq!(snapshot(0, None).block(other).stack, 0);
    gpupool::Recording::stop().unwrap();
    assert!(snapshot(0, None).events.is_empty());
    [block, other].into_iter().for_each(|address| deallocate(address, None).unwrap());
}

/// What an observer has learnt: blocks that are held or wait, and pages that are mapped.
#[derive(Debug, Default)]
struct Seen {
    blocks: BTreeMap<u64, u64>,
    waiting: BTreeSet<u64>,
    mapped: Mapped,
    actions: Vec<c_int>,
    wrong: Vec<String>,
}

impl Seen {
    fn see(&mut self, event: &Event) {
        self.actions.push(event.action);
        let (address, bytes) = (event.address, event.bytes);
        let is_right = match event.action {
            0 => self.blocks.insert(address, bytes).is_none(),
            1 => self.blocks.remove(&address) == Some(bytes) && self.waiting.insert(address),
            2 => self.waiting.remove(&address),
            3 | 5 => self.mapped.map(address, bytes) && accessible(address, device(event.device as u32)),
            4 | 6 => self.mapped.unmap(address, bytes) && accessible(address, device(event.device as u32)),
            _ => true,
        };
        if !is_right {
            self.wrong.push(format!("{event:?}"));
        }
    }
}

/// Sees an event, and makes calls that take every lock there is.
unsafe extern "C" fn observer(context: *mut c_void, event: *const Event) {
    // SAFETY: the context is a test's, which lives until the observation has ended, and gpupool passes an event.
    let (seen, event) = unsafe { (&*context.cast::<Mutex<Seen>>(), &*event) };
    seen.lock().unwrap().see(event);
    device_stats(event.device);
    gpupool::memory_snapshot().unwrap();
}

fn observe_by(seen: &Mutex<Seen>) {
    observe(observer, ptr::from_ref(seen).cast_mut().cast());
}

/// What the observer saw is what there is.
fn assert_seen_what_there_is(seen: &Mutex<Seen>) {
    // First, for the observer is told of it.
    let visited = snapshot(-1, None);
    let seen = seen.lock().unwrap();
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    let is_held = |block: &&Block| block.is_live == 1 || block.is_waiting == 1;
    let blocks = visited.segments.iter().flat_map(|(_, blocks)| blocks).filter(is_held);
    let there: BTreeSet<u64> = blocks.map(|block| block.address.addr() as u64).collect();
    assert_eq!(seen.blocks.keys().chain(&seen.waiting).copied().collect::<BTreeSet<_>>(), there);
    let mut segments = Mapped::default();
    assert!(visited.segments.iter().all(|(segment, _)| segments.map(segment.address.addr() as u64, segment.bytes)));
    assert_eq!(seen.mapped, segments);
}

#[test]
fn an_observer_is_told_of_everything_while_no_lock_is_held() {
    memory!();
    complete_all().unwrap();
    empty_cache().unwrap();
    let (seen, _ending) = (Mutex::new(Seen::default()), Ending);
    observe_by(&seen);
    let (own, other) = (stream(0), stream(0));
    let actions = || std::mem::take(&mut seen.lock().unwrap().actions);
    let small = allocate(1000, &own).unwrap();
    assert_eq!(actions(), [5, 0]);
    let next = allocate(1000, &own).unwrap();
    assert_eq!(actions(), [0], "before the caller has it");
    deallocate(next, None).unwrap();
    assert_eq!(actions(), [1, 2]);
    let large = allocate(40 * MIB, &own).unwrap();
    gpupool::memory::record_stream(large, &other).unwrap();
    actions();
    submit(&other).unwrap();
    deallocate(large, None).unwrap();
    assert_eq!(actions(), [1]);
    assert_seen_what_there_is(&seen);
    assert!(actions().iter().all(|&action| action == 7), "a snapshot of each device");
    complete_all().unwrap();
    empty_cache().unwrap();
    assert_eq!(actions(), [2, 6]);
    {
        let pool = MemPool::builder().segments(true).build().unwrap();
        let _scope = pool.enter().unwrap();
        let block = allocate(MIB, &own).unwrap();
        assert_eq!(actions(), [3, 0]);
        deallocate(block, None).unwrap();
    }
    assert_eq!(actions(), [1, 2, 4]);
    assert!(allocate(2 * MEMORY, &own).is_err());
    assert_eq!(actions(), [8]);
    deallocate(small, None).unwrap();
    assert_seen_what_there_is(&seen);
    end_observing();
    let after = allocate(1000, &own).unwrap();
    actions();
    deallocate(after, None).unwrap();
    assert!(actions().is_empty());
}

/// Blocks that come, move, wait and go, as far as the driver allows.
fn work(own: &Stream, other: &Stream) {
    let mut held = Vec::new();
    for bytes in [1000, 3 * MIB, 40 * MIB, 5 * MIB] {
        held.extend(allocate(bytes, own));
        held.extend(allocate(bytes, other));
    }
    for (index, block) in held.into_iter().enumerate() {
        if index % 3 == 0 && gpupool::memory::record_stream(block, if index % 2 == 0 { other } else { own }).is_ok() {
            let _ = submit(other);
        }
        let _ = deallocate(block, None);
        let moved = allocate(6 * MIB, own);
        let _ = moved.map(|block| deallocate(block, None));
    }
    let _ = empty_cache();
}

#[test]
fn what_the_driver_refuses_leaves_what_is_told_and_counted_right() {
    memory!();
    complete_all().unwrap();
    empty_cache().unwrap();
    let (seen, _ending) = (Mutex::new(Seen::default()), Ending);
    observe_by(&seen);
    let (own, other) = (stream(0), stream(0));
    for call in Call::ALL {
        for (kind, after) in [(StatusKind::OutOfMemory, 0), (StatusKind::Other, 0), (StatusKind::Other, 3)] {
            inject(Fault { call, kind, after, times: 1 });
            work(&own, &other);
            clear_faults();
            complete_all().unwrap();
            assert_seen_what_there_is(&seen);
        }
    }
    for address in seen.lock().unwrap().blocks.keys().copied().collect::<Vec<_>>() {
        deallocate(address, None).unwrap();
    }
    complete_all().unwrap();
    empty_cache().unwrap();
    assert_seen_what_there_is(&seen);
    let stats = device_stats(0);
    let left = [stats.active, stats.allocation, stats.segment, stats.reserved_bytes, stats.inactive_split_bytes];
    assert!(left.iter().flatten().all(|stat| stat.current == 0 && stat.allocated == stat.freed), "{stats:?}");
}

#[test]
fn what_was_there_before_an_observer_is_told_when_it_goes() {
    memory!();
    let (stream, _ending) = (stream(0), Ending);
    let block = allocate(MIB, &stream).unwrap();
    let seen = Mutex::new(Seen::default());
    observe_by(&seen);
    assert_eq!(record(Some(recording())), 0);
    assert_eq!(record(None), 0, "the observer stays");
    deallocate(block, None).unwrap();
    assert_eq!(seen.lock().unwrap().actions, [1, 2]);
    end_observing();
}

#[test]
fn threads_are_observed_in_the_order_of_what_happens_at_each_address() {
    memory!();
    complete_all().unwrap();
    empty_cache().unwrap();
    let (seen, _ending) = (Mutex::new(Seen::default()), Ending);
    observe_by(&seen);
    let (threads, barrier, is_over, handed) = (4, Barrier::new(5), AtomicBool::new(false), AtomicU32::new(0));
    let given = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for index in 0..threads {
            let (barrier, given, handed) = (&barrier, &given, &handed);
            scope.spawn(move || {
                let streams = [stream(0), stream(0)];
                barrier.wait();
                let mut held = Vec::new();
                for round in 0..150_u64 {
                    let stream: &Stream = &streams[round as usize % 2];
                    let bytes = [700, 100 << 10, 3 * MIB, 20 * MIB][(round as usize * 7 + index) % 4] + round;
                    let block = allocate(bytes, stream).unwrap();
                    if round % 5 == 0 {
                        gpupool::memory::record_stream(block, &streams[(round as usize + 1) % 2]).unwrap();
                    }
                    if round % 3 == 0 {
                        given.lock().unwrap().push(block);
                    } else {
                        held.push(block);
                    }
                    if held.len() > 6 {
                        deallocate(held.swap_remove(round as usize % 6), None).unwrap();
                    }
                    let taken = given.lock().unwrap().pop();
                    if let Some(taken) = taken {
                        handed.fetch_add(1, Ordering::Relaxed);
                        deallocate(taken, None).unwrap();
                    }
                }
                held.into_iter().for_each(|block| deallocate(block, None).unwrap());
            });
        }
        let (barrier, is_over) = (&barrier, &is_over);
        let trimming = scope.spawn(move || {
            barrier.wait();
            while !is_over.load(Ordering::Relaxed) {
                empty_cache().unwrap();
                complete_all().unwrap();
            }
        });
        let handed = &handed;
        crate::common::wait_until("blocks were freed by other threads", || handed.load(Ordering::Relaxed) > 100);
        is_over.store(true, Ordering::Relaxed);
        trimming.join().unwrap();
    });
    given.into_inner().unwrap().into_iter().for_each(|block| deallocate(block, None).unwrap());
    complete_all().unwrap();
    empty_cache().unwrap();
    assert_seen_what_there_is(&seen);
    end_observing();
}

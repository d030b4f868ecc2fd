//! Checkpoints of pools for graphs: exactly what was live then is live again at the same addresses, or nothing has
//! changed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use crate::common::c_pools::{
    Address, CCheckpoint, CPool, INVALID_VALUE, Told, create, failed, for_graphs, free, options, record_stream, ticket,
    try_free,
};
use crate::common::memory::{MIB, PAGE, assert_all_back};
use crate::common::{Worker, device, stream};
use gpupool::c_api::{C_API, Event, PoolOptions};
use gpupool::memory::MemoryAction;
use gpupool::runtime::host::{Call, Fault, begin_capture, clear_faults, complete_all, end_capture, inject, submit};
use gpupool::{CaptureMode, PoolId, Recording, StatusKind, Stream, memory_snapshot, memory_stats, snapshot};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// What callers hold of a pool: address and bytes asked for.
type Live = BTreeMap<Address, u64>;

/// What a snapshot finds live in the pool: address, bytes, and bytes asked for.
fn found(id: PoolId) -> Vec<(u64, u64, u64)> {
    let segments = memory_snapshot().unwrap();
    let blocks = segments.iter().filter(|segment| segment.pool == id).flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.is_live && !block.is_waiting);
    let mut live: Vec<_> = live.map(|block| (block.address, block.nbytes, block.requested)).collect();
    live.sort_unstable();
    live
}

/// The snapshot finds these, and none overlaps another.
#[track_caller]
fn assert_live(id: PoolId, live: &Live) {
    let found = found(id);
    let known: Vec<_> = live.iter().map(|(address, requested)| (address.0, *requested)).collect();
    assert_eq!(found.iter().map(|(address, _, requested)| (*address, *requested)).collect::<Vec<_>>(), known);
    assert!(found.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{found:?}");
    assert!(found.iter().all(|(_, bytes, requested)| requested <= bytes));
}

#[track_caller]
fn assert_told(told: &Told, before: &Live, after: &Live) {
    let expected = Told {
        freed: before.keys().copied().collect(),
        allocated: after.iter().map(|(address, requested)| (*address, *requested)).collect(),
    };
    assert_eq!(*told, expected);
}

/// What the slots of 700 bytes are cut from.
const SLAB: u64 = 64 << 10;
#[test]
fn what_is_free_beside_restored_blocks_serves_requests() {
    memory!();
    let (stream, pool) = (stream(0), for_graphs());
    let live: Live = [700, 100 << 10].into_iter().map(|bytes| (pool.allocate(bytes, &stream), bytes)).collect();
    let checkpoint = pool.checkpoint();
    let reserved = memory_stats(device(0)).unwrap().total.reserved_bytes;
    pool.restore(&checkpoint);
    let beside = pool.allocate(700, &stream);
    assert!(live.keys().any(|held| held.0 / SLAB == beside.0 / SLAB), "a slot of the same slab");
    let after = pool.allocate(reserved / 2, &stream);
    assert_eq!(memory_stats(device(0)).unwrap().total.reserved_bytes, reserved, "no memory is needed");
    live.keys().copied().chain([beside, after]).for_each(free);
    pool.release();
}

#[test]
fn what_is_restored_counts_as_allocated_and_what_is_dropped_as_freed() {
    memory!();
    let (stream, pool) = (stream(0), for_graphs());
    let kept = [pool.allocate(700, &stream), pool.allocate(MIB, &stream)];
    let checkpoint = pool.checkpoint();
    free(kept[1]);
    let dropped = pool.allocate(8 * MIB, &stream);
    let before = memory_stats(device(0)).unwrap().total;
    Recording::default().start().unwrap();
    pool.restore(&checkpoint);
    let events = snapshot(None).unwrap().memory.events;
    Recording::stop().unwrap();
    let after = memory_stats(device(0)).unwrap().total;
    assert_eq!((after.allocations - before.allocations, after.frees - before.frees), (2, 2));
    assert_eq!((after.live_blocks, after.requested_bytes), (2, 700 + MIB));
    assert_eq!(after.peak_live_bytes, before.peak_live_bytes);
    let blocks = |action| {
        let of_action = events.iter().filter(|event| event.action == action);
        let mut blocks: Vec<_> = of_action.map(|event| (Address(event.address), event.nbytes)).collect();
        blocks.sort_unstable();
        blocks
    };
    let gone = [(kept[0], 700), (dropped, 8 * MIB)];
    for action in [MemoryAction::FreeRequested, MemoryAction::FreeCompleted] {
        let mut gone = gone;
        gone.sort_unstable();
        assert_eq!(blocks(action), gone);
    }
    let mut come = [(kept[0], 700), (kept[1], MIB)];
    come.sort_unstable();
    assert_eq!(blocks(MemoryAction::Alloc), come);
    kept.into_iter().for_each(free);
    pool.release();
}

/// What the observer and the functions below were told, in order.
struct Heard {
    pool: CPool,
    stream: Stream,
    live: Mutex<Vec<(&'static str, u64)>>,
}

impl Heard {
    /// Notes it, and calls gpupool, which would wait for ever for a lock that is held.
    fn note(&self, what: &'static str, address: u64) {
        self.live.lock().unwrap().push((what, address));
        assert!(found(self.pool.id()).len() < 10);
        free(self.pool.allocate(700, &self.stream));
    }
}

unsafe extern "C" fn hear_event(context: *mut c_void, event: *const Event) {
    // SAFETY: the context is what the test passes, and the event is alive.
    let (heard, event) = unsafe { (&*context.cast::<Heard>(), &*event) };
    // Those that it causes itself are of another stream.
    if event.stream != heard.stream.raw().as_ptr() {
        match event.action {
            0 => heard.note("alloc", event.address),
            1 => heard.note("free_requested", event.address),
            2 => heard.note("free_completed", event.address),
            _ => {}
        }
    }
}

unsafe extern "C" fn hear_freed(context: *mut c_void, pointer: *mut c_void) {
    // SAFETY: the context is what the test passes.
    unsafe { &*context.cast::<Heard>() }.note("freed", pointer.addr() as u64);
}

unsafe extern "C" fn hear_allocated(context: *mut c_void, pointer: *mut c_void, requested: u64) {
    assert_eq!(requested, MIB);
    // SAFETY: the context is what the test passes.
    unsafe { &*context.cast::<Heard>() }.note("allocated", pointer.addr() as u64);
}

#[test]
fn what_restoring_does_is_told_with_no_lock_held() {
    memory!();
    let (own, pool) = (stream(0), for_graphs());
    let kept = pool.allocate(MIB, &own);
    let checkpoint = pool.checkpoint();
    free(kept);
    let dropped = pool.allocate(3 * MIB, &own);
    let heard = Heard { pool, stream: stream(0), live: Mutex::default() };
    let context = ptr::from_ref(&heard).cast_mut().cast();
    // SAFETY: the functions take this context, and the observation ends before it does.
    unsafe {
        assert_eq!((C_API.observe)(Some(hear_event), context), 0);
        let status = (C_API.pool_restore)(pool.0, checkpoint.0, context, Some(hear_freed), Some(hear_allocated));
        assert_eq!(
            ((C_API.observe)(None, ptr::null_mut()), status),
            (0, 0),
            "{}",
            crate::common::c_pools::last_error()
        );
    }
    let events = [("free_requested", dropped), ("free_completed", dropped), ("alloc", kept)];
    let expected = events.into_iter().chain([("freed", dropped), ("allocated", kept)]);
    assert_eq!(*heard.live.lock().unwrap(), expected.map(|(what, address)| (what, address.0)).collect::<Vec<_>>());
    free(kept);
    pool.release();
}

#[test]
fn a_pool_whose_segments_serve_one_block_each_is_restored() {
    memory!();
    let stream = stream(0);
    let pool = create(PoolOptions { for_graphs: 1, no_split: 1, ..options() });
    let live: Live = [700, MIB, 5 * MIB].into_iter().map(|bytes| (pool.allocate(bytes, &stream), bytes)).collect();
    let checkpoint = pool.checkpoint();
    live.keys().copied().for_each(free);
    let instead: Live = [(pool.allocate(3 * PAGE, &stream), 3 * PAGE)].into();
    assert_told(&pool.restore(&checkpoint), &instead, &live);
    assert_live(pool.id(), &live);
    live.keys().copied().for_each(free);
    pool.release();
}

#[test]
fn other_pools_have_no_checkpoints_and_a_checkpoint_is_one_pool_s() {
    memory!();
    let (stream, pool, other, user) = (stream(0), for_graphs(), for_graphs(), create(options()));
    let live: Live = [(pool.allocate(MIB, &stream), MIB)].into();
    let checkpoint = pool.checkpoint();
    let refused = |outcome: Result<Told, c_int>, words: &[&str]| failed(outcome.unwrap_err(), INVALID_VALUE, words);
    failed(user.try_checkpoint().map(drop).unwrap_err(), INVALID_VALUE, &[&user.id().to_string(), "for_graphs"]);
    refused(user.try_restore(&checkpoint), &["for_graphs"]);
    refused(other.try_restore(&checkpoint), &[&pool.id().to_string(), &other.id().to_string()]);
    refused(pool.try_restore(&CCheckpoint(ptr::null_mut())), &["checkpoint is a null pointer"]);
    // SAFETY: neither function must be given.
    assert_eq!(unsafe { (C_API.pool_restore)(pool.0, checkpoint.0, ptr::null_mut(), None, None) }, 0);
    assert_live(pool.id(), &live);
    live.keys().copied().for_each(free);
    [pool, other, user].into_iter().for_each(CPool::release);
    refused(pool.try_restore(&checkpoint), &["is not a pool"]);
}

#[test]
fn what_other_streams_did_with_blocks_is_waited_for() {
    memory!();
    let (own, other, pool) = (stream(0), stream(0), for_graphs());
    let kept = pool.allocate(MIB, &own);
    let checkpoint = pool.checkpoint();
    for is_freed in [true, false] {
        let used = pool.allocate(8 * MIB, &own);
        record_stream(used, &other);
        record_stream(kept, &other);
        submit(&other).unwrap();
        assert!(!other.query().unwrap());
        if is_freed {
            free(used);
        }
        pool.restore(&checkpoint);
        assert!(other.query().unwrap(), "its work is done before the memory is free");
        assert_live(pool.id(), &[(kept, MIB)].into());
        assert_eq!(pool.allocate(8 * MIB, &own), used);
        free(used);
    }
    // The same when the checkpoint is taken.
    let used = pool.allocate(8 * MIB, &own);
    record_stream(used, &other);
    submit(&other).unwrap();
    free(used);
    let again = pool.checkpoint();
    assert!(other.query().unwrap());
    assert_eq!(pool.restore(&again).allocated, [(kept, MIB)]);
    free(kept);
    pool.release();
}

#[test]
fn a_stream_that_uses_a_block_uses_it_still_after_it_was_restored() {
    memory!();
    let (own, other, pool) = (stream(0), stream(0), for_graphs());
    let kept = pool.allocate(MIB, &own);
    let checkpoint = pool.checkpoint();
    record_stream(kept, &other);
    pool.restore(&checkpoint);
    submit(&other).unwrap();
    free(kept);
    let next = pool.allocate(MIB, &own);
    assert_ne!(next, kept, "the other stream is at work on it");
    free(next);
    complete_all().unwrap();
    pool.restore(&checkpoint);
    free(kept);
    assert_eq!(pool.allocate(MIB, &own), kept, "nothing is left of the use");
    free(kept);
    pool.release();
}

#[test]
fn nothing_changes_while_a_block_waits_for_a_stream_that_is_captured() {
    memory!();
    let (own, captured, pool) = (stream(0), stream(0), for_graphs());
    let kept = pool.allocate(MIB, &own);
    let checkpoint = pool.checkpoint();
    let used = pool.allocate(8 * MIB, &own);
    let live: Live = [(kept, MIB), (used, 8 * MIB)].into();
    begin_capture(&captured, CaptureMode::Relaxed).unwrap();
    record_stream(used, &captured);
    failed(pool.try_restore(&checkpoint).unwrap_err(), INVALID_VALUE, &[&pool.id().to_string(), "captured"]);
    assert_live(pool.id(), &live);
    free(used);
    failed(pool.try_restore(&checkpoint).unwrap_err(), INVALID_VALUE, &["captured"]);
    failed(pool.try_checkpoint().map(drop).unwrap_err(), INVALID_VALUE, &["captured"]);
    assert_live(pool.id(), &[(kept, MIB)].into());
    drop(end_capture(&captured).unwrap());
    assert_eq!(pool.restore(&checkpoint).allocated, [(kept, MIB)]);
    free(kept);
    pool.release();
}

/// A checkpoint on its way to another thread.
struct Sent(CCheckpoint);

// SAFETY: a checkpoint may be used on any thread.
unsafe impl Send for Sent {}

const STREAMS: usize = 2;

#[derive(Clone, Debug)]
enum Op {
    Allocate { bytes: u64, stream: usize },
    Free { which: usize },
    Use { which: usize, stream: usize },
    Submit { stream: usize },
    Complete,
    Checkpoint,
    Restore { which: usize },
}

/// An operation, the thread that does it, and a refusal of the driver's.
type Step = (Op, bool, Option<Fault>);

fn step(has_faults: bool) -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![
        5 => 1..=8192_u64,
        3 => 1..=(128_u64 << 10),
        3 => 1..=(3_u64 << 20),
        2 => 1..=(24_u64 << 20),
    ];
    let (which, stream) = (0..1000_usize, 0..STREAMS);
    let op = prop_oneof![
        30 => (bytes, stream.clone()).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        22 => which.clone().prop_map(|which| Op::Free { which }),
        5 => (which.clone(), stream.clone()).prop_map(|(which, stream)| Op::Use { which, stream }),
        5 => stream.prop_map(|stream| Op::Submit { stream }),
        2 => Just(Op::Complete),
        4 => Just(Op::Checkpoint),
        6 => which.prop_map(|which| Op::Restore { which }),
    ];
    let calls = [
        Call::ExchangeCaptureMode,
        Call::StreamCaptureStatus,
        Call::EventCreate,
        Call::EventRecord,
        Call::EventRecordContext,
        Call::EventQuery,
        Call::EventSynchronize,
        Call::ExtentCreate,
        Call::MemoryMap,
        Call::MemorySetAccess,
    ];
    let calls = proptest::sample::select(calls.to_vec());
    let kinds = prop_oneof![Just(StatusKind::Other), Just(StatusKind::OutOfMemory)];
    let fault = (calls, kinds, 0..3_u32, 1..4_u32);
    let fault = fault.prop_map(|(call, kind, after, times)| Fault { call, kind, after, times });
    let fault = prop::option::weighted(0.3, fault).prop_map(move |fault| fault.filter(|_| has_faults));
    (op, any::<bool>(), fault)
}

/// What there must be: what is live, and was at each checkpoint.
struct Model {
    pool: CPool,
    streams: [Stream; STREAMS],
    other: Worker,
    live: Live,
    checkpoints: Vec<(CCheckpoint, Live)>,
}

impl Model {
    fn run<R: Send + 'static>(&self, is_other: bool, job: impl FnOnce() -> R + Send + 'static) -> R {
        if is_other { self.other.run(job) } else { job() }
    }

    fn nth(&self, which: usize) -> Option<Address> {
        self.live.keys().nth(which % self.live.len().max(1)).copied()
    }

    /// Returns whether the operation was refused.
    fn step(&mut self, op: Op, is_other: bool) -> bool {
        let pool = self.pool;
        match op {
            Op::Allocate { bytes, stream } => {
                let stream = self.streams[stream].clone();
                match self.run(is_other, move || pool.try_allocate(bytes, ticket(), &stream)) {
                    Ok(address) => assert_eq!(self.live.insert(address, bytes), None, "{address:?} was live"),
                    Err(_) => return true,
                }
            }
            Op::Free { which } => {
                let Some(address) = self.nth(which) else { return false };
                self.run(is_other, move || free(address));
                self.live.remove(&address);
            }
            Op::Use { which, stream } => {
                let Some(address) = self.nth(which) else { return false };
                let stream = self.streams[stream].clone();
                self.run(is_other, move || record_stream(address, &stream));
            }
            Op::Submit { stream } => drop(submit(&self.streams[stream]).unwrap()),
            Op::Complete => complete_all().unwrap(),
            Op::Checkpoint => match self.run(is_other, move || pool.try_checkpoint().map(Sent)) {
                Ok(taken) => self.checkpoints.push((taken.0, self.live.clone())),
                Err(_) => return true,
            },
            Op::Restore { which } => {
                let place = which % self.checkpoints.len().max(1);
                let Some((checkpoint, _)) = self.checkpoints.get(place) else { return false };
                let borrowed = Sent(CCheckpoint(checkpoint.0));
                let told = self.run(is_other, move || {
                    let borrowed = borrowed;
                    let told = pool.try_restore(&borrowed.0);
                    // It is the model's.
                    std::mem::forget(borrowed.0);
                    told
                });
                let Ok(told) = told else { return true };
                let after = self.checkpoints[place].1.clone();
                assert_told(&told, &self.live, &after);
                self.live = after;
            }
        }
        false
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        clear_faults();
        // Also after a failure, so that a shorter program that fails is looked for from a clean start.
        for address in std::mem::take(&mut self.live).into_keys() {
            let _ = try_free(address);
        }
        let _ = self.pool.try_release();
    }
}

fn check(program: Vec<Step>) {
    let streams = [stream(0), stream(0)];
    let (pool, other) = (for_graphs(), Worker::start());
    let mut model = Model { pool, streams, other, live: Live::new(), checkpoints: Vec::new() };
    for (op, is_other, fault) in program {
        if let Some(fault) = fault {
            inject(fault);
        }
        let is_refused = model.step(op.clone(), is_other);
        clear_faults();
        assert!(!is_refused || fault.is_some(), "{op:?}: {}", crate::common::c_pools::last_error());
        assert_live(pool.id(), &model.live);
    }
    drop(model);
    assert_all_back();
}

fn check_all(longest: usize, has_faults: bool) {
    let cases = 10_000 / longest as u32;
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let done = Cell::new(0);
    let outcome = TestRunner::new(config).run(&prop::collection::vec(step(has_faults), 1..longest), |program| {
        done.set(done.get() + program.len());
        check(program);
        Ok(())
    });
    println!("{} operations", done.get());
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn any_program_finds_again_what_was_live() {
    memory!();
    check_all(120, false);
}

#[test]
fn whatever_the_driver_refuses_a_checkpoint_is_restored_whole_or_not_at_all() {
    memory!();
    check_all(100, true);
}

//! What a request finds when the device is full, step by step: each test leaves one step only that can serve it.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::memory::{MIB, PAGE, assert_all_back, builder, empty_in, out_of_memory, pool, reserved, used};
use crate::common::{MEMORY, device, on_thread, stream};
use gpupool::library::{Library, RawHandle};
use gpupool::memory::{get_per_process_memory_fraction, set_per_process_memory_fraction};
use gpupool::runtime::host::{begin_capture, complete, complete_all, end_capture, submit};
use gpupool::runtime::{self, BoundDevice};
use gpupool::{
    CaptureMode, CaptureStatus, CommitOptions, Device, DeviceBuffer, ErrorKind, HandlePool, MemPool, MemoryUse, PoolId,
    Pooled, Result, Simulated, Stream, Wanted, empty, empty_cache, memory_stats, on_oom,
};

/// Calls of the driver's memory functions, and pages moved, so far.
fn work() -> (u64, u64) {
    let stats = memory_stats(device(0)).unwrap();
    (stats.driver_calls, stats.moved_pages)
}

fn use_on_oom_pool() -> MemPool {
    builder().use_on_oom(true).build().unwrap()
}

/// The whole device in blocks of 64 MiB on one stream; every other one is freed, so that half is free in pieces.
fn scattered(stream: &Stream) -> Vec<DeviceBuffer> {
    let blocks: Vec<_> = (0..MEMORY / (64 * MIB)).map(|_| empty(64 * MIB, stream).unwrap()).collect();
    blocks.into_iter().step_by(2).collect()
}

#[test]
fn a_block_whose_streams_are_done_serves_without_a_driver_call() {
    memory!();
    let (own, user) = (stream(0), stream(0));
    let (freed, _held) = (empty(600 * MIB, &own).unwrap(), empty(400 * MIB, &own).unwrap());
    let address = freed.ptr();
    freed.record_stream(&user).unwrap();
    let first = submit(&user).unwrap();
    drop(freed);
    submit(&user).unwrap();
    complete(&user, first).unwrap();
    let before = work();
    let found = empty(600 * MIB, &own).unwrap();
    assert_eq!((found.ptr(), work()), (address, before));
    assert!(!user.query().unwrap(), "later work was waited for");
}

#[test]
fn a_block_that_others_still_use_is_waited_for_and_nothing_else_is() {
    memory!();
    let (own, user, other) = (stream(0), stream(0), stream(0));
    let (freed, _held) = (empty(600 * MIB, &own).unwrap(), empty(400 * MIB, &own).unwrap());
    let address = freed.ptr();
    freed.record_stream(&user).unwrap();
    submit(&user).unwrap();
    submit(&other).unwrap();
    drop(freed);
    submit(&user).unwrap();
    let before = work().1;
    let found = empty(600 * MIB, &own).unwrap();
    // The very block, where it was: no page was moved.
    assert_eq!((found.ptr(), work().1), (address, before));
    assert!(!user.query().unwrap() && !other.query().unwrap(), "more was waited for than needed");
}

#[test]
fn free_pages_of_the_same_stream_are_put_together_without_waiting() {
    memory!();
    let own = stream(0);
    submit(&own).unwrap();
    // After the first few more was moved than is without need.
    for _ in 0..6 {
        let held = scattered(&own);
        let before = work().1;
        let found = empty(512 * MIB, &own).unwrap();
        assert!((1..=512 * MIB / PAGE).contains(&(work().1 - before)));
        assert!(!own.query().unwrap());
        assert_eq!((reserved(), used(0)), (MEMORY, MEMORY));
        drop((found, held));
    }
}

#[test]
fn free_pages_of_the_pools_other_streams_are_waited_for() {
    memory!();
    let (own, asker, bystander) = (stream(0), stream(0), stream(0));
    let _held = scattered(&own);
    submit(&own).unwrap();
    submit(&bystander).unwrap();
    let before = work().1;
    let _found = empty(512 * MIB, &asker).unwrap();
    assert_eq!(work().1 - before, 512 * MIB / PAGE);
    assert!(own.query().unwrap(), "pages were moved that the GPU still used");
    assert!(!bystander.query().unwrap());
}

#[test]
fn other_pools_are_left_alone_where_this_one_has_enough() {
    memory!();
    let (own, user, theirs) = (stream(0), stream(0), stream(0));
    let pool = pool();
    let (freed, other) = (empty(600 * MIB, &own).unwrap(), empty_in(&pool, 400 * MIB, &own).unwrap());
    for (block, stream) in [(freed, &user), (other, &theirs)] {
        submit(stream).unwrap();
        block.free_on(stream).unwrap();
    }
    drop(empty(600 * MIB, &own).unwrap());
    assert!(user.query().unwrap() && !theirs.query().unwrap());
    assert_eq!((pool.stats().unwrap().waiting_blocks, pool.stats().unwrap().reserved_bytes), (1, 400 * MIB));
}

#[test]
fn free_pages_of_a_use_on_oom_pool_are_moved_not_given_back() {
    memory!();
    let stream = stream(0);
    let pool = use_on_oom_pool();
    let in_pool = empty_in(&pool, 600 * MIB, &stream).unwrap();
    let _held = empty(400 * MIB, &stream).unwrap();
    drop(in_pool);
    assert_eq!(pool.stats().unwrap().reserved_bytes, 600 * MIB);
    let before = work().1;
    let found = empty(500 * MIB, &stream).unwrap();
    assert_eq!(found.pool_id(), PoolId::NONE);
    assert!(work().1 - before >= (500 - 24) * MIB / PAGE);
    assert!(pool.stats().unwrap().reserved_bytes <= 124 * MIB, "{:?}", pool.stats().unwrap());
}

#[test]
fn a_private_pool_takes_free_pages_of_the_default_pool() {
    memory!();
    let stream = stream(0);
    let pool = pool();
    drop(empty(MEMORY, &stream).unwrap());
    let found = empty_in(&pool, 900 * MIB, &stream).unwrap();
    assert_eq!(found.pool_id(), pool.id());
    assert!(pool.stats().unwrap().reserved_bytes >= 900 * MIB);
}

#[test]
fn memory_of_a_graph_is_nobody_elses_until_it_is_reset() {
    memory!();
    let (captured, other) = (stream(0), stream(0));
    let pool = use_on_oom_pool();
    let scope = pool.capture(&captured).unwrap();
    begin_capture(&captured, CaptureMode::Global).unwrap();
    drop(empty(900 * MIB, &captured).unwrap());
    end_capture(&captured).unwrap();
    let graph = scope.end().unwrap();
    for stream in [&captured, &other] {
        out_of_memory(empty(500 * MIB, stream));
        out_of_memory(empty_in(&pool, 500 * MIB, stream));
    }
    graph.reset();
    drop(empty(500 * MIB, &other).unwrap());
}

#[test]
fn where_pages_may_not_move_in_free_ones_are_given_back_to_the_driver() {
    memory!();
    let stream = stream(0);
    let helper = use_on_oom_pool();
    for pool in [builder().segments(true).build().unwrap(), builder().no_split(true).build().unwrap()] {
        drop(empty_in(&helper, 900 * MIB, &stream).unwrap());
        assert_eq!(helper.stats().unwrap().reserved_bytes, 900 * MIB);
        let before = work().1;
        let found = empty_in(&pool, 900 * MIB, &stream).unwrap();
        assert_eq!((work().1, helper.stats().unwrap().reserved_bytes), (before, 0));
        drop((found, pool));
    }
}

/// A full device whose only free memory is beside a live block of a segment, which can neither move nor go.
fn full_but_for_a_segment(pool: &MemPool, stream: &Stream) -> [DeviceBuffer; 2] {
    drop(empty_in(pool, 600 * MIB, stream).unwrap());
    [empty_in(pool, MIB, stream).unwrap(), empty(MEMORY - 600 * MIB, stream).unwrap()]
}

#[test]
fn a_use_on_oom_pool_stands_in_for_the_default_pool() {
    memory!();
    let stream = stream(0);
    let pool = builder().segments(true).use_on_oom(true).build().unwrap();
    let _held = full_but_for_a_segment(&pool, &stream);
    let found = empty(500 * MIB, &stream).unwrap();
    assert_eq!((found.pool_id(), pool.stats().unwrap().live_blocks), (pool.id(), 2));
    drop(found);
    assert_eq!(pool.stats().unwrap().live_blocks, 1);
}

#[test]
fn a_use_on_oom_pool_stands_in_for_every_pool_on_every_stream_in_their_order() {
    memory!();
    let (own, other, bystander) = (stream(0), stream(0), stream(0));
    let helper = builder().segments(true).use_on_oom(true).build().unwrap();
    let asker = pool();
    let _held = full_but_for_a_segment(&helper, &own);
    let found = empty_in(&asker, 500 * MIB, &own).unwrap();
    assert_eq!(found.pool_id(), helper.id());
    drop(found);
    submit(&bystander).unwrap();
    for is_private in [false, true] {
        // What the pool's own stream has yet to do is done before another stream gets the block.
        submit(&own).unwrap();
        let found = if is_private { empty_in(&asker, 500 * MIB, &other) } else { empty(500 * MIB, &other) }.unwrap();
        assert_eq!(found.pool_id(), helper.id());
        assert!(own.query().unwrap() && !bystander.query().unwrap());
        // And the other way round.
        submit(&other).unwrap();
        drop(found);
        assert_eq!(helper.stats().unwrap().waiting_blocks, 1);
        let again = empty_in(&helper, 500 * MIB, &own).unwrap();
        assert!(other.query().unwrap() && !bystander.query().unwrap());
        drop(again);
    }
}

/// The default pool and every private one go without what a live pool keeps free, in pieces or whole, however it got it.
#[test]
fn a_live_pool_keeps_its_memory_when_others_have_none() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    for builder in [builder(), builder().no_split(true), builder().segments(true)] {
        let (keeper, asker) = (builder.build().unwrap(), pool());
        drop(empty_in(&keeper, 600 * MIB, &own).unwrap());
        let held = empty(400 * MIB, &own).unwrap();
        for stream in [&own, &other] {
            out_of_memory(empty(100 * MIB, stream));
            out_of_memory(empty_in(&asker, 100 * MIB, stream));
        }
        assert_eq!(keeper.stats().unwrap().reserved_bytes, 600 * MIB);
        let before = work().0;
        drop(empty_in(&keeper, 600 * MIB, &own).unwrap());
        assert_eq!(work().0, before, "its own requests are served by it");
        // With its last use all of it is everybody's.
        drop(keeper);
        drop(empty_in(&asker, 600 * MIB, &other).unwrap());
        drop((held, asker));
        assert_all_back();
    }
}

#[test]
fn the_pool_made_to_help_is_asked_and_no_other() {
    memory!();
    let stream = stream(0);
    let (keeper, helper) = (pool(), use_on_oom_pool());
    let freed = [empty_in(&keeper, 500 * MIB, &stream).unwrap(), empty_in(&helper, 500 * MIB, &stream).unwrap()];
    drop(freed);
    let _found = empty(300 * MIB, &stream).unwrap();
    let reserved = |pool: &MemPool| pool.stats().unwrap().reserved_bytes;
    assert_eq!(reserved(&keeper), 500 * MIB);
    assert!(reserved(&helper) <= 224 * MIB, "{}", reserved(&helper));
}

#[test]
fn a_pool_with_a_limit_gets_pages_of_others_within_it_and_no_blocks() {
    memory!();
    let stream = stream(0);
    let helper = builder().segments(true).use_on_oom(true).build().unwrap();
    let limited = builder().limit(100 * MIB).build().unwrap();
    let held = full_but_for_a_segment(&helper, &stream);
    out_of_memory(empty_in(&limited, 50 * MIB, &stream));
    drop((held, helper));
    drop(empty(MEMORY, &stream).unwrap());
    let found = empty_in(&limited, 96 * MIB, &stream).unwrap();
    assert_eq!((found.pool_id(), limited.stats().unwrap().reserved_bytes), (limited.id(), 96 * MIB));
    out_of_memory(empty_in(&limited, 50 * MIB, &stream));
}

/// Segments that may be registered: neither another's lack of memory nor `empty_cache` gives them back.
#[test]
fn segments_that_may_be_registered_go_by_their_pools_trim_alone() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    for builder in [builder().no_split(true), builder().segments(true)] {
        for builder in [builder.clone(), builder.use_on_oom(true)] {
            let pool = builder.build().unwrap();
            let block = empty_in(&pool, 600 * MIB, &own).unwrap();
            let address = block.ptr();
            drop(block);
            assert_eq!(empty_cache().unwrap(), 0);
            out_of_memory(empty(900 * MIB, &own));
            assert_eq!(pool.stats().unwrap().reserved_bytes, 600 * MIB);
            // The pool's own streams share them, where they are.
            submit(&own).unwrap();
            drop(empty(MEMORY - 600 * MIB, &other).unwrap());
            let limit = Some(600 * MIB);
            pool.set_limit(limit);
            let again = empty_in(&pool, 500 * MIB, &other).unwrap();
            assert_eq!((again.ptr(), own.query().unwrap()), (address, true));
            drop(again);
            complete_all().unwrap();
            assert_eq!(pool.trim().unwrap(), 600 * MIB);
            drop(pool);
            assert_all_back();
        }
    }
}

/// A callback's name, and the device and bytes that it was asked for.
type Asked = (&'static str, u32, u64);

#[test]
fn callbacks_are_asked_one_after_another_until_one_helps() {
    memory!();
    let stream = stream(0);
    let slot = Arc::new(Mutex::new(Some(empty(900 * MIB, &stream).unwrap())));
    let calls: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let note = |name: &'static str| {
        let calls = Arc::clone(&calls);
        move |device: gpupool::Device, bytes| {
            let mut calls = calls.lock().unwrap();
            calls.push((name, device.ordinal() as u32, bytes));
        }
    };
    let (idle, boaster, gone, helper, last) =
        (note("idle"), note("boaster"), note("gone"), note("helper"), note("last"));
    let theirs = Arc::clone(&slot);
    let _guards = [
        on_oom(move |device, bytes| {
            idle(device, bytes);
            false
        }),
        on_oom(move |device, bytes| {
            boaster(device, bytes);
            true
        }),
    ];
    let dropped = on_oom(move |device, bytes| {
        gone(device, bytes);
        true
    });
    let _more = [
        on_oom(move |device, bytes| {
            helper(device, bytes);
            theirs.lock().unwrap().take().is_some()
        }),
        on_oom(move |device, bytes| {
            last(device, bytes);
            true
        }),
    ];
    drop(dropped);
    let found = empty(800 * MIB, &stream).unwrap();
    let asked = |names: &[&'static str]| names.iter().map(|&name| (name, 0, 800 * MIB)).collect::<Vec<_>>();
    assert_eq!(std::mem::take(&mut *calls.lock().unwrap()), asked(&["idle", "boaster", "helper"]));
    // Where none helps all are asked, once each.
    out_of_memory(empty(800 * MIB, &stream));
    assert_eq!(std::mem::take(&mut *calls.lock().unwrap()), asked(&["idle", "boaster", "helper", "last"]));
    // Not where there is memory.
    drop(found);
    drop(empty(800 * MIB, &stream).unwrap());
    assert!(calls.lock().unwrap().is_empty() && slot.lock().unwrap().is_none());
}

#[test]
fn a_callback_that_frees_nothing_costs_no_driver_call() {
    memory!();
    let stream = stream(0);
    let _held = empty(900 * MIB, &stream).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&calls);
    let _guard = on_oom(move |_, _| {
        theirs.store(work().0, Ordering::Relaxed);
        false
    });
    out_of_memory(empty(800 * MIB, &stream));
    assert_eq!(work().0, calls.load(Ordering::Relaxed));
}

#[test]
fn a_callback_may_free_and_register_and_ask() {
    memory!();
    let stream = stream(0);
    let slot = Arc::new(Mutex::new(Some(empty(900 * MIB, &stream).unwrap())));
    let (theirs, seen) = (Arc::clone(&slot), Arc::new(AtomicU64::new(0)));
    let live = Arc::clone(&seen);
    let _guard = on_oom(move |device, _| {
        live.store(memory_stats(device).unwrap().total.live_bytes, Ordering::Relaxed);
        drop(on_oom(|_, _| true));
        drop(theirs.lock().unwrap().take());
        empty_cache().is_ok()
    });
    drop(empty(800 * MIB, &stream).unwrap());
    assert_eq!(seen.load(Ordering::Relaxed), 900 * MIB);
}

#[test]
fn a_request_larger_than_its_limit_costs_no_driver_call_and_asks_the_callbacks() {
    memory!();
    let stream = stream(0);
    let pool = Arc::new(builder().limit(100 * MIB).build().unwrap());
    // Pages that a search would move.
    let held = [(); 9].map(|()| empty_in(&pool, 10 * MIB, &stream).unwrap());
    let _held: Vec<_> = held.into_iter().step_by(2).collect();
    let before = work();
    out_of_memory(empty_in(&pool, 101 * MIB, &stream));
    let raised = Arc::clone(&pool);
    let _guard = on_oom(move |_, bytes| {
        raised.set_limit(Some(2 * bytes));
        bytes > 101 * MIB
    });
    out_of_memory(empty_in(&pool, 101 * MIB, &stream));
    assert_eq!(work(), before);
    drop(empty_in(&pool, 300 * MIB, &stream).unwrap());
}

/// What needs memory, and returns it.
type Need = fn(bytes: u64, stream: &Stream) -> Result<Box<dyn Any>>;

const NEEDS: [(&str, Need); 3] = [
    ("a request", |bytes, stream| Ok(Box::new(empty(bytes, stream)?))),
    ("a reserve", |bytes, _| Ok(Box::new(builder().reserve(bytes).build()?))),
    ("pages of a range", |bytes, stream| {
        let range = pool().reserve_range(bytes, PAGE)?;
        range.commit(0..bytes, stream, CommitOptions::default())?;
        Ok(Box::new(range))
    }),
];

#[test]
fn idle_handles_give_their_memory_to_whatever_needs_it() {
    memory!();
    let (handles, stream) = (Simulated::pool(), stream(0));
    for (what, need) in NEEDS {
        // Each has 1 MiB here.
        handles.warm(60, device(0)).unwrap();
        let lease = handles.lease(&stream).unwrap();
        let found = need(MEMORY - 2 * MIB, &stream);
        assert!(found.is_ok(), "{what}: {}", found.unwrap_err());
        let stats = handles.stats(None).unwrap();
        assert_eq!((stats.idle, stats.leased, stats.device_bytes), (0, 1, MIB), "{what}");
        // They help no pool that is at its limit.
        drop((found, lease));
        handles.warm(60, device(0)).unwrap();
        let idle = handles.stats(None).unwrap().idle;
        out_of_memory(empty_in(&builder().limit(PAGE).build().unwrap(), 2 * PAGE, &stream));
        assert_eq!((idle > 0, handles.stats(None).unwrap().idle), (true, idle), "{what}");
        handles.trim(None).unwrap();
    }
}

/// What handles have taken since they were made, until one is destroyed.
static GROWN: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// A library whose handles take memory when they compute, of which their pool does not know.
struct Growing;

impl Library for Growing {
    fn name(&self) -> &str {
        "growing"
    }

    fn create(&self, _device: Device) -> Result<RawHandle> {
        // SAFETY: nothing reads what it points to.
        Ok(unsafe { RawHandle::from_ptr(NonNull::dangling()) })
    }

    fn destroy(&self, _handle: RawHandle) -> Result<()> {
        GROWN.lock().unwrap().clear();
        Ok(())
    }

    fn set_stream(&self, _handle: &RawHandle, _stream: &Stream) -> Result<()> {
        Ok(())
    }
}

/// Memory of the driver's.
struct Plain(u64);

impl Plain {
    fn allocate(bytes: u64) -> Self {
        let runtime = runtime::get().unwrap();
        let _bound = BoundDevice::new(runtime, device(0)).unwrap();
        Self(runtime.memory_allocate(bytes).unwrap())
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: it is this value's, and nothing uses it.
        unsafe { runtime::get().unwrap().memory_free(self.0) }.unwrap();
    }
}

#[test]
fn idle_handles_are_destroyed_for_memory_that_nobody_knew_of() {
    memory!();
    let (handles, own, other) = (HandlePool::new(Growing).unwrap(), stream(0), stream(0));
    for (what, need) in NEEDS {
        handles.warm(1, device(0)).unwrap();
        GROWN.lock().unwrap().push(Box::new(Plain::allocate(MEMORY / 2)));
        let found = need(MEMORY - 2 * MIB, &own);
        assert!(found.is_ok(), "{what}: {}", found.unwrap_err());
        drop(found);
        empty_cache().unwrap();
    }
    // A block of another stream, beside one that stays: what callbacks free is looked for in the same way.
    let _rest = empty(MEMORY - PAGE, &own).unwrap();
    let _kept = empty(MIB, &other).unwrap();
    let grow = || GROWN.lock().unwrap().push(Box::new(empty(MIB, &other).unwrap()));
    grow();
    handles.warm(1, device(0)).unwrap();
    let found = empty(MIB, &own);
    assert!(found.is_ok(), "{}", found.unwrap_err());
    drop(found);
    grow();
    let _guard = on_oom(|_, _| {
        GROWN.lock().unwrap().clear();
        true
    });
    let found = empty(MIB, &own);
    assert!(found.is_ok(), "{}", found.unwrap_err());
}

#[test]
fn the_error_says_what_was_asked_for_and_who_holds_what() {
    memory!();
    let stream = stream(0);
    let (pool, limited) = (pool(), builder().limit(100 * MIB).build().unwrap());
    let held = [
        empty(300 * MIB, &stream).unwrap(),
        empty(100 * MIB, &stream).unwrap(),
        empty_in(&pool, 200 * MIB, &stream).unwrap(),
    ];
    let lease = Simulated::pool().lease(&stream).unwrap();
    let error = out_of_memory(empty(700 * MIB, &stream));
    let ErrorKind::OutOfMemory(out) = error.kind() else { panic!("{error}") };
    assert_eq!(out.wanted, Wanted::Memory { bytes: 700 * MIB, pool: PoolId::NONE.to_string(), limit: None });
    assert_eq!((out.location, out.total), (device(0).into(), MEMORY));
    // A handle is 1 MiB here.
    assert_eq!(out.free, MEMORY - 601 * MIB);
    let mut users = out.users.clone();
    users.sort_by(|one, other| one.pool.cmp(&other.pool));
    let name = |pool: &MemPool| format!("memory pool {}", pool.id());
    let wanted = [
        ("default memory pool", 2, 400 * MIB, Some(400 * MIB)),
        (&name(&pool), 1, 200 * MIB, Some(200 * MIB)),
        ("simulated", 1, MIB, None),
    ];
    assert_eq!(
        users,
        wanted.map(|(name, count, bytes, live_bytes)| MemoryUse { pool: name.to_owned(), count, bytes, live_bytes })
    );
    assert_eq!(out.refused.function, "extent_create");
    for word in [
        "device 0",
        "700.0 MiB (734003200 bytes)",
        "pool (0, 0)",
        "default memory pool 400.0 MiB (2 live blocks, 400.0 MiB)",
        &format!("{} 200.0 MiB (1 live block, 200.0 MiB)", name(&pool)),
        "simulated 1.0 MiB (1 handle)",
        "Free: 423.0 MiB of 1.0 GiB",
    ] {
        assert!(error.to_string().contains(word), "{error} does not say {word:?}");
    }
    let error = out_of_memory(empty_in(&limited, 101 * MIB, &stream));
    let ErrorKind::OutOfMemory(out) = error.kind() else { panic!("{error}") };
    let limit = Some(100 * MIB);
    assert_eq!(out.wanted, Wanted::Memory { bytes: 101 * MIB, pool: limited.id().to_string(), limit });
    assert!(error.to_string().contains("whose limit is 100.0 MiB"), "{error}");
    drop((held, pool, limited, lease));
    Simulated::pool().trim(None).unwrap();
}

/// pytorch#71745: the events of a stream were asked in order, and the first one not done kept the rest.
#[test]
fn work_that_is_not_done_keeps_only_its_own_block() {
    memory!();
    let (own, slow, quick) = (stream(0), stream(0), stream(0));
    let (first, second, _held) =
        (empty(300 * MIB, &own).unwrap(), empty(400 * MIB, &own).unwrap(), empty(300 * MIB, &own).unwrap());
    let address = second.ptr();
    first.record_stream(&slow).unwrap();
    second.record_stream(&quick).unwrap();
    submit(&slow).unwrap();
    let done = submit(&quick).unwrap();
    drop((first, second));
    complete(&quick, done).unwrap();
    let before = work();
    let found = empty(400 * MIB, &own).unwrap();
    assert_eq!((found.ptr(), work()), (address, before));
    assert!(!slow.query().unwrap());
    assert_eq!(memory_stats(device(0)).unwrap().total.waiting_blocks, 1);
}

/// Sets the fraction for as long as it lives.
struct Fraction;

impl Fraction {
    fn new(fraction: f64) -> Self {
        set_per_process_memory_fraction(fraction, device(0)).unwrap();
        Self
    }
}

impl Drop for Fraction {
    fn drop(&mut self) {
        let _ = set_per_process_memory_fraction(1.0, device(0));
    }
}

#[test]
fn a_fraction_bounds_what_is_reserved_but_not_by_what_is_only_cached() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    let fraction = Fraction::new(0.5);
    assert_eq!(get_per_process_memory_fraction(device(0)).unwrap(), 0.5);
    let (pool, segments) = (use_on_oom_pool(), builder().segments(true).build().unwrap());
    // Each of these is cached when the next is asked for, and must not count.
    for stream in [&own, &other] {
        drop(empty_in(&pool, 500 * MIB, stream).unwrap());
        drop(empty_in(&segments, 500 * MIB, stream).unwrap());
        segments.trim().unwrap();
        drop(empty(500 * MIB, stream).unwrap());
        assert!(reserved() <= 512 * MIB);
    }
    // So that what is held next shares no extent with what is free.
    empty_cache().unwrap();
    let _held = empty(400 * MIB, &own).unwrap();
    for pool in [&pool, &segments] {
        let error = out_of_memory(empty_in(pool, 200 * MIB, &own));
        assert!(error.to_string().contains("memory fraction"), "{error}");
    }
    out_of_memory(empty(200 * MIB, &other));
    assert!(reserved() <= 512 * MIB && used(0) <= 512 * MIB);
    let found = empty(112 * MIB, &other).unwrap();
    // A fraction below what is held already takes nothing away.
    let smaller = Fraction::new(0.1);
    out_of_memory(empty(2 * MIB, &own));
    drop(found);
    out_of_memory(empty(200 * MIB, &own));
    drop((smaller, fraction));
    drop(empty(500 * MIB, &own).unwrap());
}

#[test]
fn a_pools_limit_is_not_reached_by_what_it_only_caches() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    for builder in [builder(), builder().segments(true)] {
        let pool = builder.limit(100 * MIB).build().unwrap();
        for (bytes, stream) in [(96 * MIB, &own), (64 * MIB, &other), (100 * MIB, &own)] {
            drop(empty_in(&pool, bytes, stream).unwrap());
            assert!(pool.stats().unwrap().reserved_bytes <= 100 * MIB);
        }
        out_of_memory(empty_in(&pool, 101 * MIB, &own));
    }
}

/// pytorch#175015: a capture in one thread made the retry of another fail, or the retry spoiled the capture.
#[test]
fn a_capture_in_one_thread_leaves_the_others_their_memory() {
    memory!();
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let (captured, held_stream) = (stream(0), stream(0));
        let pool = pool();
        // Cached before the capture begins, on the captured stream and on another.
        drop(empty(200 * MIB, &captured).unwrap());
        drop(empty(200 * MIB, &held_stream).unwrap());
        let scope = pool.capture(&captured).unwrap();
        begin_capture(&captured, mode).unwrap();
        let in_graph = empty(100 * MIB, &captured).unwrap();
        on_thread(|| {
            let (own, other) = (stream(0), stream(0));
            drop(empty(100 * MIB, &own).unwrap());
            assert!(empty_cache().unwrap() >= 100 * MIB);
            // Once more with all steps: waiting, moving, giving back, and the error.
            let (freed, held) = (empty(300 * MIB, &own).unwrap(), empty(200 * MIB, &own).unwrap());
            freed.record_stream(&other).unwrap();
            submit(&other).unwrap();
            drop(freed);
            let found = empty(400 * MIB, &other).unwrap();
            out_of_memory(empty(900 * MIB, &own));
            drop((found, held));
            drop(empty(600 * MIB, &own).unwrap());
            assert!(empty_cache().unwrap() > 0);
        });
        // The capturing thread may ask too.
        assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Active, "{mode:?}");
        empty_cache().unwrap();
        assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Active, "{mode:?}");
        end_capture(&captured).unwrap();
        let graph = scope.end().unwrap();
        drop(in_graph);
        graph.reset();
        drop(pool);
        assert_all_back();
    }
}

#[test]
fn a_capture_itself_gets_what_others_keep_free() {
    memory!();
    let (captured, other) = (stream(0), stream(0));
    let (pool, idle) = (pool(), use_on_oom_pool());
    drop(empty_in(&idle, 500 * MIB, &other).unwrap());
    drop(empty(500 * MIB, &other).unwrap());
    let scope = pool.capture(&captured).unwrap();
    begin_capture(&captured, CaptureMode::Global).unwrap();
    let in_graph = empty(900 * MIB, &captured).unwrap();
    out_of_memory(empty(500 * MIB, &captured));
    end_capture(&captured).unwrap();
    drop(in_graph);
    scope.end().unwrap().reset();
}

#[test]
fn the_driver_is_asked_once_and_once_more_when_everything_else_was_tried() {
    memory!();
    let stream = stream(0);
    let _held = empty(MEMORY - 40 * MIB, &stream).unwrap();
    let before = work().0;
    out_of_memory(empty(200 * MIB, &stream));
    // Each time it creates what it has left, in extents of 4 MiB, refuses the next one, and takes them back.
    assert_eq!(work().0 - before, 2 * (10 + 1 + 10));
}

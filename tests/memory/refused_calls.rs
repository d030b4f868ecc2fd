//! A call that refused has done nothing, and one that did something succeeded: each public call is made with a fault at each
//! call of the driver, one after the other. What is live, committed, pinned, held, attached and used is then as it was before,
//! and the same call succeeds.

use std::ffi::{c_int, c_void};
use std::ptr::{self, null_mut};
use std::sync::Mutex;

use crate::common::c_pools::{last_error, options};
use crate::common::memory::{MIB, PAGE, builder, deallocate, pool, used};
use crate::common::{device, stream, turns, wait_until};
use gpupool::c_api::{C_API, HandleLease, PoolOptions};
use gpupool::library::simulated::{SimulatedLibrary, set_workspace_bytes};
use gpupool::memory::{record_stream, shared_blocks};
use gpupool::runtime::host::{Call, Fault, before_call, clear_before_call, clear_faults, complete_all, inject, submit};
use gpupool::{
    Backup, CommitOptions, DeviceBuffer, Error, HandlePool, MemPool, MemoryRange, Pooled, Result, ShareToken,
    Simulated, StatusKind, Stream, attach, empty, empty_cache, empty_pinned, memory_stats, pinned_stats, sleep, wake,
};

/// `GPUPOOL_SIMULATED`.
const SIMULATED: c_int = 7;

/// What the calls are made on.
struct Made {
    stream: Stream,
    other: Stream,
    pool: MemPool,
    range: MemoryRange,
    handles: HandlePool,
    /// In the pool.
    block: DeviceBuffer,
    shared: DeviceBuffer,
    token: ShareToken,
}

impl Made {
    fn new(handles: HandlePool) -> Self {
        let (stream, pool) = (stream(0), pool());
        let range = pool.reserve_range(16 * PAGE, PAGE).unwrap();
        range.commit(0..4 * PAGE, &stream, CommitOptions::default()).unwrap();
        range.commit(4 * PAGE..8 * PAGE, &stream, CommitOptions { priority: Some(1), fill: None }).unwrap();
        range.pin(&[4, 5, 5], Some(&stream)).unwrap();
        let (block, shared) = (pool.empty(3 * MIB, &stream).unwrap(), empty(5 * MIB, &stream).unwrap());
        let token = shared.share(&stream).unwrap();
        Self { other: crate::common::stream(0), stream, pool, range, handles, block, shared, token }
    }

    /// All that a refused call leaves as it was, once no work is left.
    fn counts(&self) -> String {
        complete_all().unwrap();
        [self.handles, Simulated::pool()].iter().for_each(|pool| _ = pool.trim(None).unwrap());
        wait_until("what was attached is let go", || {
            empty_cache().unwrap();
            let is_held = !shared_blocks(device(0)).unwrap().is_empty();
            !is_held && memory_stats(device(0)).unwrap().total.waiting_blocks == 0
        });
        let (stats, handles) = (memory_stats(device(0)).unwrap(), self.handles.stats(None).unwrap());
        let (total, pinned) = (stats.total, pinned_stats(None).unwrap().total);
        let beside = used(0) - total.reserved_bytes - handles.device_bytes - handles.workspace_bytes;
        format!(
            "live {:?} of {} pools, {} of it asleep, {beside} bytes used beside, {} sent, {} attached, pinned {:?}, committed {}, \
             discardable {}, uses {}, asleep: {}, handles held {}, leased {}",
            (total.live_blocks, total.live_bytes, total.requested_bytes),
            stats.pools,
            total.asleep_bytes,
            stats.sent_bytes,
            stats.attached_bytes,
            (pinned.live_blocks, pinned.live_bytes),
            self.range.committed_bytes().unwrap(),
            self.range.discardable_bytes().unwrap(),
            self.pool.use_count(),
            self.pool.is_asleep(),
            handles.held,
            handles.leased,
        )
    }
}

/// What sets a call back that has succeeded.
type Undo<'a> = Box<dyn FnOnce() + 'a>;
/// Makes a call after `arm`, which makes a call of the driver fail from then on.
type Step = for<'a> fn(&'a Made, arm: &dyn Fn()) -> Result<Undo<'a>>;

fn undo<'a>(undo: impl FnOnce() + 'a) -> Undo<'a> {
    Box::new(undo)
}

/// Holds what a call returned until it is set back.
fn held<'a, T: 'a>(made: T) -> Undo<'a> {
    undo(move || drop(made))
}

/// The outcome of a call of the C table.
fn c(status: c_int) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::refused("the C table", &last_error(), "", status, StatusKind::Other)) }
}

/// Makes a call that refuses at most once: what refused has done nothing, so that it is made again, and then succeeds.
fn again(mut call: impl FnMut() -> Result<()>) -> Result<()> {
    call().inspect_err(|error| {
        clear_faults();
        call().unwrap_or_else(|then| panic!("after {error}, the same call: {then}"));
    })
}

fn plain() -> CommitOptions {
    CommitOptions::default()
}

const STEPS: &[(&str, Step)] = &[
    ("commit", |made, arm| {
        submit(&made.stream)?;
        arm();
        made.range.commit(&[8, 10, 11], &made.stream, plain())?;
        Ok(undo(|| made.range.decommit(&[8, 10, 11], None).unwrap()))
    }),
    ("commit of pages that are there still, filled", |made, arm| {
        made.range.commit(&[8, 9], &made.other, plain())?;
        submit(&made.other)?;
        made.range.decommit(&[8, 9], Some(&made.other))?;
        arm();
        made.range.commit(&[8, 9, 10], &made.stream, CommitOptions { priority: None, fill: Some(7) })?;
        Ok(undo(|| made.range.decommit(&[8, 9, 10], None).unwrap()))
    }),
    ("commit with another priority", |made, arm| {
        arm();
        made.range.commit(&[0, 8], &made.other, CommitOptions { priority: Some(2), fill: None })?;
        Ok(undo(|| {
            made.range.commit(&[0], &made.stream, plain()).unwrap();
            made.range.decommit(&[8], None).unwrap();
        }))
    }),
    ("decommit", |made, arm| {
        submit(&made.other)?;
        arm();
        made.range.decommit(&[1, 2], Some(&made.other))?;
        Ok(undo(|| made.range.commit(&[1, 2], &made.stream, plain()).unwrap()))
    }),
    ("pin", |made, arm| {
        arm();
        made.range.pin(&[5, 6, 9], Some(&made.other))?;
        Ok(undo(|| made.range.unpin(&[5, 6], None).unwrap()))
    }),
    ("unpin", |made, arm| {
        arm();
        made.range.unpin(&[4], Some(&made.other))?;
        Ok(undo(|| drop(made.range.pin(&[4], None).unwrap())))
    }),
    ("reserve a range and free it", |made, arm| {
        let range = made.pool.reserve_range(4 * PAGE, PAGE)?;
        range.commit(&[0, 3], &made.stream, plain())?;
        submit(&made.other)?;
        arm();
        again(|| range.free(Some(&made.other)))?;
        Ok(held(range))
    }),
    ("share", |made, arm| {
        arm();
        Ok(held(made.block.share(&made.stream)?))
    }),
    ("send", |made, arm| {
        arm();
        let token = made.block.send(&made.stream)?;
        Ok(undo(move || drop(attach(&token, None, Some(&made.stream)).unwrap())))
    }),
    ("attach", |made, arm| {
        arm();
        Ok(held(attach(&made.token, None, Some(&made.other))?))
    }),
    ("record on an attached buffer", |made, arm| {
        let attached = attach(&made.token, None, Some(&made.other))?;
        arm();
        again(|| attached.record_stream(&made.stream))?;
        Ok(held(attached))
    }),
    ("free an attached buffer", |made, arm| {
        let attached = attach(&made.token, None, Some(&made.other))?;
        submit(&made.stream)?;
        arm();
        attached.free_on(&made.stream).map(held)
    }),
    ("lease", |made, arm| {
        arm();
        Ok(held(made.handles.lease(&made.other)?))
    }),
    ("handle", |made, arm| {
        arm();
        made.handles.handle(&made.other).map(held)
    }),
    ("warm and trim handles", |made, arm| {
        arm();
        made.handles.warm(2, device(0)).and_then(|_| made.handles.trim(None)).map(held)
    }),
    ("sleep with a backup", |made, arm| {
        arm();
        made.pool.sleep(Backup::Host)?;
        Ok(undo(|| _ = made.pool.wake().unwrap()))
    }),
    ("sleep without", |made, arm| {
        arm();
        made.pool.sleep(Backup::None)?;
        Ok(undo(|| _ = made.pool.wake().unwrap()))
    }),
    ("wake", |made, arm| {
        made.pool.sleep(Backup::Host)?;
        arm();
        again(|| made.pool.wake().map(drop)).map(held)
    }),
    ("device sleep", |made, arm| {
        let lone = builder().build()?;
        drop((lone.empty(3 * MIB, &made.other)?, made.shared.share(&made.stream)?));
        arm();
        sleep(device(0), Backup::Host)?;
        Ok(undo(move || {
            wake(device(0)).unwrap();
            drop(lone);
        }))
    }),
    ("allocate", |made, arm| {
        arm();
        Ok(held([empty(700, &made.other)?, made.pool.empty(9 * MIB, &made.stream)?]))
    }),
    ("free elsewhere", |made, arm| {
        let address = empty(9 * MIB, &made.stream)?.into_ptr();
        submit(&made.other)?;
        arm();
        again(|| deallocate(address, Some(&made.other))).map(held)
    }),
    ("record", |made, arm| {
        let block = empty(9 * MIB, &made.stream)?;
        arm();
        again(|| record_stream(block.ptr(), &made.other))?;
        Ok(held(block))
    }),
    ("allocate pinned memory and free it", |made, arm| {
        let block = empty_pinned(3 * MIB, None)?;
        arm();
        let other = empty_pinned(MIB, None)?;
        block.free(Some(&made.stream))?;
        other.record_stream(&made.stream)?;
        Ok(held(other))
    }),
    ("trim and empty the caches", |made, arm| {
        drop((made.pool.empty(9 * MIB, &made.stream)?, empty(9 * MIB, &made.other)?));
        arm();
        made.pool.trim().and_then(|_| empty_cache()).map(held)
    }),
    ("a pool with a reserve", |_, arm| {
        arm();
        Ok(held(builder().reserve(4 * PAGE).build()?))
    }),
    ("close a pool", |made, arm| {
        let pool = builder().build()?;
        drop(pool.empty(3 * MIB, &made.stream)?);
        arm();
        // What the driver does not take back of a closed pool goes later.
        pool.close().map(held)
    }),
    ("capture", |made, arm| {
        arm();
        Ok(held(made.pool.capture(&made.other)?))
    }),
    ("attach and detach, in C", |made, arm| {
        let (mut attached, mut address) = (null_mut(), null_mut());
        let (token, on) = (made.token.as_bytes(), made.other.raw().as_ptr());
        let bytes = token.len() as u64;
        // SAFETY: the token has so many bytes, the stream is alive and of the device, and the places are those of pointers.
        c(unsafe { (C_API.attach)(token.as_ptr().cast(), bytes, 0, on, &raw mut attached, &raw mut address) })?;
        submit(&made.stream)?;
        arm();
        // SAFETY: it was attached, and a refused call has not ended that.
        again(|| c(unsafe { (C_API.detach)(attached, 0, made.stream.raw().as_ptr()) })).map(held)
    }),
    ("attach, in C", |made, arm| {
        let (mut attached, mut address) = (ptr::dangling_mut(), ptr::dangling_mut::<c_void>());
        let (token, on) = (made.token.as_bytes(), made.other.raw().as_ptr());
        let bytes = token.len() as u64;
        arm();
        // SAFETY: the token has so many bytes, the stream is alive and of the device, and the places are those of pointers.
        let status =
            unsafe { (C_API.attach)(token.as_ptr().cast(), bytes, 0, on, &raw mut attached, &raw mut address) };
        assert_eq!(status != 0, attached.is_null() && address.is_null());
        c(status)?;
        // SAFETY: it was attached.
        Ok(undo(move || c(unsafe { (C_API.detach)(attached, -1, null_mut()) }).unwrap()))
    }),
    ("lease, in C", |made, arm| {
        let mut lease = HandleLease { handle: null_mut(), pooled: null_mut(), library: 0, device: 0 };
        arm();
        // SAFETY: the stream is alive and of the device, and the place is one for a lease.
        c(unsafe { (C_API.lease)(SIMULATED, 0, made.other.raw().as_ptr(), 0, &raw mut lease) })?;
        // SAFETY: the lease was begun.
        again(|| c(unsafe { (C_API.lease_release)(&raw mut lease) })).map(held)
    }),
    ("a range, in C", |made, arm| {
        let (mut pool, mut range, mut address) = (null_mut(), null_mut(), null_mut());
        let (id, on, pages) = (made.pool.id(), made.stream.raw().as_ptr(), [0_u32, 2]);
        // SAFETY: the places are those of pointers, and the id is that of a pool.
        c(unsafe { (C_API.pool_by_id)(0, &raw const id, &raw mut pool) })?;
        // SAFETY: the pool is alive, and the places are those of pointers.
        c(unsafe { (C_API.pool_reserve_range)(pool, 4 * PAGE, PAGE, &raw mut range, &raw mut address) })?;
        arm();
        // SAFETY: the range is alive, there are two pages, and the stream is alive and of the device.
        let committed = again(|| c(unsafe { (C_API.range_commit)(range, pages.as_ptr(), 2, 0, on, ptr::null(), 1) }));
        let other = made.other.raw().as_ptr();
        // SAFETY: the range is alive until a call has released it.
        let released = again(|| c(unsafe { (C_API.range_release)(range, 0, other) }));
        // SAFETY: the use is this call's.
        let ended = again(|| c(unsafe { (C_API.pool_release)(pool) }));
        committed.and(released).and(ended).map(held)
    }),
    ("a pool and its checkpoint, in C", |made, arm| {
        let (mut pool, mut checkpoint, mut pointer) = (null_mut(), null_mut(), null_mut());
        let options = PoolOptions { for_graphs: 1, ..options() };
        arm();
        // SAFETY: the options say their size, and the place is one for a pointer.
        c(unsafe { (C_API.pool_create)(0, &raw const options, &raw mut pool) })?;
        let on = made.stream.raw().as_ptr();
        // SAFETY: the pool and the stream are alive, and the place is one for a pointer.
        let allocated = c(unsafe { (C_API.pool_allocate)(pool, u64::MAX, 3 * MIB, on, &raw mut pointer) });
        // SAFETY: the pool is alive, and the place is one for a pointer.
        let taken = c(unsafe { (C_API.pool_checkpoint)(pool, &raw mut checkpoint) });
        // SAFETY: the pool and its checkpoint are alive; null is allowed for what is not called.
        let restored =
            taken.and_then(|()| c(unsafe { (C_API.pool_restore)(pool, checkpoint, null_mut(), None, None) }));
        // SAFETY: null, or the checkpoint of this call.
        unsafe { (C_API.checkpoint_release)(checkpoint) };
        // SAFETY: null, or the block of this call, which a refused call has not freed.
        let freed = again(|| c(unsafe { (C_API.deallocate_on)(pointer, 0, made.other.raw().as_ptr()) }));
        // SAFETY: the use is this call's.
        let released = again(|| c(unsafe { (C_API.pool_release)(pool) }));
        allocated.and(restored).and(freed).and(released).map(held)
    }),
];

/// Makes a call with one fault, and says what is not as it was.
fn try_step(made: &Made, step: Step, fault: Fault, before: &str) -> (bool, Option<String>) {
    let arm = || {
        clear_faults();
        inject(fault);
    };
    let outcome = step(made, &arm);
    let has_come = clear_faults() == 0;
    let refused = match outcome {
        Ok(undo) => {
            // So that the thread that lets attached memory go needs not look twice.
            complete_all().unwrap();
            undo();
            "a success".to_owned()
        }
        Err(error) => error.to_string(),
    };
    let after = made.counts();
    (has_come, (after != before).then(|| format!("after {refused}\n  {before}\n  {after}")))
}

/// Returns the calls of the driver that a call makes.
fn calls_of(made: &Made, (name, step): (&str, Step)) -> Vec<Call> {
    static SEEN: Mutex<Vec<Call>> = Mutex::new(Vec::new());
    let arm = || Call::ALL.into_iter().for_each(|call| before_call(call, 0, move || SEEN.lock().unwrap().push(call)));
    let undo = step(made, &arm).unwrap_or_else(|error| panic!("{name}: {error}"));
    clear_before_call();
    undo();
    // Nothing is held by the time of the next call.
    made.counts();
    let mut seen = std::mem::take(&mut *SEEN.lock().unwrap());
    // A handle that its library does not destroy counts as destroyed.
    seen.retain(|call| *call != Call::HandleDestroy);
    seen
}

#[test]
fn each_call_of_each_function_may_be_refused() {
    memory!();
    set_workspace_bytes(PAGE);
    let handles = HandlePool::new(SimulatedLibrary).unwrap();
    let mut made = Made::new(handles);
    let mut left = Vec::new();
    for &step in STEPS {
        left.extend(calls_of(&made, step).into_iter().map(|call| (step, call, StatusKind::Other)));
    }
    let mut time = turns(left.len() as u64);
    left.extend(left.clone().into_iter().map(|(step, call, _)| (step, call, StatusKind::OutOfMemory)));
    let (mut before, mut wrong) = (made.counts(), Vec::new());
    for after in 0.. {
        // Those whose call was made once more, the last time.
        left.retain(|&((name, step), call, kind)| {
            if time.next().is_none() {
                return false;
            }
            let fault = Fault { call, kind, after, times: 1 };
            let (has_come, found) = try_step(&made, step, fault, &before);
            if let Some(found) = found {
                wrong.push(format!("{name}, with {call:?} refused after {after}: {found}"));
                made = Made::new(handles);
                before = made.counts();
            }
            has_come
        });
        if left.is_empty() {
            break;
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
    drop(made);
    handles.close().unwrap();
}

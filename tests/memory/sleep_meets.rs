//! Whatever another thread does at any point of a sleep or a waking: what is live is whole afterwards, and all goes back.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::common::memory::{MIB, assert_all_back, builder, empty_in, pool, used};
use crate::common::{device, stream};
use gpupool::runtime::host::{Call, Fault, before_call, clear_before_call, clear_faults, complete_all, inject};
use gpupool::{
    Backup, DeviceBuffer, Error, ErrorKind, MemPool, StatusKind, empty, empty_cache, memory_snapshot, memory_stats,
    pinned_stats,
};

/// Sizes of blocks, from a slab's slot to several extents.
const SIZES: [u64; 4] = [100, 5000, 300 << 10, 3 * MIB + 512];

/// What a pool that changes may meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meeting {
    Free,
    FreeAll,
    Allocate,
    AllocateElsewhere,
    Trim,
    EmptyCache,
    Close,
    Drop,
    DropAll,
    EndThread,
    Look,
}

const MEETINGS: [Meeting; 11] = [
    Meeting::Free,
    Meeting::FreeAll,
    Meeting::Allocate,
    Meeting::AllocateElsewhere,
    Meeting::Trim,
    Meeting::EmptyCache,
    Meeting::Close,
    Meeting::Drop,
    Meeting::DropAll,
    Meeting::EndThread,
    Meeting::Look,
];

/// A thread that has allocated a block, which it keeps until the test ends it.
struct Holder {
    thread: JoinHandle<()>,
    end: Sender<()>,
}

/// A pool with blocks, and what else there is.
struct Scene {
    pool: Option<Arc<MemPool>>,
    /// Each with the byte that it consists of.
    blocks: Vec<(DeviceBuffer, u8)>,
    holder: Option<Holder>,
}

impl Scene {
    fn new(reserve: u64) -> Self {
        let pool = Arc::new(builder().reserve(reserve).build().unwrap());
        let own = stream(0);
        let mut blocks: Vec<_> = SIZES.iter().map(|bytes| empty_in(&pool, *bytes, &own).unwrap()).collect();
        // Free memory beside what is live.
        drop(empty_in(&pool, 2 * MIB, &own).unwrap());
        let (end, ended) = channel();
        let (made, block) = channel();
        let same = Arc::clone(&pool);
        let thread = thread::spawn(move || {
            let own = stream(0);
            let kept = empty_in(&same, 70_000, &own).unwrap();
            made.send(empty_in(&same, 2 * MIB, &own).unwrap()).unwrap();
            drop(same);
            ended.recv().unwrap();
            drop(kept);
        });
        blocks.push(block.recv().unwrap());
        let blocks: Vec<_> = blocks.into_iter().zip(1..).collect();
        for (block, byte) in &blocks {
            block.fill(*byte, &own).unwrap();
        }
        own.synchronize().unwrap();
        Self { pool: Some(pool), blocks, holder: Some(Holder { thread, end }) }
    }

    fn end_thread(&mut self) {
        if let Some(Holder { thread, end }) = self.holder.take() {
            end.send(()).unwrap();
            thread.join().unwrap();
        }
    }

    fn meet(&mut self, meeting: Meeting) {
        let is_asleep = |error: &Error| matches!(error.kind(), ErrorKind::Asleep(_));
        let pool = self.pool.clone();
        match (meeting, pool) {
            (Meeting::Free, _) => drop(self.blocks.remove(3)),
            (Meeting::FreeAll, _) => self.blocks.clear(),
            (Meeting::Allocate, Some(pool)) => {
                for bytes in SIZES {
                    let outcome = empty_in(&pool, bytes, &stream(0));
                    assert!(outcome.is_ok_and(|_| !pool.is_asleep()) || pool.is_asleep());
                }
                let refused = empty_in(&pool, 64 * MIB, &stream(0)).map(drop);
                assert!(refused.is_ok() || is_asleep(&refused.unwrap_err()));
            }
            (Meeting::AllocateElsewhere, _) => {
                for bytes in SIZES {
                    let block = empty(bytes, &stream(0)).unwrap();
                    block.fill(0xee, &block.stream()).unwrap();
                    block.stream().synchronize().unwrap();
                }
            }
            (Meeting::Trim, Some(pool)) => _ = pool.trim().unwrap(),
            (Meeting::EmptyCache, _) => _ = empty_cache().unwrap(),
            (Meeting::Close, Some(pool)) => _ = pool.close().unwrap(),
            (Meeting::Drop, _) => self.pool = None,
            (Meeting::DropAll, _) => {
                self.pool = None;
                self.blocks.clear();
            }
            (Meeting::EndThread, _) => self.end_thread(),
            (Meeting::Look, Some(pool)) => {
                pool.stats().unwrap();
                memory_stats(device(0)).unwrap();
                drop(memory_snapshot().unwrap());
            }
            (_, None) => {}
        }
    }

    /// All that is live is there again, and then all goes.
    fn end(mut self, what: &str) {
        gpupool::wake(device(0)).unwrap();
        let own = stream(0);
        for (block, byte) in &self.blocks {
            let mut found = vec![0; block.nbytes() as usize];
            block.copy_to(&mut found, &own).unwrap();
            assert!(found == vec![*byte; found.len()], "{what}: {} instead of {byte} of {}", found[0], found.len());
        }
        if let Some(pool) = &self.pool
            && !pool.is_closed()
        {
            // What came back serves requests as before.
            for bytes in SIZES {
                let block = empty_in(pool, bytes, &own).unwrap();
                block.fill(1, &own).unwrap();
            }
        }
        own.synchronize().unwrap();
        self.end_thread();
        drop(self);
        complete_all().unwrap();
        empty_cache().unwrap();
        let stats = memory_stats(device(0)).unwrap();
        assert_eq!((stats.total.live_blocks, stats.total.reserved_bytes, stats.pools, used(0)), (0, 0, 1, 0), "{what}");
        assert_eq!(pinned_stats(None).unwrap().total.live_bytes, 0, "{what}");
    }
}

/// Has `f` run on another thread before the call of this kind that comes after so many.
fn on_later_call(call: Call, after: u32, f: impl FnOnce() + Send + 'static) {
    before_call(call, 0, move || {
        if after > 0 {
            on_later_call(call, after - 1, f);
        } else {
            thread::spawn(f).join().unwrap();
        }
    });
}

/// Puts the pool, or all of the device, to sleep and wakes it, with the meeting at each call of this kind.
fn meet_at(call: Call, meeting: Meeting, reserve: u64, refused: Option<Fault>) {
    for after in 0..MOST {
        let what = format!("{meeting:?} at {call:?} {after}, reserve {reserve}, {refused:?}");
        let scene = Scene::new(reserve);
        // A pool that is dropped meanwhile can only be the device's to put to sleep.
        let pool = scene.pool.clone().filter(|_| !matches!(meeting, Meeting::Drop | Meeting::DropAll));
        let scene = Arc::new(Mutex::new(scene));
        let there = Arc::clone(&scene);
        on_later_call(call, after, move || there.lock().unwrap().meet(meeting));
        if let Some(fault) = refused {
            inject(fault);
        }
        let outcome = match &pool {
            Some(pool) => pool.sleep(Backup::Host),
            None => gpupool::sleep(device(0), Backup::Host),
        };
        clear_faults();
        assert!(outcome.is_ok() || refused.is_some(), "{what}: {outcome:?}");
        let woken = gpupool::wake(device(0));
        assert!(woken.is_ok(), "{what}: {woken:?}");
        let is_over = clear_before_call() > 0;
        drop(pool);
        let scene = Arc::into_inner(scene).expect("the meeting is over").into_inner().unwrap();
        scene.end(&what);
        if is_over {
            break;
        }
    }
}

/// How many calls of a kind are met; all of a small pool's but a few.
const MOST: u32 = 3;

const CALLS: [Call; 9] = [
    Call::ContextSynchronize,
    Call::CopyToHost,
    Call::EventSynchronize,
    Call::MemoryUnmap,
    Call::ExtentRelease,
    Call::ExtentCreate,
    Call::MemoryMap,
    Call::MemorySetAccess,
    Call::CopyToDevice,
];

#[test]
fn a_pool_meets_other_threads_at_each_call_of_a_sleep_and_a_waking() {
    memory!();
    for (number, call) in CALLS.into_iter().enumerate() {
        for (place, meeting) in MEETINGS.into_iter().enumerate() {
            // Half of them with a reserve.
            meet_at(call, meeting, (number + place) as u64 % 2 * 8 * MIB, None);
        }
    }
}

#[test]
fn a_pool_meets_other_threads_at_each_call_of_a_sleep_that_is_refused() {
    memory!();
    let refusals = [(Call::CopyToHost, 2), (Call::MemoryUnmap, 1), (Call::ExtentRelease, 1)];
    for (number, call) in CALLS.into_iter().enumerate() {
        for (place, meeting) in MEETINGS.into_iter().enumerate() {
            // Each call and each meeting with every refusal.
            let (refused, after) = refusals[(number + place) % refusals.len()];
            let fault = Fault { call: refused, kind: StatusKind::Other, after, times: 1 };
            meet_at(call, meeting, 8 * MIB, Some(fault));
        }
    }
}

/// A pool in which a request is about to call the driver, and what the request asks for.
type Prepared = (Arc<MemPool>, Vec<DeviceBuffer>, gpupool::Stream, u64);

fn plain() -> Prepared {
    let (pool, own) = (Arc::new(pool()), stream(0));
    let blocks = vec![empty_in(&pool, 100, &own).unwrap()];
    // Free pages, to be moved to where the request is.
    drop(empty_in(&pool, 4 * MIB, &stream(0)).unwrap());
    (pool, blocks, own, 8 * MIB)
}

fn with_reserve() -> Prepared {
    let (pool, own) = (Arc::new(builder().reserve(8 * MIB).build().unwrap()), stream(0));
    let blocks = vec![empty_in(&pool, 3 * MIB, &own).unwrap()];
    drop(empty_in(&pool, 4 * MIB, &stream(0)).unwrap());
    (pool, blocks, own, 4 * MIB)
}

/// One with so many streams that they share slabs.
fn with_many_streams() -> Prepared {
    let pool = Arc::new(pool());
    let blocks = (0..40).map(|_| empty_in(&pool, 3000, &stream(0)).unwrap()).collect();
    (pool, blocks, stream(0), 5000)
}

/// The same, with slabs that were lent and are empty.
fn with_empty_slabs() -> Prepared {
    let (pool, mut blocks, own, _) = with_many_streams();
    blocks.drain(20..);
    (pool, blocks, own, 3000)
}

/// One with a reserve, all of which is used, and one stream fewer than have them share slabs from now on.
fn with_one_stream_too_few() -> Prepared {
    let pool = Arc::new(builder().reserve(2 * MIB).build().unwrap());
    let streams: Vec<_> = (0..16).map(|_| stream(0)).collect();
    let blocks = streams.iter().map(|stream| empty_in(&pool, 3000, stream).unwrap()).collect();
    (pool, blocks, stream(0), 5000)
}

#[test]
fn a_request_at_each_call_that_it_makes_finds_the_pool_awake_or_is_refused() {
    memory!();
    for (number, prepare) in
        [plain, with_reserve, with_many_streams, with_empty_slabs, with_one_stream_too_few].into_iter().enumerate()
    {
        // Others wait for a call that works on an extent, and so would the sleep.
        let on_extents = [Call::MemoryMap, Call::MemoryUnmap, Call::ExtentRelease];
        for call in Call::ALL.into_iter().filter(|call| !on_extents.contains(call)) {
            for after in 0..MOST {
                let (pool, blocks, own, bytes) = prepare();
                let asleep = Arc::clone(&pool);
                on_later_call(call, after, move || _ = asleep.sleep(Backup::Host).unwrap());
                let outcome = empty_in(&pool, bytes, &own);
                let is_over = clear_before_call() > 0;
                let what = format!("{number}: {call:?} {after}");
                match &outcome {
                    Ok(block) if is_over => block.fill(1, &own).unwrap(),
                    Ok(block) => panic!("{what}: served {:#x} of a pool that is asleep", block.ptr()),
                    Err(error) => assert!(matches!(error.kind(), ErrorKind::Asleep(_)), "{what}: {error}"),
                }
                if !is_over {
                    assert!(pool.is_asleep(), "{what}");
                    complete_all().unwrap();
                    empty_cache().unwrap();
                    assert_eq!(used(0), 0, "{what}: not all went");
                    pool.wake().unwrap();
                }
                for block in &blocks {
                    block.fill(2, &own).unwrap();
                }
                drop(empty_in(&pool, bytes, &own).unwrap());
                own.synchronize().unwrap();
                drop((outcome, blocks, pool));
                assert_all_back();
                if is_over {
                    break;
                }
            }
        }
    }
}

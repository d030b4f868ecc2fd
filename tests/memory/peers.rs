//! A device that gets access to another's memory while that comes, moves and goes: once it has access, it has it to every
//! block. Nothing takes access back, so each test has devices of its own.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use crate::common::memory::{MIB, PAGE, Random, assert_all_back, builder, empty_in, pool, reserved};
use crate::common::{device, stream, wait_until};
use gpupool::runtime::host::{Call, Fault, accessible, before_call, clear_faults, complete_all, inject};
use gpupool::{
    Backup, DeviceBuffer, ErrorKind, MemPool, StatusKind, Stream, empty, empty_cache, enable_peer_access, memory_stats,
};

/// Gives the second device access to the first one's memory.
fn enable() {
    enable_peer_access(device(0), device(1)).unwrap();
}

/// The end of a call beside others.
struct Beside(Receiver<JoinHandle<()>>);

impl Beside {
    /// Gives the access in a thread of its own, from the next such call of the driver on.
    fn enable(call: Call) -> Self {
        let (sender, started) = channel();
        before_call(call, 0, move || {
            let thread = thread::spawn(enable);
            // Time for it to come as far as it can.
            (0..10_000).take_while(|_| !thread.is_finished()).for_each(|_| thread::yield_now());
            sender.send(thread).unwrap();
        });
        Self(started)
    }

    fn join(self) {
        self.0.recv().unwrap().join().unwrap();
    }
}

/// Returns whether the second device can use all of a block.
fn reaches(block: &DeviceBuffer) -> bool {
    reaches_from(block, 1)
}

fn reaches_from(block: &DeviceBuffer, peer: u32) -> bool {
    let end = block.ptr() + block.nbytes();
    (block.ptr()..end).step_by(PAGE as usize).chain([end - 1]).all(|at| accessible(at, device(peer)))
}

#[test]
fn pages_that_are_being_added_are_the_peers_too() {
    memory!();
    let own = stream(0);
    // They are mapped, and in no cache yet.
    let beside = Beside::enable(Call::MemorySetAccess);
    let block = empty(5 * MIB, &own).unwrap();
    beside.join();
    assert!(reaches(&block));
}

#[test]
fn pages_on_their_way_to_another_stream_are_the_peers_too() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    drop(empty(8 * MIB, &own).unwrap());
    // They are taken from the one stream's cache, and not in the other's yet.
    before_call(Call::EventRecord, 0, enable);
    let block = empty(8 * MIB, &other).unwrap();
    assert!(reaches(&block) && reserved() == 8 * MIB);
}

/// Pages that move stand at two places until work at the first is done, and the driver gives other devices access by the
/// first place as long as that is there.
#[test]
fn pages_that_have_moved_are_the_peers_too() {
    memory!();
    let own = stream(0);
    let (first, kept) = (empty(40 * MIB, &own).unwrap(), empty(30 * MIB, &own).unwrap());
    drop(first);
    // Only with the pages of the free block is there room for it; they move behind new ones.
    let block = empty(50 * MIB, &own).unwrap();
    assert_eq!(reserved(), 80 * MIB);
    empty_cache().unwrap();
    enable();
    assert!(reaches(&block) && reaches(&kept));
    let late = empty(60 * MIB, &own).unwrap();
    drop(block);
    let again = empty(70 * MIB, &own).unwrap();
    assert!(reaches(&late) && reaches(&again));
}

#[test]
fn a_place_that_was_needed_to_open_a_moved_page_goes_also_where_the_driver_refuses_at_first() {
    memory!();
    let own = stream(0);
    let (first, kept) = (empty(40 * MIB, &own).unwrap(), empty(30 * MIB, &own).unwrap());
    drop(first);
    let block = empty(50 * MIB, &own).unwrap();
    empty_cache().unwrap();
    inject(Fault { call: Call::MemoryUnmap, kind: StatusKind::Other, after: 0, times: 2 });
    enable();
    assert_eq!(clear_faults(), 0);
    assert!(reaches(&block) && reaches(&kept));
}

#[test]
fn a_reserve_that_is_being_made_is_the_peers_too() {
    memory!();
    let beside = Beside::enable(Call::MemorySetAccess);
    let pool = builder().reserve(300 * MIB).build().unwrap();
    beside.join();
    let block = empty_in(&pool, 300 * MIB, &stream(0)).unwrap();
    assert!(reaches(&block));
}

#[test]
fn a_pool_that_is_just_waking_is_the_peers_too() {
    memory!();
    let pool = pool();
    let block = empty_in(&pool, 90 * MIB, &stream(0)).unwrap();
    pool.sleep(Backup::Host).unwrap();
    let beside = Beside::enable(Call::MemorySetAccess);
    pool.wake().unwrap();
    beside.join();
    assert!(reaches(&block));
}

/// The driver takes no memory of a pool that falls asleep: all of it is kept, mapped, and no cache hands it out.
#[test]
fn a_pool_that_is_half_asleep_is_the_peers_too() {
    memory!();
    let pool = pool();
    let block = empty_in(&pool, 90 * MIB, &stream(0)).unwrap();
    inject(Fault { call: Call::MemoryUnmap, kind: StatusKind::Other, after: 0, times: 1 });
    before_call(Call::CopyToHost, 0, enable);
    pool.sleep(Backup::Host).unwrap_err();
    assert_eq!(clear_faults(), 0);
    assert!(reaches(&block) && !pool.is_asleep());
}

#[test]
fn memory_that_goes_meanwhile_is_no_error() {
    memory!();
    let mut blocks: Vec<_> = (0..3).map(|_| empty(40 * MIB, &stream(0)).unwrap()).collect();
    assert_eq!(reserved(), 120 * MIB);
    // In whichever order they are looked at, one of the last two is not the first.
    blocks[1..].sort_unstable_by_key(DeviceBuffer::ptr);
    let gone = blocks.pop();
    before_call(Call::MemorySetAccess, 0, move || {
        drop(gone);
        empty_cache().unwrap();
    });
    enable();
    assert!(blocks.iter().all(reaches) && reserved() == 80 * MIB);
}

#[test]
fn a_second_call_returns_once_the_first_has_given_access() {
    memory!();
    let block = Arc::new(empty(40 * MIB, &stream(0)).unwrap());
    let (sender, seen) = channel();
    let shared = Arc::clone(&block);
    before_call(Call::MemorySetAccess, 0, move || {
        let second = thread::spawn(move || {
            enable();
            let is_reached = reaches(&shared);
            drop(shared);
            sender.send(is_reached).unwrap();
        });
        // Time for the second call to return, as it must not.
        (0..10_000).take_while(|_| !second.is_finished()).for_each(|_| thread::yield_now());
    });
    enable();
    assert!(seen.recv().unwrap() && reaches(&block));
}

#[test]
fn a_call_beside_one_that_is_refused_does_all_of_it() {
    memory!();
    let block = Arc::new(empty(40 * MIB, &stream(0)).unwrap());
    let (sender, seen) = channel();
    let shared = Arc::clone(&block);
    inject(Fault { call: Call::MemorySetAccess, kind: StatusKind::Other, after: 0, times: 1 });
    before_call(Call::MemorySetAccess, 0, move || {
        thread::spawn(move || {
            // The refusal may be this call's, where it comes first.
            let _ = enable_peer_access(device(0), device(1));
            enable();
            let is_reached = reaches(&shared);
            drop(shared);
            sender.send(is_reached).unwrap();
        });
    });
    let _ = enable_peer_access(device(0), device(1));
    assert!(seen.recv().unwrap());
    enable();
    assert!(reaches(&block) && clear_faults() == 0);
}

#[test]
fn what_was_refused_is_done_when_it_is_asked_for_again() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    let blocks = [empty(40 * MIB, &own).unwrap(), empty(40 * MIB, &other).unwrap()];
    for after in 0..2 {
        inject(Fault { call: Call::MemorySetAccess, kind: StatusKind::OutOfMemory, after, times: 1 });
        let error = enable_peer_access(device(0), device(1)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Library(_)), "{error}");
        assert_eq!(clear_faults(), 0);
        // It is no peer, of what comes nor for streams.
        let pool = pool();
        assert!(!reaches(&empty_in(&pool, 20 * MIB, &own).unwrap()));
        assert!(blocks[0].record_stream(&stream(1)).is_err());
    }
    enable();
    let late = empty(200 * MIB, &own).unwrap();
    assert!(blocks.iter().chain([&late]).all(reaches));
    blocks[0].record_stream(&stream(1)).unwrap();
}

/// Enabled so often beside threads that allocate, free, grow, sleep and wake.
const TIMES: u32 = 40;
/// As the number of those that are enabled: the threads are to end.
const OVER: u32 = TIMES + 1;

/// The peers of the first two devices, in the order they get access in: each other, then the same.
fn peer_of(home: u32, number: u32) -> u32 {
    if number == 1 { 1 - home } else { number }
}

/// What one of these threads does until all is enabled: its block, of one of the first two devices, is for the peers that
/// are enabled before it looks, and for as long as it has it.
fn work(number: u64, enabled: &AtomicU32, checked: &AtomicU64) {
    let home = (number / 2 % 2) as u32;
    let own = stream(home);
    let pool = MemPool::builder().device(device(home)).build().unwrap();
    let mut random = Random(number + 1);
    let mut held: Vec<DeviceBuffer> = Vec::new();
    while enabled.load(Ordering::Acquire) < OVER {
        let bytes = [600 << 10, 3 * MIB, 7 * MIB, 30 * MIB, 70 * MIB][random.below(5)];
        let of = if random.below(4) == 0 { &Stream::new(device(home)).unwrap() } else { &own };
        held.push(if number.is_multiple_of(2) {
            empty(bytes, of).unwrap()
        } else {
            empty_in(&pool, bytes, of).unwrap()
        });
        if random.below(8) == 0 {
            pool.sleep(Backup::None).unwrap();
            pool.wake().unwrap();
        }
        let peers = enabled.load(Ordering::Acquire).min(TIMES);
        for block in &held {
            let missing = (1..=peers).map(|number| peer_of(home, number)).find(|&peer| !reaches_from(block, peer));
            assert!(missing.is_none(), "{missing:?} of {peers} cannot use a block of {} bytes", block.nbytes());
        }
        checked.fetch_add(1, Ordering::Relaxed);
        if held.len() > 4 {
            held.swap_remove(random.below(held.len()));
        }
        if random.below(16) == 0 {
            empty_cache().unwrap();
        }
    }
}

#[test]
fn peers_reach_every_block_of_threads_that_allocate_grow_sleep_and_wake() {
    memory!(TIMES + 1, 16 << 30);
    let (enabled, checked) = (AtomicU32::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..8 {
            let (enabled, checked) = (&enabled, &checked);
            scope.spawn(move || {
                // The others end where this one fails.
                let outcome = catch_unwind(AssertUnwindSafe(|| work(number, enabled, checked)));
                if let Err(panic) = outcome {
                    enabled.store(OVER, Ordering::Release);
                    resume_unwind(panic);
                }
            });
        }
        for peer in 1..=TIMES {
            let before = checked.load(Ordering::Relaxed);
            let enable = |home| enable_peer_access(device(home), device(peer_of(home, peer)));
            let outcome = enable(0).and_then(|()| enable(1));
            if let Err(error) = outcome {
                enabled.store(OVER, Ordering::Release);
                panic!("peer {peer}: {error}");
            }
            if enabled.fetch_max(peer, Ordering::AcqRel) >= peer {
                return;
            }
            wait_until("threads have looked", || {
                checked.load(Ordering::Relaxed) > before + 8 || enabled.load(Ordering::Acquire) > peer
            });
        }
        enabled.store(OVER, Ordering::Release);
    });
    complete_all().unwrap();
    assert_all_back();
    assert_eq!(memory_stats(device(1)).unwrap().total.reserved_bytes, 0);
}

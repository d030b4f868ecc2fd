//! A device that gets access to another's memory while that comes, moves and goes: once it has access, it has it to every
//! block. Nothing takes access back, so each test has devices of its own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use crate::common::memory::{MIB, PAGE, builder, empty_in, pool, reserved};
use crate::common::{device, stream};
use gpupool::runtime::host::{Call, Fault, accessible, before_call, clear_faults, inject};
use gpupool::{Backup, DeviceBuffer, ErrorKind, StatusKind, empty, empty_cache, enable_peer_access};

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
    let end = block.ptr() + block.nbytes();
    (block.ptr()..end).step_by(PAGE as usize).chain([end - 1]).all(|at| accessible(at, device(1)))
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

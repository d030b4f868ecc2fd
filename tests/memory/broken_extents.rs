//! Extents that the driver maps nowhere else any more, as NVIDIA's driver 580.159 may do with those that have moved: a request
//! for which such pages would move is served all the same, and all memory comes back.

use std::thread;

use crate::common::memory::{MIB, PAGE, assert_all_back, pool, reserved};
use crate::common::{device, stream};
use gpupool::runtime::host::{
    Call, Fault, accessible, before_call, break_extents, break_moved_extents, clear_faults, complete_all, inject,
    submit,
};
use gpupool::{StatusKind, empty, enable_peer_access};

#[test]
fn a_request_is_served_by_new_extents_in_place_of_broken_ones() {
    memory!();
    let own = stream(0);
    let (first, _kept) = (empty(40 * MIB, &own).unwrap(), empty(30 * MIB, &own).unwrap());
    first.fill(1, &own).unwrap();
    drop(first);
    break_extents();
    let block = empty(50 * MIB, &own).unwrap();
    block.fill(2, &own).unwrap();
    assert_eq!(reserved(), 80 * MIB);
}

#[test]
fn what_is_undone_after_a_replacement_comes_back() {
    memory!();
    let own = stream(0);
    for call in [Call::ExtentCreate, Call::MemoryMap, Call::MemorySetAccess] {
        for after in 0..8 {
            let (first, kept) = (empty(40 * MIB, &own).unwrap(), empty(30 * MIB, &own).unwrap());
            drop(first);
            break_extents();
            inject(Fault { call, kind: StatusKind::Other, after, times: 1 });
            drop(empty(50 * MIB, &own));
            clear_faults();
            drop(kept);
            assert_all_back();
        }
    }
}

/// Two H200s refused so: the pages were mapped at their new place, their first one went, and the driver gave the peer no access
/// there, nor mapped them once more for that.
#[test]
fn pages_that_cannot_be_opened_to_a_peer_are_replaced() {
    memory!();
    enable_peer_access(device(0), device(1)).unwrap();
    let own = stream(0);
    let (first, _kept) = (empty(40 * MIB, &own).unwrap(), empty(30 * MIB, &own).unwrap());
    submit(&own).unwrap();
    drop(first);
    // The pages move, and stand at their first place too until that work is done.
    let moved = empty(50 * MIB, &own).unwrap();
    // Behind it, so that more pages cannot be added there.
    let _behind = empty(60 * MIB, &own).unwrap();
    drop(moved);
    let other = pool();
    thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let trimming = scope.spawn(move || {
            receiver.recv().unwrap();
            complete_all().unwrap();
            other.trim().unwrap();
        });
        // Once some are mapped at the next place.
        before_call(Call::MemoryMap, 3, move || {
            sender.send(()).unwrap();
            (0..10_000).for_each(|_| thread::yield_now());
        });
        before_call(Call::MemorySetAccess, 0, break_moved_extents);
        let block = empty(70 * MIB, &own).unwrap();
        trimming.join().unwrap();
        let end = block.ptr() + block.nbytes();
        assert!((block.ptr()..end).step_by(PAGE as usize).all(|at| accessible(at, device(1))));
        block.fill(3, &own).unwrap();
        drop(block);
    });
}

/// An H100 refused so in one of sixteen processes, in which seven threads moved pages until then.
#[test]
fn pages_that_cannot_be_opened_to_a_new_peer_go_once_they_are_free() {
    memory!();
    let own = stream(0);
    let (first, kept) = (empty(40 * MIB, &own).unwrap(), empty(30 * MIB, &own).unwrap());
    submit(&own).unwrap();
    drop(first);
    // The pages move, and leave their first place.
    let moved = empty(50 * MIB, &own).unwrap();
    complete_all().unwrap();
    pool().trim().unwrap();
    break_moved_extents();
    let refused = enable_peer_access(device(0), device(1)).unwrap_err().to_string();
    assert!(refused.contains("(999)") && refused.contains("free blocks of device 0 and call again"), "{refused}");
    assert!(!accessible(moved.ptr(), device(1)));
    drop(moved);
    enable_peer_access(device(0), device(1)).unwrap();
    let again = empty(50 * MIB, &own).unwrap();
    assert!([again.ptr(), kept.ptr()].iter().all(|&at| accessible(at, device(1))));
}

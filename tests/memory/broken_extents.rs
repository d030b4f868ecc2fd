//! Extents that the driver maps nowhere else any more, as NVIDIA's driver 580.159 may do with those that have moved: a request
//! for which such pages would move is served all the same, and all memory comes back.

use crate::common::memory::{MIB, assert_all_back, reserved};
use crate::common::stream;
use gpupool::runtime::host::{Call, Fault, break_extents, clear_faults, inject};
use gpupool::{StatusKind, empty};

#[test]
fn a_request_is_served_by_new_extents_in_place_of_broken_ones() {
    host!();
    let own = stream(0);
    let (first, kept) = (empty(40 * MIB, &own).unwrap(), empty(30 * MIB, &own).unwrap());
    first.fill(1, &own).unwrap();
    drop(first);
    break_extents();
    let block = empty(50 * MIB, &own).unwrap();
    block.fill(2, &own).unwrap();
    assert_eq!(reserved(), 80 * MIB);
    drop((block, kept));
    assert_all_back();
}

#[test]
fn what_is_undone_after_a_replacement_comes_back() {
    host!();
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

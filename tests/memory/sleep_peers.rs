//! Peers that are let in while a pool wakes, falls asleep or grows: they have access to all that is there afterwards.

use crate::common::memory::{MIB, assert_all_back, empty_in};
use crate::common::{MEMORY, device, stream};
use gpupool::runtime::host::{Call, Fault, accessible, before_call, clear_faults, inject};
use gpupool::{Backup, DeviceBuffer, MemPool, StatusKind, enable_peer_access};

/// With or without a reserve.
const RESERVES: [u64; 2] = [0, 8 * MIB];

fn pool_and_block(reserve: u64) -> (MemPool, DeviceBuffer) {
    let pool = MemPool::builder().device(device(0)).reserve(reserve).build().unwrap();
    let block = empty_in(&pool, 5 * MIB, &stream(0)).unwrap();
    (pool, block)
}

#[track_caller]
fn assert_accessible(block: &DeviceBuffer, peer: u32, when: Call) {
    for at in [0, block.nbytes() - 1] {
        assert!(accessible(block.address() + at, device(0)));
        assert!(accessible(block.address() + at, device(peer)), "device {peer}, let in at {when:?}, at {at}");
    }
}

/// Lets devices in before calls of these kinds, each the next peer, which the last of `f`'s arguments is.
fn with_peers(calls: &[Call], f: impl Fn(Call, u64, u32)) {
    let mut peer = 0;
    for (call, reserve) in calls.iter().flat_map(|call| RESERVES.map(|reserve| (*call, reserve))) {
        peer += 1;
        f(call, reserve, peer);
    }
    assert_all_back();
}

#[test]
fn a_peer_that_is_let_in_while_a_pool_wakes_has_access_to_all_of_it() {
    host!(16, MEMORY);
    let calls =
        [Call::ExtentCreate, Call::MemoryMap, Call::MemorySetAccess, Call::CopyToDevice, Call::StreamSynchronize];
    with_peers(&calls, |call, reserve, peer| {
        let (pool, block) = pool_and_block(reserve);
        block.fill(3, block.stream()).unwrap();
        pool.sleep(Backup::Host).unwrap();
        before_call(call, 0, move || enable_peer_access(device(0), device(peer)).unwrap());
        pool.wake().unwrap();
        assert_accessible(&block, peer, call);
    });
}

#[test]
fn a_peer_that_is_let_in_while_a_pool_falls_asleep_has_access_once_it_wakes() {
    host!(16, MEMORY);
    let calls = [Call::ContextSynchronize, Call::CopyToHost, Call::MemoryUnmap, Call::ExtentRelease];
    with_peers(&calls, |call, reserve, peer| {
        let (pool, block) = pool_and_block(reserve);
        before_call(call, 0, move || enable_peer_access(device(0), device(peer)).unwrap());
        pool.sleep(Backup::Host).unwrap();
        pool.wake().unwrap();
        assert_accessible(&block, peer, call);
    });
}

#[test]
fn a_peer_that_is_let_in_has_access_where_a_pool_then_stays_awake() {
    host!(16, MEMORY);
    let calls = [Call::ContextSynchronize, Call::CopyToHost, Call::MemoryUnmap];
    with_peers(&calls, |call, reserve, peer| {
        let (pool, block) = pool_and_block(reserve);
        before_call(call, 0, move || enable_peer_access(device(0), device(peer)).unwrap());
        inject(Fault { call: Call::MemoryUnmap, kind: StatusKind::Other, after: 0, times: 1 });
        pool.sleep(Backup::Host).unwrap_err();
        assert_eq!(clear_faults(), 0);
        assert!(!pool.is_asleep());
        assert_accessible(&block, peer, call);
    });
}

#[test]
fn a_peer_is_let_in_though_a_pool_falls_asleep_meanwhile() {
    host!(16, MEMORY);
    with_peers(&[Call::MemorySetAccess], |call, reserve, peer| {
        let (pool, block) = pool_and_block(reserve);
        let (pool, other) = (std::sync::Arc::new(pool), pool_and_block(0));
        let asleep = std::sync::Arc::clone(&pool);
        before_call(call, 0, move || {
            asleep.sleep(Backup::Host).unwrap();
        });
        enable_peer_access(device(0), device(peer)).unwrap();
        assert!(pool.is_asleep());
        assert_accessible(&other.1, peer, call);
        pool.wake().unwrap();
        assert_accessible(&block, peer, call);
    });
}

#[test]
fn a_peer_that_is_let_in_while_a_pool_grows_has_access_to_what_is_new() {
    host!(16, MEMORY);
    with_peers(&[Call::ExtentCreate, Call::MemoryMap, Call::MemorySetAccess], |call, reserve, peer| {
        // While its reserve is made, or the first pages are.
        before_call(call, 0, move || enable_peer_access(device(0), device(peer)).unwrap());
        let (pool, block) = pool_and_block(reserve);
        assert_accessible(&block, peer, call);
        before_call(call, 0, move || enable_peer_access(device(0), device(peer + 8)).unwrap());
        let new = empty_in(&pool, 50 * MIB, &stream(0)).unwrap();
        assert_accessible(&new, peer + 8, call);
        assert_accessible(&block, peer + 8, call);
    });
}

//! Pools that sleep, by the C interface.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::common::c_pools::{CPool, INVALID_VALUE, UNAVAILABLE, create, failed, free, options, succeeded, ticket};
use crate::common::memory::{MIB, PAGE, used};
use crate::common::stream;
use gpupool::c_api::C_API;
use gpupool::empty;

const NONE: c_int = 0;
const HOST: c_int = 1;
const ASLEEP: c_int = 6;

fn is_asleep(pool: CPool) -> bool {
    let mut is_asleep = -1;
    // SAFETY: the place is one for an int.
    succeeded(unsafe { (C_API.pool_is_asleep)(pool.0, &raw mut is_asleep) });
    is_asleep == 1
}

#[test]
fn a_pool_sleeps_and_wakes_and_says_why_it_serves_nothing() {
    memory!();
    let pool = create(options());
    let (mut block, mut bytes) = (ptr::null_mut::<c_void>(), 0);
    let allocate = |block: &mut *mut c_void| {
        // SAFETY: the legacy default stream is always alive.
        unsafe { (C_API.pool_allocate)(pool.0, ticket(), 5 * MIB, ptr::null_mut(), block) }
    };
    succeeded(allocate(&mut block));
    let number: *mut u64 = block.cast();
    // SAFETY: the block is 5 MiB.
    unsafe { number.write(42) };
    // SAFETY: the place is one for a number.
    succeeded(unsafe { (C_API.pool_sleep)(pool.0, HOST, &raw mut bytes) });
    assert_eq!((bytes, used(0), is_asleep(pool)), (6 * MIB, 0, true));
    let mut other = ptr::null_mut();
    failed(allocate(&mut other), ASLEEP, &["is asleep", "gpupool.wake(0)"]);
    assert!(other.is_null());
    // SAFETY: the place is one for a number.
    succeeded(unsafe { (C_API.pool_wake)(pool.0, &raw mut bytes) });
    // SAFETY: the block is there again.
    assert_eq!((bytes, is_asleep(pool), unsafe { number.read() }), (6 * MIB, false, 42));
    // SAFETY: null is allowed for what is not asked.
    succeeded(unsafe { (C_API.pool_sleep)(pool.0, NONE, ptr::null_mut()) });
    // SAFETY: the place is one for a number.
    succeeded(unsafe { (C_API.wake_device)(0, &raw mut bytes) });
    assert_eq!((bytes, is_asleep(pool)), (6 * MIB, false));
    // SAFETY: the place is one for a number.
    succeeded(unsafe { (C_API.sleep_device)(0, HOST, &raw mut bytes) });
    assert_eq!((bytes, is_asleep(pool)), (6 * MIB, true));
    // SAFETY: the block and the use are this test's, and not used again.
    unsafe {
        succeeded((C_API.deallocate)(block));
        succeeded((C_API.pool_release)(pool.0));
        succeeded((C_API.wake_device)(0, ptr::null_mut()));
    }
}

#[test]
fn a_pool_that_served_another_sleeps_once_that_has_freed_the_block() {
    memory!(1, PAGE);
    let (own, pool) = (stream(0), create(options()));
    let kept = pool.allocate(MIB / 2, &own);
    // SAFETY: the pool is alive.
    succeeded(unsafe { (C_API.pool_set_use_on_oom)(pool.0, 1) });
    let served = empty(MIB / 2, &own).unwrap();
    // SAFETY: the pool is alive.
    succeeded(unsafe { (C_API.pool_set_use_on_oom)(pool.0, 0) });
    let words = ["1 of its blocks", &format!("{:#x}", served.ptr())];
    // SAFETY: null is allowed for what is not asked.
    failed(unsafe { (C_API.pool_sleep)(pool.0, HOST, ptr::null_mut()) }, UNAVAILABLE, &words);
    assert!(!is_asleep(pool));
    drop(served);
    let mut bytes = 0;
    // SAFETY: the place is one for a number.
    succeeded(unsafe { (C_API.pool_sleep)(pool.0, HOST, &raw mut bytes) });
    assert_eq!(bytes, PAGE);
    free(kept);
    pool.release();
}

#[test]
fn a_wrong_backup_device_or_pool_is_refused() {
    memory!();
    let pool = create(options());
    // SAFETY: the pool is alive, and null is allowed for the bytes.
    failed(unsafe { (C_API.pool_sleep)(pool.0, 7, ptr::null_mut()) }, INVALID_VALUE, &["7 is not a backup"]);
    // SAFETY: as above.
    failed(unsafe { (C_API.sleep_device)(9, HOST, ptr::null_mut()) }, INVALID_VALUE, &["no device 9"]);
    // SAFETY: a null pointer is refused.
    failed(unsafe { (C_API.pool_wake)(ptr::null_mut(), ptr::null_mut()) }, INVALID_VALUE, &["null pointer"]);
    // SAFETY: a null pointer is refused.
    failed(unsafe { (C_API.pool_is_asleep)(pool.0, ptr::null_mut()) }, INVALID_VALUE, &["is_asleep is a null pointer"]);
    let mut segments = options();
    segments.no_split = 1;
    let whole = create(segments);
    // SAFETY: the pool is alive.
    failed(unsafe { (C_API.pool_sleep)(whole.0, HOST, ptr::null_mut()) }, UNAVAILABLE, &["cannot sleep"]);
    for pool in [pool, whole] {
        // SAFETY: the use is this test's, and not used again.
        succeeded(unsafe { (C_API.pool_release)(pool.0) });
    }
}

#[test]
fn a_second_free_names_its_pointer_and_leaves_the_backup_of_a_sleeping_device_alone() {
    memory!();
    let pool = create(options());
    let (mut block, mut pinned, null) =
        (ptr::null_mut::<c_void>(), ptr::null_mut::<c_void>(), ptr::null_mut::<c_void>());
    // SAFETY: the legacy default stream is always alive, and the places are ones for pointers; the block is 6 MiB.
    unsafe {
        succeeded((C_API.pool_allocate)(pool.0, ticket(), 6 * MIB, null, &raw mut block));
        block.cast::<u64>().write(42);
        succeeded((C_API.allocate_pinned)(6 * MIB, -1, &raw mut pinned));
        succeeded((C_API.deallocate)(pinned));
        succeeded((C_API.sleep_device)(0, HOST, ptr::null_mut()));
    }
    let address = format!("{pinned:p}");
    let words = [&*address, "gpupool has for its own work", "freed before"];
    // SAFETY: the second frees, and what else takes a pointer, are to be refused; the stream is the legacy default one.
    unsafe {
        failed((C_API.deallocate)(pinned), INVALID_VALUE, &words);
        failed((C_API.deallocate_on)(pinned, 0, null), INVALID_VALUE, &words);
        failed((C_API.record_stream)(pinned, 0, null), INVALID_VALUE, &words);
        // These have no place for a reason.
        (C_API.free)(pinned, 6 << 20, 0, null);
        (C_API.cupy_free)(null, pinned, 0);
        assert_eq!((C_API.handler_free)(null, pinned, 6 << 20, null), 1);
    }
    let mut other = ptr::null_mut();
    // SAFETY: the place is one for a pointer, and the memory is 6 MiB.
    unsafe {
        succeeded((C_API.allocate_pinned)(6 * MIB, -1, &raw mut other));
        other.cast::<u64>().write(7);
    }
    assert_ne!(other, pinned);
    // SAFETY: null is allowed for what is not asked; the block is there again, and all are this test's.
    unsafe {
        succeeded((C_API.wake_device)(0, ptr::null_mut()));
        assert_eq!(block.cast::<u64>().read(), 42);
        succeeded((C_API.deallocate)(other));
        succeeded((C_API.deallocate)(block));
        failed((C_API.deallocate)(block), INVALID_VALUE, &[&format!("{block:p}")]);
        succeeded((C_API.pool_release)(pool.0));
    }
}

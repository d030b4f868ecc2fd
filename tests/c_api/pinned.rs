//! Pinned memory by the C interface: blocks, and how long memory took to come and to go.

use std::ffi::c_void;
use std::ptr;

use crate::common::c_pools::{deallocate, stats_of};
use crate::common::memory::MIB;
use crate::common::wait_until;
use gpupool::c_api::{C_API, DeviceStats, Durations};

const ALL: usize = 0;

fn allocate(bytes: u64) -> *mut c_void {
    let mut pointer = ptr::null_mut();
    // SAFETY: the place is one for a pointer.
    assert_eq!(unsafe { (C_API.allocate_pinned)(bytes, -1, &raw mut pointer) }, 0);
    pointer
}

fn stats() -> DeviceStats {
    // SAFETY: the statistics say their size.
    stats_of(|stats| unsafe { (C_API.pinned_stats)(-1, stats) })
}

fn times() -> [Durations; 2] {
    let mut times = [Durations { size: size_of::<Durations>() as u64, ..Durations::default() }; 2];
    let [made, given_back] = &mut times;
    // SAFETY: both say their size.
    assert_eq!(unsafe { (C_API.pinned_times)(made, given_back) }, 0);
    times
}

#[test]
fn what_comes_and_what_goes_is_timed_piece_by_piece() {
    memory!();
    let before = times();
    // Pages, and a segment.
    let blocks = [3 * MIB, 300 * MIB].map(allocate);
    let now = stats();
    assert_eq!(now.active[ALL].current, 2);
    assert_eq!(times()[0].count - before[0].count, now.segment[ALL].current, "{now:?}");
    assert!(times()[0].max > 0 && times()[0].total >= times()[0].max && times()[0].min <= times()[0].max);
    assert_eq!(times()[1], before[1], "nothing has gone");
    blocks.into_iter().for_each(deallocate);
    // SAFETY: the place may be null.
    assert_eq!(unsafe { (C_API.empty_pinned_cache)(ptr::null_mut()) }, 0);
    wait_until("the segment has gone", || stats().reserved_bytes[ALL].current == 0);
    wait_until("its time is known", || times()[1].count == stats().device_frees);
    assert_eq!(times()[0].count, stats().device_allocs);

    // SAFETY: the function takes any node.
    assert_eq!(unsafe { (C_API.reset_peak_pinned_stats)(-1) }, 0);
    let [made, gone] = times();
    assert_eq!([made.max, made.min, gone.max, gone.min], [0; 4]);
    assert_eq!([made.count, gone.count], [stats().device_allocs, stats().device_frees]);
    // SAFETY: either may be null.
    assert_eq!(unsafe { (C_API.pinned_times)(ptr::null_mut(), ptr::null_mut()) }, 0);
    deallocate(allocate(4096));
    assert!(times()[0].count > made.count);
}

//! Drivers for CUDA before 12.5, which have no event of a whole device: what such an event stands for is waited for, and
//! memory of streams that may be gone serves others, goes back, and leaves with its pool as with any driver.

use crate::common::memory::{MIB, assert_all_back, empty_in, foreign, pool, reserved, use_buffer, used};
use crate::common::stream;
use gpupool::runtime::host::{Call, Fault, Graph, begin_capture, clear_faults, end_capture, inject, submit};
use gpupool::{CaptureMode, StatusKind, empty, empty_cache};

/// Simulated devices of 64 MiB whose driver records no work of a whole device, ever.
macro_rules! old_driver {
    () => {
        host!(2, 64 * MIB);
        for call in [Call::EventRecordContext, Call::ContextWaitEvent] {
            inject(Fault { call, kind: StatusKind::NotSupported, after: 0, times: u32::MAX });
        }
    };
}

/// Leaves free memory on a stream that no call names again, as it may be gone, with work that is not done.
fn leave_on_a_foreign_stream(bytes: u64) {
    let unnamed = foreign();
    let buffer = empty(bytes, &unnamed).unwrap();
    use_buffer(&unnamed, &buffer);
    drop(buffer);
}

#[test]
fn requests_are_served_while_memory_waits_for_streams_that_may_be_gone() {
    old_driver!();
    for _ in 0..50 {
        leave_on_a_foreign_stream(4 * MIB);
        let own = stream(0);
        let buffer = empty(20 * MIB, &own).unwrap();
        use_buffer(&own, &buffer);
    }
    assert!(reserved() <= 64 * MIB);
    assert_all_back();
}

#[test]
fn empty_cache_releases_memory_of_a_stream_that_may_be_gone() {
    old_driver!();
    leave_on_a_foreign_stream(40 * MIB);
    assert!(empty_cache().unwrap() >= 40 * MIB);
    assert_eq!((reserved(), used(0)), (0, 0));
}

#[test]
fn the_memory_of_a_pool_that_ended_goes_back() {
    old_driver!();
    let pool = pool();
    let unnamed = foreign();
    let buffer = empty_in(&pool, 40 * MIB, &unnamed).unwrap();
    use_buffer(&unnamed, &buffer);
    drop(buffer);
    drop(pool);
    // The next request finds it.
    drop(empty(40 * MIB, &stream(0)).unwrap());
    assert_all_back();
}

#[test]
fn a_capture_is_not_spoilt_and_memory_goes_back_after_it() {
    old_driver!();
    leave_on_a_foreign_stream(20 * MIB);
    let captured = stream(0);
    begin_capture(&captured, CaptureMode::Global).unwrap();
    drop(empty(4 * MIB, &stream(0)).unwrap());
    empty_cache().unwrap();
    assert!(reserved() >= 20 * MIB, "memory went back though nothing could be waited for");
    let graph: Graph = end_capture(&captured).unwrap();
    drop(graph);
    assert_all_back();
}

#[test]
fn work_that_is_submitted_later_is_waited_for_too() {
    old_driver!();
    leave_on_a_foreign_stream(20 * MIB);
    empty_cache().unwrap();
    // What was waited for once says nothing of what came since.
    leave_on_a_foreign_stream(20 * MIB);
    let own = stream(0);
    let buffer = empty(60 * MIB, &own).unwrap();
    use_buffer(&own, &buffer);
    submit(&own).unwrap();
    drop(buffer);
    assert_all_back();
}

#[test]
fn another_refusal_of_the_driver_is_an_error_as_before() {
    old_driver!();
    leave_on_a_foreign_stream(20 * MIB);
    clear_faults();
    inject(Fault { call: Call::EventRecordContext, kind: StatusKind::Other, after: 0, times: 1 });
    let error = empty_cache().unwrap_err().to_string();
    assert!(error.contains("EventRecordContext failed with HOST_ERROR_INJECTED (999) on device 0"), "{error}");
    assert_all_back();
}

//! Warming, trimming and closing: the ways in which handles come and go other than by need.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::{MEMORY, assert_none_lost, device, handle_pool as pool, on_thread, stream};
use gpupool::library::simulated::set_handle_bytes;
use gpupool::runtime::host::{Call, Fault, before_call, begin_capture, end_capture, inject};
use gpupool::{CaptureMode, CaptureStatus, ErrorKind, MemPool, Pooled, Simulated, StatusKind};

/// More often than another thread waits for its turn.
const OFTEN: u32 = 20_000;

#[test]
fn warm_makes_as_many_as_are_missing() {
    host!();
    let pool = pool();
    assert_eq!(pool.warm(3, device(1)).unwrap(), 3);
    assert_eq!(pool.warm(3, device(1)).unwrap(), 0);
    assert_eq!(pool.warm(5, device(1)).unwrap(), 2);
    let stats = pool.stats(Some(device(1))).unwrap();
    assert_eq!((stats.created, stats.idle, stats.device_bytes), (5, 5, 5 << 20));
    on_thread(move || pool.handle(&stream(1)).map(drop).unwrap());
    assert_eq!(pool.stats(None).unwrap().created, 5);
    assert_eq!(pool.trim(None).unwrap(), 5);
}

#[test]
fn warm_in_the_background_ends_with_the_handles_there() {
    host!();
    let pool = pool();
    assert_eq!(pool.warm_in_background(4, device(0)).unwrap().join().unwrap().unwrap(), 4);
    assert_eq!(pool.trim(None).unwrap(), 4);
}

#[test]
fn warm_keeps_what_it_made_before_a_failure() {
    host!();
    let pool = pool();
    inject(Fault { call: Call::HandleCreate, kind: StatusKind::Other, after: 2, times: 1 });
    assert!(pool.warm(4, device(0)).is_err());
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.created, stats.idle, stats.failures), (2, 2, 1));
    assert_eq!(pool.warm(4, device(0)).unwrap(), 2);
    assert_eq!(pool.trim(None).unwrap(), 4);
}

#[test]
fn warm_ends_where_memory_is_short_of_what_is_asked_for() {
    host!();
    let pool = pool();
    set_handle_bytes(MEMORY / 2);
    assert!(matches!(pool.warm(3, device(1)).unwrap_err().kind(), ErrorKind::OutOfMemory(_)));
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.created, stats.idle, stats.destroyed), (2, 2, 0));
    assert_eq!(pool.trim(None).unwrap(), 2);
}

#[test]
fn trim_destroys_idle_handles_only() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    let held = pool.handle(&stream).unwrap().as_ptr();
    pool.warm(2, device(0)).unwrap();
    pool.warm(1, device(1)).unwrap();
    assert_eq!(pool.trim(Some(device(1))).unwrap(), 1);
    assert_eq!(pool.trim(None).unwrap(), 2);
    assert_eq!(pool.handle(&stream).unwrap().as_ptr(), held);
    let stats = pool.stats(None).unwrap();
    assert_none_lost(stats);
    assert_eq!((stats.created, stats.destroyed, stats.held, stats.device_bytes), (4, 3, 1, 1 << 20));
}

#[test]
fn a_capture_that_is_announced_while_handles_are_destroyed_begins_after_that() {
    host!();
    let pool = pool();
    pool.warm(2, device(0)).unwrap();
    let has_begun = Arc::new(AtomicBool::new(false));
    let (begun, capturing) = (Arc::clone(&has_begun), Arc::new(Mutex::new(None)));
    let thread = Arc::clone(&capturing);
    before_call(Call::HandleDestroy, 1, move || {
        let other = thread::spawn(move || {
            let (graphs, captured) = (MemPool::builder().device(device(0)).build().unwrap(), stream(0));
            let scope = graphs.capture(&captured).unwrap();
            begin_capture(&captured, CaptureMode::Global).unwrap();
            begun.store(true, Ordering::Release);
            (graphs, captured, scope.end())
        });
        *thread.lock().unwrap() = Some(other);
        // It is about to begin now, if nothing keeps it from that.
        (0..OFTEN).take_while(|_| !has_begun.load(Ordering::Acquire)).for_each(|_| thread::yield_now());
    });
    assert_eq!(pool.trim(None).unwrap(), 2);
    let (_graphs, captured, memory) = capturing.lock().unwrap().take().unwrap().join().unwrap();
    end_capture(&captured).expect("no handle was destroyed during the capture");
    memory.unwrap().reset();
}

#[test]
fn trim_spares_handles_whose_destruction_would_spoil_a_capture() {
    host!();
    let (pool, captured) = (pool(), stream(0));
    pool.warm(1, device(0)).unwrap();
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        begin_capture(&captured, mode).unwrap();
        assert_eq!(on_thread(move || pool.trim(None)).unwrap(), 0);
        assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Active);
        end_capture(&captured).unwrap();
    }
    assert_eq!(pool.trim(None).unwrap(), 1);
}

#[test]
fn out_of_memory_spares_them_too() {
    host!();
    let (holder, needy, captured) = (pool(), pool(), stream(0));
    // Room for one, beside what handles that could not be destroyed still take.
    set_handle_bytes(MEMORY / 4 * 3);
    holder.warm(1, device(0)).unwrap();
    begin_capture(&captured, CaptureMode::Global).unwrap();
    let error = needy.handle(&captured).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
    end_capture(&captured).unwrap();
    assert_eq!(holder.trim(None).unwrap(), 1);
}

#[test]
fn a_handle_that_cannot_be_destroyed_keeps_no_other_from_it() {
    host!();
    let pool = pool();
    pool.warm(3, device(0)).unwrap();
    inject(Fault { call: Call::HandleDestroy, kind: StatusKind::Other, after: 1, times: 1 });
    let error = pool.trim(None).unwrap_err();
    assert!(error.to_string().contains("HandleDestroy failed with HOST_ERROR_INJECTED (999) on device 0"), "{error}");
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.created, stats.destroyed, stats.idle, stats.failures), (3, 3, 0, 1));
}

#[test]
fn a_trim_that_cannot_start_loses_no_handle() {
    host!();
    let pool = pool();
    pool.warm(2, device(1)).unwrap();
    for call in [Call::Bind, Call::ExchangeCaptureMode, Call::StreamCaptureStatus] {
        inject(Fault { call, kind: StatusKind::Other, after: 0, times: 1 });
        assert!(pool.trim(None).is_err(), "{call:?}");
        assert_eq!(pool.stats(None).unwrap().idle, 2, "{call:?}");
    }
    assert_eq!(pool.trim(None).unwrap(), 2);
}

#[test]
fn a_closed_pool_gives_out_nothing_and_takes_everything_back() {
    host!();
    let (pool, stream_here) = (pool(), stream(0));
    let (here, there) = (stream_here.clone(), stream_here.clone());
    let (closed, wait) = std::sync::mpsc::channel::<()>();
    let (started, is_held) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        pool.handle(&there).map(drop).unwrap();
        started.send(()).unwrap();
        wait.recv().unwrap();
        pool.handle(&there).is_err()
    });
    is_held.recv().unwrap();
    pool.handle(&here).unwrap();
    assert_eq!(pool.close().unwrap(), 1);
    let error = pool.handle(&here).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
    assert!(pool.warm(1, device(0)).is_err());
    closed.send(()).unwrap();
    assert!(other.join().unwrap());
    assert_eq!(pool.trim(None).unwrap(), 1);
    assert_none_lost(pool.stats(None).unwrap());
}

#[test]
fn a_shared_pool_cannot_be_closed() {
    host!();
    assert!(matches!(Simulated::pool().close().unwrap_err().kind(), ErrorKind::InvalidValue(_)));
    assert!(Simulated::pool().is_available());
}

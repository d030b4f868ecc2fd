//! The miss path: creation, its failures, and what it leaves as it was.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::common::{MEMORY, assert_none_lost, device, handle_pool as pool, on_thread, stream};
use gpupool::library::simulated::set_handle_bytes;
use gpupool::library::{Library, RawHandle};
use gpupool::runtime::host::{Call, Fault, begin_capture, clear_faults, end_capture, inject, submit};
use gpupool::{
    CaptureMode, CaptureStatus, Device, ErrorKind, HandlePool, Result, StatusKind, Stream, Wanted, empty_cache,
};

#[test]
fn a_fault_at_any_call_is_an_error_or_harmless_and_loses_no_handle() {
    host!();
    let stream = stream(0);
    for call in Call::ALL {
        for kind in [StatusKind::OutOfMemory, StatusKind::NotInitialized, StatusKind::Other] {
            for after in 0..3 {
                // Dropped handles would stay with this thread, so each round takes its handle on one of its own.
                let (pool, stream) = (pool_of_this_round(), stream.clone());
                inject(Fault { call, kind, after, times: 1 });
                let failed = on_thread(move || match pool.handle(&stream) {
                    Ok(_) => pool.handle(&stream).is_err(),
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::Library(_) | ErrorKind::OutOfMemory(_)), "{error}");
                        true
                    }
                });
                clear_faults();
                let stats = pool.stats(None).unwrap();
                assert_none_lost(stats);
                assert_eq!(stats.held, 0);
                assert!(!failed || stats.failures > 0, "{call:?} {kind:?} {after}: {stats:?}");
                let usable = stream_again(pool);
                assert!(usable, "{call:?} {kind:?} {after}");
                pool.trim(None).unwrap();
            }
        }
    }
}

/// One pool serves every round: a process can have 256, and there are more rounds than that.
fn pool_of_this_round() -> HandlePool {
    static POOL: Mutex<Option<HandlePool>> = Mutex::new(None);
    *POOL.lock().unwrap().get_or_insert_with(pool)
}

fn stream_again(pool: HandlePool) -> bool {
    on_thread(move || pool.handle(&stream(0)).is_ok())
}

#[test]
fn creation_spoils_no_capture_and_leaves_device_and_mode_as_they_were() {
    host!();
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let captured = stream(0);
        begin_capture(&captured, mode).unwrap();
        // A first handle on the capturing thread, on its stream, and on another thread.
        let pool = pool();
        pool.handle(&captured).unwrap();
        on_thread(move || pool.handle(&stream(1)).map(drop).unwrap());
        assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Active);
        assert_eq!(gpupool::runtime::get().unwrap().current_device().unwrap(), device(0));
        end_capture(&captured).unwrap();
    }
}

#[test]
fn the_current_device_stays_what_it_was() {
    host!();
    let current = || gpupool::runtime::get().unwrap().current_device().unwrap();
    let (pool, there) = (pool(), stream(1));
    pool.handle(&there).unwrap();
    assert_eq!(current(), device(0));
    let here = stream(0);
    let _scope = there.enter().unwrap();
    pool.handle(&here).unwrap();
    pool.warm(1, device(0)).unwrap();
    pool.trim(None).unwrap();
    assert_eq!(current(), device(1));
}

#[test]
fn out_of_memory_destroys_idle_handles_of_every_pool_and_tries_again() {
    host!();
    // Not all of the memory: threads of other tests that are just ending may hold a little.
    let bytes = MEMORY / 8 * 3;
    set_handle_bytes(bytes);
    let (hoarder, needy) = (pool(), pool());
    assert_eq!(hoarder.warm(2, device(0)).unwrap(), 2);
    let stream = stream(0);
    needy.handle(&stream).unwrap();
    let stats = hoarder.stats(None).unwrap();
    assert_eq!((stats.idle, stats.destroyed), (0, 2));
    assert_eq!(needy.stats(None).unwrap().device_bytes, bytes);
    needy.close().unwrap();
}

#[test]
fn out_of_memory_gives_the_allocators_free_memory_back_and_tries_again() {
    host!();
    let (needy, stream) = (pool(), stream(0));
    let held = gpupool::empty(MEMORY / 4, &stream).unwrap();
    // Freed while the stream is at work, so that it has to be waited for.
    let freed = gpupool::empty(MEMORY / 2, &stream).unwrap();
    submit(&stream).unwrap();
    drop(freed);
    set_handle_bytes(MEMORY / 2);
    needy.handle(&stream).unwrap();
    drop(held);
    needy.close().unwrap();
    empty_cache().unwrap();
}

#[test]
fn out_of_memory_for_good_says_what_is_needed_and_who_holds_it() {
    host!();
    let bytes = MEMORY / 4 * 3;
    set_handle_bytes(bytes);
    let (holder, needy) = (pool(), pool());
    let stream = stream(0);
    holder.handle(&stream).unwrap();
    let error = needy.handle(&stream).unwrap_err();
    let ErrorKind::OutOfMemory(out) = error.kind() else { panic!("{error}") };
    assert_eq!((out.location, out.total), (device(0).into(), MEMORY));
    assert!(out.free <= MEMORY - bytes, "{}", out.free);
    assert_eq!(out.wanted, Wanted::Handle(bytes));
    let held = gpupool::MemoryUse { pool: "simulated".to_owned(), count: 1, bytes, live_bytes: None };
    assert!(out.users.contains(&held), "{:?}", out.users);
    assert!(error.to_string().contains("HOST_ERROR_OUT_OF_MEMORY"), "{error}");
    holder.close().unwrap();
    needy.handle(&stream).unwrap();
    needy.close().unwrap();
}

#[test]
fn not_initialized_counts_as_out_of_memory_only_where_memory_is_short() {
    host!();
    let fault = Fault { call: Call::HandleCreate, kind: StatusKind::NotInitialized, after: 0, times: 1 };
    let (pool, stream) = (pool(), stream(0));
    inject(fault);
    let error = pool.handle(&stream).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Library(refused) if refused.location == Some(device(0).into())),
        "{error}"
    );
    set_handle_bytes(MEMORY + 1);
    inject(Fault { times: 2, ..fault });
    assert!(matches!(pool.handle(&stream).unwrap_err().kind(), ErrorKind::OutOfMemory(_)));
}

/// How long a test waits for what must come, before it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A library whose creations wait until a test lets them go on.
struct Gated {
    arrived: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
}

impl Library for Gated {
    fn name(&self) -> &str {
        "gated"
    }

    fn create(&self, _device: Device) -> Result<RawHandle> {
        self.arrived.lock().unwrap().send(()).unwrap();
        self.go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        // SAFETY: the handle is a box of this library's own, which `destroy` takes back.
        Ok(unsafe { RawHandle::from_ptr(NonNull::from(Box::leak(Box::new(0_u64))).cast()) })
    }

    fn destroy(&self, handle: RawHandle) -> Result<()> {
        // SAFETY: `create` leaked this box for this handle.
        drop(unsafe { Box::from_raw(handle.as_ptr().cast::<u64>()) });
        Ok(())
    }

    fn set_stream(&self, _handle: &RawHandle, _stream: &Stream) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_slow_creation_keeps_nobody_from_an_idle_handle() {
    host!();
    let ((arrived, arrivals), (release, go_on)) = (channel(), channel());
    let pool = HandlePool::new(Gated { arrived: Mutex::new(arrived), go_on: Mutex::new(go_on) }).unwrap();
    release.send(()).unwrap();
    on_thread(move || pool.handle(&stream(0)).map(drop).unwrap());
    arrivals.recv_timeout(PATIENCE).unwrap();
    // One handle is idle. This thread takes it, so the next one has to create, and waits in the library.
    let stream_here = stream(0);
    pool.handle(&stream_here).unwrap();
    let slow = thread::spawn(move || pool.handle(&stream(0)).map(drop).unwrap());
    arrivals.recv_timeout(PATIENCE).unwrap();
    // Meanwhile hits, statistics, trims and hand-overs go on.
    pool.handle(&stream_here).unwrap();
    assert_eq!(pool.stats(None).unwrap().held, 1);
    assert_eq!(pool.trim(None).unwrap(), 0);
    release.send(()).unwrap();
    slow.join().unwrap();
    let stats = pool.stats(None).unwrap();
    assert_none_lost(stats);
    assert_eq!((stats.created, stats.idle, stats.held), (2, 1, 1));
}

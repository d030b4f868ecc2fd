//! A thread's handles: its own until it ends, and the next thread's after that.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;

use crate::common::{assert_none_lost, device, handle_pool as pool, on_thread, stream};
use gpupool::library::simulated::stream_of;
use gpupool::library::{Library, RawHandle};
use gpupool::{Device, ErrorKind, HandlePool, Pooled, Result, Simulated, Stream, handle};

fn address(pool: HandlePool, stream: &Stream) -> usize {
    pool.handle(stream).expect("a handle").as_ptr().addr()
}

#[test]
fn a_thread_gets_the_same_handle_again() {
    host!();
    let (pool, first, second) = (pool(), stream(0), stream(0));
    assert_eq!(address(pool, &first), address(pool, &second));
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.created, stats.held, stats.idle, stats.hits, stats.misses), (1, 1, 0, 1, 1));
}

#[test]
fn a_pool_is_found_by_its_type() {
    host!();
    let stream = stream(0);
    assert_eq!(handle::<Simulated>(&stream).unwrap().as_ptr(), Simulated::pool().handle(&stream).unwrap().as_ptr());
}

#[test]
fn threads_that_live_at_once_get_different_handles() {
    host!();
    let (pool, barrier) = (pool(), Arc::new(Barrier::new(8)));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                let address = address(pool, &stream(0));
                barrier.wait();
                address
            })
        })
        .collect();
    let mut addresses: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 8);
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.created, stats.held, stats.idle), (8, 0, 8));
}

#[test]
fn an_ended_threads_handle_serves_the_next() {
    host!();
    let pool = pool();
    let first = on_thread(move || address(pool, &stream(0)));
    for _ in 0..100 {
        assert_eq!(on_thread(move || address(pool, &stream(0))), first);
    }
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.created, stats.hand_overs, stats.idle), (1, 100, 1));
}

#[test]
fn each_device_has_its_own_handle() {
    host!();
    let (pool, zero, one) = (pool(), stream(0), stream(1));
    let on_zero = address(pool, &zero);
    let on_one = address(pool, &one);
    assert_ne!(on_zero, on_one);
    assert_eq!((address(pool, &zero), address(pool, &one)), (on_zero, on_one));
    assert_eq!(pool.stats(Some(device(1))).unwrap().created, 1);
    assert_eq!(pool.stats(None).unwrap().created, 2);
}

#[test]
fn the_stream_is_right_on_every_checkout() {
    host!();
    let (pool, first, second) = (pool(), stream(0), stream(0));
    for stream in
        [&first, &second, &second, &first, &Stream::legacy(device(0)).unwrap(), &Stream::per_thread(device(0)).unwrap()]
    {
        let handle = pool.handle(stream).unwrap().as_ptr();
        // SAFETY: the pool just gave the handle, and this thread holds it.
        assert_eq!(unsafe { stream_of(handle) }, stream.raw().address());
    }
}

#[test]
fn an_idle_handle_that_last_ran_on_the_stream_comes_first() {
    host!();
    let pool = pool();
    let streams: Vec<_> = (0..3).map(|_| stream(0)).collect();
    let barrier = Arc::new(Barrier::new(3));
    let threads: Vec<_> = streams
        .iter()
        .cloned()
        .map(|stream| {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                let address = address(pool, &stream);
                barrier.wait();
                address
            })
        })
        .collect();
    let addresses: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (stream, expected) in streams.iter().zip(addresses).rev() {
        let stream = stream.clone();
        assert_eq!(on_thread(move || address(pool, &stream)), expected);
    }
}

/// Asks for a handle when it is dropped.
struct AsksWhenDropped(HandlePool, Stream);

impl Drop for AsksWhenDropped {
    fn drop(&mut self) {
        let error = self.0.handle(&self.1).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
    }
}

thread_local! {
    static LATE: RefCell<Option<AsksWhenDropped>> = const { RefCell::new(None) };
}

#[test]
fn a_request_after_the_window_is_gone_is_an_error_and_loses_no_handle() {
    host!();
    let pool = pool();
    on_thread(move || {
        let stream = stream(0);
        // Thread-locals end in the reverse order of their first use, so the window ends before this one.
        LATE.with(|late| late.replace(Some(AsksWhenDropped(pool, stream.clone()))));
        address(pool, &stream);
    });
    let stats = pool.stats(None).unwrap();
    assert_none_lost(stats);
    assert_eq!((stats.created, stats.idle), (1, 1));
}

#[test]
fn a_device_that_does_not_exist_is_an_error() {
    host!();
    let pool = pool();
    let error = Stream::legacy(device(2)).unwrap_err();
    assert!(error.to_string().contains("there is no device 2: this process sees 2"), "{error}");
    assert!(gpupool::device(-1).is_err() && gpupool::device(i64::MAX).is_err());
    assert_eq!(pool.stats(None).unwrap().created, 0);
}

/// A library that asks a pool for a handle as a stream is set, once it is told which.
struct Asking(Arc<OnceLock<HandlePool>>);

impl Library for Asking {
    fn name(&self) -> &str {
        "asking"
    }

    fn create(&self, _device: Device) -> Result<RawHandle> {
        // SAFETY: the box is leaked for this handle.
        Ok(unsafe { RawHandle::from_ptr(NonNull::from(Box::leak(Box::new(0_u64))).cast()) })
    }

    fn destroy(&self, _handle: RawHandle) -> Result<()> {
        Ok(())
    }

    fn set_stream(&self, _handle: &RawHandle, stream: &Stream) -> Result<()> {
        self.0.get().map_or(Ok(()), |asked| asked.handle(stream).map(drop))
    }
}

#[test]
fn a_set_stream_may_ask_another_pool_for_its_first_handle() {
    host!();
    let (asked, stream, other) = (Arc::new(OnceLock::new()), stream(0), pool());
    let asking = HandlePool::new(Asking(Arc::clone(&asked))).unwrap();
    let handle = address(asking, &stream);
    asked.set(other).unwrap();
    // In the midst of a hit.
    assert_eq!(address(asking, &stream), handle);
    let stats = other.stats(None).unwrap();
    assert_eq!((stats.created, stats.held), (1, 1));
    // In the midst of a miss.
    let theirs = stream.clone();
    on_thread(move || address(asking, &theirs));
    assert_eq!(other.stats(None).unwrap().created, 2);
    for pool in [asking, other] {
        assert_none_lost(pool.stats(None).unwrap());
    }
}

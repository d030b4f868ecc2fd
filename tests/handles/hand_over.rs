//! What hand-over does with a handle that cannot be set back for the next owner.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::common::{assert_none_lost, device, on_thread, stream};
use gpupool::library::{Library, RawHandle};
use gpupool::runtime::host::{Call, Fault, complete, complete_all, create_stream, inject, replace_stream, submit};
use gpupool::{Device, ErrorKind, HandlePool, Lease, LibraryError, Result, StatusKind, Stream};

/// A library whose handles are set back, or refuse to be: now, or ever again.
struct Stubborn {
    keeps_scratch: bool,
}

const WILLING: u8 = 0;
const REFUSES: u8 = 1;
const REFUSES_EVER_AFTER: u8 = 2;

fn state(handle: *mut c_void) -> &'static AtomicU8 {
    // SAFETY: it is the address of a box that this library never frees.
    unsafe { &*handle.cast::<AtomicU8>() }
}

impl Library for Stubborn {
    fn name(&self) -> &str {
        "stubborn"
    }

    fn create(&self, _device: Device) -> Result<RawHandle> {
        // SAFETY: the box is leaked for this handle.
        Ok(unsafe { RawHandle::from_ptr(NonNull::from(Box::leak(Box::new(AtomicU8::new(WILLING)))).cast()) })
    }

    fn destroy(&self, _handle: RawHandle) -> Result<()> {
        Ok(())
    }

    fn set_stream(&self, _handle: &RawHandle, _stream: &Stream) -> Result<()> {
        Ok(())
    }

    fn reset(&self, handle: &RawHandle) -> Result<()> {
        if state(handle.as_ptr()).load(Ordering::Relaxed) == WILLING {
            return Ok(());
        }
        Err(ErrorKind::Library(LibraryError {
            library: "stubborn".into(),
            function: "reset".into(),
            status: "BUSY".into(),
            code: 4,
            kind: StatusKind::Other,
            location: None,
            path: None,
            advice: None,
            cause: None,
        })
        .into())
    }

    fn cannot_be_reset(&self, handle: &RawHandle) -> bool {
        state(handle.as_ptr()).load(Ordering::Relaxed) == REFUSES_EVER_AFTER
    }

    fn keeps_scratch(&self) -> bool {
        self.keeps_scratch
    }
}

/// Ends a lease whose handle is in this state, and returns its address.
fn end(lease: Lease, with: u8) -> usize {
    state(lease.as_ptr()).store(with, Ordering::Relaxed);
    lease.as_ptr().expose_provenance()
}

#[test]
fn a_handle_that_never_can_be_is_given_up_and_the_request_served() {
    host!();
    for keeps_scratch in [false, true] {
        let (pool, first, second) = (HandlePool::new(Stubborn { keeps_scratch }).unwrap(), stream(0), stream(0));
        // At the limit, so that the room of the one is needed for the other.
        pool.set_limit(Some(1)).unwrap();
        let given_up = end(pool.lease(&first).unwrap(), REFUSES_EVER_AFTER);
        assert_ne!(pool.lease(&first).unwrap().as_ptr().addr(), given_up, "on the same stream");
        let given_up = end(pool.lease(&first).unwrap(), REFUSES_EVER_AFTER);
        assert_ne!(pool.lease(&second).unwrap().as_ptr().addr(), given_up, "on another stream");
        let given_up = end(pool.lease(&first).unwrap(), REFUSES_EVER_AFTER);
        let had = on_thread(move || pool.handle(&first).unwrap().as_ptr().addr());
        assert_ne!(had, given_up, "in another thread");
        let stats = pool.stats(None).unwrap();
        assert_none_lost(stats);
        assert_eq!((stats.created, stats.discarded, stats.idle, stats.failures), (4, 3, 1, 0), "{stats:?}");
        assert_eq!(pool.trim(None).unwrap(), 4);
        pool.close().unwrap();
    }
}

#[test]
fn any_other_refusal_is_the_request_s_error_and_leaves_the_handle() {
    host!();
    for keeps_scratch in [false, true] {
        let (pool, first, second) = (HandlePool::new(Stubborn { keeps_scratch }).unwrap(), stream(0), stream(0));
        let handle = end(pool.lease(&first).unwrap(), REFUSES);
        for stream in [&first, &second] {
            let error = pool.lease(stream).unwrap_err();
            assert!(error.to_string().contains("stubborn: reset failed with BUSY (4) on device 0"), "{error}");
        }
        state(std::ptr::with_exposed_provenance_mut(handle)).store(WILLING, Ordering::Relaxed);
        assert_eq!(pool.lease(&second).unwrap().as_ptr().addr(), handle);
        let stats = pool.stats(None).unwrap();
        assert_none_lost(stats);
        assert_eq!((stats.created, stats.discarded, stats.idle, stats.failures), (1, 0, 1, 2), "{stats:?}");
        pool.close().unwrap();
    }
}

#[test]
fn a_driver_without_events_of_the_device_is_waited_for() {
    host!();
    inject(Fault { call: Call::EventRecordContext, kind: StatusKind::NotSupported, after: 0, times: u32::MAX });
    let pool = HandlePool::new(Stubborn { keeps_scratch: true }).unwrap();
    pool.set_limit(Some(1)).unwrap();
    let raw = create_stream(device(0)).unwrap();
    // SAFETY: the stream is never destroyed.
    let foreign = unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap();
    let handle = end(pool.lease(&foreign).unwrap(), WILLING);
    submit(&foreign).unwrap();
    // The only handle there may be, whose scratch memory the foreign stream's work uses.
    assert_eq!(pool.lease(&stream(0)).unwrap().as_ptr().addr(), handle);
    assert!(foreign.query().unwrap(), "the handle's former work may still be under way");
}

#[test]
fn the_work_of_a_former_stream_whose_address_another_of_gpupool_s_has_is_waited_for() {
    host!();
    let pool = HandlePool::new(Stubborn { keeps_scratch: true }).unwrap();
    pool.set_limit(Some(1)).unwrap();
    let (former, next) = (stream(0), stream(0));
    let handle = end(pool.lease(&former).unwrap(), WILLING);
    submit(&former).unwrap();
    // What a clone has from now on is a new stream.
    replace_stream(former.raw(), device(0)).unwrap();
    assert_eq!(end(pool.lease(&next).unwrap(), WILLING), handle);
    submit(&next).unwrap();
    complete(&next, 1).unwrap();
    assert!(!next.query().unwrap(), "the next stream's work is done beside the former's");
    complete_all().unwrap();
    assert!(next.query().unwrap());
}

#[test]
fn a_per_thread_default_stream_waits_for_that_of_another_thread_and_not_for_itself() {
    host!();
    let pool = HandlePool::new(Stubborn { keeps_scratch: true }).unwrap();
    pool.set_limit(Some(1)).unwrap();
    let lease = move || {
        let own = Stream::per_thread(device(0)).unwrap();
        let handle = end(pool.lease(&own).unwrap(), WILLING);
        submit(&own).unwrap();
        complete(&own, 1).unwrap();
        (handle, own.query().unwrap())
    };
    let own = Stream::per_thread(device(0)).unwrap();
    let handle = end(pool.lease(&own).unwrap(), WILLING);
    submit(&own).unwrap();
    let calls = pool.stats(None).unwrap().hits;
    assert_eq!(end(pool.lease(&own).unwrap(), WILLING), handle);
    assert_eq!(pool.stats(None).unwrap().hits, calls + 1, "it is a hit");
    assert_eq!(on_thread(lease), (handle, false), "another thread's work is done beside this one's");
    complete_all().unwrap();
}

#[test]
fn a_new_stream_at_the_address_of_the_former_waits_for_its_work() {
    host!();
    let pool = HandlePool::new(Stubborn { keeps_scratch: true }).unwrap();
    pool.set_limit(Some(1)).unwrap();
    let raw = create_stream(device(0)).unwrap();
    // SAFETY: the stream is destroyed by `replace_stream` alone.
    let stream = || unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap();
    let handle = end(pool.lease(&stream()).unwrap(), WILLING);
    submit(&stream()).unwrap();
    assert_eq!(end(pool.lease(&stream()).unwrap(), WILLING), handle);
    assert!(!stream().query().unwrap(), "a handle waits for its own stream");
    replace_stream(raw, device(0)).unwrap();
    assert_eq!(end(pool.lease(&stream()).unwrap(), WILLING), handle);
    submit(&stream()).unwrap();
    complete(&stream(), 1).unwrap();
    assert!(!stream().query().unwrap(), "the new stream's work is done beside the former's");
    complete_all().unwrap();
    assert!(stream().query().unwrap());
}

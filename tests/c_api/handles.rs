//! Handles of libraries as a C program gets them: this thread's, leases, counts, and what it is told when a call fails.

use std::ffi::{c_int, c_void};
use std::ptr::{self, null_mut};
use std::sync::mpsc::channel;
use std::thread;

use crate::common::c_pools::{DRIVER, INVALID_VALUE, OUT_OF_MEMORY, UNAVAILABLE, failed, last_error, succeeded};
use crate::common::{MEMORY, assert_none_lost, device, on_thread, stream, wait_until};
use gpupool::c_api::{C_API, HandleCounts, HandleLease};
use gpupool::library::simulated::{set_handle_bytes, stream_of};
use gpupool::runtime::host::{Call, Fault, clear_faults, inject};
use gpupool::{
    Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, CusparseLt, Custatevec, Cutensor, Cutensornet, Hipblas,
    HipblasLt, Hipsolver, Hipsparse, Miopen, Pooled, Simulated, StatusKind, Stream,
};

/// `GPUPOOL_CUBLAS`, `GPUPOOL_SIMULATED` and, of ROCm's, `GPUPOOL_HIPBLAS`.
pub(crate) const CUBLAS: c_int = 3;
pub(crate) const SIMULATED: c_int = 7;
const HIPBLAS: c_int = 8;
const FORKED: c_int = 4;
const EXHAUSTED: c_int = 7;
/// No end of a wait, or no limit.
const NONE: u64 = u64::MAX;

pub(crate) const NO_LEASE: HandleLease = HandleLease { handle: null_mut(), pooled: null_mut(), library: 0, device: 0 };

/// A handle's address. Any thread may know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Address(usize);

fn try_handle(library: c_int, ordinal: c_int, stream: &Stream) -> Result<*mut c_void, c_int> {
    let mut handle = ptr::dangling_mut();
    // SAFETY: the stream is alive and of the device, and the place is one for a pointer.
    match unsafe { (C_API.handle)(library, ordinal, stream.raw().as_ptr(), &raw mut handle) } {
        0 => Ok(handle),
        status => {
            assert!(handle.is_null(), "a handle of no request");
            Err(status)
        }
    }
}

#[track_caller]
fn handle(stream: &Stream) -> *mut c_void {
    let ordinal = stream.device().ordinal() as c_int;
    try_handle(SIMULATED, ordinal, stream).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
}

fn try_lease(stream: &Stream, timeout_ms: u64) -> Result<HandleLease, c_int> {
    let mut lease = HandleLease { handle: ptr::dangling_mut(), ..NO_LEASE };
    let ordinal = stream.device().ordinal() as c_int;
    // SAFETY: the stream is alive and of the device, and the place is one for a lease.
    match unsafe { (C_API.lease)(SIMULATED, ordinal, stream.raw().as_ptr(), timeout_ms, &raw mut lease) } {
        0 => Ok(lease),
        status => {
            assert!(lease.handle.is_null() && lease.pooled.is_null(), "{lease:?} of no request");
            Err(status)
        }
    }
}

#[track_caller]
fn lease(stream: &Stream) -> HandleLease {
    try_lease(stream, NONE).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
}

#[track_caller]
fn release(lease: &mut HandleLease) {
    // SAFETY: the lease is the caller's, and its only copy in use.
    succeeded(unsafe { (C_API.lease_release)(lease) });
}

fn counts(ordinal: c_int) -> HandleCounts {
    let mut counts = HandleCounts { size: size_of::<HandleCounts>() as u64, ..HandleCounts::default() };
    // SAFETY: the counts say their size.
    succeeded(unsafe { (C_API.handle_stats)(SIMULATED, ordinal, &raw mut counts) });
    counts
}

#[track_caller]
fn trim(ordinal: c_int) -> u64 {
    let mut destroyed = NONE;
    // SAFETY: the place is one for a number.
    succeeded(unsafe { (C_API.trim_handles)(SIMULATED, ordinal, &raw mut destroyed) });
    destroyed
}

fn set_limit(handles: u64) {
    // SAFETY: it takes numbers.
    succeeded(unsafe { (C_API.set_handle_limit)(SIMULATED, handles) });
}

/// Returns the stream that the library would use.
fn stream_set_on(handle: *mut c_void) -> usize {
    // SAFETY: the handle is one of the simulated library's, held by the caller.
    unsafe { stream_of(handle) }
}

#[test]
fn a_thread_has_one_handle_for_a_device_with_the_stream_that_it_asks_for() {
    host!();
    let (first, second, there) = (stream(0), stream(0), stream(1));
    let own = handle(&first);
    assert_eq!(stream_set_on(own), first.raw().address());
    assert_eq!((handle(&second), stream_set_on(own)), (own, second.raw().address()));
    let other = handle(&there);
    assert_ne!(other, own);
    // The default stream, and one whose device gpupool finds out.
    // SAFETY: the legacy default stream is always alive.
    let legacy = unsafe { Stream::from_raw_on(null_mut(), device(0)) }.unwrap();
    assert_eq!((handle(&legacy), stream_set_on(own)), (own, 0));
    assert_eq!(try_handle(SIMULATED, -1, &there), Ok(other));
    // It is Rust's, too.
    assert_eq!(gpupool::handle::<Simulated>(&first).unwrap().as_ptr(), own);
    let counts = counts(-1);
    assert_eq!((counts.created, counts.held, counts.misses, counts.hits), (2, 2, 2, 4));
}

#[test]
fn a_lease_is_its_holders_until_it_ends_on_any_thread() {
    host!();
    let (stream, other) = (stream(0), stream(0));
    let mut first = lease(&stream);
    assert_eq!(stream_set_on(first.handle), stream.raw().address());
    assert_eq!((first.library, first.device), (SIMULATED, 0));
    let mut second = lease(&other);
    assert_ne!(first.handle, second.handle);
    assert_ne!(handle(&stream), first.handle);
    assert_eq!((counts(0).leased, counts(0).held), (2, 1));
    let address = first.handle;
    release(&mut first);
    assert!(first.handle.is_null() && first.pooled.is_null(), "{first:?}");
    // The next lease gets it, on its own stream.
    let mut again = lease(&other);
    assert_eq!((again.handle, stream_set_on(address)), (address, other.raw().address()));
    release(&mut again);
    let (pooled, leased) = (Address(second.pooled.expose_provenance()), Address(second.handle.addr()));
    on_thread(move || {
        let handle = ptr::without_provenance_mut(leased.0);
        let mut moved =
            HandleLease { handle, pooled: ptr::with_exposed_provenance_mut(pooled.0), library: SIMULATED, device: 0 };
        release(&mut moved);
    });
    second = NO_LEASE;
    // SAFETY: a lease that has ended, or never begun, is refused.
    failed(unsafe { (C_API.lease_release)(&raw mut second) }, INVALID_VALUE, &["lease has ended", "once"]);
    assert_eq!((counts(0).leased, counts(0).created), (0, 3));
    assert_none_lost(Simulated::pool().stats(None).unwrap());
}

#[test]
fn a_lease_ends_once() {
    host!();
    let mut once = lease(&stream(0));
    release(&mut once);
    for _ in 0..2 {
        // SAFETY: a lease that has ended is refused.
        unsafe {
            failed((C_API.lease_release)(&raw mut once), INVALID_VALUE, &["lease has ended", "once"]);
            failed((C_API.lease_discard)(&raw mut once), INVALID_VALUE, &["lease has ended", "once"]);
        }
    }
    assert_eq!((counts(0).idle, counts(0).leased), (1, 0));
}

#[test]
fn nobody_gets_a_discarded_handle_again() {
    host!();
    let stream = stream(0);
    let mut discarded = lease(&stream);
    let address = discarded.handle;
    // SAFETY: the lease is this thread's.
    succeeded(unsafe { (C_API.lease_discard)(&raw mut discarded) });
    assert!(discarded.handle.is_null());
    let mut other = lease(&stream);
    assert_ne!(other.handle, address);
    assert_eq!((counts(0).discarded, counts(0).leased), (1, 1));
    assert_eq!(trim(0), 1);
    release(&mut other);
    assert_eq!((counts(0).discarded, counts(0).destroyed, counts(0).idle), (0, 1, 1));
}

#[test]
fn a_request_over_the_limit_waits_and_says_who_holds_what() {
    host!();
    set_limit(1);
    let stream = stream(0);
    let mut held = lease(&stream);
    let words =
        ["no simulated handle on device 0", "all 1 that the limit allows", "lease of thread", "raise the limit"];
    failed(try_lease(&stream, 0).unwrap_err(), EXHAUSTED, &words);
    failed(try_lease(&stream, 1).unwrap_err(), EXHAUSTED, &words);
    let (waiting, address) = (stream.clone(), Address(held.handle.addr()));
    let next = thread::spawn(move || {
        let mut next = lease(&waiting);
        let found = Address(next.handle.addr());
        release(&mut next);
        found
    });
    wait_until("the request waits", || counts(0).waits == 3);
    release(&mut held);
    assert_eq!(next.join().unwrap(), address);
    set_limit(NONE);
    let (mut first, mut second) = (lease(&stream), lease(&stream));
    release(&mut first);
    release(&mut second);
    assert_eq!(counts(0).created, 2);
}

#[test]
fn handles_are_created_ahead_counted_and_destroyed() {
    host!();
    set_handle_bytes(1 << 20);
    let mut created = NONE;
    // SAFETY: the place is one for a number, or null.
    let mut warm = |ordinal, handles, background, expected| unsafe {
        succeeded((C_API.warm_handles)(SIMULATED, ordinal, handles, background, &raw mut created));
        assert_eq!(created, expected);
        // One more in the background would create them at the same time.
        if background == 0 {
            succeeded((C_API.warm_handles)(SIMULATED, ordinal, handles, 0, null_mut()));
        }
    };
    warm(0, 3, 0, 3);
    warm(1, 2, 1, 0);
    wait_until("the others are created", || counts(1).idle == 2);
    let (here, everywhere) = (counts(0), counts(-1));
    assert_eq!((here.created, here.idle, here.device_bytes), (3, 3, 3 << 20));
    assert_eq!((everywhere.created, everywhere.idle, everywhere.peak_device_bytes), (5, 5, 5 << 20));
    let stats = Simulated::pool().stats(None).unwrap();
    assert_eq!(u128::from(everywhere.create_time), stats.create_time.as_micros());
    let mut held = lease(&stream(0));
    assert_eq!((trim(0), trim(0), trim(-1)), (2, 0, 2));
    assert_eq!((counts(0).peak_device_bytes, counts(0).device_bytes), (3 << 20, 1 << 20));
    // SAFETY: it takes numbers.
    unsafe {
        succeeded((C_API.reset_peak_handle_stats)(SIMULATED, 0));
        assert_eq!((counts(0).peak_device_bytes, counts(1).peak_device_bytes), (1 << 20, 2 << 20));
        succeeded((C_API.reset_peak_handle_stats)(SIMULATED, -1));
        assert_eq!((counts(1).peak_device_bytes, counts(0).peak_in_use), (0, 1));
    }
    release(&mut held);
    // SAFETY: the number of those that are destroyed is not asked for.
    succeeded(unsafe { (C_API.trim_handles)(SIMULATED, -1, null_mut()) });
    assert_none_lost(Simulated::pool().stats(None).unwrap());
}

#[test]
fn an_older_program_gets_the_counts_that_it_knows() {
    host!();
    handle(&stream(0));
    let mut older = HandleCounts { size: 16, destroyed: 77, ..HandleCounts::default() };
    // SAFETY: the counts say how much of them there is.
    succeeded(unsafe { (C_API.handle_stats)(SIMULATED, -1, &raw mut older) });
    assert_eq!((older.size, older.created, older.destroyed), (16, 1, 77));
}

#[test]
fn a_refusal_of_the_library_says_which_call_failed_where() {
    host!();
    let stream = stream(0);
    inject(Fault { call: Call::HandleCreate, kind: StatusKind::Other, after: 0, times: 1 });
    failed(try_handle(SIMULATED, 0, &stream).unwrap_err(), DRIVER, &["simulated", "HOST_ERROR", "device 0"]);
    let own = handle(&stream);
    inject(Fault { call: Call::HandleSetStream, kind: StatusKind::Other, after: 0, times: 1 });
    failed(try_handle(SIMULATED, 0, &stream).unwrap_err(), DRIVER, &["simulated", "HOST_ERROR", "device 0"]);
    assert_eq!(handle(&stream), own);
    inject(Fault { call: Call::HandleSetStream, kind: StatusKind::Other, after: 0, times: 1 });
    failed(try_lease(&stream, 0).unwrap_err(), DRIVER, &["simulated", "device 0"]);
    inject(Fault { call: Call::HandleDestroy, kind: StatusKind::Other, after: 0, times: 1 });
    let mut destroyed = NONE;
    // SAFETY: the places are those for numbers.
    unsafe {
        let status = (C_API.trim_handles)(SIMULATED, -1, &raw mut destroyed);
        failed(status, DRIVER, &["simulated", "device 0"]);
        assert_eq!(destroyed, NONE, "it is as it was where the call fails");
        inject(Fault { call: Call::HandleCreate, kind: StatusKind::Other, after: 1, times: 1 });
        failed((C_API.warm_handles)(SIMULATED, 0, 2, 0, &raw mut destroyed), DRIVER, &["simulated", "device 0"]);
    }
    clear_faults();
    assert_eq!((counts(0).idle, counts(0).failures), (1, 5));
    assert_none_lost(Simulated::pool().stats(None).unwrap());
}

#[test]
fn without_memory_for_a_handle_who_holds_it_is_said() {
    host!();
    set_handle_bytes(MEMORY / 4 * 3);
    let stream = stream(0);
    handle(&stream);
    let words = ["out of memory on device 0", "simulated", "768.0 MiB"];
    failed(try_lease(&stream, 0).unwrap_err(), OUT_OF_MEMORY, &words);
    // SAFETY: the number of those that are created is not asked for.
    failed(unsafe { (C_API.warm_handles)(SIMULATED, 0, 1, 0, null_mut()) }, OUT_OF_MEMORY, &words);
}

#[test]
fn what_is_not_there_is_said_to_be_unavailable() {
    host!();
    let available = |library| {
        let mut is_available = -1;
        // SAFETY: the place is one for a number.
        succeeded(unsafe { (C_API.library_is_available)(library, &raw mut is_available) });
        is_available
    };
    assert_eq!([SIMULATED, CUBLAS, HIPBLAS].map(available), [1, 0, 0]);
    let stream = stream(0);
    for (library, runtime) in [(CUBLAS, "cuda"), (HIPBLAS, "hip")] {
        let mut lease = NO_LEASE;
        let words = [runtime, "GPUPOOL_RUNTIME"];
        failed(try_handle(library, 0, &stream).unwrap_err(), UNAVAILABLE, &words);
        // SAFETY: the stream is alive, and the place one for a lease.
        unsafe {
            let status = (C_API.lease)(library, 0, stream.raw().as_ptr(), 0, &raw mut lease);
            failed(status, UNAVAILABLE, &words);
            failed((C_API.warm_handles)(library, 0, 1, 0, null_mut()), UNAVAILABLE, &words);
        }
    }
}

/// The status of each function in a forked child. None may wait for a lock, which may be held there for ever.
fn statuses(stream: &Stream, own: &mut HandleLease, library: c_int) -> [c_int; 11] {
    let raw = stream.raw().as_ptr();
    let (mut handle, mut lease, mut is_available) = (null_mut(), NO_LEASE, 0);
    let mut counts = HandleCounts { size: size_of::<HandleCounts>() as u64, ..HandleCounts::default() };
    // SAFETY: the stream and the places are alive, and all calls are refused.
    unsafe {
        [
            (C_API.handle)(library, 0, raw, &raw mut handle),
            (C_API.handle)(library, -1, raw, &raw mut handle),
            (C_API.lease)(library, 0, raw, 0, &raw mut lease),
            (C_API.lease_release)(own),
            (C_API.lease_discard)(own),
            (C_API.library_is_available)(library, &raw mut is_available),
            (C_API.handle_stats)(library, -1, &raw mut counts),
            (C_API.reset_peak_handle_stats)(library, -1),
            (C_API.warm_handles)(library, 0, 1, 1, null_mut()),
            (C_API.trim_handles)(library, -1, null_mut()),
            (C_API.set_handle_limit)(library, 3),
        ]
    }
}

#[test]
fn a_forked_child_is_refused_everything() {
    host!();
    let stream = stream(0);
    let own = handle(&stream);
    let mut held = lease(&stream);
    let (told, hears) = channel();
    // Meanwhile another thread takes and returns handles, so that a lock may be held as the process forks.
    let busy = thread::spawn({
        let stream = stream.clone();
        move || {
            while hears.try_recv().is_err() {
                release(&mut lease(&stream));
                trim(0);
            }
        }
    });
    for library in [SIMULATED, -1] {
        // SAFETY: the child makes calls that take no lock, and ends without its parent's destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let statuses = statuses(&stream, &mut held, library);
            let is_right = statuses == [FORKED; 11] && !held.handle.is_null() && last_error().contains("fork");
            // SAFETY: it ends the process at once.
            unsafe { libc::_exit(c_int::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: the child is this process's.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "a forked child was served");
    }
    told.send(()).unwrap();
    busy.join().unwrap();
    assert_eq!(handle(&stream), own);
    release(&mut held);
}

#[test]
fn the_numbers_of_libraries_are_those_of_the_header() {
    const HEADER: &str = include_str!("../../python/gpupool/include/gpupool.h");
    let pools = [
        Cudnn::pool(),
        Cusparse::pool(),
        Cudss::pool(),
        Cublas::pool(),
        CublasLt::pool(),
        Cusolver::pool(),
        Miopen::pool(),
        Simulated::pool(),
        Hipblas::pool(),
        HipblasLt::pool(),
        Hipsolver::pool(),
        Hipsparse::pool(),
        Custatevec::pool(),
        Cutensornet::pool(),
        Cutensor::pool(),
        CusparseLt::pool(),
    ];
    let (_, after) = HEADER.split_once("typedef enum gpupool_library {").unwrap();
    let (numbers, _) = after.split_once('}').unwrap();
    let in_header = numbers.lines().filter_map(|line| line.trim().strip_prefix("GPUPOOL_")?.split_once(" = "));
    let number = |rest: &str| rest.split([',', ' ']).next().unwrap().parse().unwrap();
    let in_header: Vec<(usize, String)> = in_header.map(|(name, rest)| (number(rest), name.to_owned())).collect();
    assert_eq!(in_header, pools.iter().map(|pool| pool.name().to_uppercase()).enumerate().collect::<Vec<_>>());
    // Each number is that of this pool in C, too, and there are no others.
    for (number, pool) in (0..).zip(pools) {
        // SAFETY: it takes numbers, and the limit is taken off again.
        unsafe {
            assert_eq!((C_API.set_handle_limit)(number, 40 + number as u64), 0);
            assert_eq!(pool.limit(), Some(40 + number as usize));
            assert_eq!((C_API.set_handle_limit)(number, u64::MAX), 0);
        }
        assert_eq!(pool.limit(), None);
    }
    // SAFETY: it takes numbers.
    assert_ne!(unsafe { (C_API.set_handle_limit)(16, 1) }, 0);
}

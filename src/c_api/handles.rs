//! Handles of libraries, for C: a thread's own, leases, and the pools that they come from.
//!
//! A library is a number of `gpupool_library`, so that a wrong one is recognised. A thread that holds a handle gets it
//! without a lock, as in Rust.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::header::{self, SizedStruct, c_struct};
use crate::error::{Error, Result};
use crate::handle::{HandlePool, HandleStats, Lease, PooledHandle, handle_counters, pool_of_number};
use crate::ids::Device;
use crate::memory::plug::call::{answer, answer_or_none, count, device_of, one_or_all, place, run, stream_of};
use crate::process;
use crate::runtime::Stream;

/// Returns the pool of a library.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is no such library; `ErrorKind::Forked`.
#[inline]
fn pool_of(library: c_int) -> Result<HandlePool> {
    usize::try_from(library).ok().and_then(pool_of_number).ok_or_else(|| no_library(library))
}

#[cold]
fn no_library(library: c_int) -> Error {
    if let Err(forked) = process::refuse_forked() {
        return forked;
    }
    let known: Vec<_> =
        (0..).map_while(|number| pool_of_number(number).map(|pool| format!("{number} ({})", pool.name()))).collect();
    let known = known.join(", ");
    Error::invalid_value(format!("there is no library {library}: give a gpupool_library, one of {known}"))
}

/// Returns the stream that a caller names; for device -1 on whichever it belongs to. A hit's stays in registers.
///
/// # Safety
/// The stream is alive while it is used, and of the device if one is named, which is looked up where it is used.
///
/// # Errors
/// `ErrorKind::InvalidValue` for another negative number; for -1 as [`Stream::from_raw`].
#[inline(always)]
unsafe fn named_stream(device: c_int, stream: *mut c_void) -> Result<Stream> {
    let device = match u32::try_from(device) {
        Ok(ordinal) => Device::from_ordinal(ordinal),
        // SAFETY: as the caller promises.
        Err(_) => unsafe { device_of_stream(device, stream) }?,
    };
    // SAFETY: as the caller promises; a device that was not named was found by the stream.
    Ok(unsafe { Stream::view_of(stream, device) })
}

/// Returns the device that a stream belongs to, if -1 asks for it.
///
/// # Safety
/// The stream is alive.
///
/// # Errors
/// As [`named_stream`].
#[cold]
#[inline(never)]
unsafe fn device_of_stream(device: c_int, stream: *mut c_void) -> Result<Device> {
    // SAFETY: as the caller promises.
    unsafe { stream_of(device, stream) }.map(|stream| stream.device())
}

pub(super) unsafe extern "C" fn handle(
    library: c_int,
    device: c_int,
    stream: *mut c_void,
    place: *mut *mut c_void,
) -> c_int {
    let request = || {
        let pool = pool_of(library)?;
        // SAFETY: the caller names a stream that is alive, of the device unless that is -1.
        let stream = unsafe { named_stream(device, stream) }?;
        pool.handle(&stream).map(|handle| handle.as_ptr())
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "handle", ptr::null_mut(), request) }
}

pub(super) unsafe extern "C" fn library_is_available(library: c_int, is_available: *mut c_int) -> c_int {
    let ask = || {
        process::refuse_forked()?;
        pool_of(library).map(|pool| c_int::from(pool.is_available()))
    };
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { answer(is_available, "is_available", ask) }
}

pub(super) unsafe extern "C" fn warm_handles(
    library: c_int,
    device: c_int,
    handles: u64,
    background: c_int,
    created: *mut u64,
) -> c_int {
    let warm = || {
        let (pool, device) = (pool_of(library)?, device_of(device)?);
        let handles = usize::try_from(handles).unwrap_or(usize::MAX);
        if background != 0 {
            // The statistics count its failures.
            return pool.warm_in_background(handles, device).map(|_thread| 0);
        }
        pool.warm(handles, device).map(|created| created as u64)
    };
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(created, warm) }
}

pub(super) unsafe extern "C" fn trim_handles(library: c_int, device: c_int, destroyed: *mut u64) -> c_int {
    let trim = || Ok(pool_of(library)?.trim(one_or_all(device)?)? as u64);
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(destroyed, trim) }
}

pub(super) unsafe extern "C" fn set_handle_limit(library: c_int, handles: u64) -> c_int {
    let limit = (handles != u64::MAX).then(|| usize::try_from(handles).unwrap_or(usize::MAX));
    run(|| pool_of(library)?.set_limit(limit))
}

c_struct! {
    /// `gpupool_lease`: a handle that only its holder uses until the lease ends.
    pub struct HandleLease as "gpupool_lease" {
        /// The library's handle; null once the lease has ended.
        pub handle: *mut c_void,
        /// gpupool's own reference to it, owned; null once the lease has ended.
        pub pooled: *mut c_void,
        /// The library's number.
        pub library: c_int,
        /// The device.
        pub device: c_int,
    }
}

impl HandleLease {
    const NONE: Self = Self { handle: ptr::null_mut(), pooled: ptr::null_mut(), library: 0, device: 0 };
}

pub(super) unsafe extern "C" fn lease(
    library: c_int,
    device: c_int,
    stream: *mut c_void,
    timeout_ms: u64,
    place: *mut HandleLease,
) -> c_int {
    let request = || {
        let pool = pool_of(library)?;
        // SAFETY: the caller names a stream that is alive, of the device unless that is -1.
        let stream = unsafe { named_stream(device, stream) }?;
        let lease = pool.lease_within(&stream, Duration::from_millis(timeout_ms))?;
        let (handle, device) = (lease.as_ptr(), lease.device().ordinal() as c_int);
        let pooled = lease.into_pooled().map_or(ptr::null(), Arc::into_raw).cast_mut().cast();
        Ok(HandleLease { handle, pooled, library, device })
    };
    // SAFETY: the caller passes a place for a lease, or null.
    unsafe { answer_or_none(place, "lease", HandleLease::NONE, request) }
}

/// Takes the lease out of the caller's struct.
///
/// # Safety
/// The struct is one that [`lease`] filled or all zero, and no other has the same lease; or it is null.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none in it, or the caller has changed its library.
unsafe fn take(lease: *mut HandleLease) -> Result<Lease> {
    // SAFETY: as the caller promises.
    let lease = unsafe { place(lease, "lease") }?;
    if lease.pooled.is_null() {
        return Err(Error::invalid_value(
            "the lease has ended already, or was never begun; end each lease once, by lease_release or lease_discard",
        ));
    }
    pool_of(lease.library)?;
    let pooled = std::mem::replace(lease, HandleLease::NONE).pooled.cast::<PooledHandle>().cast_const();
    // SAFETY: the struct owned the reference that `lease` made by `Arc::into_raw`, and was just cleared.
    Ok(Lease::of(unsafe { Arc::from_raw(pooled) }))
}

pub(super) unsafe extern "C" fn lease_release(lease: *mut HandleLease) -> c_int {
    // SAFETY: the caller passes a lease that it began and has not copied, or null.
    run(|| unsafe { take(lease) }.map(drop))
}

pub(super) unsafe extern "C" fn lease_discard(lease: *mut HandleLease) -> c_int {
    // SAFETY: the caller passes a lease that it began and has not copied, or null.
    run(|| unsafe { take(lease) }.map(Lease::discard))
}

/// A counter as C has it: a number, microseconds if it is a time.
trait Count {
    fn count(self) -> u64;
}

impl Count for u64 {
    fn count(self) -> u64 {
        self
    }
}

impl Count for Duration {
    fn count(self) -> u64 {
        u64::try_from(self.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Makes C's struct of the counters of [`HandleStats`].
macro_rules! handle_counts {
    ([$($counter:ident as $shown:ident,)*]) => {
        c_struct! {
            /// `gpupool_handle_stats`: [`HandleStats`], with times in microseconds.
            #[derive(Default)]
            #[expect(missing_docs, reason = "they are those of HandleStats")]
            pub struct HandleCounts as "gpupool_handle_stats" {
                pub size: u64,
                $(pub $counter: u64,)*
            }
        }

        impl From<HandleStats> for HandleCounts {
            fn from(stats: HandleStats) -> Self {
                Self { size: size_of::<Self>() as u64, $($counter: stats.$counter.count(),)* }
            }
        }
    };
}

handle_counters! { handle_counts! {} }

// SAFETY: numbers alone, the size first.
unsafe impl SizedStruct for HandleCounts {}

pub(super) unsafe extern "C" fn handle_stats(library: c_int, device: c_int, stats: *mut HandleCounts) -> c_int {
    run(|| {
        let counts = pool_of(library)?.stats(one_or_all(device)?)?;
        // SAFETY: the caller passes counts of its version, whose size it has set, or null.
        unsafe { header::write(stats, counts.into()) }
    })
}

pub(super) unsafe extern "C" fn reset_peak_handle_stats(library: c_int, device: c_int) -> c_int {
    run(|| pool_of(library)?.reset_peak_stats(one_or_all(device)?))
}

//! Leases, for C: a struct of the caller's holds one, so that beginning and ending it allocates nothing.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::super::header::c_struct;
use super::{named_stream, pool_of};
use crate::error::{Error, Result};
use crate::handle::{Lease, PooledHandle};
use crate::ids::Device;
use crate::memory::plug::call::{answer_or_none, place, run};

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

pub(in super::super) unsafe extern "C" fn lease(
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
/// `ErrorKind::InvalidValue` if there is none in it, or the caller has changed its library or device.
unsafe fn take(lease: *mut HandleLease) -> Result<Lease> {
    // SAFETY: as the caller promises.
    let lease = unsafe { place(lease, "lease") }?;
    if lease.pooled.is_null() {
        return Err(Error::invalid_value(
            "the lease has ended already, or was never begun; end each lease once, by lease_release or lease_discard",
        ));
    }
    let (pool, device) = (pool_of(lease.library)?, Device::from_ordinal(lease.device.cast_unsigned()));
    let pooled = std::mem::replace(lease, HandleLease::NONE).pooled.cast::<PooledHandle>().cast_const();
    // SAFETY: the struct owned the reference that `lease` made by `Arc::into_raw`, and was just cleared.
    Ok(pool.lease_of(device, unsafe { Arc::from_raw(pooled) }))
}

pub(in super::super) unsafe extern "C" fn lease_release(lease: *mut HandleLease) -> c_int {
    // SAFETY: the caller passes a lease that it began and has not copied, or null.
    run(|| unsafe { take(lease) }.map(drop))
}

pub(in super::super) unsafe extern "C" fn lease_discard(lease: *mut HandleLease) -> c_int {
    // SAFETY: the caller passes a lease that it began and has not copied, or null.
    run(|| unsafe { take(lease) }.map(Lease::discard))
}

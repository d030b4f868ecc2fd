//! Blocks that callers allocate and free.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::pools::{PoolHandle, pool_of};
use crate::memory::plug::call::{address_of, answer_or_none, device_of, run, status_of, stream_on};
use crate::memory::plug::{allocate_to_feed, default_pool, free_behind, free_in_order, free_to_feed};
use crate::memory::{route, serve};
use crate::runtime::Stream;

#[inline]
pub(super) unsafe extern "C" fn allocate(
    bytes: u64,
    device: c_int,
    stream: *mut c_void,
    place: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller names a stream of the device, which is alive.
    let allocate = || route::allocate(bytes, &unsafe { stream_on(device, stream) }?);
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "pointer", ptr::null_mut(), || address_of(bytes, allocate)) }
}

pub(super) unsafe extern "C" fn allocate_at(
    address: *mut c_void,
    bytes: u64,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller names a stream of the device, which is alive.
    run(|| serve::allocate_at(address.addr() as u64, bytes, &unsafe { stream_on(device, stream) }?).map(drop))
}

pub(super) unsafe extern "C" fn deallocate(pointer: *mut c_void) -> c_int {
    status_of(|| free_in_order(pointer))
}

pub(super) unsafe extern "C" fn deallocate_on(pointer: *mut c_void, device: c_int, stream: *mut c_void) -> c_int {
    // SAFETY: the caller names a stream of the device, which is alive.
    status_of(|| free_behind(pointer, || unsafe { stream_on(device, stream) }))
}

pub(super) unsafe extern "C" fn feed_allocate(
    pool: *const PoolHandle,
    device: c_int,
    bytes: u64,
    place: *mut *mut c_void,
) -> c_int {
    let allocate = || {
        let device = device_of(device)?;
        let pool = if pool.is_null() { default_pool(device)? } else { pool_of(pool)? };
        address_of(bytes, || allocate_to_feed(&pool, bytes, &Stream::legacy(device)?))
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "pointer", ptr::null_mut(), allocate) }
}

pub(super) unsafe extern "C" fn feed_deallocate(pointer: *mut c_void) -> c_int {
    status_of(|| free_to_feed(pointer))
}

pub(super) unsafe extern "C" fn record_stream(pointer: *mut c_void, device: c_int, stream: *mut c_void) -> c_int {
    status_of(|| {
        // SAFETY: the caller names a stream of the device, which is alive.
        let stream = unsafe { stream_on(device, stream) }?;
        serve::record_stream(serve::find(pointer.addr() as u64, None)?, &stream)
    })
}

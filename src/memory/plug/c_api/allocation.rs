//! Blocks that callers take and free: the calls that cost next to nothing.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::call::{SUCCESS, address_of, hand_out, status_of, stream_on};
use crate::error::Result;
use crate::memory::route;
use crate::memory::serve;
use crate::runtime::Stream;

/// Allocates on a stream, from the pool that the calling thread's scope says. 0 bytes are a null pointer, and so is what
/// is not to be had.
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
    unsafe { hand_out(place, "pointer", ptr::null_mut(), || address_of(bytes, allocate)) }
}

/// Frees a block in the order of the stream that it was allocated on. A null pointer is none.
pub(super) fn free_in_order(pointer: *mut c_void) -> Result<()> {
    if pointer.is_null() { Ok(()) } else { serve::free(serve::find(pointer.addr() as u64, None)?, None) }
}

/// Frees a block in the order of a stream, which need not be the one that it was allocated on. A null pointer is none.
pub(super) fn free_behind(pointer: *mut c_void, stream: impl FnOnce() -> Result<Stream>) -> Result<()> {
    if pointer.is_null() {
        return Ok(());
    }
    let stream = stream()?;
    let block = serve::find(pointer.addr() as u64, None)?;
    // The order of its own stream, which may be gone, it has without being told.
    let on = Some(&stream).filter(|stream| !block.cache.is_of(stream));
    serve::free(block, on)
}

/// Frees a block in the order of the stream that it was allocated on.
pub(super) unsafe extern "C" fn deallocate(pointer: *mut c_void) -> c_int {
    if pointer.is_null() { SUCCESS } else { status_of(|| free_in_order(pointer)) }
}

/// Frees a block in the order of a stream, which need not be the one that it was allocated on.
pub(super) unsafe extern "C" fn deallocate_on(pointer: *mut c_void, device: c_int, stream: *mut c_void) -> c_int {
    // SAFETY: the caller names a stream of the device, which is alive.
    status_of(|| free_behind(pointer, || unsafe { stream_on(device, stream) }))
}

/// Keeps a block, once freed, from being used again before the stream's work at that time is done.
pub(super) unsafe extern "C" fn record_stream(pointer: *mut c_void, device: c_int, stream: *mut c_void) -> c_int {
    status_of(|| {
        // SAFETY: the caller names a stream of the device, which is alive.
        let stream = unsafe { stream_on(device, stream) }?;
        serve::record_stream(serve::find(pointer.addr() as u64, None)?, &stream)
    })
}

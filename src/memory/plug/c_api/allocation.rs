//! Blocks that callers take and free: the calls that cost next to nothing.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::call::{SUCCESS, hand_out, pointer, run, stream_on};
use crate::memory::serve::{self, Allocation};

/// Allocates on a stream, from the pool that the calling thread's scope says. 0 bytes are a null pointer, and so is what
/// is not to be had.
#[inline]
pub(super) unsafe extern "C" fn allocate(
    bytes: u64,
    device: c_int,
    stream: *mut c_void,
    place: *mut *mut c_void,
) -> c_int {
    let allocate = || {
        if bytes == 0 {
            return Ok(ptr::null_mut());
        }
        // SAFETY: the caller names a stream of the device, which is alive.
        let stream = unsafe { stream_on(device, stream) }?;
        serve::allocate(bytes, &stream).map(Allocation::address).map(pointer)
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { hand_out(place, allocate) }
}

/// Frees a block in the order of the stream that it was allocated on.
pub(super) unsafe extern "C" fn deallocate(pointer: *mut c_void) -> c_int {
    if pointer.is_null() {
        return SUCCESS;
    }
    run(|| serve::free(serve::find(pointer.addr() as u64, None)?, None))
}

/// Frees a block in the order of a stream, which need not be the one that it was allocated on.
pub(super) unsafe extern "C" fn deallocate_on(pointer: *mut c_void, device: c_int, stream: *mut c_void) -> c_int {
    if pointer.is_null() {
        return SUCCESS;
    }
    run(|| {
        // SAFETY: the caller names a stream of the device, which is alive.
        let stream = unsafe { stream_on(device, stream) }?;
        let block = serve::find(pointer.addr() as u64, None)?;
        // The order of its own stream it has without being told.
        let on = Some(&stream).filter(|stream| !block.cache.is_of(stream));
        serve::free(block, on)
    })
}

/// Keeps a block, once freed, from being used again before the stream's work at that time is done.
pub(super) unsafe extern "C" fn record_stream(pointer: *mut c_void, device: c_int, stream: *mut c_void) -> c_int {
    run(|| {
        // SAFETY: the caller names a stream of the device, which is alive.
        let stream = unsafe { stream_on(device, stream) }?;
        serve::record_stream(serve::find(pointer.addr() as u64, None)?, &stream)
    })
}

//! Functions in the forms of other allocators' plugs: PyTorch's pluggable allocator, CuPy, handlers of device memory,
//! as of cuDSS and cuQuantum, and of pinned memory, as of cuDSS. They return null, or 1, if there is no memory. Their
//! forms have no place for a reason, which `last_error` returns.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::call::{address_of, guard, pointer, put, stream_of};
use crate::error::{Error, Result};
use crate::library::DeviceMemHandler;
use crate::memory::serve::{self, Allocation};
use crate::memory::{self, pinned, route};
use crate::runtime::{self, Stream};

/// A memory handler that can be passed to a library: its memory comes from the pool whose scope the calling thread is
/// in.
pub static DEVICE_MEM_HANDLER: DeviceMemHandler =
    DeviceMemHandler::new(ptr::null_mut(), handler_alloc, handler_free, b"gpupool");

/// A handler of pinned memory, `cudssPinnedMemHandler_t`, that can be passed to cuDSS 1.0.
pub static PINNED_MEM_HANDLER: DeviceMemHandler =
    DeviceMemHandler::new(ptr::null_mut(), pinned_handler_alloc, handler_free, b"gpupool");

/// Frees a block in the order of the stream that it was allocated on, unless the pointer is null.
pub(crate) fn free_in_order(pointer: *mut c_void) -> Result<()> {
    if pointer.is_null() { Ok(()) } else { serve::free(serve::find(pointer.addr() as u64, None)?, None) }
}

/// Frees a block in the order of a stream, which may differ from the allocation's, unless the pointer is null.
pub(crate) fn free_behind(pointer: *mut c_void, stream: impl FnOnce() -> Result<Stream>) -> Result<()> {
    if pointer.is_null() {
        return Ok(());
    }
    let stream = stream()?;
    let block = serve::find(pointer.addr() as u64, None)?;
    // The block follows its own stream, which may be gone, without being given it.
    let on = Some(&stream).filter(|stream| !block.cache.is_of(stream));
    serve::free(block, on)
}

/// Allocates in PyTorch's form by `allocate`: null for 0 bytes.
///
/// # Safety
/// The stream is alive.
#[inline]
pub(super) unsafe fn malloc_from(
    size: isize,
    device: c_int,
    stream: *mut c_void,
    allocate: impl FnOnce(u64, &Stream) -> Result<Allocation>,
) -> *mut c_void {
    guard(ptr::null_mut(), || {
        let size = u64::try_from(size)
            .map_err(|_| Error::invalid_value(format!("there are no {size} bytes: a size is 0 or more")))?;
        // SAFETY: the caller promises that the stream is alive.
        address_of(size, || allocate(size, &unsafe { stream_of(device, stream) }?))
    })
}

pub(crate) unsafe extern "C" fn malloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    // SAFETY: the caller names a stream that is alive.
    unsafe { malloc_from(size, device, stream, route::allocate) }
}

pub(crate) unsafe extern "C" fn free(pointer: *mut c_void, _size: isize, device: c_int, stream: *mut c_void) {
    // SAFETY: the caller names a stream that is alive, or, as PyTorch does, the block's own, which may be gone and is not used.
    guard((), || free_behind(pointer, || unsafe { stream_of(device, stream) }));
}

pub(crate) unsafe extern "C" fn cupy_malloc(_param: *mut c_void, size: usize, device: c_int) -> *mut c_void {
    let size = size as u64;
    let allocate = || route::allocate(size, &Stream::current_view(runtime::device(device.into())?));
    guard(ptr::null_mut(), || address_of(size, allocate))
}

pub(crate) unsafe extern "C" fn cupy_free(_param: *mut c_void, pointer: *mut c_void, _device: c_int) {
    guard((), || free_in_order(pointer));
}

/// Allocates in a handler's form by `allocate`: null for 0 bytes. Returns 0.
///
/// # Safety
/// The stream is alive. The place is one for a pointer, or null, which is refused.
pub(super) unsafe fn handler_alloc_from(
    place: *mut *mut c_void,
    size: usize,
    device: c_int,
    stream: *mut c_void,
    allocate: impl FnOnce(u64, &Stream) -> Result<u64>,
) -> c_int {
    guard(1, || {
        // SAFETY: the caller promises that the stream is alive.
        let stream = unsafe { stream_of(device, stream) }?;
        let allocate = || if size == 0 { Ok(ptr::null_mut()) } else { allocate(size as u64, &stream).map(pointer) };
        // SAFETY: the caller passes a place for a pointer, or null.
        unsafe { put(place, "pointer", allocate) }.map(|()| 0)
    })
}

/// Frees in a handler's form, unless the pointer is null. Returns 0.
///
/// # Safety
/// The stream is alive.
pub(super) unsafe fn handler_free_to(
    pointer: *mut c_void,
    device: c_int,
    stream: *mut c_void,
    free: impl FnOnce(u64, &Stream) -> Result<()>,
) -> c_int {
    guard(1, || {
        if !pointer.is_null() {
            // SAFETY: the caller promises that the stream is alive.
            let stream = unsafe { stream_of(device, stream) }?;
            free(pointer.addr() as u64, &stream)?;
        }
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn handler_alloc(
    _context: *mut c_void,
    place: *mut *mut c_void,
    size: usize,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the library names a stream that is alive, and passes a place for a pointer.
    unsafe { handler_alloc_from(place, size, -1, stream, memory::allocate) }
}

unsafe extern "C" fn pinned_handler_alloc(
    _context: *mut c_void,
    place: *mut *mut c_void,
    size: usize,
    stream: *mut c_void,
) -> c_int {
    let allocate =
        |size, stream: &Stream| route::allocate(size, &pinned::node_of(None, Some(stream))?).map(Allocation::address);
    // SAFETY: the library names a stream that is alive, and passes a place for a pointer.
    unsafe { handler_alloc_from(place, size, -1, stream, allocate) }
}

pub(crate) unsafe extern "C" fn handler_free(
    _context: *mut c_void,
    pointer: *mut c_void,
    _size: usize,
    stream: *mut c_void,
) -> c_int {
    let free = |address, stream: &Stream| serve::free(serve::find(address, None)?, Some(stream));
    // SAFETY: the library names a stream that is alive.
    unsafe { handler_free_to(pointer, -1, stream, free) }
}

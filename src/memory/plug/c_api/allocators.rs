//! The functions in the forms that other allocators' plugs take: PyTorch's pluggable allocator, CuPy, and handlers of
//! device memory, as cuDSS and cuQuantum have them, and of pinned memory, as cuDSS has.
//!
//! They return null, or 1, where there is no memory. Their forms have no place for a reason, which `last_error` tells.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::call::{address_of, bytes_of, guard, null, pointer, stream_of};
use crate::error::Result;
use crate::library::DeviceMemHandler;
use crate::memory::host;
use crate::memory::plug::library_memory::LibraryMemory;
use crate::memory::serve::{self, Allocation};
use crate::runtime::{self, Runtime, Stream};

/// A memory handler that can be passed to a library: its memory comes from the pool whose scope the calling thread is
/// in.
pub static DEVICE_MEM_HANDLER: DeviceMemHandler =
    DeviceMemHandler::new(ptr::null_mut(), handler_alloc, handler_free, b"gpupool");

/// A handler of pinned memory, `cudssPinnedMemHandler_t`, that can be passed to cuDSS 1.0.
pub static PINNED_MEM_HANDLER: DeviceMemHandler =
    DeviceMemHandler::new(ptr::null_mut(), pinned_handler_alloc, handler_free, b"gpupool");

/// Returns a handler whose memory comes from where this says.
pub(in crate::memory::plug) fn library_handler(memory: &'static LibraryMemory) -> DeviceMemHandler {
    let context = ptr::from_ref(memory).cast_mut().cast();
    DeviceMemHandler::new(context, library_alloc, library_free, b"gpupool.MemPool")
}

/// Gives the driver memory back that is not gpupool's.
///
/// # Safety
/// A library owned the memory and gives it up.
pub(in crate::memory::plug) unsafe fn free_plain(runtime: &dyn Runtime, address: u64) -> Result<()> {
    // SAFETY: the caller's library gives the memory up; what is no memory of the driver's, the driver refuses.
    unsafe { runtime.memory_free(address) }
}

pub(super) unsafe extern "C" fn malloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    guard(ptr::null_mut(), || {
        let size = bytes_of(size)?;
        if size == 0 {
            return Ok(ptr::null_mut());
        }
        // SAFETY: the caller names a stream that is alive.
        let stream = unsafe { stream_of(device, stream) }?;
        address_of(serve::allocate(size, &stream))
    })
}

pub(super) unsafe extern "C" fn free(pointer: *mut c_void, _size: isize, device: c_int, stream: *mut c_void) {
    guard((), || {
        if pointer.is_null() {
            return Ok(());
        }
        // SAFETY: the caller names a stream that is alive.
        let stream = unsafe { stream_of(device, stream) }?;
        let block = serve::find(pointer.addr() as u64, None)?;
        // PyTorch names the stream that the memory was allocated on, which may be gone.
        let on = Some(&stream).filter(|stream| !block.cache.is_of(stream));
        serve::free(block, on)
    });
}

pub(super) unsafe extern "C" fn cupy_malloc(_param: *mut c_void, size: usize, device: c_int) -> *mut c_void {
    guard(ptr::null_mut(), || {
        if size == 0 {
            return Ok(ptr::null_mut());
        }
        address_of(serve::allocate(size as u64, &Stream::current_view(runtime::device(device.into())?)))
    })
}

pub(super) unsafe extern "C" fn cupy_free(_param: *mut c_void, pointer: *mut c_void, _device: c_int) {
    guard((), || if pointer.is_null() { Ok(()) } else { serve::free(serve::find(pointer.addr() as u64, None)?, None) });
}

/// Puts what is allocated in its place: null for 0 bytes. Returns 0.
///
/// # Safety
/// The place is one for a pointer, or null, which is refused.
unsafe fn put(place: *mut *mut c_void, size: usize, allocate: impl FnOnce(u64) -> Result<u64>) -> Result<c_int> {
    if place.is_null() {
        return Err(null("pointer"));
    }
    let address = if size == 0 { 0 } else { allocate(size as u64)? };
    // SAFETY: the caller passes a place for a pointer, and it is not null.
    unsafe { place.write(pointer(address)) };
    Ok(0)
}

pub(super) unsafe extern "C" fn handler_alloc(
    _context: *mut c_void,
    place: *mut *mut c_void,
    size: usize,
    stream: *mut c_void,
) -> c_int {
    guard(1, || {
        // SAFETY: the library names a stream that is alive.
        let stream = unsafe { stream_of(-1, stream) }?;
        // SAFETY: the library passes a place for a pointer.
        unsafe { put(place, size, |size| serve::allocate(size, &stream).map(Allocation::address)) }
    })
}

pub(super) unsafe extern "C" fn handler_free(
    _context: *mut c_void,
    pointer: *mut c_void,
    _size: usize,
    stream: *mut c_void,
) -> c_int {
    guard(1, || {
        if !pointer.is_null() {
            // SAFETY: the library names a stream that is alive.
            let stream = unsafe { stream_of(-1, stream) }?;
            serve::free(serve::find(pointer.addr() as u64, None)?, Some(&stream))?;
        }
        Ok(0)
    })
}

unsafe extern "C" fn pinned_handler_alloc(
    _context: *mut c_void,
    place: *mut *mut c_void,
    size: usize,
    stream: *mut c_void,
) -> c_int {
    guard(1, || {
        // SAFETY: the library names a stream that is alive.
        let stream = unsafe { stream_of(-1, stream) }?;
        let order = host::order_of(None, Some(&stream))?;
        // SAFETY: the library passes a place for a pointer.
        unsafe { put(place, size, |size| serve::allocate(size, &order).map(Allocation::address)) }
    })
}

pub(super) unsafe extern "C" fn library_alloc(
    context: *mut c_void,
    place: *mut *mut c_void,
    size: usize,
    stream: *mut c_void,
) -> c_int {
    guard(1, || {
        // SAFETY: the context is what `library_handler` put there, and lives as long as the process.
        let memory = unsafe { &*context.cast::<LibraryMemory>() };
        // SAFETY: the library names a stream of its handle's device, which is alive.
        let stream = unsafe { stream_of(memory.device.ordinal() as c_int, stream) }?;
        // SAFETY: the library passes a place for a pointer.
        unsafe { put(place, size, |size| memory.allocate(size, &stream)) }
    })
}

pub(super) unsafe extern "C" fn library_free(
    context: *mut c_void,
    pointer: *mut c_void,
    _size: usize,
    stream: *mut c_void,
) -> c_int {
    guard(1, || {
        // SAFETY: the context is what `library_handler` put there, and lives as long as the process.
        let memory = unsafe { &*context.cast::<LibraryMemory>() };
        if !pointer.is_null() {
            // SAFETY: the library names a stream of its handle's device, which is alive.
            let stream = unsafe { stream_of(memory.device.ordinal() as c_int, stream) }?;
            // SAFETY: the library owned the memory and gives it up.
            unsafe { memory.free(pointer.addr() as u64, &stream) }?;
        }
        Ok(0)
    })
}

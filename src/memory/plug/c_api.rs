//! The C interface: functions that other allocators' plugs take, for CuPy, PyTorch, cuDSS, cuQuantum and C programs.
//!
//! They return null, or a status, where there is no memory; no panic crosses them. [`C_API`] holds their addresses.

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::ptr;

use super::library_memory::LibraryMemory;
use crate::error::Result;
use crate::ids::Device;
use crate::library::DeviceMemHandler;
use crate::memory::serve::{Allocation, allocate, find, free};
use crate::process;
use crate::runtime::{self, Runtime, Stream};

/// The functions' addresses. The layout only grows, and `version` with it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Api {
    /// 1.
    pub version: u64,
    /// PyTorch's pluggable allocator: `void *(ssize_t size, int device, cudaStream_t stream)`.
    pub malloc: unsafe extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void,
    /// PyTorch's pluggable allocator: `void (void *pointer, ssize_t size, int device, cudaStream_t stream)`.
    pub free: unsafe extern "C" fn(*mut c_void, isize, c_int, *mut c_void),
    /// `cupy.cuda.CFunctionAllocator`: `void *(void *param, size_t size, int device)`, on gpupool's current stream.
    pub cupy_malloc: unsafe extern "C" fn(*mut c_void, usize, c_int) -> *mut c_void,
    /// `cupy.cuda.CFunctionAllocator`: `void (void *param, void *pointer, int device)`.
    pub cupy_free: unsafe extern "C" fn(*mut c_void, *mut c_void, c_int),
    /// A device memory handler of cuDSS or cuQuantum: `int (void *context, void **pointer, size_t size, cudaStream_t
    /// stream)`, 0 on success.
    pub handler_alloc: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, usize, *mut c_void) -> c_int,
    /// The same: `int (void *context, void *pointer, size_t size, cudaStream_t stream)`.
    pub handler_free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut c_void) -> c_int,
}

/// The functions.
pub static C_API: Api = Api {
    version: 1,
    malloc: gpupool_malloc,
    free: gpupool_free,
    cupy_malloc: gpupool_cupy_malloc,
    cupy_free: gpupool_cupy_free,
    handler_alloc: gpupool_handler_alloc,
    handler_free: gpupool_handler_free,
};

/// A handler that a library can be given as it is: its memory comes from the pool whose scope the calling thread is in.
pub static DEVICE_MEM_HANDLER: DeviceMemHandler =
    DeviceMemHandler::new(ptr::null_mut(), gpupool_handler_alloc, gpupool_handler_free, b"gpupool");

/// Returns a handler whose memory comes from where this says.
pub(super) fn library_handler(memory: &'static LibraryMemory) -> DeviceMemHandler {
    let context = ptr::from_ref(memory).cast_mut().cast();
    DeviceMemHandler::new(context, gpupool_library_alloc, gpupool_library_free, b"gpupool.MemPool")
}

/// Gives the driver memory back that is not gpupool's.
///
/// # Safety
/// A library owned the memory and gives it up.
pub(super) unsafe fn free_plain(runtime: &dyn Runtime, address: u64) -> Result<()> {
    // SAFETY: the caller's library gives the memory up; what is no memory of the driver's, the driver refuses.
    unsafe { runtime.memory_free(address) }
}

/// Runs what must neither panic nor fail across C.
pub(super) fn guard<R>(otherwise: R, run: impl FnOnce() -> Result<R> + std::panic::UnwindSafe) -> R {
    if process::is_forked() {
        return otherwise;
    }
    match catch_unwind(run) {
        Ok(Ok(result)) => result,
        _ => otherwise,
    }
}

/// Returns the stream that a caller names; -1 for whichever device it belongs to.
///
/// # Safety
/// The stream is alive while it is used, and of the device if one is named, which is looked up where it is used.
#[inline]
pub(super) unsafe fn stream_of(device: c_int, stream: *mut c_void) -> Result<Stream> {
    match u32::try_from(device) {
        // SAFETY: the caller promises that the stream is alive and of the device.
        Ok(ordinal) => Ok(unsafe { Stream::from_raw_on(stream, Device::from_ordinal(ordinal)) }),
        // SAFETY: the caller promises that the stream is alive.
        Err(_) => unsafe { Stream::from_raw(stream) },
    }
}

/// Returns the address of a block as C takes it.
pub(super) fn address_of(block: Result<Allocation>) -> Result<*mut c_void> {
    block.map(|block| pointer(block.address()))
}

pub(super) fn pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(address as usize)
}

unsafe extern "C" fn gpupool_malloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    guard(ptr::null_mut(), || {
        let Ok(size @ 1..) = u64::try_from(size) else { return Ok(ptr::null_mut()) };
        // SAFETY: the caller names a stream that is alive.
        let stream = unsafe { stream_of(device, stream) }?;
        address_of(allocate(size, &stream))
    })
}

unsafe extern "C" fn gpupool_free(pointer: *mut c_void, _size: isize, device: c_int, stream: *mut c_void) {
    guard((), || {
        if pointer.is_null() {
            return Ok(());
        }
        // SAFETY: the caller names a stream that is alive.
        let stream = unsafe { stream_of(device, stream) }?;
        let block = find(pointer.addr() as u64, None)?;
        // PyTorch names the stream that the memory was allocated on, which may be gone.
        let on = Some(&stream).filter(|stream| !block.cache.is_of(stream));
        free(block, on)
    });
}

unsafe extern "C" fn gpupool_cupy_malloc(_param: *mut c_void, size: usize, device: c_int) -> *mut c_void {
    guard(ptr::null_mut(), || {
        if size == 0 {
            return Ok(ptr::null_mut());
        }
        address_of(allocate(size as u64, &Stream::current_on(runtime::device(device.into())?)))
    })
}

unsafe extern "C" fn gpupool_cupy_free(_param: *mut c_void, pointer: *mut c_void, _device: c_int) {
    guard((), || if pointer.is_null() { Ok(()) } else { free(find(pointer.addr() as u64, None)?, None) });
}

/// Puts what is allocated in its place: null for 0 bytes. Returns 0, or 1 where that cannot be.
///
/// # Safety
/// The place is one for a pointer, or null.
unsafe fn put(place: *mut *mut c_void, size: usize, allocate: impl FnOnce(u64) -> Result<u64>) -> Result<c_int> {
    if place.is_null() {
        return Ok(1);
    }
    let address = if size == 0 { 0 } else { allocate(size as u64)? };
    // SAFETY: the caller passes a place for a pointer, and it is not null.
    unsafe { place.write(pointer(address)) };
    Ok(0)
}

unsafe extern "C" fn gpupool_handler_alloc(
    _context: *mut c_void,
    place: *mut *mut c_void,
    size: usize,
    stream: *mut c_void,
) -> c_int {
    guard(1, || {
        // SAFETY: the library names a stream that is alive.
        let stream = unsafe { stream_of(-1, stream) }?;
        // SAFETY: the library passes a place for a pointer.
        unsafe { put(place, size, |size| allocate(size, &stream).map(Allocation::address)) }
    })
}

unsafe extern "C" fn gpupool_handler_free(
    _context: *mut c_void,
    pointer: *mut c_void,
    _size: usize,
    stream: *mut c_void,
) -> c_int {
    guard(1, || {
        if !pointer.is_null() {
            // SAFETY: the library names a stream that is alive.
            let stream = unsafe { stream_of(-1, stream) }?;
            free(find(pointer.addr() as u64, None)?, Some(&stream))?;
        }
        Ok(0)
    })
}

unsafe extern "C" fn gpupool_library_alloc(
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

unsafe extern "C" fn gpupool_library_free(
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

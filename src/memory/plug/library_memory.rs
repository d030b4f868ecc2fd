//! Device memory for a library's handles, from a pool that may be replaced at any time. A library frees by the function
//! that its handle has at that time, so this also takes back memory of a former pool, and plain memory that the library
//! had from the driver before. Nothing here knows the latter, so an address that is not gpupool's is the driver's to
//! free or to refuse.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use super::allocators::{handler_alloc_from, handler_free_to};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::library::DeviceMemHandler;
use crate::memory::device::with_device;
use crate::memory::route::{PoolScope, PoolToken, allocate};
use crate::memory::serve::{Allocation, PoolUse, find, free, owns};
use crate::runtime::Stream;
use crate::sync::lock;

/// Where a library's handles on one device take memory from: a pool, or the driver if there is none.
#[derive(Debug)]
pub(crate) struct LibraryMemory {
    device: Device,
    pool: Mutex<Option<PoolUse>>,
}

impl LibraryMemory {
    /// Lives as long as the process, since libraries may keep the address.
    pub(crate) fn new(device: Device) -> &'static Self {
        Box::leak(Box::new(Self { device, pool: Mutex::new(None) }))
    }

    /// Returns the functions for a library, with this as their context.
    pub(crate) fn handler(&'static self) -> DeviceMemHandler {
        let context = ptr::from_ref(self).cast_mut().cast();
        DeviceMemHandler::new(context, library_alloc, library_free, b"gpupool.MemPool")
    }

    pub(crate) fn has_pool(&self) -> bool {
        lock(&self.pool).is_some()
    }

    pub(crate) fn pool(&self) -> Option<PoolToken> {
        lock(&self.pool).as_ref().map(|in_use| PoolToken::new(in_use.pool(), self.device))
    }

    /// Takes what is allocated from now on from this pool, and keeps it until another is set.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped, or is another device's.
    pub(crate) fn set(&self, pool: Option<&PoolToken>) -> Result<()> {
        if let Some(pool) = pool.filter(|pool| pool.device() != self.device) {
            return Err(Error::invalid_value(format!(
                "pool {} has memory of {}, which handles on {} cannot take",
                pool.id(),
                pool.device(),
                self.device
            )));
        }
        let wanted = pool.map(PoolToken::hold).transpose()?;
        let former = std::mem::replace(&mut *lock(&self.pool), wanted);
        // Outside the lock: with the last use of a pool its memory goes back to the driver.
        drop(former);
        Ok(())
    }

    /// Allocates memory for the library, on any of its threads.
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let in_use = lock(&self.pool).as_ref().map(PoolUse::again).transpose()?;
        if let Some(in_use) = in_use {
            let _scope = PoolScope::new(in_use, false)?;
            return allocate(bytes, stream).map(Allocation::address);
        }
        with_device(self.device, |runtime| runtime.memory_allocate(bytes))
    }

    /// Takes back what the library has done with, in the stream's order.
    ///
    /// # Safety
    /// The library owned the memory, ours or the driver's, and gives it up.
    unsafe fn free(&self, address: u64, stream: &Stream) -> Result<()> {
        match find(address, None) {
            Ok(block) => return free(block, Some(stream)),
            // In gpupool's memory, but no library's.
            Err(error) if owns(address) => return Err(error),
            Err(_) => {}
        }
        // The driver waits for the work of most memory before it frees it, but not for that of its own pools.
        stream.synchronize()?;
        // SAFETY: the caller's library gives the memory up; what is no memory of the driver's, the driver refuses.
        with_device(self.device, |runtime| unsafe { runtime.memory_free(address) }).map_err(|error| {
            error.advised(format_args!(
                "A library freed {address:#x}, which neither gpupool nor the driver gave it, or freed it twice"
            ))
        })
    }
}

unsafe extern "C" fn library_alloc(
    context: *mut c_void,
    place: *mut *mut c_void,
    size: usize,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the context is what `handler` put there, and lives as long as the process.
    let memory = unsafe { &*context.cast::<LibraryMemory>() };
    let device = memory.device.ordinal() as c_int;
    // SAFETY: the library names a stream of its handle's device, which is alive, and passes a place for a pointer.
    unsafe { handler_alloc_from(place, size, device, stream, |size, stream| memory.allocate(size, stream)) }
}

unsafe extern "C" fn library_free(
    context: *mut c_void,
    pointer: *mut c_void,
    _size: usize,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the context is what `handler` put there, and lives as long as the process.
    let memory = unsafe { &*context.cast::<LibraryMemory>() };
    let device = memory.device.ordinal() as c_int;
    // SAFETY: the library owned the memory and gives it up.
    let free = |address, stream: &Stream| unsafe { memory.free(address, stream) };
    // SAFETY: the library names a stream of its handle's device, which is alive.
    unsafe { handler_free_to(pointer, device, stream, free) }
}

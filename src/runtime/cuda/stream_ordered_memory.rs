//! The driver's own allocator in stream order (`cuMemAllocAsync`).

use std::ffi::{c_int, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::{Cuda, as_stream};
use crate::error::Result;
use crate::ids::RawStream;
use crate::runtime::{PoolReserved, Runtime, StreamOrderedMemory};

impl Cuda {
    fn memory_pool(&self) -> Result<*mut c_void> {
        let handle = self.slot(self.current_device()?)?.handle;
        let mut pool = ptr::null_mut();
        // SAFETY: `pool` is a valid place for a pool.
        self.check(unsafe { self.symbols.memory_pool.call(&mut pool, handle) })?;
        Ok(pool)
    }
}

impl StreamOrderedMemory for Cuda {
    unsafe fn allocate_async(&self, bytes: u64, stream: RawStream) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a valid place for one, and the caller promises that the stream is alive.
        self.check(unsafe {
            self.symbols.memory_allocate_async.call(&mut address, bytes as usize, as_stream(stream))
        })?;
        Ok(address)
    }

    unsafe fn free_async(&self, address: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller owns the memory and promises that the stream is alive.
        self.check(unsafe { self.symbols.memory_free_async.call(address, as_stream(stream)) })
    }

    fn pool_reserved(&self) -> Result<Option<PoolReserved>> {
        let pool = self.memory_pool()?;
        let get = |attribute: sys::CUmemPool_attribute| -> Result<u64> {
            let mut bytes = 0_u64;
            // SAFETY: the pool is the device's own, and both attributes are 64 bits wide.
            self.check(unsafe {
                self.symbols.pool_get.call(pool, attribute as c_int, ptr::from_mut(&mut bytes).cast())
            })?;
            Ok(bytes)
        };
        let now = get(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let peak = get(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
        Ok(Some(PoolReserved { now, peak }))
    }

    fn trim_pool(&self) -> Result<()> {
        let pool = self.memory_pool()?;
        // SAFETY: the pool is the device's own.
        self.check(unsafe { self.symbols.pool_trim.call(pool, 0) })?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        // Only 0 may be set.
        let mut bytes = 0_u64;
        // SAFETY: the pool is the device's own, and the attribute is 64 bits wide.
        self.check(unsafe { self.symbols.pool_set.call(pool, attribute as c_int, ptr::from_mut(&mut bytes).cast()) })
    }
}

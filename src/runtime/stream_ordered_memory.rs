//! The driver's stream-ordered allocator, which the replay tool compares gpupool's with. Nothing else uses it.

use crate::error::Result;
use crate::ids::RawStream;

/// The device memory that a pool of the driver has reserved, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolReserved {
    /// Now.
    pub now: u64,
    /// The peak since it was last reset.
    pub peak: u64,
}

/// A driver's allocator that frees memory in stream order.
pub trait StreamOrderedMemory {
    /// Memory for the stream's later work (`cuMemAllocAsync`).
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn allocate_async(&self, bytes: u64, stream: RawStream) -> Result<u64>;
    /// Frees memory once the stream's work so far is done (`cuMemFreeAsync`).
    ///
    /// # Safety
    /// The stream is alive, the memory was not freed before, both are of this runtime, and no work but the stream's
    /// earlier one uses the memory again.
    unsafe fn free_async(&self, address: u64, stream: RawStream) -> Result<()>;
    /// Returns the device memory that the current device's pool for [`StreamOrderedMemory::allocate_async`] has
    /// (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `_HIGH`); none where it is not known.
    fn pool_reserved(&self) -> Result<Option<PoolReserved>> {
        Ok(None)
    }
    /// Gives back what that pool has free, and starts its peak anew (`cuMemPoolTrimTo`).
    fn trim_pool(&self) -> Result<()> {
        Ok(())
    }
}

//! Addresses without memory, and physical memory that is mapped there. Pools reserve addresses once and move extents
//! between them, so that free pieces together serve a large request, and one pool's unused memory serves another.

use crate::error::Result;
use crate::ids::{Device, MemoryLocation};
use crate::runtime::{Extent, ExtentUse};

/// A platform's calls on addresses and extents. The rules of [`Runtime`](crate::runtime::Runtime) apply.
pub trait VirtualMemoryCalls {
    /// Returns whether addresses can be reserved and physical memory mapped there.
    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool>;
    /// Returns the unit of physical memory and of mapping, in bytes: the minimum granularity
    /// (`cuMemGetAllocationGranularity`).
    fn page_bytes(&self, location: MemoryLocation) -> Result<u64>;
    /// Returns whether kernels on the device can access memory of the peer (`cuDeviceCanAccessPeer`).
    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool>;

    /// Reserves addresses, aligned to a page, without memory (`cuMemAddressReserve`).
    fn address_reserve(&self, bytes: u64) -> Result<u64>;
    /// Releases reserved addresses (`cuMemAddressFree`).
    ///
    /// # Safety
    /// This is a whole reservation of this runtime, and nothing uses it again.
    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()>;

    /// Creates an extent of memory there (`cuMemCreate`). It lives until it is released and no mapping of it is left.
    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent>;
    /// Returns what extents there can be used for: what its driver announces, less what it then refused.
    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse>;
    /// Releases the extent (`cuMemRelease`); mappings stay.
    ///
    /// # Safety
    /// The extent is of this runtime, was not released before, and is not used again.
    unsafe fn extent_release(&self, extent: Extent) -> Result<()>;

    /// Maps the whole of the extent at the address, without access (`cuMemMap`).
    ///
    /// # Safety
    /// The addresses are reserved and free, and the extent is alive, of this size and of this runtime.
    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()>;
    /// Grants these devices, and the host on these nodes, read and write access to whole mappings (`cuMemSetAccess`);
    /// access of others does not change.
    ///
    /// # Safety
    /// The range consists of mappings of this runtime.
    unsafe fn memory_set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()>;
    /// Unmaps one or more whole mappings (`cuMemUnmap`). CUDA's driver need not wait for the device; HIP waits.
    ///
    /// # Safety
    /// The range consists of mappings of this runtime, and no work in progress or to come uses it.
    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()>;
}

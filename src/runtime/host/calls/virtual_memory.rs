//! Addresses and extents of the simulated devices. Two calls at once on one extent break it, as with NVIDIA's driver.

use crate::error::Result;
use crate::ids::{Device, MemoryLocation};
use crate::runtime::host::extent_calls::ExtentCall;
use crate::runtime::host::virtual_memory::{PAGE, space};
use crate::runtime::host::{Call, Host, check, enter_memory_call, uses};
use crate::runtime::{Extent, ExtentUse, VirtualMemoryCalls};

impl VirtualMemoryCalls for Host {
    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool> {
        self.memory.check(location)?;
        Ok(true)
    }

    fn page_bytes(&self, location: MemoryLocation) -> Result<u64> {
        self.memory.check(location)?;
        check(Call::PageBytes)?;
        Ok(PAGE)
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        self.memory.check(device)?;
        self.memory.check(peer)?;
        Ok(device != peer)
    }

    fn address_reserve(&self, bytes: u64) -> Result<u64> {
        check(Call::AddressReserve)?;
        space().address_reserve(bytes)
    }

    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()> {
        check(Call::AddressFree)?;
        // SAFETY: the caller gives the reservation up.
        unsafe { space().address_free(address, bytes) }
    }

    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        enter_memory_call(Call::ExtentCreate)?;
        space().extent_create(self.memory, location, bytes)
    }

    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse> {
        self.memory.check(location)?;
        Ok(ExtentUse { is_shareable: true, is_rdma: false })
    }

    unsafe fn extent_release(&self, extent: Extent) -> Result<()> {
        enter_memory_call(Call::ExtentRelease)?;
        let call = ExtentCall::begin(|| vec![extent.0]);
        space().extent_release(self.memory, extent).inspect(|()| call.mend())
    }

    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        enter_memory_call(Call::MemoryMap)?;
        let call = ExtentCall::begin(|| vec![extent.0]);
        call.check_whole("memory_map")?;
        space().memory_map(address, bytes, extent)
    }

    unsafe fn memory_set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        enter_memory_call(Call::MemorySetAccess)?;
        by.iter().try_for_each(|&location| self.memory.check(location))?;
        let call = ExtentCall::begin(|| space().extents_in(address, bytes));
        call.check_alone("memory_set_access")?;
        space().memory_set_access(address, bytes, by)
    }

    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        enter_memory_call(Call::MemoryUnmap)?;
        uses::check_unused(address, bytes);
        let _call = ExtentCall::begin(|| space().extents_in(address, bytes));
        // SAFETY: the caller gives the mappings up.
        unsafe { space().memory_unmap(self.memory, address, bytes) }
    }
}

//! HIP's virtual memory, one mapping at a time.
//!
//! The calls have the names and layouts of CUDA's, but libraries up to HIP 7.2 refuse, or book wrongly, a range of
//! several mappings (ROCm/rocm-systems issue 2516 and pull request 6977, ROCm/ROCR-Runtime issue 285). So the mappings
//! are remembered here, and a device is only taken to have virtual memory once a rehearsal of what the allocator does has
//! worked.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::Mutex;

use super::symbols::{AccessDescription, AllocationProperties};
use super::{Hip, as_pointer};
use crate::environment;
use crate::error::Result;
use crate::ids::{Device, MemoryLocation};
use crate::runtime::{Extent, Runtime};
use crate::sync::lock;

/// `hipDeviceAttributeVirtualMemoryManagementSupported`.
const SUPPORTED: c_int = 89;
/// What a GPU translates at once, and what addresses are aligned to.
const LARGE_PAGE: u64 = 2 << 20;
/// Set to 0, no virtual memory is used.
const VARIABLE: &str = "GPUPOOL_HIP_VIRTUAL_MEMORY";

/// Every mapping: its address and its bytes.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    bytes_by_address: Mutex<BTreeMap<u64, u64>>,
}

impl Mappings {
    fn add(&self, address: u64, bytes: u64) {
        lock(&self.bytes_by_address).insert(address, bytes);
    }

    fn remove(&self, address: u64) {
        lock(&self.bytes_by_address).remove(&address);
    }

    /// Returns the mappings that begin in a range. A copy, so that no call is made under the lock.
    fn within(&self, address: u64, bytes: u64) -> Vec<(u64, u64)> {
        let mappings = lock(&self.bytes_by_address);
        mappings.range(address..address.saturating_add(bytes)).map(|(&address, &bytes)| (address, bytes)).collect()
    }
}

impl Hip {
    /// Returns whether the device says that it has virtual memory, and what the allocator does with it works.
    pub(super) fn has_virtual_memory(&self, device: Device) -> Result<bool> {
        Ok(self.has_virtual_memory_by_attribute(device)? && self.rehearse(device).is_ok())
    }

    /// Returns whether the device says that it has virtual memory, and it may be used.
    pub(super) fn has_virtual_memory_by_attribute(&self, device: Device) -> Result<bool> {
        let ordinal = self.ordinal(device)?;
        if !environment::switch(VARIABLE, true)? {
            return Ok(false);
        }
        let mut is_supported = 0;
        // SAFETY: `is_supported` is a valid place for an int, and the ordinal is a device's.
        let status = unsafe { (self.symbols.device_attribute)(&mut is_supported, SUPPORTED, ordinal) };
        self.check("hipDeviceGetAttribute", status)?;
        Ok(is_supported != 0)
    }

    /// Maps two pieces of memory side by side and one of them a second time, as the allocator does when it moves pages.
    fn rehearse(&self, device: Device) -> Result<()> {
        let base = self.address_reserve(3 * LARGE_PAGE)?;
        let mut pieces = Vec::new();
        let mut outcome = self.map_pieces(device, base, &mut pieces);
        // What cannot be unmapped stays: its addresses cannot be given back.
        // SAFETY: nothing uses these mappings.
        unsafe { self.memory_unmap(base, 3 * LARGE_PAGE) }?;
        for piece in pieces {
            // SAFETY: this is the only owner of the memory.
            outcome = outcome.and(unsafe { self.extent_release(piece) });
        }
        // SAFETY: the reservation is whole, and nothing is mapped in it.
        outcome.and(unsafe { self.address_free(base, 3 * LARGE_PAGE) })
    }

    fn map_pieces(&self, device: Device, base: u64, pieces: &mut Vec<Extent>) -> Result<()> {
        for address in [base, base + LARGE_PAGE] {
            let piece = self.create(device, LARGE_PAGE)?;
            pieces.push(piece);
            // SAFETY: the addresses were just reserved, and the extent is as long as said and alive.
            unsafe { self.memory_map(address, LARGE_PAGE, piece) }?;
        }
        // SAFETY: the addresses were just reserved, and the extent is as long as said and alive.
        unsafe { self.memory_map(base + 2 * LARGE_PAGE, LARGE_PAGE, pieces[0]) }?;
        // SAFETY: the whole range was just mapped.
        unsafe { self.set_access(base, 3 * LARGE_PAGE, &[device.into()]) }
    }

    pub(super) fn granularity(&self, device: Device) -> Result<u64> {
        let properties = AllocationProperties::device(self.ordinal(device)?);
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size and the properties are whole; 0 asks for the least granularity.
        let status = unsafe { (self.symbols.granularity)(&mut bytes, &properties, 0) };
        self.check("hipMemGetAllocationGranularity", status)?;
        Ok(bytes as u64)
    }

    pub(super) fn reserve(&self, bytes: u64) -> Result<u64> {
        let mut address = ptr::null_mut();
        let alignment = LARGE_PAGE as usize;
        // SAFETY: `address` is a valid place for one, no address is asked for, and 0 are the only flags.
        let status =
            unsafe { (self.symbols.address_reserve)(&mut address, bytes as usize, alignment, ptr::null_mut(), 0) };
        self.check("hipMemAddressReserve", status)?;
        Ok(address.addr() as u64)
    }

    /// As [`Runtime::memory_map`].
    ///
    /// # Safety
    /// The addresses are reserved and free, and the extent is alive, of this size and of this runtime.
    pub(super) unsafe fn map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        let (place, extent) = (as_pointer(address), as_pointer(extent.0));
        // SAFETY: the caller promises that the addresses are free and the memory alive; 0 are the only flags.
        self.check("hipMemMap", unsafe { (self.symbols.memory_map)(place, bytes as usize, 0, extent, 0) })?;
        self.mappings.add(address, bytes);
        Ok(())
    }

    /// As [`Runtime::memory_set_access`].
    ///
    /// # Safety
    /// The range consists of mappings of this runtime.
    pub(super) unsafe fn set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        let describe = |&by: &MemoryLocation| Ok(AccessDescription::read_write(self.ordinal(self.device_of(by)?)?));
        let access = by.iter().map(describe).collect::<Result<Vec<_>>>()?;
        for (address, bytes) in self.mappings.within(address, bytes) {
            let place = as_pointer(address);
            // SAFETY: the caller promises that the range is mapped, and `access` has as many entries as said.
            let status =
                unsafe { (self.symbols.memory_set_access)(place, bytes as usize, access.as_ptr(), access.len()) };
            self.check("hipMemSetAccess", status)?;
        }
        Ok(())
    }

    /// As [`Runtime::memory_unmap`]. What was unmapped before a refusal is known to be, so it can be called again.
    ///
    /// # Safety
    /// The range consists of mappings of this runtime, and no work that is under way or to come uses it.
    pub(super) unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        for (address, bytes) in self.mappings.within(address, bytes) {
            // SAFETY: the caller promises that nothing uses these mappings again.
            let status = unsafe { (self.symbols.memory_unmap)(as_pointer(address), bytes as usize) };
            self.check("hipMemUnmap", status)?;
            self.mappings.remove(address);
        }
        Ok(())
    }
}

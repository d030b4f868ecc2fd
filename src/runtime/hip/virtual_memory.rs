//! HIP's virtual memory, one mapping at a time. The calls have the names and layouts of CUDA's, but libraries up to HIP
//! 7.2 refuse, or account wrongly for, a range of several mappings (ROCm/rocm-systems issue 2516 and pull request 6977,
//! ROCm/ROCR-Runtime issue 285). So the mappings are kept here, and a device counts as having virtual memory only after
//! a rehearsal of the allocator's calls. HIP has no attribute for whether extents can be exported, so a device's first
//! one finds out.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use log::info;

use super::sharing::POSIX_FD;
use super::symbols::{AccessDescription, AllocationProperties};
use super::{Hip, as_pointer};
use crate::environment;
use crate::error::{Result, StatusKind};
use crate::ids::{Device, MemoryLocation};
use crate::observe::target::RUNTIME;
use crate::runtime::{Extent, ExtentUse, VirtualMemoryCalls};
use crate::sync::lock;

/// `hipDeviceAttributeVirtualMemoryManagementSupported`.
const SUPPORTED: c_int = 89;
/// A GPU's unit of translation, and the alignment of addresses.
const LARGE_PAGE: u64 = 2 << 20;
/// If 0, no virtual memory is used.
const VARIABLE: &str = "GPUPOOL_HIP_VIRTUAL_MEMORY";
const SHAREABLE: ExtentUse = ExtentUse { is_shareable: true, is_rdma: false };

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

/// The devices whose extents cannot be exported: a bit for each of the first 64, which is all that a machine has.
#[derive(Debug, Default)]
pub(super) struct PrivateDevices(AtomicU64);

impl PrivateDevices {
    fn has(&self, device: Device) -> bool {
        self.0.load(Ordering::Relaxed).checked_shr(device.ordinal() as u32).is_none_or(|bits| bits & 1 != 0)
    }

    fn add(&self, device: Device) {
        self.0.fetch_or(1_u64.checked_shl(device.ordinal() as u32).unwrap_or(0), Ordering::Relaxed);
    }
}

impl Hip {
    /// Returns whether the device has virtual memory by its attribute, and it may be used.
    fn has_virtual_memory_by_attribute(&self, device: Device) -> Result<bool> {
        let ordinal = self.ordinal(device)?;
        if !environment::switch(VARIABLE, true)? {
            return Ok(false);
        }
        let mut is_supported = 0;
        // SAFETY: `is_supported` is a valid place for an int, and the ordinal is a device's.
        self.check(unsafe { self.symbols.device_attribute.call(&mut is_supported, SUPPORTED, ordinal) })?;
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
            let piece = self.extent_create(device.into(), LARGE_PAGE)?;
            pieces.push(piece);
            // SAFETY: the addresses were just reserved, and the extent is as long as said and alive.
            unsafe { self.memory_map(address, LARGE_PAGE, piece) }?;
        }
        // SAFETY: the addresses were just reserved, and the extent is as long as said and alive.
        unsafe { self.memory_map(base + 2 * LARGE_PAGE, LARGE_PAGE, pieces[0]) }?;
        // SAFETY: the whole range was just mapped.
        unsafe { self.memory_set_access(base, 3 * LARGE_PAGE, &[device.into()]) }
    }

    fn create_for(&self, device: Device, bytes: u64, is_shareable: bool) -> Result<Extent> {
        let mut properties = AllocationProperties::device(self.ordinal(device)?);
        if is_shareable {
            properties.handle_kind = POSIX_FD;
        }
        let mut extent = ptr::null_mut();
        // SAFETY: `extent` is a valid place for one, the properties are whole, and 0 are the only flags.
        self.check(unsafe { self.symbols.extent_create.call(&mut extent, bytes as usize, &properties, 0) })?;
        Ok(Extent(extent.addr() as u64))
    }
}

impl VirtualMemoryCalls for Hip {
    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool> {
        let Some(device) = location.device() else { return Ok(false) };
        Ok(self.has_virtual_memory_by_attribute(device)? && self.rehearse(device).is_ok())
    }

    fn page_bytes(&self, location: MemoryLocation) -> Result<u64> {
        let device = self.device_of(location)?;
        let properties = AllocationProperties::device(self.ordinal(device)?);
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size and the properties are whole; 0 asks for the least granularity.
        self.check(unsafe { self.symbols.granularity.call(&mut bytes, &properties, 0) })?;
        Ok(bytes as u64)
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        let (device, peer) = (self.ordinal(device)?, self.ordinal(peer)?);
        let mut can_access = 0;
        // SAFETY: `can_access` is a valid place for an int.
        self.check(unsafe { self.symbols.device_can_access_peer.call(&mut can_access, device, peer) })?;
        Ok(can_access != 0)
    }

    fn address_reserve(&self, bytes: u64) -> Result<u64> {
        let mut address = ptr::null_mut();
        let alignment = LARGE_PAGE as usize;
        // SAFETY: `address` is a valid place for one, no address is asked for, and 0 are the only flags.
        self.check(unsafe {
            self.symbols.address_reserve.call(&mut address, bytes as usize, alignment, ptr::null_mut(), 0)
        })?;
        Ok(address.addr() as u64)
    }

    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the reservation.
        self.check(unsafe { self.symbols.address_free.call(as_pointer(address), bytes as usize) })
    }

    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        let device = self.device_of(location)?;
        let is_private = self.private.has(device);
        match self.create_for(device, bytes, !is_private) {
            Err(error) if !is_private && !error.is_of(StatusKind::OutOfMemory) => {
                let made = self.create_for(device, bytes, false)?;
                self.private.add(device);
                info!(target: RUNTIME, "{device}: memory cannot be shared with other processes: {error}");
                Ok(made)
            }
            outcome => outcome,
        }
    }

    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse> {
        let device = self.device_of(location)?;
        let can_export = !self.private.has(device) && self.has_virtual_memory_by_attribute(device)?;
        Ok(if can_export { SHAREABLE } else { ExtentUse::PRIVATE })
    }

    unsafe fn extent_release(&self, extent: Extent) -> Result<()> {
        // SAFETY: the caller owns the extent.
        self.check(unsafe { self.symbols.extent_release.call(as_pointer(extent.0)) })
    }

    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        let (place, extent) = (as_pointer(address), as_pointer(extent.0));
        // SAFETY: the caller promises that the addresses are free and the memory alive; 0 are the only flags.
        self.check(unsafe { self.symbols.memory_map.call(place, bytes as usize, 0, extent, 0) })?;
        self.mappings.add(address, bytes);
        Ok(())
    }

    unsafe fn memory_set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        let describe = |&by: &MemoryLocation| Ok(AccessDescription::read_write(self.ordinal(self.device_of(by)?)?));
        let access = by.iter().map(describe).collect::<Result<Vec<_>>>()?;
        for (address, bytes) in self.mappings.within(address, bytes) {
            let place = as_pointer(address);
            // SAFETY: the caller promises that the range is mapped, and `access` has as many entries as said.
            self.check(unsafe {
                self.symbols.memory_set_access.call(place, bytes as usize, access.as_ptr(), access.len())
            })?;
        }
        Ok(())
    }

    /// Pieces that were unmapped before a refusal are known, so it can be called again.
    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        for (address, bytes) in self.mappings.within(address, bytes) {
            // SAFETY: the caller promises that nothing uses these mappings again.
            self.check(unsafe { self.symbols.memory_unmap.call(as_pointer(address), bytes as usize) })?;
            self.mappings.remove(address);
        }
        Ok(())
    }
}

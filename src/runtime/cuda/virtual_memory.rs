//! CUDA's virtual memory: addresses that are reserved, and extents that are mapped there.

use std::ffi::c_int;
use std::{mem, ptr};

use cudarc::driver::sys;
use log::info;

use super::Cuda;
use super::extent_use::lesser;
use super::sharing::POSIX_FD;
use crate::error::{Result, StatusKind};
use crate::ids::{Device, MemoryLocation};
use crate::observe::target::RUNTIME;
use crate::runtime::{Extent, ExtentUse, VirtualMemoryCalls};

/// A location as each level of the bindings lays it out, though with other field names.
#[repr(C)]
struct CudaMemLocation {
    kind: sys::CUmemLocationType,
    id: c_int,
}

impl Cuda {
    /// Returns the driver's name of a device, or of a NUMA node of the host.
    fn location(&self, location: MemoryLocation) -> Result<sys::CUmemLocation> {
        let (kind, id) = match location {
            MemoryLocation::Device(device) => {
                (sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, self.slot(device)?.handle)
            }
            MemoryLocation::Host(node) => {
                (sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, node.number().cast_signed())
            }
        };
        // SAFETY: the driver's struct is a kind and an int, or a union of ints of that size.
        Ok(unsafe { mem::transmute::<CudaMemLocation, sys::CUmemLocation>(CudaMemLocation { kind, id }) })
    }

    /// Returns the properties of plain memory there, for this process alone.
    fn extent_properties(&self, location: MemoryLocation) -> Result<sys::CUmemAllocationProp> {
        Ok(sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: self.location(location)?,
            win32HandleMetaData: ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        })
    }

    fn create_for(&self, location: MemoryLocation, bytes: u64, extent_use: ExtentUse) -> Result<Extent> {
        let mut properties = self.extent_properties(location)?;
        if extent_use.is_shareable {
            properties.requestedHandleTypes = POSIX_FD;
        }
        properties.allocFlags.gpuDirectRDMACapable = u8::from(extent_use.is_rdma);
        let mut extent = 0;
        // SAFETY: `extent` is a valid place for one, the properties are whole, and 0 are the only flags.
        self.check(unsafe { self.symbols.extent_create.call(&mut extent, bytes as usize, &properties, 0) })?;
        Ok(Extent(extent))
    }

    /// Makes an extent on a node of the host and maps it for the node and every device. Drivers since CUDA 12.2 can, on some
    /// machines, but the attribute for it came with CUDA 12.9.
    fn rehearse(&self, node: MemoryLocation) -> Result<()> {
        let bytes = self.page_bytes(node)?;
        let address = self.address_reserve(bytes)?;
        let outcome = self.extent_create(node, bytes).and_then(|extent| {
            // SAFETY: the addresses were just reserved, and the extent is as long as said and alive.
            let mapped = unsafe { self.memory_map(address, bytes, extent) };
            let places: Vec<_> = [node].into_iter().chain(self.all_devices().map(MemoryLocation::from)).collect();
            let outcome = mapped.and_then(|()| {
                // SAFETY: the range was just mapped.
                let opened = unsafe { self.memory_set_access(address, bytes, &places) };
                // SAFETY: nothing uses the mapping.
                opened.and(unsafe { self.memory_unmap(address, bytes) })
            });
            // SAFETY: this is the only owner of the extent.
            outcome.and(unsafe { self.extent_release(extent) })
        });
        // SAFETY: the reservation is whole; where something is still mapped in it the driver refuses, and it stays.
        outcome.and(unsafe { self.address_free(address, bytes) })
    }
}

impl VirtualMemoryCalls for Cuda {
    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool> {
        let device = match location {
            MemoryLocation::Device(device) => device,
            MemoryLocation::Host(_) => return Ok(self.rehearse(location).is_ok()),
        };
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        self.attribute(attribute, device).map(|value| value != 0)
    }

    fn page_bytes(&self, location: MemoryLocation) -> Result<u64> {
        let properties = self.extent_properties(location)?;
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size, and the properties are whole.
        self.check(unsafe { self.symbols.granularity.call(&mut bytes, &properties, least as c_int) })?;
        Ok(bytes as u64)
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        let (device, peer) = (self.slot(device)?.handle, self.slot(peer)?.handle);
        let mut can_access = 0;
        // SAFETY: `can_access` is a valid place for an int, and the handles came from `cuDeviceGet`.
        self.check(unsafe { self.symbols.device_can_access_peer.call(&mut can_access, device, peer) })?;
        Ok(can_access != 0)
    }

    fn address_reserve(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a valid place for one. Alignment 0 is the driver's own, which is the page size; no
        // address is asked for, and 0 are the only flags.
        self.check(unsafe { self.symbols.address_reserve.call(&mut address, bytes as usize, 0, 0, 0) })?;
        Ok(address)
    }

    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the reservation.
        self.check(unsafe { self.symbols.address_free.call(address, bytes as usize) })
    }

    /// Makes an extent for as many uses as the driver allows, which a device's first one finds out.
    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        let wanted = self.extent_use(location)?;
        let mut outcome = self.create_for(location, bytes, wanted);
        let MemoryLocation::Device(device) = location else { return outcome };
        let known_use = &self.slot(device)?.extent_use;
        if known_use.get().is_some() {
            return outcome;
        }
        let mut made_for = wanted;
        for less in lesser(wanted).skip(1) {
            match &outcome {
                Err(error) if !error.is_of(StatusKind::OutOfMemory) => {}
                _ => break,
            }
            outcome = self.create_for(location, bytes, less);
            made_for = less;
        }
        if outcome.is_ok() {
            known_use.set(made_for);
            if made_for != wanted {
                let ExtentUse { is_shareable, is_rdma } = made_for;
                info!(
                    target: RUNTIME,
                    "{device}: the driver refused memory as its attributes announce it; made without: shareable with other \
                     processes {is_shareable}, for RDMA {is_rdma}"
                );
            }
        }
        outcome
    }

    /// Returns the uses of extents there, as the driver announces or as found.
    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse> {
        let MemoryLocation::Device(device) = location else { return Ok(ExtentUse::PRIVATE) };
        if let Some(known) = self.slot(device)?.extent_use.get() {
            return Ok(known);
        }
        let shareable = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        let rdma = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        // A driver that does not know an attribute lacks its feature.
        let has = |attribute| self.attribute(attribute, device).is_ok_and(|value| value != 0);
        Ok(ExtentUse { is_shareable: has(shareable), is_rdma: has(rdma) })
    }

    unsafe fn extent_release(&self, extent: Extent) -> Result<()> {
        // SAFETY: the caller owns the extent.
        self.check(unsafe { self.symbols.extent_release.call(extent.0) })
    }

    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        // SAFETY: the caller promises that the addresses are free and the memory alive; 0 are the only flags.
        self.check(unsafe { self.symbols.memory_map.call(address, bytes as usize, 0, extent.0, 0) })
    }

    unsafe fn memory_set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let describe = |&by: &MemoryLocation| Ok(sys::CUmemAccessDesc { location: self.location(by)?, flags });
        let access = by.iter().map(describe).collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller promises that the range is mapped, and `access` has as many entries as said.
        self.check(unsafe {
            self.symbols.memory_set_access.call(address, bytes as usize, access.as_ptr(), access.len())
        })
    }

    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller promises that nothing uses these mappings again.
        self.check(unsafe { self.symbols.memory_unmap.call(address, bytes as usize) })
    }
}

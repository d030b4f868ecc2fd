//! CUDA's virtual memory: addresses that are reserved, and extents that are mapped there.

use std::ffi::c_int;
use std::{mem, ptr};

use cudarc::driver::sys;

use super::Cuda;
use crate::error::Result;
use crate::ids::MemoryLocation;

/// A location as each level of the bindings lays it out, though with other field names.
#[repr(C)]
struct CudaMemLocation {
    kind: sys::CUmemLocationType,
    id: c_int,
}

fn location_of(location: CudaMemLocation) -> sys::CUmemLocation {
    // SAFETY: the driver's struct is a kind and an int, or a union of ints of that size.
    unsafe { mem::transmute::<CudaMemLocation, sys::CUmemLocation>(location) }
}

/// Plain memory there, not shared with other processes.
fn extent_properties(location: sys::CUmemLocation) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location,
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

impl Cuda {
    /// Returns a device, or a NUMA node of the host, as the driver names it.
    fn location(&self, location: MemoryLocation) -> Result<sys::CUmemLocation> {
        let (kind, id) = match location {
            MemoryLocation::Device(device) => {
                (sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, self.slot(device)?.handle)
            }
            MemoryLocation::Host(node) => {
                (sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, node.number().cast_signed())
            }
        };
        Ok(location_of(CudaMemLocation { kind, id }))
    }

    pub(super) fn granularity(&self, location: MemoryLocation) -> Result<u64> {
        let properties = self.extent_properties(location)?;
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size, and the properties are whole.
        let status = unsafe { (self.symbols.granularity)(&mut bytes, &properties, least as c_int) };
        self.check("cuMemGetAllocationGranularity", status)?;
        Ok(bytes as u64)
    }

    pub(super) fn reserve(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a valid place for one. Alignment 0 is the driver's own, which is the page size; no
        // address is asked for, and 0 are the only flags.
        let status = unsafe { (self.symbols.address_reserve)(&mut address, bytes as usize, 0, 0, 0) };
        self.check("cuMemAddressReserve", status)?;
        Ok(address)
    }

    /// Returns what makes plain memory there, for this process alone.
    pub(super) fn extent_properties(&self, location: MemoryLocation) -> Result<sys::CUmemAllocationProp> {
        self.location(location).map(extent_properties)
    }

    /// As [`Runtime::memory_set_access`](crate::runtime::Runtime::memory_set_access).
    ///
    /// # Safety
    /// The range consists of mappings of this runtime.
    pub(super) unsafe fn set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let describe = |&by: &MemoryLocation| Ok(sys::CUmemAccessDesc { location: self.location(by)?, flags });
        let access = by.iter().map(describe).collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller promises that the range is mapped, and `access` has as many entries as said.
        let status =
            unsafe { (self.symbols.memory_set_access)(address, bytes as usize, access.as_ptr(), access.len()) };
        self.check("cuMemSetAccess", status)
    }
}

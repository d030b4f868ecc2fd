//! Pinned memory of the host, and its NUMA nodes.

use std::ffi::{c_int, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::Cuda;
use crate::error::Result;
use crate::ids::{Device, MemoryLocation, NumaNode};
use crate::runtime::Runtime;
use crate::runtime::host_memory::{PagePopulation, map, node_of_pci_device, unmap};

/// `CU_MEMHOSTREGISTER_PORTABLE` and `_DEVICEMAP`, whose numbers are those of `CU_MEMHOSTALLOC_...`: for every context, and
/// for kernels too.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

impl Cuda {
    fn all_devices(&self) -> impl Iterator<Item = Device> + use<> {
        (0..self.devices.len() as u32).map(Device::from_ordinal)
    }

    /// As [`Runtime::nearest_host_node`].
    pub(super) fn nearest_node(&self, device: Device) -> Result<NumaNode> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
        // Drivers before CUDA 12.2 do not know the question, and -1 is their word for "unknown".
        let told: c_int = self.attribute(attribute, device).unwrap_or(-1);
        match u32::try_from(told) {
            Ok(node) => Ok(NumaNode::from_number(node)),
            Err(_) => {
                let info = self.info_of(device)?;
                Ok(info.pci_bus_id.map_or(NumaNode::FIRST, |place| node_of_pci_device(&place)))
            }
        }
    }

    /// Returns whether extents can be made on a node of the host and mapped for it and for every device. Drivers since CUDA
    /// 12.2 can, on machines that let them, which the attribute that says so has told only since CUDA 12.9: so it is tried.
    pub(super) fn has_host_extents(&self, node: NumaNode) -> bool {
        self.rehearse(node.into()).is_ok()
    }

    fn rehearse(&self, node: MemoryLocation) -> Result<()> {
        let bytes = self.granularity(node)?;
        let address = self.reserve(bytes)?;
        let outcome = self.create(node, bytes).and_then(|extent| {
            // SAFETY: the addresses were just reserved, and the extent is as long as said and alive.
            let mapped = unsafe { self.memory_map(address, bytes, extent) };
            let places: Vec<_> = [node].into_iter().chain(self.all_devices().map(MemoryLocation::from)).collect();
            let outcome = mapped.and_then(|()| {
                // SAFETY: the range was just mapped.
                let opened = unsafe { self.set_access(address, bytes, &places) };
                // SAFETY: nothing uses the mapping.
                opened.and(unsafe { self.memory_unmap(address, bytes) })
            });
            // SAFETY: this is the only owner of the extent.
            outcome.and(unsafe { self.extent_release(extent) })
        });
        // SAFETY: the reservation is whole; where something is still mapped in it the driver refuses, and it stays.
        outcome.and(unsafe { self.address_free(address, bytes) })
    }

    /// Returns whether every device uses registered memory at the host's address.
    fn registers_in_place(&self) -> bool {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        self.all_devices().all(|device| self.attribute(attribute, device).is_ok_and(|value| value != 0))
    }

    /// As [`Runtime::host_allocate`]. A copy must lie in one registration, so all of it is registered at once; its pages are
    /// brought in before, by several threads, which is what takes the time.
    pub(super) fn allocate_on_host(&self, node: NumaNode, bytes: u64) -> Result<u64> {
        if !self.registers_in_place() {
            let mut address = ptr::null_mut();
            // SAFETY: `address` is a valid place for one.
            let status = unsafe { (self.symbols.host_allocate)(&mut address, bytes as usize, PORTABLE_AND_MAPPED) };
            self.check("cuMemHostAlloc", status)?;
            return Ok(address.expose_provenance() as u64);
        }
        let address = map(node, bytes, PagePopulation::Now)?;
        // SAFETY: the range was just mapped, and stays so until it is unregistered.
        let status = unsafe { (self.symbols.host_register)(pointer(address), bytes as usize, PORTABLE_AND_MAPPED) };
        self.check("cuMemHostRegister", status).inspect_err(|_| {
            // SAFETY: the range was just mapped, and nothing has it.
            unsafe { unmap(address, bytes) };
        })?;
        Ok(address)
    }

    /// As [`Runtime::host_free`].
    ///
    /// # Safety
    /// [`Cuda::allocate_on_host`] gave the memory, and nothing uses it again.
    pub(super) unsafe fn free_on_host(&self, address: u64, bytes: u64) -> Result<()> {
        if !self.registers_in_place() {
            // SAFETY: the caller owns the memory.
            return self.check("cuMemFreeHost", unsafe { (self.symbols.host_free)(pointer(address)) });
        }
        // SAFETY: the caller owns the memory.
        self.check("cuMemHostUnregister", unsafe { (self.symbols.host_unregister)(pointer(address)) })?;
        // SAFETY: the driver knows the memory no more, and the caller gives it up.
        unsafe { unmap(address, bytes) };
        Ok(())
    }
}

//! CUDA's memory of devices, and pinned memory of the host on its NUMA nodes. Host memory is mapped here and registered
//! with the driver, if every device uses registered memory at the host's address: so it is on the right node. Otherwise
//! the driver allocates it.

use std::ffi::{c_int, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::{Cuda, as_stream};
use crate::error::Result;
use crate::ids::{Device, MemoryLocation, NumaNode, RawStream};
use crate::runtime::host_memory::{PagePopulation, map, most_memory, node_of_pci_device, unmap};
use crate::runtime::{MemoryCalls, MemoryInfo, Runtime, StreamOrderedMemory};

/// `CU_MEMHOSTREGISTER_PORTABLE` and `_DEVICEMAP`, numbered as `CU_MEMHOSTALLOC_...`: for every context, and for
/// kernels.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

impl Cuda {
    /// Returns whether every device uses registered memory at the host's address.
    fn registers_in_place(&self) -> bool {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        self.all_devices().all(|device| self.attribute(attribute, device).is_ok_and(|value| value != 0))
    }
}

impl MemoryCalls for Cuda {
    fn memory_info(&self) -> Result<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places for a size.
        self.check(unsafe { self.symbols.memory_info.call(&mut free, &mut total) })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn total_memory(&self, location: MemoryLocation) -> Result<u64> {
        let MemoryLocation::Device(device) = location else { return Ok(most_memory()) };
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size, and the handle came from `cuDeviceGet`.
        self.check(unsafe { self.symbols.device_total_memory.call(&mut bytes, self.slot(device)?.handle) })?;
        Ok(bytes as u64)
    }

    fn memory_allocate(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a valid place for one.
        self.check(unsafe { self.symbols.memory_allocate.call(&mut address, bytes as usize) })?;
        Ok(address)
    }

    unsafe fn memory_free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller owns the memory.
        self.check(unsafe { self.symbols.memory_free.call(address) })
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the memory and the stream last.
        self.check(unsafe { self.symbols.fill.call(address, byte, bytes as usize, as_stream(stream)) })
    }

    unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        let to = ptr::with_exposed_provenance_mut(to as usize);
        // SAFETY: the caller promises that the stream and both ranges are alive.
        self.check(unsafe { self.symbols.copy_to_host.call(to, from, bytes as usize, as_stream(stream)) })
    }

    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        let from = ptr::with_exposed_provenance(from as usize);
        // SAFETY: the caller promises that the stream and both ranges are alive.
        self.check(unsafe { self.symbols.copy_to_device.call(to, from, bytes as usize, as_stream(stream)) })
    }

    fn stream_ordered_memory(&self) -> &dyn StreamOrderedMemory {
        self
    }

    fn nearest_host_node(&self, device: Device) -> Result<NumaNode> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
        // Drivers before CUDA 12.2 do not know the attribute, and -1 means "unknown".
        let number: c_int = self.attribute(attribute, device).unwrap_or(-1);
        match u32::try_from(number) {
            Ok(node) => Ok(NumaNode::from_number(node)),
            Err(_) => {
                let info = self.device_info(device)?;
                Ok(info.pci_bus_id.map_or(NumaNode::FIRST, |place| node_of_pci_device(&place)))
            }
        }
    }

    /// A copy must be within one registration, so all of it is registered at once; several threads touch its pages
    /// before, which is what takes the time.
    fn host_allocate(&self, node: NumaNode, bytes: u64) -> Result<u64> {
        if !self.registers_in_place() {
            let mut address = ptr::null_mut();
            // SAFETY: `address` is a valid place for one.
            self.check(unsafe { self.symbols.host_allocate.call(&mut address, bytes as usize, PORTABLE_AND_MAPPED) })?;
            return Ok(address.expose_provenance() as u64);
        }
        let address = map(node, bytes, PagePopulation::Now)?;
        // SAFETY: the range was just mapped, and stays so until it is unregistered.
        let registered =
            unsafe { self.symbols.host_register.call(pointer(address), bytes as usize, PORTABLE_AND_MAPPED) };
        self.check(registered).inspect_err(|_| {
            // SAFETY: the range was just mapped, and nothing has it.
            unsafe { unmap(address, bytes) };
        })?;
        Ok(address)
    }

    unsafe fn host_free(&self, _node: NumaNode, address: u64, bytes: u64) -> Result<()> {
        if !self.registers_in_place() {
            // SAFETY: the caller owns the memory.
            return self.check(unsafe { self.symbols.host_free.call(pointer(address)) });
        }
        // SAFETY: the caller owns the memory.
        self.check(unsafe { self.symbols.host_unregister.call(pointer(address)) })?;
        // SAFETY: the driver knows the memory no more, and the caller gives it up.
        unsafe { unmap(address, bytes) };
        Ok(())
    }
}

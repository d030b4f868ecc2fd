//! HIP's memory of devices, with the driver's stream-ordered allocator, and pinned memory of the host. The library
//! chooses the node of pinned memory, whatever node a caller wants.

use std::ptr;

use super::{Hip, as_pointer, as_stream};
use crate::error::Result;
use crate::ids::{Device, MemoryLocation, NumaNode, RawStream};
use crate::runtime::host_memory::{most_memory, node_of_pci_device};
use crate::runtime::{MemoryCalls, MemoryInfo, StreamOrderedMemory};

/// `hipHostMallocPortable` and `hipHostMallocMapped`: for every device, and for kernels too.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

impl MemoryCalls for Hip {
    fn memory_info(&self) -> Result<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places for a size.
        self.check(unsafe { self.symbols.memory_info.call(&mut free, &mut total) })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn total_memory(&self, location: MemoryLocation) -> Result<u64> {
        let MemoryLocation::Device(device) = location else { return Ok(most_memory()) };
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size.
        self.check(unsafe { self.symbols.device_total_memory.call(&mut bytes, self.ordinal(device)?) })?;
        Ok(bytes as u64)
    }

    fn memory_allocate(&self, bytes: u64) -> Result<u64> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is a valid place for one.
        self.check(unsafe { self.symbols.memory_allocate.call(&mut address, bytes as usize) })?;
        Ok(address.addr() as u64)
    }

    unsafe fn memory_free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller owns the memory.
        self.check(unsafe { self.symbols.memory_free.call(as_pointer(address)) })
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the memory and the stream last.
        self.check(unsafe { self.symbols.fill.call(as_pointer(address), byte, bytes as usize, as_stream(stream)) })
    }

    unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        let (to, from, stream) = (as_pointer(to), as_pointer(from), as_stream(stream));
        // SAFETY: the caller promises that the stream and both ranges are alive.
        self.check(unsafe { self.symbols.copy_to_host.call(to, from, bytes as usize, stream) })
    }

    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        let (to, from, stream) = (as_pointer(to), as_pointer(from), as_stream(stream));
        // SAFETY: the caller promises that the stream and both ranges are alive.
        self.check(unsafe { self.symbols.copy_to_device.call(to, from, bytes as usize, stream) })
    }

    fn stream_ordered_memory(&self) -> &dyn StreamOrderedMemory {
        self
    }

    fn nearest_host_node(&self, device: Device) -> Result<NumaNode> {
        Ok(node_of_pci_device(&self.pci_bus_id(self.ordinal(device)?)?))
    }

    fn host_allocate(&self, _node: NumaNode, bytes: u64) -> Result<u64> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is a valid place for one.
        self.check(unsafe { self.symbols.host_allocate.call(&mut address, bytes as usize, PORTABLE_AND_MAPPED) })?;
        Ok(address.expose_provenance() as u64)
    }

    unsafe fn host_free(&self, _node: NumaNode, address: u64, _bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the memory.
        self.check(unsafe { self.symbols.host_free.call(as_pointer(address)) })
    }
}

impl StreamOrderedMemory for Hip {
    unsafe fn allocate_async(&self, bytes: u64, stream: RawStream) -> Result<u64> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is a valid place for one, and the caller promises that the stream is alive.
        self.check(unsafe {
            self.symbols.memory_allocate_async.call(&mut address, bytes as usize, as_stream(stream))
        })?;
        Ok(address.addr() as u64)
    }

    unsafe fn free_async(&self, address: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller owns the memory and promises that the stream is alive.
        self.check(unsafe { self.symbols.memory_free_async.call(as_pointer(address), as_stream(stream)) })
    }
}

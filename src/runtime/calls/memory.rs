//! Memory that a driver allocates and frees whole, on a device and the host, and copies and fills. A driver waits for a
//! device, or for all kernels, when it frees such memory. So pools rather map memory themselves, where the platform
//! can: see [`VirtualMemoryCalls`](crate::runtime::VirtualMemoryCalls).

use crate::error::Result;
use crate::ids::{Device, MemoryLocation, NumaNode, RawStream};
use crate::runtime::{MemoryInfo, StreamOrderedMemory, host_memory};

/// A platform's calls on memory. The rules of [`Runtime`](crate::runtime::Runtime) apply.
pub trait MemoryCalls {
    /// Returns the free and total memory of the current device.
    fn memory_info(&self) -> Result<MemoryInfo>;
    /// Returns the device's total memory (`cuDeviceTotalMem`); for a node of the host that of the machine, since it can
    /// use other nodes' memory. Unlike [`MemoryCalls::memory_info`] it needs no context.
    fn total_memory(&self, location: MemoryLocation) -> Result<u64>;

    /// Memory of the current device (`cuMemAlloc`).
    fn memory_allocate(&self, bytes: u64) -> Result<u64>;
    /// Frees what [`MemoryCalls::memory_allocate`] gave, after waiting for the device (`cuMemFree`).
    ///
    /// # Safety
    /// The memory is of this runtime, was not freed before and is not used again.
    unsafe fn memory_free(&self, address: u64) -> Result<()>;

    /// Sets bytes of a device, in the order of the stream (`cuMemsetD8Async`).
    ///
    /// # Safety
    /// The stream is alive and of this runtime, and the memory is as large as said and stays until its work is done.
    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()>;
    /// Copies memory of a device to bytes of the host, in stream order (`cuMemcpyDtoHAsync`). To pinned memory it
    /// returns at once.
    ///
    /// # Safety
    /// The stream is alive, of this runtime and of the current device, and both ranges are valid until the copy is
    /// done.
    unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()>;
    /// Copies bytes of the host to memory of a device, in stream order (`cuMemcpyHtoDAsync`). From pinned memory it
    /// returns at once.
    ///
    /// # Safety
    /// As [`MemoryCalls::copy_to_host`].
    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()>;

    /// Returns the driver's own allocator in stream order.
    fn stream_ordered_memory(&self) -> &dyn StreamOrderedMemory;

    /// Returns the host's NUMA node that is nearest to the device; node 0 if unknown.
    fn nearest_host_node(&self, device: Device) -> Result<NumaNode>;
    /// Returns whether the host has this NUMA node.
    fn has_host_node(&self, node: NumaNode) -> bool {
        host_memory::has_node(node)
    }
    /// Returns the free and total memory of a NUMA node of the host.
    fn host_memory_info(&self, node: NumaNode) -> Result<MemoryInfo> {
        Ok(host_memory::node_memory(node))
    }
    /// Allocates contiguous pinned memory of the host, on this node as far as there is room, that every device reads
    /// and writes at the same address. It does not wait for work of a device.
    fn host_allocate(&self, node: NumaNode, bytes: u64) -> Result<u64>;
    /// Frees memory of [`MemoryCalls::host_allocate`]. CUDA and HIP wait for all running kernels, whatever memory they
    /// use.
    ///
    /// # Safety
    /// The memory is of this runtime and of this size, was not freed before and is not used again.
    unsafe fn host_free(&self, node: NumaNode, address: u64, bytes: u64) -> Result<()>;
}

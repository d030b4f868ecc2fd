//! Memory of the simulated devices and of the host, and copies and fills, which change its real bytes in their turn.

use crate::error::{Result, StatusKind};
use crate::ids::{Device, MemoryLocation, NumaNode, RawStream};
use crate::runtime::host::memory::NODES;
use crate::runtime::host::refusal::refused;
use crate::runtime::host::timeline::StreamKey;
use crate::runtime::host::virtual_memory::space;
use crate::runtime::host::work::Work;
use crate::runtime::host::{Call, Host, check, enter_memory_call, timeline, uses};
use crate::runtime::host_memory::{PagePopulation, map, unmap};
use crate::runtime::{MemoryCalls, MemoryInfo, StreamOrderedMemory};

/// Submits work with device memory to a stream, whose device must have access now; whether it still has is checked when
/// the work is done. The caller promises that host memory stays until then.
fn submit_work(function: &str, key: StreamKey, work: Work) -> Result<()> {
    let device = timeline().device(key)?;
    if !space().is_accessible(work.mapped(), 1, device) {
        let error = refused(function, ("HOST_ERROR_INVALID_VALUE", 1), StatusKind::Other);
        let why = format!("{:#x} is not memory that {device} has access to", work.mapped());
        return Err(error.map_library(|refused| refused.advice = Some(why)));
    }
    timeline().submit_work(key, work)
}

impl MemoryCalls for Host {
    fn memory_info(&self) -> Result<MemoryInfo> {
        check(Call::MemoryInfo)?;
        Ok(MemoryInfo { free: self.memory.free(Self::bound())?, total: self.memory.capacity })
    }

    fn total_memory(&self, location: MemoryLocation) -> Result<u64> {
        self.memory.check(location)?;
        Ok(self.memory.capacity)
    }

    fn memory_allocate(&self, bytes: u64) -> Result<u64> {
        enter_memory_call(Call::MemoryAllocate)?;
        space().memory_allocate(self.memory, Self::bound(), bytes)
    }

    unsafe fn memory_free(&self, address: u64) -> Result<()> {
        enter_memory_call(Call::MemoryFree)?;
        let device = space().device_of(address)?;
        timeline().complete_all(Some(device))?;
        uses::check_unused(address, 1);
        // SAFETY: the caller gives the memory up.
        unsafe { space().memory_free(self.memory, address) }
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        check(Call::Fill)?;
        submit_work("fill", Self::key(stream), Work::Fill { address, byte, bytes })
    }

    unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        check(Call::CopyToHost)?;
        submit_work("copy_to_host", Self::key(stream), Work::Copy { to, from, bytes, mapped: from })
    }

    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        check(Call::CopyToDevice)?;
        submit_work("copy_to_device", Self::key(stream), Work::Copy { to, from, bytes, mapped: to })
    }

    fn stream_ordered_memory(&self) -> &dyn StreamOrderedMemory {
        self
    }

    fn nearest_host_node(&self, device: Device) -> Result<NumaNode> {
        self.memory.check(device)?;
        check(Call::NearestHostNode)?;
        Ok(NumaNode::from_number(device.ordinal() as u32 % NODES))
    }

    fn has_host_node(&self, node: NumaNode) -> bool {
        node.number() < NODES
    }

    fn host_memory_info(&self, node: NumaNode) -> Result<MemoryInfo> {
        check(Call::MemoryInfo)?;
        Ok(MemoryInfo { free: self.memory.free(node)?, total: self.memory.capacity })
    }

    fn host_allocate(&self, node: NumaNode, bytes: u64) -> Result<u64> {
        enter_memory_call(Call::HostAllocate)?;
        self.memory.take("host_allocate", node.into(), bytes)?;
        let mapped = map(node, bytes, PagePopulation::WhenWritten);
        if mapped.is_err() {
            self.memory.give_back(node.into(), bytes)?;
        }
        mapped
    }

    unsafe fn host_free(&self, node: NumaNode, address: u64, bytes: u64) -> Result<()> {
        enter_memory_call(Call::HostFree)?;
        // SAFETY: the caller gives the memory up.
        unsafe { unmap(address, bytes) };
        self.memory.give_back(node.into(), bytes)
    }
}

impl StreamOrderedMemory for Host {
    unsafe fn allocate_async(&self, bytes: u64, stream: RawStream) -> Result<u64> {
        enter_memory_call(Call::MemoryAllocate)?;
        timeline().check_not_beside_capture("allocate_async", Self::key(stream))?;
        let device = timeline().device(Self::key(stream))?;
        space().memory_allocate(self.memory, device, bytes)
    }

    unsafe fn free_async(&self, address: u64, stream: RawStream) -> Result<()> {
        enter_memory_call(Call::MemoryFree)?;
        timeline().check_not_beside_capture("free_async", Self::key(stream))?;
        // The bytes go at once, not once the stream's work is done: simulated work touches none.
        timeline().device(Self::key(stream))?;
        // SAFETY: the caller gives the memory up.
        unsafe { space().memory_free(self.memory, address) }
    }
}

//! The simulated platform, for machines without a GPU and for tests.
//!
//! Each device has memory with real bytes, and streams whose work completes on demand. Captures follow CUDA's rules on
//! unsafe calls. With the feature `fault-injection` tests can make every call fail, or run a function before it:
//! `host.rs` has the controls. Each call first applies the rules on captures and injected faults, then uses the
//! simulated parts: the timeline of streams and events, the devices' memory and addresses. Two calls at once on one
//! extent break it, as with NVIDIA's driver. The simulation uses only as much of the machine's memory as is written to.

mod captures;
mod devices;
mod events;
mod fault;
pub mod host;
mod memory;
mod timeline;
mod uses;

use std::sync::atomic::Ordering;

use super::host_memory::{PagePopulation, map, unmap};
use super::{
    Capture, Context, DeviceInfo, DeviceUuid, Extent, ExtentUse, Kind, MemoryInfo, RawEvent, RawGraph, Runtime,
};
use crate::error::{Error, Result};
use crate::ids::{Device, MemoryLocation, NumaNode, RawStream};
use captures::{SimulatedCapture, check_unsafe_call};
pub(super) use devices::Simulator;
use devices::{BOUND, DRIVER_CALLS, MEMORY, enter_memory_call, on_space, uuid_of};
pub use devices::{DEVICES_VARIABLE, MEMORY_VARIABLE};
use events::{Recorded, on_timeline};
use fault::{Call, INVALID_HANDLE, check, refused};
use memory::NODES;
use timeline::timeline;

/// Returns how many calls that create, release, map, set access to, unmap, allocate or free memory this process has
/// made, with the refused ones. Those on address reservations do not count.
pub fn driver_calls() -> u64 {
    DRIVER_CALLS.load(Ordering::Relaxed)
}

/// Takes memory of the bound device, as a driver's allocation would.
pub(crate) fn allocate(bytes: u64) -> Result<()> {
    check_unsafe_call()?;
    check(Call::Allocate)?;
    let Some(memory) = MEMORY.get() else { return Err(not_chosen()) };
    memory.take("allocate", Simulator::bound().into(), bytes)
}

/// Gives memory of the device back, after waiting for the device, which spoils every capture on it in any mode.
pub(crate) fn synchronize_and_free(device: Device, bytes: u64) -> Result<()> {
    timeline().spoil_captures_on(device);
    let Some(memory) = MEMORY.get() else { return Err(not_chosen()) };
    memory.give_back(device.into(), bytes)
}

fn not_chosen() -> Error {
    let reason = "no simulated device exists; set GPUPOOL_RUNTIME=host before the process starts";
    Error::runtime_unavailable(Kind::Host.name(), reason)
}

impl Runtime for Simulator {
    fn device_info(&self, device: Device) -> Result<DeviceInfo> {
        let (free, total) = (self.memory.free(device)?, self.memory.capacity);
        let name = "simulated device".to_owned();
        let shown = DeviceInfo { total_bytes: total, free_bytes: Some(free), ..DeviceInfo::default() };
        Ok(DeviceInfo { name, is_shareable: true, ..shown })
    }

    fn memory_uuid(&self, device: Device) -> Result<DeviceUuid> {
        self.memory.check(device)?;
        // Of this process alone, unless it has the devices together with others.
        let whose = self.memory.folder_number().unwrap_or(std::process::id().into());
        Ok(uuid_of(whose.to_le_bytes(), device))
    }

    fn current_device(&self) -> Result<Device> {
        check(Call::CurrentDevice)?;
        Ok(Self::bound())
    }

    fn bind(&self, location: MemoryLocation) -> Result<Option<Context>> {
        self.memory.check(location)?;
        check(Call::Bind)?;
        let MemoryLocation::Device(device) = location else { return Ok(None) };
        let (wanted, previous) = (device.ordinal() + 1, BOUND.get());
        BOUND.set(wanted);
        Ok((previous != wanted).then_some(Context(previous)))
    }

    fn restore(&self, previous: Context) {
        BOUND.set(previous.0);
    }

    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device> {
        if stream.is_default() {
            return self.current_device();
        }
        on_timeline(Call::StreamDevice)?.device(Self::key(stream))
    }

    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64> {
        check(Call::StreamId)?;
        let (key, mut timeline) = (Self::key(stream), timeline());
        timeline.check_not_captured(key)?;
        timeline.stream(key).map(|stream| stream.id)
    }

    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()> {
        let mut timeline = on_timeline(Call::EventRecordContext)?;
        timeline.spoil_captures_on(Self::bound());
        let mut work = Vec::new();
        for key in timeline.streams_of(Some(Self::bound())) {
            work.extend(timeline.work_so_far(key)?);
        }
        *timeline.event(event)? = Some(Recorded::Work(work));
        Ok(())
    }

    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()> {
        let mut timeline = on_timeline(Call::ContextWaitEvent)?;
        timeline.spoil_captures_on(Self::bound());
        timeline.streams_of(Some(Self::bound())).into_iter().try_for_each(|key| timeline.wait_for(key, event))
    }

    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Option<Capture>> {
        let mut timeline = on_timeline(Call::StreamCapture)?;
        let capture = timeline.capture(Self::key(stream))?;
        Ok(capture.map(|SimulatedCapture { graph, .. }| Capture { id: graph.id, graph: RawGraph(graph.id as usize) }))
    }

    unsafe fn graph_retain(&self, graph: RawGraph, kept: Box<dyn Send>) -> Result<()> {
        let mut timeline = on_timeline(Call::GraphRetain)?;
        match timeline.captures().find(|capture| capture.graph.id == graph.0 as u64) {
            Some(capture) => capture.graph.kept.push(kept),
            None => return Err(refused("graph_retain", INVALID_HANDLE)),
        }
        Ok(())
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

    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool> {
        self.memory.check(location)?;
        Ok(true)
    }

    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        on_space(Call::ExtentCreate)?.extent_create(self.memory, location, bytes)
    }

    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse> {
        self.memory.check(location)?;
        Ok(ExtentUse { is_shareable: true, is_rdma: false })
    }
}

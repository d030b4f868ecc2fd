//! The simulated platform, for machines without a GPU and for tests.
//!
//! Each device has memory with real bytes and streams whose work completes on demand, captures follow CUDA's rules on
//! unsafe calls, and with the feature `fault-injection` every call can be made to fail, and can have a function run before
//! it: `host.rs` has the controls. Each call first applies the rules on captures and injected faults. Then it uses what is
//! simulated: the timeline of streams and events, the devices' memory and addresses. Two calls at once on one extent break
//! it, as with NVIDIA's driver. It uses only as much of the machine's memory as is written to.

mod captures;
mod events;
mod fault;
pub mod host;
mod memory;
mod timeline;
mod uses;
mod virtual_memory;

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, OnceLock};
use std::thread;
use std::time::Duration;

use super::host_memory::{PagePopulation, map, unmap};
use super::{
    Capture, Context, DeviceInfo, DeviceUuid, DriverCalls, ExportedEvent, ExportedExtent, Extent, ExtentUse, Kind,
    MemoryInfo, RawEvent, RawGraph, Runtime,
};
use crate::environment::number;
use crate::error::{Error, Result};
use crate::ids::{CaptureMode, CaptureStatus, Device, MemoryLocation, NumaNode, RawStream};
use captures::SimulatedCapture;
use events::Word;
use fault::{CAPTURE_UNSUPPORTED, Call, INVALID_HANDLE, check, invalid, refused, system_error};
use memory::{Memory, NODES, SharedDevices};
use timeline::{StreamKey, Timeline, Work, timeline};
use uses::ExtentCall;
use virtual_memory::{PAGE, Space, space};

/// How many devices to simulate.
pub const DEVICES_VARIABLE: &str = "GPUPOOL_HOST_DEVICES";
/// How much memory each has, in bytes.
pub const MEMORY_VARIABLE: &str = "GPUPOOL_HOST_MEMORY";
/// More devices than any machine has.
const MOST_DEVICES: u64 = 4096;
/// As many bytes as a process has addresses for.
const MOST_MEMORY: u64 = 1 << 47;

thread_local! {
    /// The bound device, as an ordinal plus one; 0 for none.
    static BOUND: Cell<usize> = const { Cell::new(0) };
}

/// The simulated platform. What it simulates is process-wide, as the devices of a machine are.
#[derive(Debug)]
pub(in crate::runtime) struct Simulator {
    memory: &'static Memory,
}

static MEMORY: OnceLock<Memory> = OnceLock::new();
/// What [`driver_calls`] returns.
static DRIVER_CALLS: AtomicU64 = AtomicU64::new(0);

impl Simulator {
    pub(in crate::runtime) fn from_environment() -> Result<Self> {
        let devices = number(DEVICES_VARIABLE, 1..=MOST_DEVICES, 1)?;
        Self::new(devices, number(MEMORY_VARIABLE, 1..=MOST_MEMORY, 16 << 30)?)
    }

    pub(in crate::runtime) fn new(devices: u64, capacity: u64) -> Result<Self> {
        if !(1..=MOST_DEVICES).contains(&devices) {
            return Err(Error::invalid_value(format!("{devices} devices: 1 to {MOST_DEVICES} can be simulated")));
        }
        if let Some(memory) = MEMORY.get() {
            return Ok(Self { memory });
        }
        let together = SharedDevices::from_environment()?;
        Ok(Self { memory: MEMORY.get_or_init(|| Memory::new(devices, capacity, together)) })
    }

    fn bound() -> Device {
        Device::from_ordinal(BOUND.get().saturating_sub(1) as u32)
    }

    /// Returns the key of a stream: a default stream is that of the bound device, any other address is unique in the
    /// process.
    fn key(stream: RawStream) -> StreamKey {
        StreamKey::new(stream, Self::bound())
    }
}

/// Begins a call on streams and events.
fn on_timeline(call: Call) -> Result<MutexGuard<'static, Timeline>> {
    check(call)?;
    Ok(timeline())
}

/// Begins a call on memory.
fn on_space(call: Call) -> Result<MutexGuard<'static, Space>> {
    enter_memory_call(call)?;
    Ok(space())
}

/// What every call that makes, maps or frees memory does first.
fn enter_memory_call(call: Call) -> Result<()> {
    DRIVER_CALLS.fetch_add(1, Ordering::Relaxed);
    captures::check_unsafe_call()?;
    check(call)
}

/// Returns how many calls that create, release, map, set access to, unmap, allocate or free memory this process has
/// made, with the refused ones. Those on address reservations do not count.
pub fn driver_calls() -> u64 {
    DRIVER_CALLS.load(Ordering::Relaxed)
}

/// Takes memory of the bound device, as a driver's allocation would.
pub(crate) fn allocate(bytes: u64) -> Result<()> {
    captures::check_unsafe_call()?;
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

/// Submits work with device memory to a stream, whose device must have access now; whether it still has is checked when
/// the work is done. The caller promises that host memory stays until then.
fn submit_work(function: &str, key: StreamKey, work: Work) -> Result<()> {
    let device = timeline().device(key)?;
    if !space().is_accessible(work.mapped(), 1, device) {
        let why = format!("{:#x} is not memory that {device} has access to", work.mapped());
        return Err(invalid(function, why));
    }
    timeline().submit_work(key, work)
}

/// Completes work until it is done: another process may delay it, and is queried each millisecond.
fn wait_for_others(mut complete: impl FnMut() -> Result<bool>) -> Result<()> {
    while !complete()? {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

impl DriverCalls for Simulator {
    fn kind(&self) -> Kind {
        Kind::Host
    }

    fn driver_version(&self) -> Option<(u32, u32)> {
        None
    }

    fn device_count(&self) -> u32 {
        self.memory.devices() as u32
    }

    fn device_uuid(&self, device: Device) -> Result<DeviceUuid> {
        self.memory.check(device)?;
        let mut uuid = *b"simulated device";
        uuid[8..].copy_from_slice(&(device.ordinal() as u64).to_le_bytes());
        Ok(uuid)
    }

    fn stream_create(&self) -> Result<RawStream> {
        Ok(on_timeline(Call::StreamCreate)?.create_stream(Self::bound(), false))
    }

    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        on_timeline(Call::StreamDestroy)?.destroy_stream(Self::key(stream))
    }

    unsafe fn stream_query(&self, stream: RawStream) -> Result<bool> {
        captures::check_unsafe_call()?;
        check(Call::StreamQuery)?;
        let (key, mut timeline) = (Self::key(stream), timeline());
        timeline.check_not_captured(key)?;
        timeline.is_idle(key)
    }

    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        captures::check_unsafe_call()?;
        check(Call::StreamSynchronize)?;
        let key = Self::key(stream);
        timeline().check_not_captured(key)?;
        wait_for_others(|| timeline().complete_stream(key))
    }

    unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        on_timeline(Call::StreamWaitEvent)?.wait_event(Self::key(stream), event)
    }

    fn event_create(&self) -> Result<RawEvent> {
        Ok(on_timeline(Call::EventCreate)?.create_event())
    }

    fn event_create_interprocess(&self) -> Result<RawEvent> {
        on_timeline(Call::EventCreate)?.create_interprocess_event()
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> Result<()> {
        on_timeline(Call::EventDestroy)?.destroy_event(event)
    }

    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        on_timeline(Call::EventRecord)?.record_event(event, Self::key(stream))
    }

    unsafe fn event_query(&self, event: RawEvent) -> Result<bool> {
        captures::check_unsafe_call()?;
        on_timeline(Call::EventQuery)?.is_event_done(event)
    }

    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()> {
        captures::check_unsafe_call()?;
        check(Call::EventSynchronize)?;
        wait_for_others(|| {
            let mut timeline = timeline();
            timeline.complete_event(event)?;
            timeline.is_event_done(event)
        })
    }

    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent> {
        let word = on_timeline(Call::EventExport)?.word(event)?;
        let (name, file) = word.export().map_err(|error| system_error("event_export", error))?;
        Ok(ExportedEvent { name, descriptor: Some(file) })
    }

    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent> {
        check(Call::EventImport)?;
        let invalid = || refused("event_import", INVALID_HANDLE);
        let word = Word::import(&exported.name, exported.descriptor.ok_or_else(invalid)?)
            .map_err(|error| system_error("event_import", error))?;
        Ok(timeline().import_event(word))
    }

    fn context_synchronize(&self) -> Result<()> {
        let mut timeline = on_timeline(Call::ContextSynchronize)?;
        if timeline.spoil_captures_on(Self::bound()) {
            return Err(refused("context_synchronize", CAPTURE_UNSUPPORTED));
        }
        timeline.complete_all(Some(Self::bound()))
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        check(Call::ExchangeCaptureMode)?;
        Ok(captures::exchange_mode(mode))
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        on_timeline(Call::StreamCaptureStatus)?.capture_status(Self::key(stream))
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        check(Call::MemoryInfo)?;
        Ok(MemoryInfo { free: self.memory.free(Self::bound())?, total: self.memory.capacity })
    }

    fn total_memory(&self, location: MemoryLocation) -> Result<u64> {
        self.memory.check(location)?;
        Ok(self.memory.capacity)
    }

    fn memory_allocate(&self, bytes: u64) -> Result<u64> {
        on_space(Call::MemoryAllocate)?.memory_allocate(self.memory, Self::bound(), bytes)
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

    fn page_bytes(&self, location: MemoryLocation) -> Result<u64> {
        self.memory.check(location)?;
        check(Call::PageBytes)?;
        Ok(PAGE)
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        self.memory.check(device)?;
        self.memory.check(peer)?;
        Ok(device != peer)
    }

    fn address_reserve(&self, bytes: u64) -> Result<u64> {
        check(Call::AddressReserve)?;
        space().address_reserve(bytes)
    }

    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()> {
        check(Call::AddressFree)?;
        // SAFETY: the caller gives the reservation up.
        unsafe { space().address_free(address, bytes) }
    }

    unsafe fn extent_release(&self, extent: Extent) -> Result<()> {
        enter_memory_call(Call::ExtentRelease)?;
        let call = ExtentCall::begin(|| vec![extent.0]);
        space().extent_release(self.memory, extent).inspect(|()| call.mend())
    }

    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd> {
        on_space(Call::ExtentExport)?.extent_export(extent)
    }

    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent> {
        on_space(Call::ExtentImport)?.extent_import(exported)
    }

    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        enter_memory_call(Call::MemoryMap)?;
        let call = ExtentCall::begin(|| vec![extent.0]);
        call.check_whole("memory_map")?;
        space().memory_map(address, bytes, extent)
    }

    unsafe fn memory_set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        enter_memory_call(Call::MemorySetAccess)?;
        by.iter().try_for_each(|&location| self.memory.check(location))?;
        let call = ExtentCall::begin(|| space().extents_in(address, bytes));
        call.check_alone("memory_set_access")?;
        space().memory_set_access(address, bytes, by)
    }

    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        enter_memory_call(Call::MemoryUnmap)?;
        uses::check_unused(address, bytes);
        let _call = ExtentCall::begin(|| space().extents_in(address, bytes));
        // SAFETY: the caller gives the mappings up.
        unsafe { space().memory_unmap(self.memory, address, bytes) }
    }
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
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&whose.to_le_bytes());
        uuid[8..].copy_from_slice(&(device.ordinal() as u64).to_le_bytes());
        Ok(uuid)
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
        on_timeline(Call::EventRecordContext)?.record_device(event, Self::bound())
    }

    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()> {
        on_timeline(Call::ContextWaitEvent)?.device_wait_event(Self::bound(), event)
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

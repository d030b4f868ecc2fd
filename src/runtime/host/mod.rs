//! Simulated devices, for machines without a GPU and for tests.
//!
//! Each device has memory with real bytes and streams whose work completes when told to ([`submit`], [`complete`]),
//! captures follow CUDA's rules on unsafe calls, and with the feature `fault-injection` every call can be made to fail
//! (`inject`), and can have a function run before it (`before_call`). Environment variables set the size:
//! `GPUPOOL_HOST_DEVICES` (1) and `GPUPOOL_HOST_MEMORY` (bytes a device, 16 GiB). It uses only as much of the machine's
//! memory as is written to.

mod capture;
mod extent_calls;
mod fault;
#[cfg(feature = "fault-injection")]
mod hooks;
mod memory;
mod refusal;
mod timeline;
mod uses;
mod virtual_memory;
mod words;
mod work;

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::Duration;

use super::host_memory::{PagePopulation, map, unmap};
use super::{
    Context, DeviceInfo, DeviceUuid, ExportedEvent, ExportedExtent, Extent, ExtentUse, Kind, MemoryInfo, RawEvent,
    RawGraph, Runtime, Stream, StreamOrderedMemory,
};
use crate::environment::number;
use crate::error::{Error, Result, StatusKind};
use crate::ids::{CaptureMode, CaptureStatus, Device, MemoryLocation, NumaNode, RawStream};
use crate::sync::lock;
use extent_calls::ExtentCall;
use memory::{Memory, NODES, system_error};
use refusal::INVALID_HANDLE;
pub(crate) use refusal::refused;
use timeline::{StreamKey, Timeline};
use virtual_memory::{PAGE, space};
use words::Word;
use work::Work;

pub use capture::Graph;
#[cfg(feature = "fault-injection")]
pub use extent_calls::break_extents;
#[cfg(not(feature = "fault-injection"))]
pub(crate) use fault::Call;
pub(crate) use fault::check;
#[cfg(feature = "fault-injection")]
pub use fault::{Call, Fault, clear_faults, inject};
#[cfg(feature = "fault-injection")]
pub use hooks::{before_call, clear_before_call};
pub use uses::UsedBlock;
#[cfg(feature = "fault-injection")]
pub use uses::{collect as collect_mistakes, register, unregister};
#[cfg(feature = "fault-injection")]
pub use virtual_memory::reuse_extent_numbers;

#[cfg(schedules)]
pub use crate::sync::schedule;

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
pub(super) struct Host {
    memory: &'static Memory,
}

/// The devices' memory.
static MEMORY: OnceLock<Memory> = OnceLock::new();
/// What [`driver_calls`] returns.
static DRIVER_CALLS: AtomicU64 = AtomicU64::new(0);
static TIMELINE: Mutex<Timeline> = Mutex::new(Timeline::new());

fn timeline() -> MutexGuard<'static, Timeline> {
    lock(&TIMELINE)
}

impl Host {
    pub(super) fn from_environment() -> Result<Self> {
        let devices = number(DEVICES_VARIABLE, 1..=MOST_DEVICES, 1)?;
        Self::new(devices, number(MEMORY_VARIABLE, 1..=MOST_MEMORY, 16 << 30)?)
    }

    fn new(devices: u64, capacity: u64) -> Result<Self> {
        if !(1..=MOST_DEVICES).contains(&devices) {
            return Err(Error::invalid_value(format!("{devices} devices: 1 to {MOST_DEVICES} can be simulated")));
        }
        Ok(Self { memory: MEMORY.get_or_init(|| Memory::new(devices, capacity)) })
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

/// What every call that makes, maps or frees memory does first.
fn enter_memory_call(call: Call) -> Result<()> {
    DRIVER_CALLS.fetch_add(1, Ordering::Relaxed);
    capture::check_unsafe_call()?;
    check(call)
}

/// Puts work with memory of a device on a stream, whose device must have access to it now; whether it still has is seen when
/// the work is done. Who submits work promises that what it uses of the host stays until then.
fn submit_work(function: &str, key: StreamKey, work: Work) -> Result<()> {
    let device = timeline().device(key)?;
    if !space().is_accessible(work.mapped(), device) {
        let error = refused(function, ("HOST_ERROR_INVALID_VALUE", 1), StatusKind::Other);
        let why = format!("{:#x} is not memory that {device} has access to", work.mapped());
        return Err(error.map_library(|refused| refused.advice = Some(why)));
    }
    timeline().submit_work(key, work)
}

/// Completes work until it is done: another process may hold it up, and is asked again each millisecond.
fn wait_for_others(mut complete: impl FnMut() -> Result<bool>) -> Result<()> {
    while !complete()? {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Simulates this many devices with this many bytes each, whatever the machine has. For tests; call it before any other
/// function of gpupool. A repeated call with the same values changes nothing.
///
/// # Errors
/// `ErrorKind::RuntimeUnavailable` if another runtime was chosen before.
pub fn simulate(devices: u32, bytes: u64) -> Result<()> {
    super::install(Box::new(Host::new(devices.into(), bytes)?));
    super::require(Kind::Host).map(drop)
}

/// Takes memory of the bound device, as a driver's allocation would.
pub(crate) fn allocate(bytes: u64) -> Result<()> {
    capture::check_unsafe_call()?;
    check(Call::Allocate)?;
    let Some(memory) = MEMORY.get() else { return Err(not_chosen()) };
    memory.take("allocate", Host::bound().into(), bytes)
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

/// Creates a non-blocking stream that gpupool does not know of, as other libraries do; [`destroy_stream`] destroys it.
///
/// # Errors
/// As [`submit`].
pub fn create_stream(device: Device) -> Result<RawStream> {
    super::require(Kind::Host)?;
    Ok(timeline().create_stream(super::existing(device)?, false))
}

/// As [`create_stream`], but a blocking one (`CU_STREAM_DEFAULT`): while it is captured, the legacy default stream must
/// not be used.
///
/// # Errors
/// As [`submit`].
pub fn create_blocking_stream(device: Device) -> Result<RawStream> {
    super::require(Kind::Host)?;
    Ok(timeline().create_stream(super::existing(device)?, true))
}

/// Destroys a stream of [`create_stream`]. A later call with it fails, while a driver would crash.
///
/// # Errors
/// As [`submit`].
pub fn destroy_stream(stream: RawStream, device: Device) -> Result<()> {
    super::require(Kind::Host)?;
    timeline().destroy_stream(StreamKey::new(stream, super::existing(device)?))
}

/// Destroys a stream of [`create_stream`] whose work goes on, and creates another one, which gets its address, as drivers
/// give it.
///
/// # Errors
/// As [`submit`].
#[cfg(feature = "fault-injection")]
pub fn replace_stream(stream: RawStream, device: Device) -> Result<()> {
    super::require(Kind::Host)?;
    timeline().replace_stream(StreamKey::new(stream, super::existing(device)?))
}

/// Puts a piece of work on the stream and returns its number; it is done when [`complete`] says so.
///
/// # Errors
/// `ErrorKind::RuntimeUnavailable` on another runtime; `ErrorKind::Library` if the stream is gone.
pub fn submit(stream: &Stream) -> Result<u64> {
    super::require(Kind::Host)?;
    timeline().submit(StreamKey::new(stream.raw(), stream.device()))
}

/// As [`submit`], for work that uses these blocks: until it is done nothing of it may be unmapped, nor be given
/// to work that is not ordered behind it. Work on a captured stream, of which the number is 0, uses it as long as the graph
/// lives. With the feature `fault-injection` a mistake ends the process, unless it is collected.
///
/// # Errors
/// As [`submit`].
pub fn submit_using(stream: &Stream, blocks: &[UsedBlock]) -> Result<u64> {
    super::require(Kind::Host)?;
    timeline().submit_using(StreamKey::new(stream.raw(), stream.device()), blocks)
}

/// Completes the stream's work up to this number, as far as what it waits for allows.
///
/// # Errors
/// As [`submit`].
pub fn complete(stream: &Stream, number: u64) -> Result<()> {
    super::require(Kind::Host)?;
    timeline().complete_allowed(StreamKey::new(stream.raw(), stream.device()), number)
}

/// Completes the work of every stream of every device.
///
/// # Errors
/// As [`submit`].
pub fn complete_all() -> Result<()> {
    super::require(Kind::Host)?;
    timeline().complete_all(None)
}

/// Returns whether the device has access to the memory that is mapped or allocated at the address. Every device has
/// access to contiguous pinned memory.
pub fn accessible(address: u64, device: Device) -> bool {
    space().is_accessible(address, device)
}

/// Returns how many calls that create, release, map, set access to, unmap, allocate or free memory this process has
/// made, with the refused ones. Those on address reservations do not count.
pub fn driver_calls() -> u64 {
    DRIVER_CALLS.load(Ordering::Relaxed)
}

/// Starts recording the stream's work (`cuStreamBeginCapture`).
///
/// # Errors
/// As [`submit`], and if the stream is captured already.
pub fn begin_capture(stream: &Stream, mode: CaptureMode) -> Result<()> {
    super::require(Kind::Host)?;
    timeline().begin_capture(StreamKey::new(stream.raw(), stream.device()), mode)
}

/// Ends the recording (`cuStreamEndCapture`) and returns the graph.
///
/// # Errors
/// As [`submit`], and with code 901 if a forbidden call invalidated the capture.
pub fn end_capture(stream: &Stream) -> Result<Graph> {
    super::require(Kind::Host)?;
    // What a spoiled capture keeps is dropped here, where the timeline is free.
    let mut capture = timeline().end_capture(StreamKey::new(stream.raw(), stream.device()))?;
    if !capture.is_valid {
        return Err(refused("end_capture", capture::INVALIDATED, StatusKind::Other));
    }
    Ok(std::mem::take(&mut capture.graph))
}

impl Runtime for Host {
    fn kind(&self) -> Kind {
        Kind::Host
    }

    fn driver_version(&self) -> Option<(u32, u32)> {
        None
    }

    fn device_count(&self) -> u32 {
        self.memory.devices() as u32
    }

    fn device_info(&self, device: Device) -> Result<DeviceInfo> {
        let (used, total) = (self.memory.used(device)?, self.memory.capacity);
        Ok(DeviceInfo {
            name: "simulated device".to_owned(),
            uuid: None,
            compute_capability: None,
            pci_bus_id: None,
            is_mig: false,
            is_shareable: true,
            is_rdma: false,
            total_bytes: total,
            free_bytes: Some(total - used),
        })
    }

    fn device_uuid(&self, device: Device) -> Result<DeviceUuid> {
        self.memory.check(device)?;
        let mut uuid = *b"simulated device";
        uuid[8..].copy_from_slice(&(device.ordinal() as u64).to_le_bytes());
        Ok(uuid)
    }

    fn compute_capability(&self, device: Device) -> Result<Option<(u32, u32)>> {
        self.memory.check(device).map(|()| None)
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

    fn memory_info(&self) -> Result<MemoryInfo> {
        check(Call::MemoryInfo)?;
        let used = self.memory.used(Self::bound())?;
        Ok(MemoryInfo { free: self.memory.capacity - used, total: self.memory.capacity })
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        check(Call::ExchangeCaptureMode)?;
        Ok(capture::exchange_mode(mode))
    }

    fn stream_create(&self) -> Result<RawStream> {
        check(Call::StreamCreate)?;
        Ok(timeline().create_stream(Self::bound(), false))
    }

    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        check(Call::StreamDestroy)?;
        timeline().destroy_stream(Self::key(stream))
    }

    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device> {
        if stream.is_default() {
            return self.current_device();
        }
        check(Call::StreamDevice)?;
        timeline().device(Self::key(stream))
    }

    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64> {
        check(Call::StreamId)?;
        let (key, mut timeline) = (Self::key(stream), timeline());
        timeline.check_not_captured(key)?;
        timeline.id(key)
    }

    unsafe fn stream_query(&self, stream: RawStream) -> Result<bool> {
        capture::check_unsafe_call()?;
        check(Call::StreamQuery)?;
        let (key, mut timeline) = (Self::key(stream), timeline());
        timeline.check_not_captured(key)?;
        timeline.is_idle(key)
    }

    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        capture::check_unsafe_call()?;
        check(Call::StreamSynchronize)?;
        let key = Self::key(stream);
        timeline().check_not_captured(key)?;
        wait_for_others(|| timeline().complete_stream(key))
    }

    unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        check(Call::StreamWaitEvent)?;
        timeline().wait_event(Self::key(stream), event)
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        check(Call::StreamCaptureStatus)?;
        timeline().capture_status(Self::key(stream))
    }

    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Option<super::Capture>> {
        check(Call::StreamCapture)?;
        let mut timeline = timeline();
        let capture = timeline.capture(Self::key(stream))?;
        Ok(capture.map(|capture| super::Capture { id: capture.id, graph: RawGraph(capture.id as usize) }))
    }

    unsafe fn graph_retain(&self, graph: RawGraph, kept: Box<dyn Send>) -> Result<()> {
        check(Call::GraphRetain)?;
        let mut timeline = timeline();
        match timeline.captures().find(|capture| capture.id == graph.0 as u64) {
            Some(capture) => capture.graph.kept.push(kept),
            None => return Err(refused("graph_retain", INVALID_HANDLE, StatusKind::Other)),
        }
        Ok(())
    }

    fn event_create(&self) -> Result<RawEvent> {
        check(Call::EventCreate)?;
        Ok(timeline().create_event())
    }

    fn event_create_interprocess(&self) -> Result<RawEvent> {
        check(Call::EventCreate)?;
        timeline().create_interprocess_event()
    }

    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent> {
        check(Call::EventExport)?;
        let word = timeline().word(event)?;
        let (name, file) = word.export().map_err(|error| system_error("event_export", &error))?;
        Ok(ExportedEvent { name, descriptor: Some(file) })
    }

    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent> {
        check(Call::EventImport)?;
        let invalid = || refused("event_import", INVALID_HANDLE, StatusKind::Other);
        let word = Word::import(&exported.name, exported.descriptor.ok_or_else(invalid)?)
            .map_err(|error| system_error("event_import", &error))?;
        Ok(timeline().import_event(word))
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> Result<()> {
        check(Call::EventDestroy)?;
        timeline().destroy_event(event)
    }

    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        check(Call::EventRecord)?;
        timeline().record_event(event, Self::key(stream))
    }

    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()> {
        check(Call::EventRecordContext)?;
        timeline().record_device(event, Self::bound())
    }

    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()> {
        check(Call::ContextWaitEvent)?;
        timeline().device_wait_event(Self::bound(), event)
    }

    unsafe fn event_query(&self, event: RawEvent) -> Result<bool> {
        capture::check_unsafe_call()?;
        check(Call::EventQuery)?;
        timeline().is_event_done(event)
    }

    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()> {
        capture::check_unsafe_call()?;
        check(Call::EventSynchronize)?;
        wait_for_others(|| {
            let mut timeline = timeline();
            timeline.complete_event(event)?;
            timeline.is_event_done(event)
        })
    }

    fn context_synchronize(&self) -> Result<()> {
        check(Call::ContextSynchronize)?;
        let mut timeline = timeline();
        if timeline.spoil_captures_on(Self::bound()) {
            return Err(refused("context_synchronize", capture::UNSUPPORTED, StatusKind::Other));
        }
        timeline.complete_all(Some(Self::bound()))
    }

    fn total_memory(&self, location: MemoryLocation) -> Result<u64> {
        self.memory.check(location)?;
        Ok(self.memory.capacity)
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        self.memory.check(device)?;
        self.memory.check(peer)?;
        Ok(device != peer)
    }

    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool> {
        self.memory.check(location)?;
        Ok(true)
    }

    fn page_bytes(&self, location: MemoryLocation) -> Result<u64> {
        self.memory.check(location)?;
        check(Call::PageBytes)?;
        Ok(PAGE)
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

    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        enter_memory_call(Call::ExtentCreate)?;
        space().extent_create(self.memory, location, bytes)
    }

    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse> {
        self.memory.check(location)?;
        Ok(ExtentUse { is_shareable: true, is_rdma: false })
    }

    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd> {
        enter_memory_call(Call::ExtentExport)?;
        space().extent_export(extent)
    }

    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent> {
        enter_memory_call(Call::ExtentImport)?;
        space().extent_import(exported)
    }

    unsafe fn extent_release(&self, extent: Extent) -> Result<()> {
        enter_memory_call(Call::ExtentRelease)?;
        let call = ExtentCall::begin(|| vec![extent.0]);
        space().extent_release(self.memory, extent).inspect(|()| call.mend())
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
        let used = self.memory.used(node)?;
        Ok(MemoryInfo { free: self.memory.capacity - used, total: self.memory.capacity })
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

    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        check(Call::CopyToDevice)?;
        submit_work("copy_to_device", Self::key(stream), Work::Copy { to, from, bytes, mapped: to })
    }

    unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        check(Call::CopyToHost)?;
        submit_work("copy_to_host", Self::key(stream), Work::Copy { to, from, bytes, mapped: from })
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        check(Call::Fill)?;
        submit_work("fill", Self::key(stream), Work::Fill { address, byte, bytes })
    }

    fn stream_ordered_memory(&self) -> &dyn StreamOrderedMemory {
        self
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

//! Simulated devices, for machines without a GPU and for tests.
//!
//! Each device has memory with real bytes and streams whose work completes on demand ([`submit`], [`complete`]),
//! captures follow CUDA's rules on unsafe calls, and with the feature `fault-injection` every call can be made to fail
//! (`inject`), and can have a function run before it (`before_call`). Environment variables set the size:
//! `GPUPOOL_HOST_DEVICES` (1) and `GPUPOOL_HOST_MEMORY` (bytes a device, 16 GiB); with `GPUPOOL_HOST_SHARED` several
//! processes have the devices together. It uses only as much of the machine's memory as is written to.

mod calls;
mod capture;
mod extent_calls;
mod fault;
#[cfg(feature = "fault-injection")]
mod hooks;
mod memory;
mod refusal;
mod system_mapping;
mod timeline;
mod together;
mod uses;
mod virtual_memory;
mod words;
mod work;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use super::{Context, DeviceInfo, DeviceUuid, Kind, Runtime, Stream};
use crate::environment::number;
use crate::error::{Error, Result, StatusKind};
use crate::ids::{CaptureMode, Device, MemoryLocation, RawStream};
use crate::sync::lock;
use memory::Memory;
pub(crate) use refusal::refused;
use timeline::{StreamKey, Timeline};
use together::SharedDevices;
use virtual_memory::space;

pub use capture::Graph;
#[cfg(feature = "fault-injection")]
pub use extent_calls::{break_extents, break_moved_extents};
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

static MEMORY: OnceLock<Memory> = OnceLock::new();
/// What [`driver_calls`] returns.
static DRIVER_CALLS: AtomicU64 = AtomicU64::new(0);
static TIMELINE: Mutex<Timeline> = Mutex::new(Timeline::new());

fn timeline() -> MutexGuard<'static, Timeline> {
    lock(&TIMELINE)
}

/// As [`timeline`], if devices are simulated.
fn simulated() -> Result<MutexGuard<'static, Timeline>> {
    super::require(Kind::Host)?;
    Ok(timeline())
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

/// What every call that makes, maps or frees memory does first.
fn enter_memory_call(call: Call) -> Result<()> {
    DRIVER_CALLS.fetch_add(1, Ordering::Relaxed);
    capture::check_unsafe_call()?;
    check(call)
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
    Ok(simulated()?.create_stream(super::existing(device)?, false))
}

/// As [`create_stream`], but a blocking one (`CU_STREAM_DEFAULT`): while it is captured, the legacy default stream must
/// not be used.
///
/// # Errors
/// As [`submit`].
pub fn create_blocking_stream(device: Device) -> Result<RawStream> {
    Ok(simulated()?.create_stream(super::existing(device)?, true))
}

/// Destroys a stream of [`create_stream`]. A later call with it fails, while a driver would crash.
///
/// # Errors
/// As [`submit`].
pub fn destroy_stream(stream: RawStream, device: Device) -> Result<()> {
    simulated()?.destroy_stream(StreamKey::new(stream, super::existing(device)?))
}

/// Destroys a stream of [`create_stream`] whose work goes on, and creates another one, which gets its address, as drivers
/// give it.
///
/// # Errors
/// As [`submit`].
#[cfg(feature = "fault-injection")]
pub fn replace_stream(stream: RawStream, device: Device) -> Result<()> {
    simulated()?.replace_stream(StreamKey::new(stream, super::existing(device)?))
}

/// Puts a piece of work on the stream and returns its number; it is done when [`complete`] says so.
///
/// # Errors
/// `ErrorKind::RuntimeUnavailable` on another runtime; `ErrorKind::Library` if the stream is gone.
pub fn submit(stream: &Stream) -> Result<u64> {
    simulated()?.submit(StreamKey::new(stream.raw(), stream.device()))
}

/// As [`submit`], for work that uses these blocks: until it is done nothing of it may be unmapped, nor be given
/// to work that is not ordered behind it. Work on a captured stream, of which the number is 0, uses it as long as the graph
/// lives. With the feature `fault-injection` a mistake ends the process, unless it is collected.
///
/// # Errors
/// As [`submit`].
pub fn submit_using(stream: &Stream, blocks: &[UsedBlock]) -> Result<u64> {
    simulated()?.submit_using(StreamKey::new(stream.raw(), stream.device()), blocks)
}

/// Completes the stream's work up to this number, as far as what it waits for allows.
///
/// # Errors
/// As [`submit`].
pub fn complete(stream: &Stream, number: u64) -> Result<()> {
    simulated()?.complete_allowed(StreamKey::new(stream.raw(), stream.device()), number)
}

/// Completes the work of every stream of every device.
///
/// # Errors
/// As [`submit`].
pub fn complete_all() -> Result<()> {
    simulated()?.complete_all(None)
}

/// Returns whether the device has access to the memory that is mapped or allocated at the address. Every device has
/// access to contiguous pinned memory.
pub fn accessible(address: u64, device: Device) -> bool {
    space().is_accessible(address, 1, device)
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
    simulated()?.begin_capture(StreamKey::new(stream.raw(), stream.device()), mode)
}

/// Ends the recording (`cuStreamEndCapture`) and returns the graph.
///
/// # Errors
/// As [`submit`], and with code 901 if a forbidden call invalidated the capture.
pub fn end_capture(stream: &Stream) -> Result<Graph> {
    // What a spoiled capture keeps is dropped here, where the timeline is free.
    let mut capture = simulated()?.end_capture(StreamKey::new(stream.raw(), stream.device()))?;
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
        let (free, total) = (self.memory.free(device)?, self.memory.capacity);
        Ok(DeviceInfo {
            name: "simulated device".to_owned(),
            uuid: None,
            compute_capability: None,
            pci_bus_id: None,
            is_mig: false,
            is_shareable: true,
            is_rdma: false,
            total_bytes: total,
            free_bytes: Some(free),
        })
    }

    fn device_uuid(&self, device: Device) -> Result<DeviceUuid> {
        self.memory.check(device)?;
        let mut uuid = *b"simulated device";
        uuid[8..].copy_from_slice(&(device.ordinal() as u64).to_le_bytes());
        Ok(uuid)
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
}

//! GPU platforms behind one trait, and the choice among them.
//!
//! `cuda` drives NVIDIA GPUs, `hip` AMD GPUs, and `host` simulates devices in plain memory for machines that have none.
//! The choice is made at the first call that needs a device, never on import: `GPUPOOL_RUNTIME` if set, otherwise the
//! first with a device, in that order. Devices are simulated only where there is none: a driver that is there and does
//! not work is an error. Every pointer that reaches a driver passes through a type of this module.

mod calls;
mod copy;
mod cuda;
mod device_info;
mod device_waits;
mod driver_streams;
mod event;
#[cfg(test)]
mod forked_child;
mod guard;
mod hip;
pub mod host;
mod host_memory;
mod known_captures;
mod nesting;
mod scope;
mod sharing;
mod stream;
mod stream_ordered_memory;
mod symbols;

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use log::{info, warn};

use crate::environment;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Device, MemoryLocation};
use crate::observe::{nvtx, target::RUNTIME};
use crate::process;

pub use calls::{CaptureCalls, MemoryCalls, SharingCalls, StreamCalls, VirtualMemoryCalls};
#[cfg(feature = "cudarc")]
pub(crate) use cuda::refused_by_driver;
pub(crate) use device_info::memory_info;
pub use device_info::{DeviceInfo, device_info};
pub(crate) use device_waits::{Point, wait_for_work_before};
pub(crate) use event::ContextRecord;
pub use event::{Event, RawEvent};
pub use guard::{BoundDevice, RelaxedCapture};
pub(crate) use host_memory::{host_node, locking_limits, nearest_host_node, no_host_node, only_host_node};
pub use known_captures::synchronize;
pub(crate) use known_captures::{
    KnownCapture, WholeDevice, end_expecting_captures, expect_captures, is_known_stream_capturing, note_capture,
    synchronize_unless_captured,
};
pub use scope::StreamScope;
#[cfg(feature = "python")]
pub(crate) use scope::{EnteredStream, enter, leave, scoped_view};
pub(crate) use sharing::KnownUuids;
pub use sharing::{DeviceUuid, ExportedEvent, ExportedExtent, ExtentUse};
pub use stream::Stream;
pub(crate) use stream::{StreamIdentity, WeakStream, is_still};
pub use stream_ordered_memory::{PoolReserved, StreamOrderedMemory};

/// The environment variable that chooses the runtime: `cuda`, `hip` or `host`.
pub const RUNTIME_VARIABLE: &str = "GPUPOOL_RUNTIME";

/// A GPU platform.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// NVIDIA GPUs through the CUDA driver.
    Cuda,
    /// AMD GPUs through ROCm's HIP.
    Hip,
    /// Simulated devices in plain memory.
    Host,
}

impl Kind {
    /// Returns the name as in `GPUPOOL_RUNTIME`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Cuda => "cuda",
            Kind::Hip => "hip",
            Kind::Host => "host",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A device's memory, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Free memory.
    pub free: u64,
    /// Total memory.
    pub total: u64,
}

/// A limit of a device's memory that the driver has for all processes of a control group together, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupLimit {
    /// What they may have at most.
    pub bytes: u64,
    /// What they have.
    pub used: u64,
}

/// A context, or a device with HIP, that was current before [`Runtime::bind`], to be passed to [`Runtime::restore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context(usize);

/// An extent: one piece of physical memory as the driver allocates it (`CUmemGenericAllocationHandle`,
/// `hipMemGenericAllocationHandle_t`). It is the unit that is mapped, moved and released.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Extent(pub(super) u64);

impl Extent {
    /// Returns the extent as a number that threads can share.
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// A graph (`CUgraph`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct RawGraph(pub(super) usize);

/// A capture in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capture {
    /// Its id, unique in the process.
    pub id: u64,
    /// The graph that it builds, alive until the capture ends.
    pub graph: RawGraph,
}

/// What the pools need from a GPU platform: its devices, and the calls of its supertraits, to which all of this applies
/// too. No method panics.
///
/// Memory is of a [`MemoryLocation`]: of a device, or of a NUMA node of the host, whose memory every device reads and
/// writes at the same address.
///
/// Methods that take an address are unsafe: the stream, event or memory must be alive and belong to this runtime.
/// [`Stream`] and [`Event`] guarantee that for their callers. Addresses of memory are numbers (`CUdeviceptr`).
/// Functions have the names of CUDA's driver API; HIP's have the same names except for the prefix, unless noted.
pub trait Runtime:
    StreamCalls + CaptureCalls + MemoryCalls + VirtualMemoryCalls + SharingCalls + fmt::Debug + Send + Sync
{
    /// Returns the platform.
    fn kind(&self) -> Kind;
    /// Returns the CUDA version that the driver supports, or HIP's own, as (major, minor); none for simulated devices.
    fn driver_version(&self) -> Option<(u32, u32)>;
    /// Returns how many devices the process sees.
    fn device_count(&self) -> u32;
    /// Describes the device. It creates no context on it.
    fn device_info(&self, device: Device) -> Result<DeviceInfo>;
    /// Returns the device's UUID, which is the same in every process, however each numbers its devices.
    fn device_uuid(&self, device: Device) -> Result<DeviceUuid>;
    /// Returns the same for the device's memory: simulated devices of one UUID have theirs in each process apart.
    fn memory_uuid(&self, device: Device) -> Result<DeviceUuid> {
        self.device_uuid(device)
    }
    /// Returns the limit of the device's memory that the driver has for a control group, by the group's directory. None if
    /// it has none, or does not tell. It creates no context.
    fn group_limit(&self, _device: Device, _group: &Path) -> Option<GroupLimit> {
        None
    }
    /// Returns the device's compute capability, major and minor; none where devices have none, as AMD's.
    fn compute_capability(&self, device: Device) -> Result<Option<(u32, u32)>>;
    /// Returns the calling thread's current device: that of the current context, device 0 if there is none.
    fn current_device(&self) -> Result<Device>;
    /// Makes the device's primary context current for the calling thread and returns what was current before; none if
    /// it was current already. HIP has no contexts, and makes the device current (`hipSetDevice`). For memory of the
    /// host any context works: the thread's own, otherwise one that is active, so that none is created on a device that
    /// the program does not use.
    fn bind(&self, location: MemoryLocation) -> Result<Option<Context>>;
    /// Undoes [`Runtime::bind`].
    fn restore(&self, previous: Context);
}

static CHOSEN: OnceLock<Box<dyn Runtime>> = OnceLock::new();
static PASSED_OVER: OnceLock<Vec<PassedOver>> = OnceLock::new();

/// A platform before the one that was chosen without `GPUPOOL_RUNTIME`, and why it was not.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PassedOver {
    /// The platform.
    pub kind: Kind,
    /// Why, and what to do.
    pub reason: String,
    /// Whether it is installed but does not work, rather than not installed.
    pub is_present: bool,
}

/// Returns the platforms that were skipped when the runtime was chosen.
pub fn passed_over() -> &'static [PassedOver] {
    PASSED_OVER.get().map_or(&[], Vec::as_slice)
}

/// Returns the runtime of this process, chosen at the first call.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child of a process that had used a GPU; `ErrorKind::RuntimeUnavailable` if the
/// runtime that `GPUPOOL_RUNTIME` names has no device, or, without it, if a driver is there that does not work;
/// `ErrorKind::InvalidValue` if it names no runtime.
#[inline]
pub fn get() -> Result<&'static dyn Runtime> {
    process::refuse_forked()?;
    match CHOSEN.get() {
        Some(runtime) => Ok(runtime.as_ref()),
        None => choose(),
    }
}

#[cfg(feature = "python")]
#[inline]
pub(crate) fn is_chosen() -> bool {
    CHOSEN.get().is_some()
}

/// Probes outside any lock, so two threads may both do it; the first result stays.
#[cold]
fn choose() -> Result<&'static dyn Runtime> {
    // Checked here, as later readers cannot fail.
    nvtx::check_switch()?;
    let wanted = environment::text(RUNTIME_VARIABLE)?;
    let runtime: Box<dyn Runtime> = match wanted.as_deref() {
        None => first_with_a_device()?,
        Some("cuda") => Box::new(cuda::Cuda::probe()?),
        Some("hip") => Box::new(hip::Hip::probe()?),
        Some("host") => Box::new(host::Host::from_environment()?),
        Some(other) => {
            return Err(Error::invalid_value(format!(
                "GPUPOOL_RUNTIME={other:?} names no runtime; set it to cuda, hip or host, or unset it to take the first that has a device"
            )));
        }
    };
    install(runtime);
    get()
}

fn first_with_a_device() -> Result<Box<dyn Runtime>> {
    let no_cuda = match cuda::Cuda::probe() {
        Ok(cuda) => return Ok(Box::new(cuda)),
        Err(error) => PassedOver::new(Kind::Cuda, error),
    };
    let no_hip = match hip::Hip::probe() {
        Ok(hip) => {
            // A machine with AMD's GPUs needs no driver of NVIDIA's; an installed one should work.
            if no_cuda.is_present {
                let _ = PASSED_OVER.set(vec![no_cuda]);
            }
            return Ok(Box::new(hip));
        }
        Err(error) => PassedOver::new(Kind::Hip, error),
    };
    let passed_over = vec![no_cuda, no_hip];
    // Host memory in place of a GPU's would go unnoticed until something is slow, or wrong.
    if let Some(broken) = passed_over.iter().find(|passed| passed.is_present) {
        let PassedOver { kind, reason, .. } = broken;
        let reason = format!("{reason}. To do without a GPU, on simulated devices, set {RUNTIME_VARIABLE}=host");
        return Err(Error::runtime_broken(kind.name(), reason));
    }
    let _ = PASSED_OVER.set(passed_over);
    Ok(Box::new(host::Host::from_environment()?))
}

impl PassedOver {
    fn new(kind: Kind, error: Error) -> Self {
        match error.into_kind() {
            ErrorKind::RuntimeUnavailable { reason, is_present, .. } => Self { kind, reason, is_present },
            other => Self { kind, reason: Error::from(other).to_string(), is_present: true },
        }
    }
}

/// Makes this the process's runtime, unless there is one already.
fn install(runtime: Box<dyn Runtime>) {
    process::watch_forks();
    let (kind, devices, driver) = (runtime.kind(), runtime.device_count(), runtime.driver_version());
    if CHOSEN.set(runtime).is_ok() {
        let driver = driver.map_or_else(String::new, |(major, minor)| format!(", driver {major}.{minor}"));
        info!(target: RUNTIME, "runtime {kind}: {devices} device(s){driver}");
        for PassedOver { kind, reason, .. } in passed_over() {
            info!(target: RUNTIME, "runtime {kind} was passed over: {reason}");
        }
        if kind == Kind::Host && !passed_over().is_empty() {
            warn!(target: RUNTIME, "no GPU was found: devices are simulated, which {RUNTIME_VARIABLE}=host asks for");
        }
    }
}

/// Returns the runtime, if it is the one that a library's handles need.
pub(crate) fn require(kind: Kind) -> Result<&'static dyn Runtime> {
    let runtime = get()?;
    if runtime.kind() == kind {
        return Ok(runtime);
    }
    let passed_over = passed_over().iter().find(|passed| passed.kind == kind);
    let reason = match (passed_over, std::env::var_os(RUNTIME_VARIABLE)) {
        (Some(PassedOver { reason, .. }), _) => {
            let instead = if runtime.kind() == Kind::Host {
                "gpupool simulates devices here"
            } else {
                "gpupool uses AMD's GPUs here"
            };
            format!("{reason}. {instead} (runtime {})", runtime.kind())
        }
        (None, Some(_)) => {
            format!("GPUPOOL_RUNTIME chose {}; set it to {kind} before the process starts", runtime.kind())
        }
        (None, None) => format!(
            "this process uses runtime {}, the first with a device; set GPUPOOL_RUNTIME={kind} before it starts",
            runtime.kind()
        ),
    };
    Err(Error::runtime_unavailable(kind.name(), reason))
}

/// Returns the device with this ordinal.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; otherwise as [`get`].
pub fn device(ordinal: i64) -> Result<Device> {
    let count = get()?.device_count();
    match u32::try_from(ordinal) {
        Ok(ordinal) if ordinal < count => Ok(Device::from_ordinal(ordinal)),
        _ => Err(no_such_device(ordinal, count as usize)),
    }
}

/// Returns a device that a caller named, if it exists. Every public function that takes a device passes it through
/// here.
#[inline]
pub(crate) fn existing(device: Device) -> Result<Device> {
    self::device(device.ordinal() as i64)
}

#[cold]
pub(crate) fn no_such_device(ordinal: i64, count: usize) -> Error {
    Error::invalid_value(format!("there is no device {ordinal}: this process sees {count}, numbered from 0"))
}

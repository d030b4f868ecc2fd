//! GPU platforms behind one trait, and the choice among them.
//!
//! `cuda` drives NVIDIA GPUs, `hip` AMD GPUs, and `host` simulates devices in plain memory for machines that have none.
//! The choice is made at the first call that needs a device, never on import: `GPUPOOL_RUNTIME` if set, otherwise the
//! first with a device, in that order. Devices are simulated only where there is none: a driver that is there and does not work
//! is an error. Every pointer that reaches a driver passes through a type of this module.

mod copy;
mod cuda;
mod device_info;
mod device_waits;
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
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use log::{info, warn};

use crate::environment;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{CaptureMode, CaptureStatus, Device, MemoryLocation, NumaNode, RawStream};
use crate::observe::{nvtx, target::RUNTIME};
use crate::process;

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
pub use sharing::{DeviceUuid, ExportedEvent, ExportedExtent, ExtentUse};
pub use stream::Stream;
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

/// A context, or a device with HIP, that was current before [`Runtime::bind`], to be passed to [`Runtime::restore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context(usize);

/// An extent: one piece of physical memory as the driver allocates it (`CUmemGenericAllocationHandle`,
/// `hipMemGenericAllocationHandle_t`). It is the unit that is mapped, moved and released.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Extent(pub(super) u64);

impl Extent {
    /// Returns the extent as a number, to be kept where threads share it.
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

/// What the pools need from a GPU platform. No method panics.
///
/// Memory is of a [`MemoryLocation`]: of a device, or of a NUMA node of the host, whose memory every device reads and
/// writes at the same address.
///
/// Methods that take an address are unsafe: the stream, event or memory must be alive and belong to this runtime.
/// [`Stream`] and [`Event`] guarantee that for their callers. Addresses of memory are numbers (`CUdeviceptr`).
/// Functions have the names of CUDA's driver API; HIP's have the same names except for the prefix, unless noted.
pub trait Runtime: fmt::Debug + Send + Sync {
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
    /// Returns the free and total memory of the current device.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Sets the calling thread's capture mode and returns the previous one (`cuThreadExchangeStreamCaptureMode`).
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode>;

    /// Creates a stream on the current device that does not wait for the legacy default stream.
    fn stream_create(&self) -> Result<RawStream>;
    /// Destroys a stream; its work still completes.
    ///
    /// # Safety
    /// The stream is alive, is of this runtime and is not used again.
    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()>;
    /// Returns the device that the stream belongs to; the current one for default streams.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device>;
    /// Returns a number that no other stream of this process has or will have, though a new one may get the address of
    /// one that was destroyed, whose work goes on (`cuStreamGetId`); 0 where the driver has none. The question invalidates
    /// the stream's capture.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64>;
    /// Returns whether all work on the stream is done.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_query(&self, stream: RawStream) -> Result<bool>;
    /// Waits for all work on the stream.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()>;
    /// Makes later work on the stream wait for the event.
    ///
    /// # Safety
    /// Both are alive and of this runtime.
    unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()>;
    /// Returns whether work on the stream is recorded into a graph. Of the legacy default stream it returns whether a
    /// blocking stream of the current device is captured, with HIP of any device; other streams can only be queried one
    /// by one.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus>;

    /// Returns whether the stream went with its context, as far as the driver says so. The question harms no capture.
    ///
    /// # Safety
    /// The stream was of this runtime, and its owner has not destroyed it.
    unsafe fn stream_is_gone(&self, _stream: RawStream) -> bool {
        false
    }

    /// Returns the capture that the stream's work is recorded into, if any (`cuStreamGetCaptureInfo`). Drivers older
    /// than CUDA 12.3, and HIP, refuse it.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Option<Capture>>;
    /// Keeps a value until the graph and all that was instantiated from it are destroyed and have run
    /// (`cuGraphRetainUserObject`). It is then dropped on a thread of the driver, where no driver call is allowed; if
    /// the driver refuses, at once.
    ///
    /// # Safety
    /// The graph is alive and of this runtime.
    unsafe fn graph_retain(&self, graph: RawGraph, kept: Box<dyn Send>) -> Result<()>;

    /// Creates an event on the current device, without timing.
    fn event_create(&self) -> Result<RawEvent>;
    /// Creates an event on the current device, without timing, that can be exported to other processes.
    fn event_create_interprocess(&self) -> Result<RawEvent>;
    /// Returns what another process needs to wait for the event (`cuIpcGetEventHandle`).
    ///
    /// # Safety
    /// The event is alive and was created by [`Runtime::event_create_interprocess`].
    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent>;
    /// Creates an event of the current device that represents another process's (`cuIpcOpenEventHandle`), which must
    /// live as long. It is not recorded here.
    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent>;
    /// Destroys an event.
    ///
    /// # Safety
    /// The event is alive, is of this runtime and is not used again.
    unsafe fn event_destroy(&self, event: RawEvent) -> Result<()>;
    /// Records the stream's work so far.
    ///
    /// # Safety
    /// Both are alive, of this runtime and of one device.
    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()>;
    /// Records all work of the current device's context so far (`cuCtxRecordEvent`), also of its green contexts. It
    /// invalidates every capture of the context, in any mode. Drivers older than CUDA 12.5 refuse it. HIP has no such
    /// event: it waits for the device instead.
    ///
    /// # Safety
    /// The event is alive, of this runtime and of the current device.
    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()>;
    /// Makes all later work of the current device's context, on any stream, wait for the event (`cuCtxWaitEvent`). It
    /// invalidates captures and is refused as [`Runtime::event_record_context`], which has waited already with HIP.
    ///
    /// # Safety
    /// The event is alive, of this runtime and of the current device.
    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()>;
    /// Returns whether the recorded work is done; true if nothing was recorded.
    ///
    /// # Safety
    /// The event is alive and of this runtime.
    unsafe fn event_query(&self, event: RawEvent) -> Result<bool>;
    /// Waits for the recorded work.
    ///
    /// # Safety
    /// The event is alive and of this runtime.
    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()>;

    /// Waits for all work of the current device's context, on all streams (`cuCtxSynchronize`, `hipDeviceSynchronize`).
    /// It invalidates every capture of the context, in any mode.
    fn context_synchronize(&self) -> Result<()>;
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
    /// As [`Runtime::copy_to_host`].
    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()>;

    /// Returns the device's total memory (`cuDeviceTotalMem`); for a node of the host that of the machine, since it can
    /// use other nodes' memory. Unlike [`Runtime::memory_info`] it needs no context.
    fn total_memory(&self, location: MemoryLocation) -> Result<u64>;
    /// Returns whether kernels on the device can access memory of the peer (`cuDeviceCanAccessPeer`).
    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool>;
    /// Returns whether addresses can be reserved and physical memory mapped there.
    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool>;
    /// Returns the unit of physical memory and of mapping, in bytes: the minimum granularity
    /// (`cuMemGetAllocationGranularity`).
    fn page_bytes(&self, location: MemoryLocation) -> Result<u64>;

    /// Reserves addresses, aligned to a page, without memory (`cuMemAddressReserve`).
    fn address_reserve(&self, bytes: u64) -> Result<u64>;
    /// Releases reserved addresses (`cuMemAddressFree`).
    ///
    /// # Safety
    /// This is a whole reservation of this runtime, and nothing uses it again.
    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()>;
    /// Creates an extent of memory there (`cuMemCreate`). It lives until it is released and no mapping of it is
    /// left.
    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent>;
    /// Returns what extents there can be used for: what its driver announces, less what it then refused.
    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse>;
    /// Exports the extent to other processes as a file descriptor (`cuMemExportToShareableHandle`). The descriptor
    /// keeps the memory.
    ///
    /// # Safety
    /// The extent is alive and of this runtime.
    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd>;
    /// Imports an extent that another process exported (`cuMemImportFromShareableHandle`). The descriptor is not needed
    /// afterwards. The memory lives until every process has released it and no mapping of it is left.
    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent>;
    /// Releases the extent (`cuMemRelease`); mappings stay.
    ///
    /// # Safety
    /// The extent is of this runtime, was not released before, and is not used again.
    unsafe fn extent_release(&self, extent: Extent) -> Result<()>;
    /// Maps the whole of the extent at the address, without access (`cuMemMap`).
    ///
    /// # Safety
    /// The addresses are reserved and free, and the extent is alive, of this size and of this runtime.
    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()>;
    /// Grants these devices, and the host on these nodes, read and write access to whole mappings (`cuMemSetAccess`);
    /// access of others does not change.
    ///
    /// # Safety
    /// The range consists of mappings of this runtime.
    unsafe fn memory_set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()>;
    /// Unmaps one or more whole mappings (`cuMemUnmap`). CUDA's driver need not wait for the device; HIP waits.
    ///
    /// # Safety
    /// The range consists of mappings of this runtime, and no work in progress or to come uses it.
    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()>;

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
    /// Frees memory of [`Runtime::host_allocate`]. CUDA and HIP wait for all running kernels, whatever memory they use.
    ///
    /// # Safety
    /// The memory is of this runtime and of this size, was not freed before and is not used again.
    unsafe fn host_free(&self, node: NumaNode, address: u64, bytes: u64) -> Result<()>;

    /// Memory of the current device (`cuMemAlloc`).
    fn memory_allocate(&self, bytes: u64) -> Result<u64>;
    /// Frees what [`Runtime::memory_allocate`] gave, after waiting for the device (`cuMemFree`).
    ///
    /// # Safety
    /// The memory is of this runtime, was not freed before and is not used again.
    unsafe fn memory_free(&self, address: u64) -> Result<()>;
    /// Sets bytes of a device, in the order of the stream (`cuMemsetD8Async`).
    ///
    /// # Safety
    /// The stream is alive and of this runtime, and the memory is as large as said and stays until its work is done.
    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()>;
    /// Returns the driver's own allocator in stream order.
    fn stream_ordered_memory(&self) -> &dyn StreamOrderedMemory;
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

/// Returns whether the runtime is chosen, so that [`get`] takes no time.
#[cfg(feature = "python")]
#[inline]
pub(crate) fn is_chosen() -> bool {
    CHOSEN.get().is_some()
}

/// Probes outside any lock, so two threads may both do it; the first result stays.
#[cold]
fn choose() -> Result<&'static dyn Runtime> {
    // What reads it later cannot fail.
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
            // A machine with AMD's GPUs needs no driver of NVIDIA's; one that is there should work.
            if no_cuda.is_present {
                let _ = PASSED_OVER.set(vec![no_cuda]);
            }
            return Ok(Box::new(hip));
        }
        Err(error) => PassedOver::new(Kind::Hip, error),
    };
    let passed_over = vec![no_cuda, no_hip];
    // Memory of the host in place of a GPU's would go unnoticed until something is slow, or wrong.
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

/// Returns a device that a caller named, if there is one. Every public function that takes a device passes it through
/// here.
///
/// # Errors
/// As [`device`].
#[inline]
pub(crate) fn existing(device: Device) -> Result<Device> {
    self::device(device.ordinal() as i64)
}

#[cold]
pub(crate) fn no_such_device(ordinal: i64, count: usize) -> Error {
    Error::invalid_value(format!("there is no device {ordinal}: this process sees {count}, numbered from 0"))
}

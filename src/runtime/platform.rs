//! What a GPU platform is to gpupool: the calls that it makes, and the plain values that they take and return.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use super::host_memory;
use crate::error::{Error, Result};
use crate::ids::{CaptureMode, CaptureStatus, Device, MemoryLocation, NumaNode, RawStream};

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

/// What a platform reports about a device.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name as its vendor gives it.
    pub name: String,
    /// The UUID as `nvidia-smi -L` and `rocminfo` write it: `GPU-...`, `MIG-...`; none if the device has none.
    pub uuid: Option<String>,
    /// Compute capability, major and minor; none for devices without one, such as AMD's.
    pub compute_capability: Option<(u32, u32)>,
    /// Its PCI address, as `domain:bus:device.function`; none if it has none.
    pub pci_bus_id: Option<String>,
    /// Whether it is a MIG instance, a part of a GPU: <https://docs.nvidia.com/datacenter/tesla/mig-user-guide/>.
    pub is_mig: bool,
    /// Whether gpupool's memory on it can be shared with other processes.
    pub is_shareable: bool,
    /// Whether network cards can register gpupool's memory on it (GPUDirect RDMA).
    pub is_rdma: bool,
    /// The device's total memory, in bytes.
    pub total_bytes: u64,
    /// The free memory, in bytes. None if this process has no context on the device: creating one would use some
    /// hundred MiB of that memory.
    pub free_bytes: Option<u64>,
}

#[cold]
pub(crate) fn no_such_device(ordinal: i64, count: usize) -> Error {
    Error::invalid_value(format!("there is no device {ordinal}: this process sees {count}, numbered from 0"))
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
pub struct Context(pub(super) usize);

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

/// An event's address in the vendor's API.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct RawEvent(pub(super) usize);

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

/// What the extents of a device can be used for outside this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentUse {
    /// Whether they can be exported to other processes, as a file descriptor.
    pub is_shareable: bool,
    /// Whether network cards can register them (GPUDirect RDMA).
    pub is_rdma: bool,
}

impl ExtentUse {
    /// Only for this process.
    pub const PRIVATE: Self = Self { is_shareable: false, is_rdma: false };
}

/// An event as it is exported to another process.
#[derive(Debug)]
pub struct ExportedEvent {
    /// Its name (`CUipcEventHandle`).
    pub name: [u8; 64],
    /// A descriptor that belongs to the name; only simulated devices have one.
    pub descriptor: Option<OwnedFd>,
}

/// A device's UUID, the same in every process.
pub type DeviceUuid = [u8; 16];

/// An extent as another process exported it.
pub type ExportedExtent<'a> = BorrowedFd<'a>;

/// The device memory that a pool of the driver has reserved, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolReserved {
    /// Now.
    pub now: u64,
    /// The peak since it was last reset.
    pub peak: u64,
}

/// The calls on streams, events and captures that CUDA's and HIP's drivers have alike. The rules of [`Runtime`] apply.
pub trait StreamCalls {
    /// Creates a stream on the current device that does not wait for the legacy default stream.
    fn stream_create(&self) -> Result<RawStream>;
    /// Destroys a stream; its work still completes.
    ///
    /// # Safety
    /// The stream is alive, is of this runtime and is not used again.
    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()>;
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

    /// Creates an event on the current device, without timing.
    fn event_create(&self) -> Result<RawEvent>;
    /// Creates an event on the current device, without timing, that can be exported to other processes.
    fn event_create_interprocess(&self) -> Result<RawEvent>;
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
    /// Returns what another process needs to wait for the event (`cuIpcGetEventHandle`).
    ///
    /// # Safety
    /// The event is alive and was created by [`StreamCalls::event_create_interprocess`].
    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent>;
    /// Creates an event of the current device that represents another process's (`cuIpcOpenEventHandle`), which must
    /// live as long. It is not recorded here.
    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent>;
    /// Waits for all work of the current device's context, on all streams (`cuCtxSynchronize`, `hipDeviceSynchronize`).
    /// It invalidates every capture of the context, in any mode.
    fn context_synchronize(&self) -> Result<()>;

    /// Sets the calling thread's capture mode and returns the previous one (`cuThreadExchangeStreamCaptureMode`).
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode>;
    /// Returns whether work on the stream is recorded into a graph. Of the legacy default stream it returns whether a
    /// blocking stream of the current device is captured, with HIP of any device; other streams can only be queried one
    /// by one.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus>;
}

/// As [`StreamCalls`], on devices and memory.
pub trait DeviceCalls {
    /// Returns the platform.
    fn kind(&self) -> Kind;
    /// Returns the CUDA version that the driver supports, or HIP's own, as (major, minor); none for simulated devices.
    fn driver_version(&self) -> Option<(u32, u32)> {
        None
    }
    /// Returns how many devices the process sees.
    fn device_count(&self) -> u32;
    /// Returns the device's UUID, which is the same in every process, however each numbers its devices.
    fn device_uuid(&self, device: Device) -> Result<DeviceUuid>;

    /// Returns the free and total memory of the current device.
    fn memory_info(&self) -> Result<MemoryInfo>;
    /// Returns the device's total memory (`cuDeviceTotalMem`); for a node of the host that of the machine, since it can
    /// use other nodes' memory. Unlike [`DeviceCalls::memory_info`] it needs no context.
    fn total_memory(&self, location: MemoryLocation) -> Result<u64>;
    /// Memory of the current device (`cuMemAlloc`).
    fn memory_allocate(&self, bytes: u64) -> Result<u64>;
    /// Frees what [`DeviceCalls::memory_allocate`] gave, after waiting for the device (`cuMemFree`).
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
    /// As [`DeviceCalls::copy_to_host`].
    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()>;
    /// Memory for the stream's later work (`cuMemAllocAsync`).
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn allocate_async(&self, bytes: u64, stream: RawStream) -> Result<u64>;
    /// Frees memory once the stream's work so far is done (`cuMemFreeAsync`).
    ///
    /// # Safety
    /// The stream is alive, the memory was not freed before, both are of this runtime, and no work but the stream's
    /// earlier one uses the memory again.
    unsafe fn free_async(&self, address: u64, stream: RawStream) -> Result<()>;

    /// Returns the unit of physical memory and of mapping, in bytes: the minimum granularity
    /// (`cuMemGetAllocationGranularity`).
    fn page_bytes(&self, location: MemoryLocation) -> Result<u64>;
    /// Returns whether kernels on the device can access memory of the peer (`cuDeviceCanAccessPeer`).
    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool>;
    /// Reserves addresses, aligned to a page, without memory (`cuMemAddressReserve`).
    fn address_reserve(&self, bytes: u64) -> Result<u64>;
    /// Releases reserved addresses (`cuMemAddressFree`).
    ///
    /// # Safety
    /// This is a whole reservation of this runtime, and nothing uses it again.
    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()>;
    /// Releases the extent (`cuMemRelease`); mappings stay.
    ///
    /// # Safety
    /// The extent is of this runtime, was not released before, and is not used again.
    unsafe fn extent_release(&self, extent: Extent) -> Result<()>;
    /// Exports the extent to other processes as a file descriptor (`cuMemExportToShareableHandle`). The descriptor
    /// keeps the memory.
    ///
    /// # Safety
    /// The extent is alive and of this runtime.
    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd>;
    /// Imports an extent that another process exported (`cuMemImportFromShareableHandle`). The descriptor is not needed
    /// afterwards. The memory lives until every process has released it and no mapping of it is left.
    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent>;
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
}

/// What the pools need from a GPU platform: its devices, and the calls of its supertraits, to which all of this applies
/// too. No method panics.
///
/// Memory is of a [`MemoryLocation`]: of a device, or of a NUMA node of the host, whose memory every device reads and
/// writes at the same address.
///
/// Methods that take an address are unsafe: the stream, event or memory must be alive and belong to this runtime.
/// [`Stream`](super::Stream) and [`Event`](super::Event) guarantee that for their callers. Addresses of memory are numbers (`CUdeviceptr`).
/// Functions have the names of CUDA's driver API; HIP's have the same names except for the prefix, unless noted.
pub trait Runtime: StreamCalls + DeviceCalls + fmt::Debug + Send + Sync {
    /// Describes the device. It creates no context on it.
    fn device_info(&self, device: Device) -> Result<DeviceInfo>;
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
    fn compute_capability(&self, _device: Device) -> Result<Option<(u32, u32)>> {
        Ok(None)
    }
    /// Returns the calling thread's current device: that of the current context, device 0 if there is none.
    fn current_device(&self) -> Result<Device>;
    /// Makes the device's primary context current for the calling thread and returns what was current before; none if
    /// it was current already. HIP has no contexts, and makes the device current (`hipSetDevice`). For memory of the
    /// host any context works: the thread's own, otherwise one that is active, so that none is created on a device that
    /// the program does not use.
    fn bind(&self, location: MemoryLocation) -> Result<Option<Context>>;
    /// Undoes [`Runtime::bind`].
    fn restore(&self, previous: Context);

    /// Returns the device that the stream belongs to; the current one for default streams.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device>;
    /// Returns a number that no other stream of this process has or will have, though a new one may get the address of
    /// one that was destroyed, whose work goes on (`cuStreamGetId`); 0 where the driver has none. The query invalidates the
    /// stream's capture.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64>;
    /// Returns whether the stream was destroyed with its context, as far as the driver reports that. The query invalidates no
    /// capture.
    ///
    /// # Safety
    /// The stream was of this runtime, and its owner has not destroyed it.
    unsafe fn stream_is_gone(&self, _stream: RawStream) -> bool {
        false
    }
    /// Records all work of the current device's context so far (`cuCtxRecordEvent`), also of its green contexts. It
    /// invalidates every capture of the context, in any mode. Drivers older than CUDA 12.5, and HIP, have no such event and
    /// refuse it.
    ///
    /// # Safety
    /// The event is alive, of this runtime and of the current device.
    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()>;
    /// Makes all later work of the current device's context, on any stream, wait for the event (`cuCtxWaitEvent`). It
    /// invalidates captures and is refused as [`Runtime::event_record_context`].
    ///
    /// # Safety
    /// The event is alive, of this runtime and of the current device.
    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()>;

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

    /// Returns the device memory that the current device's pool for [`DeviceCalls::allocate_async`] has
    /// (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `_HIGH`); none where it is not known.
    fn pool_reserved(&self) -> Result<Option<PoolReserved>> {
        Ok(None)
    }
    /// Gives back what that pool has free, and starts its peak anew (`cuMemPoolTrimTo`).
    fn trim_pool(&self) -> Result<()> {
        Ok(())
    }
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
    /// Frees memory of [`Runtime::host_allocate`]. CUDA and HIP wait for all running kernels, whatever memory they
    /// use.
    ///
    /// # Safety
    /// The memory is of this runtime and of this size, was not freed before and is not used again.
    unsafe fn host_free(&self, node: NumaNode, address: u64, bytes: u64) -> Result<()>;

    /// Returns whether addresses can be reserved and physical memory mapped there.
    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool>;
    /// Creates an extent of memory there (`cuMemCreate`). It lives until it is released and no mapping of it is left.
    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent>;
    /// Returns what extents there can be used for: what its driver announces, less what it then refused.
    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse>;
}

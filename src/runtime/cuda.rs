//! NVIDIA GPUs, through cudarc's bindings of the CUDA driver. The only file that calls cudarc.
//!
//! cudarc loads `libcuda.so.1` when first called and panics if it, or a symbol, is missing. So [`Cuda::probe`] looks
//! for both itself, before any such call. Each device's primary context is retained once, when first needed, and never
//! released: at process end the driver does that.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::mem;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys;

use super::device_info::{DeviceInfo, text, uuid_text};
use super::{
    Capture, Context, Extent, Kind, MemoryInfo, PoolReserved, RawEvent, RawGraph, Runtime, StreamOrderedMemory,
    no_such_device,
};
use crate::error::{Error, Result, StatusKind};
use crate::ids::{CaptureMode, CaptureStatus, Device, RawStream};
use crate::shared_object;

/// Every symbol called below, so that a driver without one is refused with its name.
const SYMBOLS: &[&CStr] = &[
    c"cuInit",
    c"cuDriverGetVersion",
    c"cuDeviceGetCount",
    c"cuDeviceGet",
    c"cuDeviceGetName",
    c"cuDeviceGetUuid_v2",
    c"cuDeviceGetPCIBusId",
    c"cuDevicePrimaryCtxGetState",
    c"cuDevicePrimaryCtxRetain",
    c"cuCtxGetCurrent",
    c"cuCtxSetCurrent",
    c"cuCtxGetDevice",
    c"cuMemGetInfo_v2",
    c"cuThreadExchangeStreamCaptureMode",
    c"cuStreamCreate",
    c"cuStreamDestroy_v2",
    c"cuStreamGetCtx",
    c"cuStreamQuery",
    c"cuStreamSynchronize",
    c"cuStreamWaitEvent",
    c"cuStreamIsCapturing",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventRecord",
    c"cuEventQuery",
    c"cuEventSynchronize",
    c"cuDeviceTotalMem_v2",
    c"cuDeviceCanAccessPeer",
    c"cuDeviceGetAttribute",
    c"cuMemGetAllocationGranularity",
    c"cuMemAddressReserve",
    c"cuMemAddressFree",
    c"cuMemCreate",
    c"cuMemRelease",
    c"cuMemMap",
    c"cuMemSetAccess",
    c"cuMemUnmap",
    c"cuMemAlloc_v2",
    c"cuMemFree_v2",
    c"cuMemAllocAsync",
    c"cuMemFreeAsync",
    c"cuDeviceGetMemPool",
    c"cuMemPoolGetAttribute",
    c"cuMemPoolSetAttribute",
    c"cuMemPoolTrimTo",
];

/// What tells of captures and keeps objects for graphs; the last came with CUDA 12.3.
const GRAPH_OBJECTS: &[&CStr] =
    &[c"cuUserObjectCreate", c"cuUserObjectRelease", c"cuGraphRetainUserObject", c"cuStreamGetCaptureInfo_v3"];

/// The CUDA driver and its devices.
pub(super) struct Cuda {
    version: (u32, u32),
    /// Whether the driver has `cuCtxRecordEvent` and `cuCtxWaitEvent`, which came with CUDA 12.5.
    has_context_events: bool,
    /// Whether it has [`GRAPH_OBJECTS`].
    has_graph_objects: bool,
    devices: Vec<CudaDevice>,
}

struct CudaDevice {
    handle: sys::CUdevice,
    /// The address of the primary context, once retained.
    primary: OnceLock<usize>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("version", &self.version).field("devices", &self.devices.len()).finish()
    }
}

/// Turns the driver's answer into a result that names the function.
fn check(function: &'static str, status: sys::CUresult) -> Result<()> {
    if status == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(refused(function, status)) }
}

#[cold]
fn refused(function: &'static str, status: sys::CUresult) -> Error {
    let kind = match status {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => StatusKind::OutOfMemory,
        sys::CUresult::CUDA_ERROR_NOT_INITIALIZED => StatusKind::NotInitialized,
        _ => StatusKind::Other,
    };
    Error::refused("cuda", function, format!("{status:?}"), status as i32, kind)
}

fn no_device() -> Error {
    Error::runtime_unavailable("cuda", "the NVIDIA driver sees no device; check CUDA_VISIBLE_DEVICES")
}

fn as_stream(stream: RawStream) -> sys::CUstream {
    stream.as_ptr().cast()
}

fn as_graph(graph: RawGraph) -> sys::CUgraph {
    ptr::without_provenance_mut(graph.0)
}

/// Ends what [`Cuda::graph_retain`] kept, on a thread of the driver.
unsafe extern "C" fn drop_kept(kept: *mut c_void) {
    // SAFETY: `graph_retain` made this box for the driver, which calls this once.
    drop(unsafe { Box::from_raw(kept.cast::<Box<dyn Send>>()) });
}

fn as_event(event: RawEvent) -> sys::CUevent {
    ptr::without_provenance_mut(event.0)
}

/// A location as each level of the bindings lays it out, though with other field names.
#[repr(C)]
struct Location {
    kind: sys::CUmemLocationType,
    id: c_int,
}

fn location_of(slot: &CudaDevice) -> sys::CUmemLocation {
    let location = Location { kind: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: slot.handle };
    // SAFETY: the driver's struct is a kind and an int, or a union of ints of that size.
    unsafe { mem::transmute::<Location, sys::CUmemLocation>(location) }
}

/// Plain memory of the device, not shared with other processes.
fn extent_properties(slot: &CudaDevice) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location_of(slot),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Whether the device's primary context is active, by whomever.
fn has_context(slot: &CudaDevice) -> Result<bool> {
    if slot.primary.get().is_some() {
        return Ok(true);
    }
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both are valid places for ints, and the handle came from `cuDeviceGet`.
    let status = unsafe { sys::cuDevicePrimaryCtxGetState(slot.handle, &mut flags, &mut active) };
    check("cuDevicePrimaryCtxGetState", status)?;
    Ok(active != 0)
}

impl Cuda {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    /// `ErrorKind::RuntimeUnavailable` if there is no driver, no device, or the driver is too old.
    pub(super) fn probe() -> Result<Self> {
        let library = shared_object::open(Path::new("libcuda.so.1"), shared_object::NOW).map_err(|reason| {
            let reason = format!(
                "no NVIDIA driver was found ({reason}); install the driver, or run on a machine with an NVIDIA GPU"
            );
            Error::runtime_unavailable("cuda", reason)
        })?;
        if let Some(symbol) = shared_object::missing_symbol(&library, SYMBOLS) {
            let reason = format!(
                "libcuda.so.1 lacks the symbol {}: the driver is too old, or a profiler has put its own libcuda in \
                 front; CUDA 12 or later is needed",
                symbol.to_string_lossy()
            );
            return Err(Error::runtime_broken("cuda", reason));
        }
        let has = |symbols: &[&'static CStr]| shared_object::missing_symbol(&library, symbols).is_none();
        let has_context_events = has(&[c"cuCtxRecordEvent", c"cuCtxWaitEvent"]);
        let has_graph_objects = has(GRAPH_OBJECTS);
        // The driver stays loaded for the life of the process.
        std::mem::forget(library);

        // SAFETY: `cuInit` may be called from any thread at any time; 0 is its only flag.
        let status = unsafe { sys::cuInit(0) };
        if status == sys::CUresult::CUDA_ERROR_NO_DEVICE {
            return Err(no_device());
        }
        check("cuInit", status).map_err(|e| {
            Error::runtime_broken("cuda", format!("the NVIDIA driver does not start ({e}); `nvidia-smi` says whether it works here, and a process forked after using CUDA cannot use it"))
        })?;
        let mut version = 0;
        // SAFETY: `version` is a valid place for an int.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
        let mut count = 0;
        // SAFETY: `count` is a valid place for an int.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        if count == 0 {
            return Err(no_device());
        }
        let mut devices = Vec::new();
        for ordinal in 0..count {
            let mut handle = 0;
            // SAFETY: `handle` is a valid place for a device.
            check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut handle, ordinal) })?;
            devices.push(CudaDevice { handle, primary: OnceLock::new() });
        }
        let version = version.unsigned_abs();
        Ok(Self { version: (version / 1000, version % 1000 / 10), has_context_events, has_graph_objects, devices })
    }

    fn attribute(&self, attribute: sys::CUdevice_attribute, device: Device) -> Result<c_int> {
        let mut value = 0;
        // SAFETY: `value` is a valid place for an int, and the handle came from `cuDeviceGet`.
        let status = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.slot(device)?.handle) };
        check("cuDeviceGetAttribute", status).map(|()| value)
    }

    fn slot(&self, device: Device) -> Result<&CudaDevice> {
        self.devices.get(device.ordinal()).ok_or_else(|| no_such_device(device.ordinal() as i64, self.devices.len()))
    }

    /// The address of the device's primary context, retained at the first call. Two threads may both retain it: one
    /// count more or less does not matter, since none is ever released.
    fn primary(&self, device: Device) -> Result<usize> {
        let slot = self.slot(device)?;
        if let Some(&context) = slot.primary.get() {
            return Ok(context);
        }
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a valid place for a context, and the handle came from `cuDeviceGet`.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, slot.handle) })
            .map_err(|e| e.on(device))?;
        Ok(*slot.primary.get_or_init(|| context.addr()))
    }

    /// The device whose primary context this is, if it was retained here.
    #[inline]
    fn known_device_of(&self, context: usize) -> Option<Device> {
        let ordinal = self.devices.iter().position(|slot| slot.primary.get() == Some(&context))?;
        Some(Device::from_ordinal(ordinal as u32))
    }

    /// The pool that serves the current device's `cuMemAllocAsync`.
    fn memory_pool(&self) -> Result<sys::CUmemoryPool> {
        let handle = self.slot(self.current_device()?)?.handle;
        let mut pool = ptr::null_mut();
        // SAFETY: `pool` is a valid place for a pool.
        check("cuDeviceGetMemPool", unsafe { sys::cuDeviceGetMemPool(&mut pool, handle) })?;
        Ok(pool)
    }

    /// The device of a current context that is not a primary one, or not yet known.
    #[cold]
    fn current_device_by_handle(&self) -> Result<Device> {
        let mut handle = 0;
        // SAFETY: `handle` is a valid place for a device.
        check("cuCtxGetDevice", unsafe { sys::cuCtxGetDevice(&mut handle) })?;
        let ordinal = self.devices.iter().position(|slot| slot.handle == handle);
        ordinal
            .map(|ordinal| Device::from_ordinal(ordinal as u32))
            .ok_or_else(|| Error::invalid_value("the current context belongs to no device that this process sees"))
    }

    /// Free memory of the device, if somebody has made its primary context active.
    fn free_memory(&self, device: Device) -> Result<Option<u64>> {
        if !has_context(self.slot(device)?)? {
            return Ok(None);
        }
        let previous = self.bind(device)?;
        let memory = self.memory_info();
        if let Some(previous) = previous {
            self.restore(previous);
        }
        memory.map(|memory| Some(memory.free))
    }

    /// The device whose primary context this is, if somebody has made it active.
    fn device_of(&self, context: usize) -> Result<Option<Device>> {
        for (ordinal, slot) in (0..).zip(&self.devices) {
            let device = Device::from_ordinal(ordinal);
            if has_context(slot)? && self.primary(device)? == context {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }
}

impl Runtime for Cuda {
    fn kind(&self) -> Kind {
        Kind::Cuda
    }

    fn driver_version(&self) -> Option<(u32, u32)> {
        Some(self.version)
    }

    fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    fn device_info(&self, device: Device) -> Result<DeviceInfo> {
        let handle = self.slot(device)?.handle;
        let (mut name, mut place, mut uuid) = ([0_u8; 256], [0_u8; 32], sys::CUuuid { bytes: [0; 16] });
        // SAFETY: the driver writes at most the given length, with a final zero.
        let status = unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, handle) };
        check("cuDeviceGetName", status)?;
        // SAFETY: as above.
        let status = unsafe { sys::cuDeviceGetPCIBusId(place.as_mut_ptr().cast(), place.len() as c_int, handle) };
        check("cuDeviceGetPCIBusId", status)?;
        // SAFETY: `uuid` is a valid place for a UUID; that of a MIG instance is its own, not its GPU's.
        check("cuDeviceGetUuid_v2", unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, handle) })?;
        let name = text(&name);
        // The driver's API has no other word of it: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
        let is_mig = name.contains(" MIG ");
        let uuid = uuid_text(uuid.bytes.map(|byte| byte as u8));
        Ok(DeviceInfo {
            uuid: Some(format!("{}-{uuid}", if is_mig { "MIG" } else { "GPU" })),
            compute_capability: self.compute_capability(device)?,
            pci_bus_id: Some(text(&place)),
            is_mig,
            total_bytes: self.total_memory(device)?,
            free_bytes: self.free_memory(device)?,
            name,
        })
    }

    fn compute_capability(&self, device: Device) -> Result<Option<(u32, u32)>> {
        let major = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        let minor = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        Ok(Some((self.attribute(major, device)?.unsigned_abs(), self.attribute(minor, device)?.unsigned_abs())))
    }

    fn current_device(&self) -> Result<Device> {
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a valid place for a context.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
        // Without a context the CUDA runtime would take device 0. `cuCtxGetDevice` would refuse, which takes it 600 ns.
        if context.is_null() {
            return Ok(Device::from_ordinal(0));
        }
        match self.known_device_of(context.addr()) {
            Some(device) => Ok(device),
            None => self.current_device_by_handle(),
        }
    }

    fn bind(&self, device: Device) -> Result<Option<Context>> {
        let wanted = self.primary(device)?;
        let mut previous = ptr::null_mut();
        // SAFETY: `previous` is a valid place for a context.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut previous) })?;
        if previous.addr() == wanted {
            return Ok(None);
        }
        // SAFETY: the primary context was retained and is never released.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(ptr::without_provenance_mut(wanted)) })?;
        Ok(Some(Context(previous.addr())))
    }

    fn restore(&self, previous: Context) {
        // SAFETY: this context, or none, was current in this thread before; if it has died since, the driver refuses,
        // and there is nothing better to restore.
        let _ = unsafe { sys::cuCtxSetCurrent(ptr::without_provenance_mut(previous.0)) };
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places for a size.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut exchanged = match mode {
            CaptureMode::Global => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::ThreadLocal => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Relaxed => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        // SAFETY: the mode is a valid one, and the driver writes the previous one in its place.
        let status = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut exchanged) };
        check("cuThreadExchangeStreamCaptureMode", status)?;
        Ok(match exchanged {
            sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL => CaptureMode::Global,
            sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => CaptureMode::ThreadLocal,
            sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED => CaptureMode::Relaxed,
        })
    }

    fn is_blocking_stream_capturing(&self) -> Result<bool> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: `status` is a valid place, and the legacy default stream always exists.
        match unsafe { sys::cuStreamIsCapturing(ptr::null_mut(), &mut status) } {
            // The driver's answer where a blocking stream of this context is captured. It harms no capture.
            sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
            answer => check("cuStreamIsCapturing", answer).map(|()| false),
        }
    }

    fn stream_create(&self) -> Result<RawStream> {
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` is a valid place for a stream.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(RawStream::from_address(stream.addr()))
    }

    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the caller owns the stream.
        check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(as_stream(stream)) })
    }

    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device> {
        if stream.is_default() {
            return self.current_device();
        }
        if self.devices.len() == 1 {
            return Ok(Device::from_ordinal(0));
        }
        let mut context = ptr::null_mut();
        // SAFETY: the caller promises that the stream is alive.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(as_stream(stream), &mut context) })?;
        if let Some(device) = self.known_device_of(context.addr()) {
            return Ok(device);
        }
        self.device_of(context.addr())?.ok_or_else(|| {
            Error::invalid_value(format!(
                "stream {:#x} belongs to a context that is not the primary context of a device; handles are made in primary contexts, so take a stream made there (cuDevicePrimaryCtxRetain, cudaSetDevice)",
                stream.address()
            ))
        })
    }

    unsafe fn stream_query(&self, stream: RawStream) -> Result<bool> {
        // SAFETY: the caller promises that the stream is alive.
        match unsafe { sys::cuStreamQuery(as_stream(stream)) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => check("cuStreamQuery", status).map(|()| true),
        }
    }

    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the stream is alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(as_stream(stream)) })
    }

    unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        // SAFETY: the caller promises that both are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(as_stream(stream), as_event(event), 0) })
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the caller promises that the stream is alive.
        check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(as_stream(stream), &mut status) })?;
        Ok(match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => CaptureStatus::None,
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => CaptureStatus::Active,
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED => CaptureStatus::Invalidated,
        })
    }

    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Option<Capture>> {
        if !self.has_graph_objects {
            return Err(refused("cuStreamGetCaptureInfo", sys::CUresult::CUDA_ERROR_NOT_SUPPORTED));
        }
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph) = (0, ptr::null_mut());
        // SAFETY: the caller promises that the stream is alive, the first three are valid places, and the rest may be null.
        let answer = unsafe {
            let none = ptr::null_mut();
            sys::cuStreamGetCaptureInfo_v3(
                as_stream(stream),
                &mut status,
                &mut id,
                &mut graph,
                none,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check("cuStreamGetCaptureInfo", answer)?;
        let is_active = status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        Ok(is_active.then(|| Capture { id, graph: RawGraph(graph.addr()) }))
    }

    unsafe fn graph_retain(&self, graph: RawGraph, kept: Box<dyn Send>) -> Result<()> {
        if !self.has_graph_objects {
            return Err(refused("cuUserObjectCreate", sys::CUresult::CUDA_ERROR_NOT_SUPPORTED));
        }
        let kept: *mut Box<dyn Send> = Box::into_raw(Box::new(kept));
        let mut object = ptr::null_mut();
        let no_sync = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: `object` is a valid place, and `drop_kept` ends what `kept` points to.
        let created = unsafe { sys::cuUserObjectCreate(&mut object, kept.cast(), Some(drop_kept), 1, no_sync) };
        if let Err(error) = check("cuUserObjectCreate", created) {
            // SAFETY: the driver refused it, so the box is still this function's.
            drop(unsafe { Box::from_raw(kept) });
            return Err(error);
        }
        let hand_on = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the object is alive, and the caller promises that the graph is.
        let retained = unsafe { sys::cuGraphRetainUserObject(as_graph(graph), object, 1, hand_on) };
        check("cuGraphRetainUserObject", retained).inspect_err(|_| {
            // SAFETY: the graph did not take the only reference, which is this function's.
            let _ = unsafe { sys::cuUserObjectRelease(object, 1) };
        })
    }

    fn event_create(&self) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: `event` is a valid place for an event.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(RawEvent(event.addr()))
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the caller owns the event.
        check("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(as_event(event)) })
    }

    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that both are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(as_event(event), as_stream(stream)) })
    }

    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()> {
        if !self.has_context_events {
            return Err(refused("cuCtxRecordEvent", sys::CUresult::CUDA_ERROR_NOT_SUPPORTED));
        }
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a valid place for a context.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
        // SAFETY: the context is current, and the caller promises that the event is alive.
        check("cuCtxRecordEvent", unsafe { sys::cuCtxRecordEvent(context, as_event(event)) })
    }

    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()> {
        if !self.has_context_events {
            return Err(refused("cuCtxWaitEvent", sys::CUresult::CUDA_ERROR_NOT_SUPPORTED));
        }
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a valid place for a context.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
        // SAFETY: the context is current, and the caller promises that the event is alive.
        check("cuCtxWaitEvent", unsafe { sys::cuCtxWaitEvent(context, as_event(event)) })
    }

    unsafe fn event_query(&self, event: RawEvent) -> Result<bool> {
        // SAFETY: the caller promises that the event is alive.
        match unsafe { sys::cuEventQuery(as_event(event)) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => check("cuEventQuery", status).map(|()| true),
        }
    }

    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the caller promises that the event is alive.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(as_event(event)) })
    }

    fn total_memory(&self, device: Device) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size, and the handle came from `cuDeviceGet`.
        check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, self.slot(device)?.handle) })?;
        Ok(bytes as u64)
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        let (device, peer) = (self.slot(device)?.handle, self.slot(peer)?.handle);
        let mut answer = 0;
        // SAFETY: `answer` is a valid place for an int, and the handles came from `cuDeviceGet`.
        check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&mut answer, device, peer) })?;
        Ok(answer != 0)
    }

    fn supports_virtual_memory(&self, device: Device) -> Result<bool> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        self.attribute(attribute, device).map(|answer| answer != 0)
    }

    fn page_bytes(&self, device: Device) -> Result<u64> {
        let properties = extent_properties(self.slot(device)?);
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size, and the properties are whole.
        let status = unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &properties, least) };
        check("cuMemGetAllocationGranularity", status)?;
        Ok(bytes as u64)
    }

    fn address_reserve(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a valid place for one. Alignment 0 is the driver's own, which is the page size; no
        // address is asked for, and 0 are the only flags.
        let status = unsafe { sys::cuMemAddressReserve(&mut address, bytes as usize, 0, 0, 0) };
        check("cuMemAddressReserve", status)?;
        Ok(address)
    }

    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the reservation.
        check("cuMemAddressFree", unsafe { sys::cuMemAddressFree(address, bytes as usize) })
    }

    fn extent_create(&self, device: Device, bytes: u64) -> Result<Extent> {
        let properties = extent_properties(self.slot(device)?);
        let mut handle = 0;
        // SAFETY: `handle` is a valid place for one, the properties are whole, and 0 are the only flags.
        check("cuMemCreate", unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &properties, 0) })?;
        Ok(Extent(handle))
    }

    unsafe fn extent_release(&self, extent: Extent) -> Result<()> {
        // SAFETY: the caller owns the handle.
        check("cuMemRelease", unsafe { sys::cuMemRelease(extent.0) })
    }

    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        // SAFETY: the caller promises that the addresses are free and the memory alive; 0 are the only flags.
        check("cuMemMap", unsafe { sys::cuMemMap(address, bytes as usize, 0, extent.0, 0) })
    }

    unsafe fn memory_set_access(&self, address: u64, bytes: u64, devices: &[Device]) -> Result<()> {
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let describe = |&device: &Device| Ok(sys::CUmemAccessDesc { location: location_of(self.slot(device)?), flags });
        let access = devices.iter().map(describe).collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller promises that the range is mapped, and `access` has as many entries as said.
        let status = unsafe { sys::cuMemSetAccess(address, bytes as usize, access.as_ptr(), access.len()) };
        check("cuMemSetAccess", status)
    }

    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller promises that nothing uses these mappings again.
        check("cuMemUnmap", unsafe { sys::cuMemUnmap(address, bytes as usize) })
    }

    fn memory_allocate(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a valid place for one.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) })?;
        Ok(address)
    }

    unsafe fn memory_free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller owns the memory.
        check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
    }

    fn stream_ordered_memory(&self) -> &dyn StreamOrderedMemory {
        self
    }
}

impl StreamOrderedMemory for Cuda {
    unsafe fn allocate_async(&self, bytes: u64, stream: RawStream) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a valid place for one, and the caller promises that the stream is alive.
        let status = unsafe { sys::cuMemAllocAsync(&mut address, bytes as usize, as_stream(stream)) };
        check("cuMemAllocAsync", status)?;
        Ok(address)
    }

    unsafe fn free_async(&self, address: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller owns the memory and promises that the stream is alive.
        check("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(address, as_stream(stream)) })
    }

    fn pool_reserved(&self) -> Result<Option<PoolReserved>> {
        let pool = self.memory_pool()?;
        let get = |attribute| -> Result<u64> {
            let mut bytes = 0_u64;
            // SAFETY: the pool is the device's own, and both attributes are 64 bits wide.
            let status = unsafe { sys::cuMemPoolGetAttribute(pool, attribute, ptr::from_mut(&mut bytes).cast()) };
            check("cuMemPoolGetAttribute", status)?;
            Ok(bytes)
        };
        let now = get(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let peak = get(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
        Ok(Some(PoolReserved { now, peak }))
    }

    fn trim_pool(&self) -> Result<()> {
        let pool = self.memory_pool()?;
        // SAFETY: the pool is the device's own.
        check("cuMemPoolTrimTo", unsafe { sys::cuMemPoolTrimTo(pool, 0) })?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        // Only 0 may be set.
        let mut bytes = 0_u64;
        // SAFETY: the pool is the device's own, and the attribute is 64 bits wide.
        let status = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, ptr::from_mut(&mut bytes).cast()) };
        check("cuMemPoolSetAttribute", status)
    }
}

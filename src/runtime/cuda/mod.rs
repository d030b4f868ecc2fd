//! NVIDIA GPUs, through cudarc's bindings of the CUDA driver. The only folder that calls cudarc.
//!
//! cudarc loads `libcuda.so.1` when first called and panics if it, or a symbol, is missing. So [`Cuda::probe`] looks
//! for both itself, before any such call. Each device's primary context is retained once, when first needed, and never
//! released: at process end the driver does that.

mod capture;
mod device;
mod host_memory;
mod probe;
mod sharing;
mod stream_context;
mod stream_ordered_memory;
mod virtual_memory;

use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr;

use cudarc::driver::sys;

use self::device::CudaDevice;
use self::stream_context::{ADVICE_IF_GONE, is_gone};
use super::host_memory::most_memory;
use super::{
    Capture, Context, DeviceInfo, DeviceUuid, ExportedEvent, ExportedExtent, Extent, ExtentUse, Kind, MemoryInfo,
    RawEvent, RawGraph, Runtime, StreamOrderedMemory,
};
use crate::error::{Error, Result, StatusKind};
use crate::ids::{CaptureMode, CaptureStatus, Device, RawStream};

/// The CUDA driver and its devices.
pub(super) struct Cuda {
    version: (u32, u32),
    /// Whether the driver has `cuCtxRecordEvent` and `cuCtxWaitEvent`, which came with CUDA 12.5.
    has_context_events: bool,
    /// Whether the driver tells of captures and keeps objects for graphs, which came with CUDA 12.3.
    has_graph_objects: bool,
    /// Whether the driver tells of a stream's green context whose it is, which came with CUDA 12.5.
    has_green_contexts: bool,
    devices: Vec<CudaDevice>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("version", &self.version).field("devices", &self.devices.len()).finish()
    }
}

/// Turns a status of the driver into a result that names the function.
fn check(function: &'static str, status: sys::CUresult) -> Result<()> {
    if status == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(refused(function, status)) }
}

/// Returns the error that a status of the driver is, of a call that other code made.
#[cfg(feature = "cudarc")]
pub(crate) fn refused_by_driver(function: &'static str, status: sys::CUresult) -> Error {
    refused(function, status)
}

#[cold]
fn refused(function: &'static str, status: sys::CUresult) -> Error {
    let kind = match status {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => StatusKind::OutOfMemory,
        sys::CUresult::CUDA_ERROR_NOT_INITIALIZED => StatusKind::NotInitialized,
        _ => StatusKind::Other,
    };
    let error = Error::refused("cuda", function, format!("{status:?}"), status as i32, kind);
    if is_gone(status) { error.map_library(|refused| refused.advice = Some(ADVICE_IF_GONE.into())) } else { error }
}

fn as_stream(stream: RawStream) -> sys::CUstream {
    stream.as_ptr().cast()
}

fn as_event(event: RawEvent) -> sys::CUevent {
    ptr::without_provenance_mut(event.0)
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
        self.info_of(device)
    }

    fn device_uuid(&self, device: Device) -> Result<DeviceUuid> {
        self.uuid_of(device)
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
        let wanted = match device.host_node() {
            None => self.primary(device)?,
            Some(_) => match self.context_for_host()? {
                Some(wanted) => wanted,
                None => return Ok(None),
            },
        };
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
        match self.known_device_of(context.addr()) {
            Some(device) => Ok(device),
            // SAFETY: the caller promises that the stream is alive.
            None => unsafe { self.device_of_stream(stream, context.addr()) },
        }
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
        let asked = unsafe { sys::cuStreamIsCapturing(as_stream(stream), &mut status) };
        // The end of a context ends the captures of its streams.
        if is_gone(asked) {
            return Ok(CaptureStatus::None);
        }
        // Of the legacy default stream alone. The question harms no capture.
        if asked == sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
            return Ok(CaptureStatus::Implicit);
        }
        check("cuStreamIsCapturing", asked)?;
        Ok(match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => CaptureStatus::None,
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => CaptureStatus::Active,
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED => CaptureStatus::Invalidated,
        })
    }

    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Option<Capture>> {
        // SAFETY: the caller promises that the stream is alive.
        unsafe { self.capture_of(stream) }
    }

    unsafe fn graph_retain(&self, graph: RawGraph, kept: Box<dyn Send>) -> Result<()> {
        // SAFETY: the caller promises that the graph is alive.
        unsafe { self.keep_for(graph, kept) }
    }

    fn event_create(&self) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: `event` is a valid place for an event.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(RawEvent(event.addr()))
    }

    fn event_create_interprocess(&self) -> Result<RawEvent> {
        self.create_interprocess_event()
    }

    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent> {
        // SAFETY: the caller promises that the event is alive, and made for this.
        unsafe { self.export_event(event) }
    }

    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent> {
        self.import_event(&exported)
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

    fn context_synchronize(&self) -> Result<()> {
        // SAFETY: the function takes nothing, and refuses where no context is current.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        let to = ptr::with_exposed_provenance_mut(to as usize);
        // SAFETY: the caller promises that the stream and both ranges are alive.
        let status = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes as usize, as_stream(stream)) };
        check("cuMemcpyDtoHAsync", status)
    }

    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        let from = ptr::with_exposed_provenance(from as usize);
        // SAFETY: the caller promises that the stream and both ranges are alive.
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes as usize, as_stream(stream)) };
        check("cuMemcpyHtoDAsync", status)
    }

    fn total_memory(&self, device: Device) -> Result<u64> {
        if device.host_node().is_some() {
            return Ok(most_memory());
        }
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size, and the handle came from `cuDeviceGet`.
        check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, self.slot(device)?.handle) })?;
        Ok(bytes as u64)
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        let (device, peer) = (self.slot(device)?.handle, self.slot(peer)?.handle);
        let mut can_access = 0;
        // SAFETY: `can_access` is a valid place for an int, and the handles came from `cuDeviceGet`.
        check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&mut can_access, device, peer) })?;
        Ok(can_access != 0)
    }

    fn supports_virtual_memory(&self, device: Device) -> Result<bool> {
        if device.host_node().is_some() {
            return Ok(self.has_host_extents(device));
        }
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        self.attribute(attribute, device).map(|value| value != 0)
    }

    fn page_bytes(&self, device: Device) -> Result<u64> {
        self.granularity(device)
    }

    fn address_reserve(&self, bytes: u64) -> Result<u64> {
        self.reserve(bytes)
    }

    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the reservation.
        check("cuMemAddressFree", unsafe { sys::cuMemAddressFree(address, bytes as usize) })
    }

    fn extent_create(&self, device: Device, bytes: u64) -> Result<Extent> {
        self.create(device, bytes)
    }

    fn extent_use(&self, device: Device) -> Result<ExtentUse> {
        self.use_of_extents(device)
    }

    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd> {
        // SAFETY: the caller promises that the extent is alive.
        unsafe { self.export_extent(extent) }
    }

    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent> {
        self.import_extent(exported)
    }

    unsafe fn extent_release(&self, extent: Extent) -> Result<()> {
        // SAFETY: the caller owns the extent.
        check("cuMemRelease", unsafe { sys::cuMemRelease(extent.0) })
    }

    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        // SAFETY: the caller promises that the addresses are free and the memory alive; 0 are the only flags.
        check("cuMemMap", unsafe { sys::cuMemMap(address, bytes as usize, 0, extent.0, 0) })
    }

    unsafe fn memory_set_access(&self, address: u64, bytes: u64, devices: &[Device]) -> Result<()> {
        // SAFETY: the caller promises that the range consists of mappings of this runtime.
        unsafe { self.set_access(address, bytes, devices) }
    }

    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller promises that nothing uses these mappings again.
        check("cuMemUnmap", unsafe { sys::cuMemUnmap(address, bytes as usize) })
    }

    fn nearest_host_node(&self, device: Device) -> Result<u32> {
        self.nearest_node(device)
    }

    fn host_allocate(&self, node: u32, bytes: u64) -> Result<u64> {
        self.allocate_on_host(node, bytes)
    }

    unsafe fn host_free(&self, _node: u32, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the memory and gives it up.
        unsafe { self.free_on_host(address, bytes) }
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

    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the memory and the stream last.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(address, byte, bytes as usize, as_stream(stream)) })
    }

    fn stream_ordered_memory(&self) -> &dyn StreamOrderedMemory {
        self
    }
}

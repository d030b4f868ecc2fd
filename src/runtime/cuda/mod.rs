//! NVIDIA GPUs, through the CUDA driver.
//!
//! [`Cuda::probe`] opens `libcuda.so.1` and looks up every function that is called, so that what is probed is what is used.
//! cudarc gives the constants and structs, not the calls: it would open a file of its own, which may be another one, and its
//! enums are undefined behaviour where a newer driver returns what they do not know. Each device's primary context is retained
//! once, when first needed, and never released: at process end the driver does that.

mod capture;
mod device;
mod host_memory;
mod probe;
mod sharing;
mod stream_context;
mod stream_ordered_memory;
mod symbols;
mod virtual_memory;

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr;

use cudarc::driver::sys;

use self::device::CudaDevice;
use self::stream_context::{ADVICE_IF_GONE, is_gone};
use self::symbols::Symbols;
use super::host_memory::most_memory;
use super::symbols::{SUCCESS, Status};
use super::{
    Capture, Context, DeviceInfo, DeviceUuid, ExportedEvent, ExportedExtent, Extent, ExtentUse, Kind, MemoryInfo,
    RawEvent, RawGraph, Runtime, StreamOrderedMemory,
};
use crate::error::{Error, Result, StatusKind, UNKNOWN_STATUS};
use crate::ids::{CaptureMode, CaptureStatus, Device, MemoryLocation, NumaNode, RawStream};

/// The CUDA driver and its devices.
pub(super) struct Cuda {
    symbols: Symbols,
    version: (u32, u32),
    devices: Vec<CudaDevice>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("version", &self.version).field("devices", &self.devices.len()).finish()
    }
}

/// The statuses that mean something here.
const OUT_OF_MEMORY: Status = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as Status;
const NOT_INITIALIZED: Status = sys::CUresult::CUDA_ERROR_NOT_INITIALIZED as Status;
const NOT_READY: Status = sys::CUresult::CUDA_ERROR_NOT_READY as Status;
const NOT_SUPPORTED: Status = sys::CUresult::CUDA_ERROR_NOT_SUPPORTED as Status;
const CAPTURE_IMPLICIT: Status = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as Status;

/// Returns the error that a status of the driver is.
#[cold]
fn refusal(function: &'static str, name: impl Into<String>, status: Status) -> Error {
    let kind = match status {
        OUT_OF_MEMORY => StatusKind::OutOfMemory,
        NOT_INITIALIZED => StatusKind::NotInitialized,
        NOT_SUPPORTED => StatusKind::NotSupported,
        _ => StatusKind::Other,
    };
    let error = Error::refused("cuda", function, name, status, kind);
    if is_gone(status) { error.map_library(|refused| refused.advice = Some(ADVICE_IF_GONE.into())) } else { error }
}

/// Returns the error that a status of the driver is, of a call that cudarc made.
#[cfg(feature = "cudarc")]
pub(crate) fn refused_by_driver(function: &'static str, status: sys::CUresult) -> Error {
    refusal(function, format!("{status:?}"), status as Status)
}

fn as_stream(stream: RawStream) -> *mut c_void {
    stream.as_ptr()
}

fn as_event(event: RawEvent) -> *mut c_void {
    ptr::without_provenance_mut(event.0)
}

impl Cuda {
    /// Turns a status of the driver into a result that names the function.
    #[inline]
    fn check(&self, function: &'static str, status: Status) -> Result<()> {
        if status == SUCCESS { Ok(()) } else { Err(self.refused(function, status)) }
    }

    #[cold]
    fn refused(&self, function: &'static str, status: Status) -> Error {
        let mut name = ptr::null();
        // SAFETY: the function takes any status, and `name` is a valid place for a string's address.
        let named = unsafe { (self.symbols.error_name)(status, &mut name) };
        if named != SUCCESS || name.is_null() {
            return refusal(function, UNKNOWN_STATUS, status);
        }
        // SAFETY: the name is not null, so it is a string that lives as long as the driver.
        refusal(function, unsafe { CStr::from_ptr(name) }.to_string_lossy(), status)
    }

    /// Returns the error of a call that this driver is too old for.
    #[cold]
    fn lacks(&self, function: &'static str) -> Error {
        let (major, minor) = self.version;
        self.refused(function, NOT_SUPPORTED).map_library(|refused| {
            refused.advice = Some(format!("This driver, which supports CUDA {major}.{minor}, is too old for it"));
        })
    }

    /// Returns whether what a query asked about is done.
    #[inline]
    fn is_ready(&self, function: &'static str, status: Status) -> Result<bool> {
        if status == NOT_READY { Ok(false) } else { self.check(function, status).map(|()| true) }
    }

    /// Returns the address of the current context; 0 without one.
    #[inline]
    fn current_context(&self) -> Result<usize> {
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a valid place for a context.
        self.check("cuCtxGetCurrent", unsafe { (self.symbols.get_context)(&mut context) })?;
        Ok(context.addr())
    }

    /// Makes the context at this address current; none for 0.
    ///
    /// # Safety
    /// It is alive, or the driver is to find out.
    unsafe fn set_context(&self, context: usize) -> Result<()> {
        // SAFETY: the caller vouches for the context.
        self.check("cuCtxSetCurrent", unsafe { (self.symbols.set_context)(ptr::without_provenance_mut(context)) })
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
        let context = self.current_context()?;
        // Without a context the CUDA runtime would take device 0. `cuCtxGetDevice` would refuse, which takes it 600 ns.
        if context == 0 {
            return Ok(Device::from_ordinal(0));
        }
        match self.known_device_of(context) {
            Some(device) => Ok(device),
            None => self.current_device_by_handle(),
        }
    }

    fn bind(&self, location: MemoryLocation) -> Result<Option<Context>> {
        let wanted = match location {
            MemoryLocation::Device(device) => self.primary(device)?,
            MemoryLocation::Host(_) => match self.context_for_host()? {
                Some(wanted) => wanted,
                None => return Ok(None),
            },
        };
        let previous = self.current_context()?;
        if previous == wanted {
            return Ok(None);
        }
        // SAFETY: the primary context was retained and is never released.
        unsafe { self.set_context(wanted) }?;
        Ok(Some(Context(previous)))
    }

    fn restore(&self, previous: Context) {
        // SAFETY: this context, or none, was current in this thread before; if it has died since, the driver refuses,
        // and there is nothing better to restore.
        let _ = unsafe { self.set_context(previous.0) };
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places for a size.
        self.check("cuMemGetInfo", unsafe { (self.symbols.memory_info)(&mut free, &mut total) })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut exchanged = mode.number();
        // SAFETY: the mode is a valid one, and the driver writes the previous one in its place.
        let status = unsafe { (self.symbols.exchange_capture_mode)(&mut exchanged) };
        self.check("cuThreadExchangeStreamCaptureMode", status)?;
        Ok(CaptureMode::of(exchanged))
    }

    fn stream_create(&self) -> Result<RawStream> {
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` is a valid place for a stream.
        self.check("cuStreamCreate", unsafe { (self.symbols.stream_create)(&mut stream, flags) })?;
        Ok(RawStream::from_address(stream.addr()))
    }

    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the caller owns the stream.
        self.check("cuStreamDestroy", unsafe { (self.symbols.stream_destroy)(as_stream(stream)) })
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
        self.check("cuStreamGetCtx", unsafe { (self.symbols.stream_context)(as_stream(stream), &mut context) })?;
        match self.known_device_of(context.addr()) {
            Some(device) => Ok(device),
            // SAFETY: the caller promises that the stream is alive.
            None => unsafe { self.device_of_stream(stream, context.addr()) },
        }
    }

    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the caller promises that the stream is alive, and `id` is a valid place for a number.
        self.check("cuStreamGetId", unsafe { (self.symbols.stream_id)(as_stream(stream), &mut id) })?;
        Ok(id)
    }

    unsafe fn stream_query(&self, stream: RawStream) -> Result<bool> {
        // SAFETY: the caller promises that the stream is alive.
        self.is_ready("cuStreamQuery", unsafe { (self.symbols.stream_query)(as_stream(stream)) })
    }

    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the stream is alive.
        self.check("cuStreamSynchronize", unsafe { (self.symbols.stream_synchronize)(as_stream(stream)) })
    }

    unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        // SAFETY: the caller promises that both are alive.
        self.check("cuStreamWaitEvent", unsafe {
            (self.symbols.stream_wait_event)(as_stream(stream), as_event(event), 0)
        })
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        let mut status: c_int = 0;
        // SAFETY: the caller promises that the stream is alive.
        let asked = unsafe { (self.symbols.stream_is_capturing)(as_stream(stream), &mut status) };
        // The end of a context ends the captures of its streams.
        if is_gone(asked) {
            return Ok(CaptureStatus::None);
        }
        // Of the legacy default stream alone. The question harms no capture.
        if asked == CAPTURE_IMPLICIT {
            return Ok(CaptureStatus::Implicit);
        }
        self.check("cuStreamIsCapturing", asked)?;
        Ok(CaptureStatus::of(status))
    }

    unsafe fn stream_is_gone(&self, stream: RawStream) -> bool {
        let mut status: c_int = 0;
        // SAFETY: the caller promises that the stream was not destroyed, and the driver finds out whether its context was.
        is_gone(unsafe { (self.symbols.stream_is_capturing)(as_stream(stream), &mut status) })
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
        self.check("cuEventCreate", unsafe { (self.symbols.event_create)(&mut event, flags) })?;
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
        self.check("cuEventDestroy", unsafe { (self.symbols.event_destroy)(as_event(event)) })
    }

    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that both are alive.
        self.check("cuEventRecord", unsafe { (self.symbols.event_record)(as_event(event), as_stream(stream)) })
    }

    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()> {
        let Some(record) = self.symbols.context_record_event else { return Err(self.lacks("cuCtxRecordEvent")) };
        let context = ptr::without_provenance_mut(self.current_context()?);
        // SAFETY: the context is current, and the caller promises that the event is alive.
        self.check("cuCtxRecordEvent", unsafe { record(context, as_event(event)) })
    }

    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()> {
        let Some(wait) = self.symbols.context_wait_event else { return Err(self.lacks("cuCtxWaitEvent")) };
        let context = ptr::without_provenance_mut(self.current_context()?);
        // SAFETY: the context is current, and the caller promises that the event is alive.
        self.check("cuCtxWaitEvent", unsafe { wait(context, as_event(event)) })
    }

    unsafe fn event_query(&self, event: RawEvent) -> Result<bool> {
        // SAFETY: the caller promises that the event is alive.
        self.is_ready("cuEventQuery", unsafe { (self.symbols.event_query)(as_event(event)) })
    }

    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the caller promises that the event is alive.
        self.check("cuEventSynchronize", unsafe { (self.symbols.event_synchronize)(as_event(event)) })
    }

    fn context_synchronize(&self) -> Result<()> {
        // SAFETY: the function takes nothing, and refuses where no context is current.
        self.check("cuCtxSynchronize", unsafe { (self.symbols.context_synchronize)() })
    }

    unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        let to = ptr::with_exposed_provenance_mut(to as usize);
        // SAFETY: the caller promises that the stream and both ranges are alive.
        let status = unsafe { (self.symbols.copy_to_host)(to, from, bytes as usize, as_stream(stream)) };
        self.check("cuMemcpyDtoHAsync", status)
    }

    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        let from = ptr::with_exposed_provenance(from as usize);
        // SAFETY: the caller promises that the stream and both ranges are alive.
        let status = unsafe { (self.symbols.copy_to_device)(to, from, bytes as usize, as_stream(stream)) };
        self.check("cuMemcpyHtoDAsync", status)
    }

    fn total_memory(&self, location: MemoryLocation) -> Result<u64> {
        let MemoryLocation::Device(device) = location else { return Ok(most_memory()) };
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size, and the handle came from `cuDeviceGet`.
        self.check("cuDeviceTotalMem", unsafe {
            (self.symbols.device_total_memory)(&mut bytes, self.slot(device)?.handle)
        })?;
        Ok(bytes as u64)
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        let (device, peer) = (self.slot(device)?.handle, self.slot(peer)?.handle);
        let mut can_access = 0;
        // SAFETY: `can_access` is a valid place for an int, and the handles came from `cuDeviceGet`.
        self.check("cuDeviceCanAccessPeer", unsafe {
            (self.symbols.device_can_access_peer)(&mut can_access, device, peer)
        })?;
        Ok(can_access != 0)
    }

    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool> {
        let device = match location {
            MemoryLocation::Device(device) => device,
            MemoryLocation::Host(node) => return Ok(self.has_host_extents(node)),
        };
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        self.attribute(attribute, device).map(|value| value != 0)
    }

    fn page_bytes(&self, location: MemoryLocation) -> Result<u64> {
        self.granularity(location)
    }

    fn address_reserve(&self, bytes: u64) -> Result<u64> {
        self.reserve(bytes)
    }

    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the reservation.
        self.check("cuMemAddressFree", unsafe { (self.symbols.address_free)(address, bytes as usize) })
    }

    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        self.create(location, bytes)
    }

    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse> {
        self.use_of_extents(location)
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
        self.check("cuMemRelease", unsafe { (self.symbols.extent_release)(extent.0) })
    }

    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        // SAFETY: the caller promises that the addresses are free and the memory alive; 0 are the only flags.
        self.check("cuMemMap", unsafe { (self.symbols.memory_map)(address, bytes as usize, 0, extent.0, 0) })
    }

    unsafe fn memory_set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        // SAFETY: the caller promises that the range consists of mappings of this runtime.
        unsafe { self.set_access(address, bytes, by) }
    }

    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller promises that nothing uses these mappings again.
        self.check("cuMemUnmap", unsafe { (self.symbols.memory_unmap)(address, bytes as usize) })
    }

    fn nearest_host_node(&self, device: Device) -> Result<NumaNode> {
        self.nearest_node(device)
    }

    fn host_allocate(&self, node: NumaNode, bytes: u64) -> Result<u64> {
        self.allocate_on_host(node, bytes)
    }

    unsafe fn host_free(&self, _node: NumaNode, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the memory and gives it up.
        unsafe { self.free_on_host(address, bytes) }
    }

    fn memory_allocate(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a valid place for one.
        self.check("cuMemAlloc", unsafe { (self.symbols.memory_allocate)(&mut address, bytes as usize) })?;
        Ok(address)
    }

    unsafe fn memory_free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller owns the memory.
        self.check("cuMemFree", unsafe { (self.symbols.memory_free)(address) })
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the memory and the stream last.
        self.check("cuMemsetD8Async", unsafe { (self.symbols.fill)(address, byte, bytes as usize, as_stream(stream)) })
    }

    fn stream_ordered_memory(&self) -> &dyn StreamOrderedMemory {
        self
    }
}

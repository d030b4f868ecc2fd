//! AMD GPUs, through `libamdhip64`.
//!
//! HIP has no driver contexts: a thread has a current device, and binding a device is to set that. HIP 7 keeps a
//! thread's last error until it is asked for, and programs ask after a kernel launch; so an error that is returned here
//! is asked for here too, and no other code takes it for its own.

mod file;
mod probe;
mod sharing;
mod symbols;
mod virtual_memory;

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr;

use self::sharing::PrivateDevices;
use self::symbols::Symbols;
use self::virtual_memory::Mappings;
use super::device_info::{DeviceInfo, text, uuid_text};
use super::host_memory::{most_memory, node_of_pci_device};
use super::symbols::Status;
use super::{
    Capture, Context, DeviceUuid, ExportedEvent, ExportedExtent, Extent, ExtentUse, Kind, MemoryInfo, RawEvent,
    RawGraph, Runtime, StreamOrderedMemory, no_such_device,
};
use crate::error::{Error, Result, StatusKind, UNKNOWN_STATUS};
use crate::ids::{CaptureMode, CaptureStatus, Device, MemoryLocation, NumaNode, RawStream};

/// `hipErrorOutOfMemory`, `hipErrorNotInitialized`, `hipErrorNotReady`, `hipErrorNotSupported`, `hipErrorStreamCaptureImplicit`
/// and `hipErrorUnknown`.
const OUT_OF_MEMORY: Status = 2;
const NOT_INITIALIZED: Status = 3;
const NOT_READY: Status = 600;
const NOT_SUPPORTED: Status = 801;
const CAPTURE_IMPLICIT: Status = 906;
const UNKNOWN: Status = 999;
const UNKNOWN_NAME: &str = "hipErrorUnknown";

/// `hipHostMallocPortable` and `hipHostMallocMapped`: for every device, and for kernels too.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;
/// `hipStreamNonBlocking` and `hipEventDisableTiming`.
const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;

/// The HIP library and its devices.
pub(super) struct Hip {
    symbols: Symbols,
    version: (u32, u32),
    devices: u32,
    mappings: Mappings,
    /// Those whose extents cannot be exported.
    private: PrivateDevices,
}

impl fmt::Debug for Hip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hip").field("version", &self.version).field("devices", &self.devices).finish_non_exhaustive()
    }
}

fn as_pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(address as usize)
}

fn as_event(event: RawEvent) -> *mut c_void {
    ptr::without_provenance_mut(event.0)
}

fn as_stream(stream: RawStream) -> *mut c_void {
    stream.as_hip_knows_it().as_ptr()
}

/// Returns a device's UUID as `rocminfo` writes it: HIP gives the letters that stand there after `GPU-`, `XX` for none.
fn uuid_of(bytes: [u8; 16]) -> Option<String> {
    let letters = text(&bytes);
    match letters.as_str() {
        "" | "XX" => None,
        _ if letters.bytes().all(|letter| letter.is_ascii_alphanumeric()) => Some(format!("GPU-{letters}")),
        _ => Some(format!("GPU-{}", uuid_text(bytes))),
    }
}

impl Hip {
    /// Turns a status into a result that names the function.
    #[inline]
    fn check(&self, function: &'static str, status: Status) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(self.refused(function, status)) }
    }

    #[cold]
    fn refused(&self, function: &'static str, status: Status) -> Error {
        self.forget_last_error();
        let kind = match status {
            OUT_OF_MEMORY => StatusKind::OutOfMemory,
            NOT_INITIALIZED => StatusKind::NotInitialized,
            NOT_SUPPORTED => StatusKind::NotSupported,
            _ => StatusKind::Other,
        };
        // SAFETY: the function takes any status and returns a string that lives as long as the library, or null.
        let name = unsafe { (self.symbols.error_name)(status) };
        if name.is_null() {
            return Error::refused("hip", function, UNKNOWN_STATUS, status, kind);
        }
        // SAFETY: the name is not null, so it is a string that lives as long as the library.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        // HIP has the name of one status for every number that it does not know.
        let is_known = name != UNKNOWN_NAME || status == UNKNOWN;
        Error::refused("hip", function, if is_known { &name } else { UNKNOWN_STATUS }, status, kind)
    }

    /// Clears the last call's status from this thread's memory of errors.
    fn forget_last_error(&self) {
        // SAFETY: the function takes nothing and may be called at any time.
        unsafe { (self.symbols.last_error)() };
    }

    /// Returns whether what a query asked about is done.
    fn is_ready(&self, function: &'static str, status: Status) -> Result<bool> {
        if status == NOT_READY {
            self.forget_last_error();
            return Ok(false);
        }
        self.check(function, status).map(|()| true)
    }

    /// Returns the device as HIP numbers it.
    fn ordinal(&self, device: Device) -> Result<c_int> {
        match c_int::try_from(device.ordinal()) {
            Ok(ordinal) if device.ordinal() < self.devices as usize => Ok(ordinal),
            _ => Err(no_such_device(device.ordinal() as i64, self.devices as usize)),
        }
    }

    /// Returns the device whose memory this is. HIP makes no extents of the host's memory.
    fn device_of(&self, location: MemoryLocation) -> Result<Device> {
        location.device().ok_or_else(|| no_such_device(location.number(), self.devices as usize))
    }

    fn pci_bus_id(&self, ordinal: c_int) -> Result<String> {
        let mut place = [0_u8; 32];
        let (buffer, length) = (place.as_mut_ptr().cast(), place.len() as c_int);
        // SAFETY: `place` has the given length, which the library keeps to, with a final zero.
        let status = unsafe { (self.symbols.device_pci_bus_id)(buffer, length, ordinal) };
        self.check("hipDeviceGetPCIBusId", status)?;
        Ok(text(&place))
    }

    fn current_ordinal(&self) -> Result<c_int> {
        let mut ordinal = 0;
        // SAFETY: `ordinal` is a valid place for an int.
        self.check("hipGetDevice", unsafe { (self.symbols.get_device)(&mut ordinal) })?;
        Ok(ordinal)
    }
}

impl Runtime for Hip {
    fn kind(&self) -> Kind {
        Kind::Hip
    }

    fn driver_version(&self) -> Option<(u32, u32)> {
        Some(self.version)
    }

    fn device_count(&self) -> u32 {
        self.devices
    }

    fn device_uuid(&self, device: Device) -> Result<DeviceUuid> {
        self.uuid_bytes(device)
    }

    fn device_info(&self, device: Device) -> Result<DeviceInfo> {
        let ordinal = self.ordinal(device)?;
        let (mut name, mut uuid) = ([0_u8; 256], [0_u8; 16]);
        // SAFETY: `name` has the given length, which the library keeps to, with a final zero.
        let status = unsafe { (self.symbols.device_name)(name.as_mut_ptr().cast(), name.len() as c_int, ordinal) };
        self.check("hipDeviceGetName", status)?;
        let place = self.pci_bus_id(ordinal)?;
        // SAFETY: `uuid` is a valid place for a `hipUUID`, 16 bytes.
        self.check("hipDeviceGetUuid", unsafe { (self.symbols.device_uuid)(&mut uuid, ordinal) })?;
        let previous = self.bind(device.into())?;
        let memory = self.memory_info();
        if let Some(previous) = previous {
            self.restore(previous);
        }
        let memory = memory?;
        Ok(DeviceInfo {
            name: text(&name),
            uuid: uuid_of(uuid),
            compute_capability: None,
            pci_bus_id: Some(place),
            is_mig: false,
            is_shareable: self.use_of_extents(device)?.is_shareable,
            is_rdma: false,
            total_bytes: memory.total,
            free_bytes: Some(memory.free),
        })
    }

    fn compute_capability(&self, _device: Device) -> Result<Option<(u32, u32)>> {
        Ok(None)
    }

    fn current_device(&self) -> Result<Device> {
        Ok(Device::from_ordinal(self.current_ordinal()?.unsigned_abs()))
    }

    fn bind(&self, location: MemoryLocation) -> Result<Option<Context>> {
        // Any device will do for the host's memory, and a thread always has one.
        let MemoryLocation::Device(device) = location else { return Ok(None) };
        let wanted = self.ordinal(device)?;
        let previous = self.current_ordinal()?;
        if previous == wanted {
            return Ok(None);
        }
        // SAFETY: the ordinal is a device's.
        self.check("hipSetDevice", unsafe { (self.symbols.set_device)(wanted) })?;
        Ok(Some(Context(previous.unsigned_abs() as usize)))
    }

    fn restore(&self, previous: Context) {
        // SAFETY: this device was current in this thread before.
        let status = unsafe { (self.symbols.set_device)(previous.0 as c_int) };
        // There is nothing better to restore if it is refused.
        let _ = self.check("hipSetDevice", status);
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places for a size.
        self.check("hipMemGetInfo", unsafe { (self.symbols.memory_info)(&mut free, &mut total) })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut exchanged = mode.number();
        // SAFETY: the mode is a valid one, and the library writes the previous one in its place.
        let status = unsafe { (self.symbols.exchange_capture_mode)(&mut exchanged) };
        self.check("hipThreadExchangeStreamCaptureMode", status)?;
        Ok(CaptureMode::of(exchanged))
    }

    fn stream_create(&self) -> Result<RawStream> {
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` is a valid place for a stream.
        let status = unsafe { (self.symbols.stream_create)(&mut stream, NON_BLOCKING) };
        self.check("hipStreamCreateWithFlags", status)?;
        Ok(RawStream::from_address(stream.addr()))
    }

    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the caller owns the stream.
        self.check("hipStreamDestroy", unsafe { (self.symbols.stream_destroy)(as_stream(stream)) })
    }

    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device> {
        // HIP 6.2 crashes on the address 1 here, and returns the current device for the other default streams.
        if stream.is_default() {
            return self.current_device();
        }
        if self.devices == 1 {
            return Ok(Device::from_ordinal(0));
        }
        let mut ordinal = 0;
        // SAFETY: the caller promises that the stream is alive.
        let status = unsafe { (self.symbols.stream_device)(as_stream(stream), &mut ordinal) };
        self.check("hipStreamGetDevice", status)?;
        Ok(Device::from_ordinal(ordinal.unsigned_abs()))
    }

    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64> {
        let Some(stream_id) = self.symbols.stream_id else { return Ok(0) };
        let mut id = 0;
        // SAFETY: the caller promises that the stream is alive, and `id` is a valid place for a number.
        self.check("hipStreamGetId", unsafe { stream_id(as_stream(stream), &mut id) })?;
        Ok(id)
    }

    unsafe fn stream_query(&self, stream: RawStream) -> Result<bool> {
        // SAFETY: the caller promises that the stream is alive.
        self.is_ready("hipStreamQuery", unsafe { (self.symbols.stream_query)(as_stream(stream)) })
    }

    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the stream is alive.
        self.check("hipStreamSynchronize", unsafe { (self.symbols.stream_synchronize)(as_stream(stream)) })
    }

    unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        // SAFETY: the caller promises that both are alive.
        let status = unsafe { (self.symbols.stream_wait_event)(as_stream(stream), as_event(event), 0) };
        self.check("hipStreamWaitEvent", status)
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        let mut status = 0;
        // SAFETY: the caller promises that the stream is alive.
        let asked = unsafe { (self.symbols.stream_is_capturing)(as_stream(stream), &mut status) };
        // Of the legacy default stream alone. The question harms no capture.
        if asked == CAPTURE_IMPLICIT {
            self.forget_last_error();
            return Ok(CaptureStatus::Implicit);
        }
        self.check("hipStreamIsCapturing", asked)?;
        Ok(CaptureStatus::of(status))
    }

    unsafe fn stream_capture(&self, _stream: RawStream) -> Result<Option<Capture>> {
        Err(self.refused("hipStreamGetCaptureInfo", NOT_SUPPORTED))
    }

    unsafe fn graph_retain(&self, _graph: RawGraph, _kept: Box<dyn Send>) -> Result<()> {
        Err(self.refused("hipGraphRetainUserObject", NOT_SUPPORTED))
    }

    fn event_create(&self) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid place for an event.
        let status = unsafe { (self.symbols.event_create)(&mut event, DISABLE_TIMING) };
        self.check("hipEventCreateWithFlags", status)?;
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
        self.check("hipEventDestroy", unsafe { (self.symbols.event_destroy)(as_event(event)) })
    }

    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that both are alive.
        self.check("hipEventRecord", unsafe { (self.symbols.event_record)(as_event(event), as_stream(stream)) })
    }

    /// HIP has no event of a whole device. So this waits for the device, and records that nothing is left to wait for.
    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the function takes nothing.
        self.check("hipDeviceSynchronize", unsafe { (self.symbols.device_synchronize)() })?;
        // SAFETY: the caller promises that the event is alive and of the current device.
        self.check("hipEventRecord", unsafe { (self.symbols.event_record)(as_event(event), ptr::null_mut()) })
    }

    unsafe fn context_wait_event(&self, _event: RawEvent) -> Result<()> {
        Ok(())
    }

    unsafe fn event_query(&self, event: RawEvent) -> Result<bool> {
        // SAFETY: the caller promises that the event is alive.
        self.is_ready("hipEventQuery", unsafe { (self.symbols.event_query)(as_event(event)) })
    }

    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the caller promises that the event is alive.
        self.check("hipEventSynchronize", unsafe { (self.symbols.event_synchronize)(as_event(event)) })
    }

    fn context_synchronize(&self) -> Result<()> {
        // SAFETY: the function takes nothing.
        self.check("hipDeviceSynchronize", unsafe { (self.symbols.device_synchronize)() })
    }

    unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        let (to, from, stream) = (as_pointer(to), as_pointer(from), as_stream(stream));
        // SAFETY: the caller promises that the stream and both ranges are alive.
        let status = unsafe { (self.symbols.copy_to_host)(to, from, bytes as usize, stream) };
        self.check("hipMemcpyDtoHAsync", status)
    }

    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        let (to, from, stream) = (as_pointer(to), as_pointer(from), as_stream(stream));
        // SAFETY: the caller promises that the stream and both ranges are alive.
        let status = unsafe { (self.symbols.copy_to_device)(to, from, bytes as usize, stream) };
        self.check("hipMemcpyHtoDAsync", status)
    }

    fn total_memory(&self, location: MemoryLocation) -> Result<u64> {
        let MemoryLocation::Device(device) = location else { return Ok(most_memory()) };
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for a size.
        let status = unsafe { (self.symbols.device_total_memory)(&mut bytes, self.ordinal(device)?) };
        self.check("hipDeviceTotalMem", status)?;
        Ok(bytes as u64)
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        let (device, peer) = (self.ordinal(device)?, self.ordinal(peer)?);
        let mut can_access = 0;
        // SAFETY: `can_access` is a valid place for an int.
        let status = unsafe { (self.symbols.device_can_access_peer)(&mut can_access, device, peer) };
        self.check("hipDeviceCanAccessPeer", status)?;
        Ok(can_access != 0)
    }

    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool> {
        location.device().map_or(Ok(false), |device| self.has_virtual_memory(device))
    }

    fn page_bytes(&self, location: MemoryLocation) -> Result<u64> {
        self.granularity(self.device_of(location)?)
    }

    fn address_reserve(&self, bytes: u64) -> Result<u64> {
        self.reserve(bytes)
    }

    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the reservation.
        let status = unsafe { (self.symbols.address_free)(as_pointer(address), bytes as usize) };
        self.check("hipMemAddressFree", status)
    }

    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        self.create(self.device_of(location)?, bytes)
    }

    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse> {
        self.use_of_extents(self.device_of(location)?)
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
        self.check("hipMemRelease", unsafe { (self.symbols.extent_release)(as_pointer(extent.0)) })
    }

    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        // SAFETY: the caller promises that the addresses are free and the extent is alive.
        unsafe { self.map(address, bytes, extent) }
    }

    unsafe fn memory_set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        // SAFETY: the caller promises that the range consists of mappings of this runtime.
        unsafe { self.set_access(address, bytes, by) }
    }

    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller promises that nothing uses these mappings again.
        unsafe { self.unmap(address, bytes) }
    }

    fn nearest_host_node(&self, device: Device) -> Result<NumaNode> {
        Ok(node_of_pci_device(&self.pci_bus_id(self.ordinal(device)?)?))
    }

    fn host_allocate(&self, _node: NumaNode, bytes: u64) -> Result<u64> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is a valid place for one.
        let status = unsafe { (self.symbols.host_allocate)(&mut address, bytes as usize, PORTABLE_AND_MAPPED) };
        self.check("hipHostMalloc", status)?;
        Ok(address.expose_provenance() as u64)
    }

    unsafe fn host_free(&self, _node: NumaNode, address: u64, _bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the memory.
        self.check("hipHostFree", unsafe { (self.symbols.host_free)(as_pointer(address)) })
    }

    fn memory_allocate(&self, bytes: u64) -> Result<u64> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is a valid place for one.
        self.check("hipMalloc", unsafe { (self.symbols.memory_allocate)(&mut address, bytes as usize) })?;
        Ok(address.addr() as u64)
    }

    unsafe fn memory_free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller owns the memory.
        self.check("hipFree", unsafe { (self.symbols.memory_free)(as_pointer(address)) })
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the memory and the stream last.
        let status = unsafe { (self.symbols.fill)(as_pointer(address), byte, bytes as usize, as_stream(stream)) };
        self.check("hipMemsetD8Async", status)
    }

    fn stream_ordered_memory(&self) -> &dyn StreamOrderedMemory {
        self
    }
}

impl StreamOrderedMemory for Hip {
    unsafe fn allocate_async(&self, bytes: u64, stream: RawStream) -> Result<u64> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is a valid place for one, and the caller promises that the stream is alive.
        let status = unsafe { (self.symbols.memory_allocate_async)(&mut address, bytes as usize, as_stream(stream)) };
        self.check("hipMallocAsync", status)?;
        Ok(address.addr() as u64)
    }

    unsafe fn free_async(&self, address: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller owns the memory and promises that the stream is alive.
        let status = unsafe { (self.symbols.memory_free_async)(as_pointer(address), as_stream(stream)) };
        self.check("hipFreeAsync", status)
    }
}

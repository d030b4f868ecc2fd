//! NVIDIA's and AMD's drivers. What they share is here; what only one of them has is in `cuda.rs` or `hip.rs`. A probe
//! opens the driver's library and looks up every function that is called, so gpupool uses exactly what it has probed.

mod cuda;
mod hip;
mod probe;
mod symbols;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock};
use std::{fmt, ptr};

use super::host_memory::most_memory;
use super::{
    DeviceCalls, DeviceUuid, ExportedEvent, ExportedExtent, Extent, ExtentUse, Kind, MemoryInfo, RawEvent, Runtime,
    StreamCalls, no_such_device,
};
use crate::error::{Error, Result, StatusKind, UNKNOWN_STATUS};
use crate::ids::{CaptureMode, CaptureStatus, Device, MemoryLocation, RawStream};
use crate::sync::lock;
use cuda::Cuda;
use hip::Hip;
use symbols::{
    AccessDescription, AllocationProperties, DriverLocation, EventHandle, POSIX_FD, SUCCESS, Status, Symbol, Symbols,
    documented_name,
};

#[cfg(feature = "cudarc")]
pub(crate) use cuda::refused_by_driver;

/// The statuses that mean something here, which `CUresult` and `hipError_t` number alike.
const OUT_OF_MEMORY: Status = 2;
const NOT_INITIALIZED: Status = 3;
const NOT_READY: Status = 600;
const NOT_SUPPORTED: Status = 801;
/// Of the legacy default stream alone, while a blocking stream is captured.
const CAPTURE_IMPLICIT: Status = 906;

/// Flags, which both number alike.
const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
/// Of pinned memory: for every context, and for kernels.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;
const LEAST_GRANULARITY: c_int = 0;

/// Loads and initialises NVIDIA's driver.
///
/// # Errors
/// `ErrorKind::RuntimeUnavailable` if there is no driver, no device, or the driver does not work or is too old.
pub(super) fn cuda() -> Result<Box<dyn Runtime>> {
    Ok(Box::new(Driver::<Cuda>::probe()?))
}

/// As [`cuda`], for AMD's.
pub(super) fn hip() -> Result<Box<dyn Runtime>> {
    Ok(Box::new(Driver::<Hip>::probe()?))
}

/// A vendor's driver.
struct Driver<V> {
    symbols: Symbols,
    version: (u32, u32),
    devices: Vec<DriverDevice>,
    /// Every mapping, its address and its bytes, of a driver that takes one at a time.
    mappings: Option<Mutex<BTreeMap<u64, u64>>>,
    vendor: V,
}

/// `cuDeviceGetName`, and others.
type TextOf = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> Status;

struct DriverDevice {
    handle: c_int,
    /// The address of CUDA's primary context, once retained.
    primary: OnceLock<usize>,
    /// What extents are made for, once that is found out.
    extent_use: OnceLock<ExtentUse>,
}

/// What a driver has of its own, in the calls that both have.
trait DriverVendor: Send + Sync + Sized + 'static {
    const KIND: Kind;
    /// The alignment of reserved addresses; 0 for the driver's own, which is the page size.
    const ALIGNMENT: u64;
    /// Whether a call takes one mapping, rather than a range of several.
    const MAPS_ONE_BY_ONE: bool;

    /// Returns the stream as the driver takes it.
    fn stream(stream: RawStream) -> usize;

    /// Returns the driver's name of a status that it knows.
    fn status_name(&self, status: Status) -> Option<&CStr>;

    /// Clears the last call's status from this thread's last error.
    fn forget_last_error(&self) {}

    /// Returns what to do about a status, if the driver says by it that a stream's context was destroyed.
    fn advice_if_gone(_status: Status) -> Option<&'static str> {
        None
    }

    /// Returns the driver's name of a device, or of a NUMA node of the host.
    fn location(driver: &Driver<Self>, location: MemoryLocation) -> Result<DriverLocation>;
}

impl<V: DriverVendor> fmt::Debug for Driver<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Driver");
        shown.field("kind", &V::KIND).field("version", &self.version).field("devices", &self.devices.len());
        shown.finish_non_exhaustive()
    }
}

#[cold]
fn refusal<V: DriverVendor>(function: &str, name: impl Into<String>, status: Status) -> Error {
    let kind = match status {
        OUT_OF_MEMORY => StatusKind::OutOfMemory,
        NOT_INITIALIZED => StatusKind::NotInitialized,
        NOT_SUPPORTED => StatusKind::NotSupported,
        _ => StatusKind::Other,
    };
    let error = Error::refused(V::KIND.name(), function, name, status, kind);
    error.map_library(|refused| refused.advice = V::advice_if_gone(status).map(Into::into))
}

/// Returns a string that a driver wrote into a buffer, up to its final zero.
fn text_in(buffer: &[u8]) -> String {
    String::from_utf8_lossy(buffer.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// Returns the bytes of a UUID as text, without a prefix.
fn uuid_text(bytes: DeviceUuid) -> String {
    let hex = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].map(hex).join("-")
}

impl<V: DriverVendor> Driver<V> {
    /// Makes a call, and turns its status into a result that names the function.
    #[inline]
    fn check<F: Copy>(&self, symbol: &Symbol<F>, call: impl FnOnce(F) -> Status) -> Result<()> {
        match call(symbol.function) {
            SUCCESS => Ok(()),
            status => Err(self.refused(symbol.name, status)),
        }
    }

    /// Makes a call that writes a value, whose place it is given, and returns the value.
    #[inline]
    fn written<F: Copy, T: Default>(&self, symbol: &Symbol<F>, call: impl FnOnce(F, &mut T) -> Status) -> Result<T> {
        let mut value = T::default();
        self.check(symbol, |function| call(function, &mut value)).map(|()| value)
    }

    #[cold]
    fn refused(&self, function: &'static CStr, status: Status) -> Error {
        self.vendor.forget_last_error();
        let name = self.vendor.status_name(status).map_or(UNKNOWN_STATUS.into(), CStr::to_string_lossy);
        refusal::<V>(documented_name(function), name, status)
    }

    /// Makes a call that queries work, and returns whether that is done.
    #[inline]
    fn is_ready<F: Copy>(&self, symbol: &Symbol<F>, query: impl FnOnce(F) -> Status) -> Result<bool> {
        match query(symbol.function) {
            SUCCESS => Ok(true),
            NOT_READY => {
                self.vendor.forget_last_error();
                Ok(false)
            }
            status => Err(self.refused(symbol.name, status)),
        }
    }

    fn slot(&self, device: Device) -> Result<&DriverDevice> {
        self.devices.get(device.ordinal()).ok_or_else(|| no_such_device(device.ordinal() as i64, self.devices.len()))
    }

    fn handle(&self, device: Device) -> Result<c_int> {
        self.slot(device).map(|slot| slot.handle)
    }

    /// Returns what a function writes about a device.
    fn text_of(&self, symbol: &Symbol<TextOf>, device: Device) -> Result<String> {
        let (mut text, handle) = ([0_u8; 256], self.handle(device)?);
        // SAFETY: `text` has the given length, which the driver keeps to, with a final zero.
        self.check(symbol, |call| unsafe { call(text.as_mut_ptr().cast(), text.len() as c_int, handle) })?;
        Ok(text_in(&text))
    }

    fn pci_bus_id(&self, device: Device) -> Result<String> {
        self.text_of(&self.symbols.device_pci_bus_id, device)
    }

    fn attribute(&self, attribute: c_int, device: Device) -> Result<c_int> {
        let handle = self.handle(device)?;
        // SAFETY: `value` is a valid place for an int, and the handle is a device's.
        self.written(&self.symbols.device_attribute, |call, value| unsafe { call(value, attribute, handle) })
    }

    /// Returns the memory of a device that is bound meanwhile.
    fn memory_of(&self, device: Device) -> Result<MemoryInfo>
    where
        Self: Runtime,
    {
        let previous = self.bind(device.into())?;
        let memory = self.memory_info();
        if let Some(previous) = previous {
            self.restore(previous);
        }
        memory
    }

    fn create_event(&self, flags: u32) -> Result<RawEvent> {
        // SAFETY: `event` is a valid place for an event.
        self.written(&self.symbols.event_create, |call, event| unsafe { call(event, flags) }).map(RawEvent)
    }

    /// Makes an extent for these uses.
    fn create_for(&self, location: MemoryLocation, bytes: u64, extent_use: ExtentUse) -> Result<Extent> {
        let properties = AllocationProperties::new(V::location(self, location)?, extent_use);
        // SAFETY: `extent` is a valid place for one, the properties are whole, and 0 are the only flags.
        let made =
            self.written(&self.symbols.extent_create, |call, extent| unsafe { call(extent, bytes, &properties, 0) });
        made.map(Extent)
    }

    /// Returns what is mapped in a range, in pieces that the driver takes. A copy, so that no call is made under the lock.
    fn pieces(&self, address: u64, bytes: u64) -> Vec<(u64, u64)> {
        let Some(mappings) = &self.mappings else { return vec![(address, bytes)] };
        let mappings = lock(mappings);
        mappings.range(address..address.saturating_add(bytes)).map(|(&address, &bytes)| (address, bytes)).collect()
    }

    /// Allocates pinned memory of the host, of whatever node the driver chooses.
    fn allocate_pinned(&self, bytes: u64) -> Result<u64> {
        // SAFETY: `address` is a valid place for one.
        self.written(&self.symbols.host_allocate, |call, address| unsafe { call(address, bytes, PORTABLE_AND_MAPPED) })
    }

    /// # Safety
    /// The memory is of [`Driver::allocate_pinned`], was not freed before and is not used again.
    unsafe fn free_pinned(&self, address: u64) -> Result<()> {
        // SAFETY: the caller owns the memory.
        self.check(&self.symbols.host_free, |call| unsafe { call(address) })
    }
}

impl<V: DriverVendor> StreamCalls for Driver<V> {
    fn stream_create(&self) -> Result<RawStream> {
        // SAFETY: `stream` is a valid place for a stream.
        let made = self.written(&self.symbols.stream_create, |call, stream| unsafe { call(stream, NON_BLOCKING) });
        made.map(RawStream::from_address)
    }

    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the caller owns the stream.
        self.check(&self.symbols.stream_destroy, |call| unsafe { call(V::stream(stream)) })
    }

    unsafe fn stream_query(&self, stream: RawStream) -> Result<bool> {
        // SAFETY: the caller promises that the stream is alive.
        self.is_ready(&self.symbols.stream_query, |call| unsafe { call(V::stream(stream)) })
    }

    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the stream is alive.
        self.check(&self.symbols.stream_synchronize, |call| unsafe { call(V::stream(stream)) })
    }

    unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        // SAFETY: the caller promises that both are alive.
        self.check(&self.symbols.stream_wait_event, |call| unsafe { call(V::stream(stream), event.0, 0) })
    }

    fn event_create(&self) -> Result<RawEvent> {
        self.create_event(DISABLE_TIMING)
    }

    fn event_create_interprocess(&self) -> Result<RawEvent> {
        self.create_event(DISABLE_TIMING | INTERPROCESS)
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the caller owns the event.
        self.check(&self.symbols.event_destroy, |call| unsafe { call(event.0) })
    }

    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that both are alive.
        self.check(&self.symbols.event_record, |call| unsafe { call(event.0, V::stream(stream)) })
    }

    unsafe fn event_query(&self, event: RawEvent) -> Result<bool> {
        // SAFETY: the caller promises that the event is alive.
        self.is_ready(&self.symbols.event_query, |call| unsafe { call(event.0) })
    }

    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the caller promises that the event is alive.
        self.check(&self.symbols.event_synchronize, |call| unsafe { call(event.0) })
    }

    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent> {
        let mut name = [0_u8; 64];
        // SAFETY: `name` is a valid place for a handle, 64 bytes; the caller promises that the event is alive.
        self.check(&self.symbols.event_export, |call| unsafe { call(&mut name, event.0) })?;
        Ok(ExportedEvent { name, descriptor: None })
    }

    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent> {
        let handle = EventHandle(exported.name);
        // SAFETY: `event` is a valid place for an event; the driver refuses a handle that names none.
        self.written(&self.symbols.event_import, |call, event| unsafe { call(event, handle) }).map(RawEvent)
    }

    fn context_synchronize(&self) -> Result<()> {
        // SAFETY: the function takes nothing; CUDA's refuses where no context is current.
        self.check(&self.symbols.context_synchronize, |call| unsafe { call() })
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut exchanged = mode.number();
        // SAFETY: the mode is a valid one, and the driver writes the previous one in its place.
        self.check(&self.symbols.exchange_capture_mode, |call| unsafe { call(&mut exchanged) })?;
        Ok(CaptureMode::of(exchanged))
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        let (mut capture_status, Symbol { name, function }) = (0, &self.symbols.stream_is_capturing);
        // SAFETY: the caller promises that the stream is alive. The query harms no capture.
        match unsafe { function(V::stream(stream), &mut capture_status) } {
            SUCCESS => Ok(CaptureStatus::of(capture_status)),
            // The end of a context ends the captures of its streams.
            gone if V::advice_if_gone(gone).is_some() => Ok(CaptureStatus::None),
            CAPTURE_IMPLICIT => {
                self.vendor.forget_last_error();
                Ok(CaptureStatus::Implicit)
            }
            status => Err(self.refused(name, status)),
        }
    }
}

impl<V: DriverVendor> DeviceCalls for Driver<V> {
    fn kind(&self) -> Kind {
        V::KIND
    }

    fn driver_version(&self) -> Option<(u32, u32)> {
        Some(self.version)
    }

    fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    fn device_uuid(&self, device: Device) -> Result<DeviceUuid> {
        let handle = self.handle(device)?;
        // SAFETY: `uuid` is a valid place for a UUID, 16 bytes; that of a MIG instance is its own, not its GPU's.
        self.written(&self.symbols.device_uuid, |call, uuid| unsafe { call(uuid, handle) })
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        // SAFETY: both are valid places for a size.
        self.written(&self.symbols.memory_info, |call, MemoryInfo { free, total }| unsafe { call(free, total) })
    }

    fn total_memory(&self, location: MemoryLocation) -> Result<u64> {
        let MemoryLocation::Device(device) = location else { return Ok(most_memory()) };
        let handle = self.handle(device)?;
        // SAFETY: `bytes` is a valid place for a size, and the handle is a device's.
        self.written(&self.symbols.device_total_memory, |call, bytes| unsafe { call(bytes, handle) })
    }

    fn memory_allocate(&self, bytes: u64) -> Result<u64> {
        // SAFETY: `address` is a valid place for one.
        self.written(&self.symbols.memory_allocate, |call, address| unsafe { call(address, bytes) })
    }

    unsafe fn memory_free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller owns the memory.
        self.check(&self.symbols.memory_free, |call| unsafe { call(address) })
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the memory and the stream last.
        self.check(&self.symbols.fill, |call| unsafe { call(address, byte, bytes, V::stream(stream)) })
    }

    unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the stream and both ranges are alive.
        self.check(&self.symbols.copy_to_host, |call| unsafe { call(to, from, bytes, V::stream(stream)) })
    }

    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller promises that the stream and both ranges are alive.
        self.check(&self.symbols.copy_to_device, |call| unsafe { call(to, from, bytes, V::stream(stream)) })
    }

    unsafe fn allocate_async(&self, bytes: u64, stream: RawStream) -> Result<u64> {
        // SAFETY: `address` is a valid place for one, and the caller promises that the stream is alive.
        self.written(&self.symbols.memory_allocate_async, |call, address| unsafe {
            call(address, bytes, V::stream(stream))
        })
    }

    unsafe fn free_async(&self, address: u64, stream: RawStream) -> Result<()> {
        // SAFETY: the caller owns the memory and promises that the stream is alive.
        self.check(&self.symbols.memory_free_async, |call| unsafe { call(address, V::stream(stream)) })
    }

    fn page_bytes(&self, location: MemoryLocation) -> Result<u64> {
        let properties = AllocationProperties::new(V::location(self, location)?, ExtentUse::PRIVATE);
        // SAFETY: `bytes` is a valid place for a size, and the properties are whole.
        self.written(&self.symbols.granularity, |call, bytes| unsafe { call(bytes, &properties, LEAST_GRANULARITY) })
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        let (device, peer) = (self.handle(device)?, self.handle(peer)?);
        // SAFETY: `can` is a valid place for an int, and the handles are devices'.
        let can_access =
            self.written(&self.symbols.device_can_access_peer, |call, can| unsafe { call(can, device, peer) })?;
        Ok(can_access != 0)
    }

    fn address_reserve(&self, bytes: u64) -> Result<u64> {
        // SAFETY: `address` is a valid place for one, no address is asked for, and 0 are the only flags.
        self.written(&self.symbols.address_reserve, |call, address| unsafe { call(address, bytes, V::ALIGNMENT, 0, 0) })
    }

    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the reservation.
        self.check(&self.symbols.address_free, |call| unsafe { call(address, bytes) })
    }

    unsafe fn extent_release(&self, extent: Extent) -> Result<()> {
        // SAFETY: the caller owns the extent.
        self.check(&self.symbols.extent_release, |call| unsafe { call(extent.0) })
    }

    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd> {
        let mut descriptor: RawFd = -1;
        let place = ptr::from_mut(&mut descriptor).cast();
        // SAFETY: the caller promises that the extent is alive; `descriptor` is a valid place for one, and 0 are the only
        // flags.
        self.check(&self.symbols.extent_export, |call| unsafe { call(place, extent.0, POSIX_FD, 0) })?;
        // SAFETY: the driver has just made the descriptor, and only this function has it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent> {
        // A descriptor is given as a pointer of its value.
        let descriptor = ptr::without_provenance_mut(exported.as_raw_fd() as usize);
        // SAFETY: `extent` is a valid place for one, and the descriptor is open.
        self.written(&self.symbols.extent_import, |call, extent| unsafe { call(extent, descriptor, POSIX_FD) })
            .map(Extent)
    }

    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        // SAFETY: the caller promises that the addresses are free and the memory alive; 0 are the only flags.
        self.check(&self.symbols.memory_map, |call| unsafe { call(address, bytes, 0, extent.0, 0) })?;
        if let Some(mappings) = &self.mappings {
            lock(mappings).insert(address, bytes);
        }
        Ok(())
    }

    unsafe fn memory_set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        let describe = |&by: &MemoryLocation| V::location(self, by).map(AccessDescription::read_write);
        let access = by.iter().map(describe).collect::<Result<Vec<_>>>()?;
        for (address, bytes) in self.pieces(address, bytes) {
            let (access, count) = (access.as_ptr(), access.len());
            // SAFETY: the caller promises that the range is mapped, and `access` has as many entries as said.
            self.check(&self.symbols.memory_set_access, |call| unsafe { call(address, bytes, access, count) })?;
        }
        Ok(())
    }

    /// Pieces that were unmapped before a refusal are known, so it can be called again.
    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        for (address, bytes) in self.pieces(address, bytes) {
            // SAFETY: the caller promises that nothing uses these mappings again.
            self.check(&self.symbols.memory_unmap, |call| unsafe { call(address, bytes) })?;
            if let Some(mappings) = &self.mappings {
                lock(mappings).remove(&address);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_writes_it() {
        let bytes = std::array::from_fn(|index| index as u8 * 17);
        assert_eq!(uuid_text(bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_drivers_string_ends_at_its_zero_or_with_the_buffer() {
        assert_eq!((text_in(b"0000:18:00.0\0..").as_str(), text_in(b"full").as_str()), ("0000:18:00.0", "full"));
    }
}

//! AMD GPUs, through `libamdhip64`. HIP has no driver contexts: a thread has a current device, and binding a device
//! sets that. HIP 7 keeps a thread's last error until it is fetched, and programs fetch it after a kernel launch; so an
//! error returned here is fetched here, too, or other code would take it for its own.

mod capture;
mod file;
mod memory;
mod probe;
mod sharing;
mod streams;
mod symbols;
mod virtual_memory;

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ptr;

use self::symbols::Symbols;
use self::virtual_memory::{Mappings, PrivateDevices};
use super::device_info::{DeviceInfo, text, uuid_text};
use super::symbols::{CallStatus, SUCCESS, Status, documented_name};
use super::{Context, DeviceUuid, Kind, MemoryCalls, RawEvent, Runtime, VirtualMemoryCalls, no_such_device};
use crate::error::{Error, Result, StatusKind, UNKNOWN_STATUS};
use crate::ids::{Device, MemoryLocation, RawStream};

/// `hipErrorOutOfMemory`, `hipErrorNotInitialized`, `hipErrorNotSupported` and `hipErrorUnknown`.
const OUT_OF_MEMORY: Status = 2;
const NOT_INITIALIZED: Status = 3;
const NOT_SUPPORTED: Status = 801;
const UNKNOWN: Status = 999;
const UNKNOWN_NAME: &str = "hipErrorUnknown";

pub(super) struct Hip {
    symbols: Symbols,
    version: (u32, u32),
    devices: u32,
    mappings: Mappings,
    /// The devices whose extents cannot be exported.
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
    stream.by_one_name().as_ptr()
}

/// Returns a device's UUID as `rocminfo` writes it: HIP returns the letters after `GPU-`, `XX` for none.
fn uuid_of(bytes: [u8; 16]) -> Option<String> {
    let letters = text(&bytes);
    match letters.as_str() {
        "" | "XX" => None,
        _ if letters.bytes().all(|letter| letter.is_ascii_alphanumeric()) => Some(format!("GPU-{letters}")),
        _ => Some(format!("GPU-{}", uuid_text(bytes))),
    }
}

impl Hip {
    /// Turns a call's status into a result that names the function.
    #[inline]
    fn check(&self, call: CallStatus) -> Result<()> {
        if call.status == SUCCESS { Ok(()) } else { Err(self.refused(call)) }
    }

    #[cold]
    fn refused(&self, CallStatus { name: function, status }: CallStatus) -> Error {
        self.forget_last_error();
        let function = documented_name(function);
        let kind = match status {
            OUT_OF_MEMORY => StatusKind::OutOfMemory,
            NOT_INITIALIZED => StatusKind::NotInitialized,
            NOT_SUPPORTED => StatusKind::NotSupported,
            _ => StatusKind::Other,
        };
        // SAFETY: the function takes any status and returns a string that lives as long as the library, or null.
        let name = unsafe { (self.symbols.error_name.function)(status) };
        if name.is_null() {
            return Error::refused("hip", function, UNKNOWN_STATUS, status, kind);
        }
        // SAFETY: the name is not null, so it is a string that lives as long as the library.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        // HIP has one name for all numbers that it does not know.
        let is_known = name != UNKNOWN_NAME || status == UNKNOWN;
        Error::refused("hip", function, if is_known { &name } else { UNKNOWN_STATUS }, status, kind)
    }

    /// Clears the last call's status from this thread's last error.
    fn forget_last_error(&self) {
        // SAFETY: the function takes nothing and may be called at any time.
        unsafe { self.symbols.last_error.call() };
    }

    fn ordinal(&self, device: Device) -> Result<c_int> {
        match c_int::try_from(device.ordinal()) {
            Ok(ordinal) if device.ordinal() < self.devices as usize => Ok(ordinal),
            _ => Err(no_such_device(device.ordinal() as i64, self.devices as usize)),
        }
    }

    /// Returns the device whose memory this is. HIP makes no extents of host memory.
    fn device_of(&self, location: MemoryLocation) -> Result<Device> {
        location.device().ok_or_else(|| no_such_device(location.number(), self.devices as usize))
    }

    fn pci_bus_id(&self, ordinal: c_int) -> Result<String> {
        let mut place = [0_u8; 32];
        let (buffer, length) = (place.as_mut_ptr().cast(), place.len() as c_int);
        // SAFETY: `place` has the given length, which the library keeps to, with a final zero.
        self.check(unsafe { self.symbols.device_pci_bus_id.call(buffer, length, ordinal) })?;
        Ok(text(&place))
    }

    fn current_ordinal(&self) -> Result<c_int> {
        let mut ordinal = 0;
        // SAFETY: `ordinal` is a valid place for an int.
        self.check(unsafe { self.symbols.get_device.call(&mut ordinal) })?;
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

    fn device_info(&self, device: Device) -> Result<DeviceInfo> {
        let ordinal = self.ordinal(device)?;
        let (mut name, mut uuid) = ([0_u8; 256], [0_u8; 16]);
        // SAFETY: `name` has the given length, which the library keeps to, with a final zero.
        self.check(unsafe { self.symbols.device_name.call(name.as_mut_ptr().cast(), name.len() as c_int, ordinal) })?;
        let place = self.pci_bus_id(ordinal)?;
        // SAFETY: `uuid` is a valid place for a `hipUUID`, 16 bytes.
        self.check(unsafe { self.symbols.device_uuid.call(&mut uuid, ordinal) })?;
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
            is_shareable: self.extent_use(device.into())?.is_shareable,
            is_rdma: false,
            total_bytes: memory.total,
            free_bytes: Some(memory.free),
        })
    }

    fn device_uuid(&self, device: Device) -> Result<DeviceUuid> {
        let mut uuid = [0; 16];
        // SAFETY: `uuid` is a valid place for a `hipUUID`, 16 bytes.
        self.check(unsafe { self.symbols.device_uuid.call(&mut uuid, self.ordinal(device)?) })?;
        Ok(uuid)
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
        self.check(unsafe { self.symbols.set_device.call(wanted) })?;
        Ok(Some(Context(previous.unsigned_abs() as usize)))
    }

    fn restore(&self, previous: Context) {
        // There is nothing better to restore if it is refused.
        // SAFETY: this device was current in this thread before.
        let _ = self.check(unsafe { self.symbols.set_device.call(previous.0 as c_int) });
    }
}

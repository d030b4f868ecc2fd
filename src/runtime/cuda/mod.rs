//! NVIDIA GPUs, through the CUDA driver. [`Cuda::probe`] opens `libcuda.so.1` and looks up every function that is
//! called, so that what is probed is what is used. cudarc provides constants and structs, not the calls: it would open
//! its own, perhaps another, file, and its enums are undefined behaviour for a newer driver's numbers. Each device's
//! primary context is retained when first needed, and never released: the driver does that at process end.

mod capture;
mod device;
mod extent_use;
mod memory;
mod nvml;
mod probe;
mod sharing;
mod stream_context;
mod stream_ordered_memory;
mod streams;
mod symbols;
mod virtual_memory;

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;

use cudarc::driver::sys;

use self::device::CudaDevice;
use self::stream_context::{ADVICE_IF_GONE, is_gone};
use self::symbols::Symbols;
use super::device_info::{DeviceInfo, text, uuid_text};
use super::symbols::{CallStatus, OptionalSymbol, SUCCESS, Status, Symbol, documented_name};
use super::{Context, DeviceUuid, ExtentUse, GroupLimit, Kind, MemoryCalls, RawEvent, Runtime, VirtualMemoryCalls};
use crate::error::{Error, Result, StatusKind, UNKNOWN_STATUS};
use crate::ids::{Device, MemoryLocation, RawStream};

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
const NOT_SUPPORTED: Status = sys::CUresult::CUDA_ERROR_NOT_SUPPORTED as Status;

#[cold]
fn refusal(function: &str, name: impl Into<String>, status: Status) -> Error {
    let kind = match status {
        OUT_OF_MEMORY => StatusKind::OutOfMemory,
        NOT_INITIALIZED => StatusKind::NotInitialized,
        NOT_SUPPORTED => StatusKind::NotSupported,
        _ => StatusKind::Other,
    };
    let error = Error::refused("cuda", function, name, status, kind);
    if is_gone(status) { error.map_library(|refused| refused.advice = Some(ADVICE_IF_GONE.into())) } else { error }
}

/// Returns the error for a status of the driver, of a call that cudarc made.
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
    /// Turns a call's status into a result that names the function.
    #[inline]
    fn check(&self, call: CallStatus) -> Result<()> {
        if call.status == SUCCESS { Ok(()) } else { Err(self.refused(call)) }
    }

    #[cold]
    fn refused(&self, CallStatus { name: function, status }: CallStatus) -> Error {
        let function = documented_name(function);
        let mut name = ptr::null();
        // SAFETY: the function takes any status, and `name` is a valid place for a string's address.
        let named = unsafe { self.symbols.error_name.call(status, &mut name) };
        if named.status != SUCCESS || name.is_null() {
            return refusal(function, UNKNOWN_STATUS, status);
        }
        // SAFETY: the name is not null, so it is a string that lives as long as the driver.
        refusal(function, unsafe { CStr::from_ptr(name) }.to_string_lossy(), status)
    }

    /// Returns an optional function.
    ///
    /// # Errors
    /// `ErrorKind::Library` if this driver is too old for it.
    fn optional<F>(&self, symbol: OptionalSymbol<F>) -> Result<Symbol<F>> {
        symbol.map_err(|name| {
            let (major, minor) = self.version;
            self.refused(CallStatus { name, status: NOT_SUPPORTED }).map_library(|refused| {
                refused.advice = Some(format!("This driver, which supports CUDA {major}.{minor}, is too old for it"));
            })
        })
    }

    /// Returns the address of the current context; 0 without one.
    #[inline]
    fn current_context(&self) -> Result<usize> {
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a valid place for a context.
        self.check(unsafe { self.symbols.get_context.call(&mut context) })?;
        Ok(context.addr())
    }

    /// Makes the context at this address current; none for 0.
    ///
    /// # Safety
    /// It is alive, or the driver is to find out.
    unsafe fn set_context(&self, context: usize) -> Result<()> {
        // SAFETY: the caller vouches for the context.
        self.check(unsafe { self.symbols.set_context.call(ptr::without_provenance_mut(context)) })
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
        let (mut name, mut place) = ([0_u8; 256], [0_u8; 32]);
        // SAFETY: `name` has the given length, which the driver keeps to, with a final zero.
        self.check(unsafe { self.symbols.device_name.call(name.as_mut_ptr().cast(), name.len() as c_int, handle) })?;
        // SAFETY: `place` has the given length, which the driver keeps to, with a final zero.
        self.check(unsafe { self.symbols.device_pci_bus_id.call(place.as_mut_ptr().cast(), 32, handle) })?;
        let name = text(&name);
        // The driver's API shows it only in the name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
        let is_mig = name.contains(" MIG ");
        let uuid = uuid_text(self.device_uuid(device)?);
        let has_virtual_memory = self.supports_virtual_memory(device.into())?;
        let extents = if has_virtual_memory { self.extent_use(device.into())? } else { ExtentUse::PRIVATE };
        let ExtentUse { is_shareable, is_rdma } = extents;
        Ok(DeviceInfo {
            uuid: Some(format!("{}-{uuid}", if is_mig { "MIG" } else { "GPU" })),
            compute_capability: self.compute_capability(device)?,
            pci_bus_id: Some(text(&place)),
            is_mig,
            is_shareable,
            is_rdma,
            total_bytes: self.total_memory(device.into())?,
            free_bytes: self.free_memory(device)?,
            name,
        })
    }

    fn device_uuid(&self, device: Device) -> Result<DeviceUuid> {
        let mut uuid = [0; 16];
        // SAFETY: `uuid` is a valid place for a UUID; that of a MIG instance is its own, not its GPU's.
        self.check(unsafe { self.symbols.device_uuid.call(&mut uuid, self.slot(device)?.handle) })?;
        Ok(uuid)
    }

    fn group_limit(&self, device: Device, group: &Path) -> Option<GroupLimit> {
        nvml::group_limit(self.device_uuid(device).ok()?, group)
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
}

//! AMD GPUs, through `libamdhip64`. HIP has no driver contexts: a thread has a current device, and binding a device
//! sets that. HIP 7 keeps a thread's last error until it is fetched, and programs fetch it after a kernel launch; so an
//! error returned here is fetched here, too, or other code would take it for its own. HIP lacks CUDA's events of a
//! context, which waiting for a whole device replaces, and reports whether a stream is captured, but not the capture: so
//! no graph keeps anything. The library chooses the node of pinned memory, whatever node a caller wants.
//!
//! Libraries up to HIP 7.2 refuse, or account wrongly for, a range of several mappings (ROCm/rocm-systems issue 2516 and
//! pull request 6977, ROCm/ROCR-Runtime issue 285). So the mappings are kept here, each is a call of its own, and a
//! device counts as having virtual memory only after a rehearsal of the allocator's calls. HIP has no attribute for
//! whether extents can be exported, so a device's first one finds out. What is shared with other processes is written
//! from HIP's headers (7.2), and tested only with doubles.

use std::ffi::{CStr, c_char, c_int, c_ulonglong};

use log::info;

use super::symbols::{DriverLocation, Status, symbols};
use super::{Driver, DriverVendor, NOT_SUPPORTED, text_in, uuid_text};
use crate::environment;
use crate::error::{Error, Result, StatusKind};
use crate::ids::{Device, MemoryLocation, NumaNode, RawStream};
use crate::observe::target::RUNTIME;
use crate::runtime::host_memory::node_of_pci_device;
use crate::runtime::{
    Capture, Context, DeviceCalls, DeviceInfo, Extent, ExtentUse, Kind, RawEvent, RawGraph, Runtime, no_such_device,
};

// What HIP has of its own.
symbols! {
    Hip
    required {
        error_name c"hipGetErrorName" (Status) -> *const c_char;
        last_error c"hipGetLastError" () -> Status;
        get_device c"hipGetDevice" (*mut c_int) -> Status;
        set_device c"hipSetDevice" (c_int) -> Status;
        stream_device c"hipStreamGetDevice" (usize, *mut c_int) -> Status;
    }
    optional {
        // Distinguishes streams of which one got the other's address.
        stream_id c"hipStreamGetId" (usize, *mut c_ulonglong) -> Status;
    }
}

/// `hipErrorUnknown`.
const UNKNOWN: Status = 999;
/// `hipDeviceAttributeVirtualMemoryManagementSupported`.
const SUPPORTED: c_int = 89;
/// A GPU's unit of translation, and the alignment of addresses.
const LARGE_PAGE: u64 = 2 << 20;
/// If 0, no virtual memory is used.
const VARIABLE: &str = "GPUPOOL_HIP_VIRTUAL_MEMORY";
const SHAREABLE: ExtentUse = ExtentUse { is_shareable: true, is_rdma: false };

impl DriverVendor for Hip {
    const KIND: Kind = Kind::Hip;
    const ALIGNMENT: u64 = LARGE_PAGE;
    const MAPS_ONE_BY_ONE: bool = true;

    fn stream(stream: RawStream) -> usize {
        stream.by_one_name().address()
    }

    fn status_name(&self, status: Status) -> Option<&CStr> {
        // SAFETY: the function takes any status and returns a string that lives as long as the library, or null.
        let name = unsafe { (self.error_name.function)(status) };
        // SAFETY: a name that is not null is a string that lives as long as the library.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
        // HIP has one name for all numbers that it does not know.
        (name != c"hipErrorUnknown" || status == UNKNOWN).then_some(name)
    }

    fn forget_last_error(&self) {
        // SAFETY: the function takes nothing and may be called at any time.
        unsafe { (self.last_error.function)() };
    }

    fn location(driver: &Driver<Self>, location: MemoryLocation) -> Result<DriverLocation> {
        driver.device_of(location).and_then(|device| driver.handle(device)).map(DriverLocation::device)
    }
}

/// Returns a device's UUID as `rocminfo` writes it: HIP returns the letters after `GPU-`, `XX` for none.
fn uuid_of(bytes: [u8; 16]) -> Option<String> {
    let letters = text_in(&bytes);
    match letters.as_str() {
        "" | "XX" => None,
        _ if letters.bytes().all(|letter| letter.is_ascii_alphanumeric()) => Some(format!("GPU-{letters}")),
        _ => Some(format!("GPU-{}", uuid_text(bytes))),
    }
}

impl Driver<Hip> {
    /// Returns the error of a function that HIP has not.
    fn lacks(&self, name: &'static CStr) -> Error {
        self.refused(name, NOT_SUPPORTED)
    }

    /// Returns the device whose memory this is. HIP makes no extents of host memory.
    fn device_of(&self, location: MemoryLocation) -> Result<Device> {
        location.device().ok_or_else(|| no_such_device(location.number(), self.devices.len()))
    }

    fn current_ordinal(&self) -> Result<c_int> {
        // SAFETY: `ordinal` is a valid place for an int.
        self.written(&self.vendor.get_device, |call, ordinal| unsafe { call(ordinal) })
    }

    /// Returns whether the device has virtual memory by its attribute, and it may be used.
    fn has_virtual_memory_by_attribute(&self, device: Device) -> Result<bool> {
        self.slot(device)?;
        if !environment::switch(VARIABLE, true)? {
            return Ok(false);
        }
        self.attribute(SUPPORTED, device).map(|value| value != 0)
    }

    /// Maps two pieces of memory side by side and one of them a second time, as the allocator does when it moves pages.
    fn rehearse(&self, device: Device) -> Result<()> {
        let (base, mut pieces) = (self.address_reserve(3 * LARGE_PAGE)?, Vec::new());
        let mut map = || {
            for address in [base, base + LARGE_PAGE] {
                let piece = self.extent_create(device.into(), LARGE_PAGE)?;
                pieces.push(piece);
                // SAFETY: the addresses were just reserved, and the extent is as long as said and alive.
                unsafe { self.memory_map(address, LARGE_PAGE, piece) }?;
            }
            // SAFETY: the addresses were just reserved, and the extent is as long as said and alive.
            unsafe { self.memory_map(base + 2 * LARGE_PAGE, LARGE_PAGE, pieces[0]) }?;
            // SAFETY: the whole range was just mapped.
            unsafe { self.memory_set_access(base, 3 * LARGE_PAGE, &[device.into()]) }
        };
        let mut outcome = map();
        // What cannot be unmapped stays: its addresses cannot be given back.
        // SAFETY: nothing uses these mappings.
        unsafe { self.memory_unmap(base, 3 * LARGE_PAGE) }?;
        for piece in pieces {
            // SAFETY: this is the only owner of the memory.
            outcome = outcome.and(unsafe { self.extent_release(piece) });
        }
        // SAFETY: the reservation is whole, and nothing is mapped in it.
        outcome.and(unsafe { self.address_free(base, 3 * LARGE_PAGE) })
    }
}

impl Runtime for Driver<Hip> {
    fn device_info(&self, device: Device) -> Result<DeviceInfo> {
        let name = self.text_of(&self.symbols.device_name, device)?;
        let place = self.pci_bus_id(device)?;
        let uuid = uuid_of(self.device_uuid(device)?);
        let memory = self.memory_of(device)?;
        Ok(DeviceInfo {
            name,
            uuid,
            pci_bus_id: Some(place),
            is_shareable: self.extent_use(device.into())?.is_shareable,
            total_bytes: memory.total,
            free_bytes: Some(memory.free),
            ..DeviceInfo::default()
        })
    }

    fn current_device(&self) -> Result<Device> {
        Ok(Device::from_ordinal(self.current_ordinal()?.unsigned_abs()))
    }

    fn bind(&self, location: MemoryLocation) -> Result<Option<Context>> {
        // Any device will do for the host's memory, and a thread always has one.
        let MemoryLocation::Device(device) = location else { return Ok(None) };
        let wanted = self.handle(device)?;
        let previous = self.current_ordinal()?;
        if previous == wanted {
            return Ok(None);
        }
        // SAFETY: the ordinal is a device's.
        self.check(&self.vendor.set_device, |call| unsafe { call(wanted) })?;
        Ok(Some(Context(previous.unsigned_abs() as usize)))
    }

    fn restore(&self, previous: Context) {
        // There is nothing better to restore if it is refused.
        // SAFETY: this device was current in this thread before.
        let _ = self.check(&self.vendor.set_device, |call| unsafe { call(previous.0 as c_int) });
    }

    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device> {
        // HIP 6.2 crashes on the address 1 here, and returns the current device for the other default streams.
        if stream.is_default() {
            return self.current_device();
        }
        if self.devices.len() == 1 {
            return Ok(Device::from_ordinal(0));
        }
        // SAFETY: the caller promises that the stream is alive, and `ordinal` is a valid place for an int.
        let ordinal =
            self.written(&self.vendor.stream_device, |call, ordinal| unsafe { call(Hip::stream(stream), ordinal) })?;
        Ok(Device::from_ordinal(ordinal.unsigned_abs()))
    }

    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64> {
        let Ok(stream_id) = self.vendor.stream_id else { return Ok(0) };
        // SAFETY: the caller promises that the stream is alive, and `id` is a valid place for a number.
        self.written(&stream_id, |call, id| unsafe { call(Hip::stream(stream), id) })
    }

    unsafe fn event_record_context(&self, _event: RawEvent) -> Result<()> {
        Err(self.lacks(c"hipCtxRecordEvent"))
    }

    unsafe fn context_wait_event(&self, _event: RawEvent) -> Result<()> {
        Err(self.lacks(c"hipCtxWaitEvent"))
    }

    unsafe fn stream_capture(&self, _stream: RawStream) -> Result<Option<Capture>> {
        Err(self.lacks(c"hipStreamGetCaptureInfo"))
    }

    unsafe fn graph_retain(&self, _graph: RawGraph, _kept: Box<dyn Send>) -> Result<()> {
        Err(self.lacks(c"hipGraphRetainUserObject"))
    }

    fn nearest_host_node(&self, device: Device) -> Result<NumaNode> {
        Ok(node_of_pci_device(&self.pci_bus_id(device)?))
    }

    fn host_allocate(&self, _node: NumaNode, bytes: u64) -> Result<u64> {
        self.allocate_pinned(bytes)
    }

    unsafe fn host_free(&self, _node: NumaNode, address: u64, _bytes: u64) -> Result<()> {
        // SAFETY: the caller owns the memory.
        unsafe { self.free_pinned(address) }
    }

    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool> {
        let Some(device) = location.device() else { return Ok(false) };
        Ok(self.has_virtual_memory_by_attribute(device)? && self.rehearse(device).is_ok())
    }

    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        let device = self.device_of(location)?;
        let known_use = &self.slot(device)?.extent_use;
        if let Some(&known) = known_use.get() {
            return self.create_for(location, bytes, known);
        }
        match self.create_for(location, bytes, SHAREABLE) {
            Err(error) if !error.is_of(StatusKind::OutOfMemory) => {
                let made = self.create_for(location, bytes, ExtentUse::PRIVATE)?;
                let _ = known_use.set(ExtentUse::PRIVATE);
                info!(target: RUNTIME, "{device}: memory cannot be shared with other processes: {error}");
                Ok(made)
            }
            outcome => outcome,
        }
    }

    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse> {
        let device = self.device_of(location)?;
        let is_private = self.slot(device)?.extent_use.get().is_some();
        Ok(if !is_private && self.has_virtual_memory_by_attribute(device)? { SHAREABLE } else { ExtentUse::PRIVATE })
    }
}

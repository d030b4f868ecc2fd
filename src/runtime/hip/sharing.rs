//! What HIP shares with other processes: extents by file descriptors, events by handles of IPC.
//!
//! Written from HIP's headers (7.2); it ran on doubles alone. HIP has no attribute that says whether extents can be exported, so
//! the first one of a device finds out.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use log::info;

use super::symbols::{AllocationProperties, EventHandle};
use super::{Hip, as_event, as_pointer};
use crate::error::{Result, StatusKind};
use crate::ids::Device;
use crate::observe::target::RUNTIME;
use crate::runtime::{DeviceUuid, ExportedEvent, Extent, ExtentUse, RawEvent};

/// `hipMemHandleTypePosixFileDescriptor`.
const POSIX_FD: i32 = 1;
/// `hipEventDisableTiming` and `hipEventInterprocess`.
const INTERPROCESS: u32 = 2 | 4;
const SHAREABLE: ExtentUse = ExtentUse { is_shareable: true, is_rdma: false };

/// The devices whose extents cannot be exported: a bit for each of the first 64, which is all that a machine has.
#[derive(Debug, Default)]
pub(super) struct PrivateDevices(AtomicU64);

impl PrivateDevices {
    fn has(&self, device: Device) -> bool {
        self.0.load(Ordering::Relaxed).checked_shr(device.ordinal() as u32).is_none_or(|bits| bits & 1 != 0)
    }

    fn add(&self, device: Device) {
        self.0.fetch_or(1_u64.checked_shl(device.ordinal() as u32).unwrap_or(0), Ordering::Relaxed);
    }
}

impl Hip {
    pub(super) fn use_of_extents(&self, device: Device) -> Result<ExtentUse> {
        let can_export = !self.private.has(device) && self.has_virtual_memory_by_attribute(device)?;
        Ok(if can_export { SHAREABLE } else { ExtentUse::PRIVATE })
    }

    pub(super) fn create(&self, device: Device, bytes: u64) -> Result<Extent> {
        let is_private = self.private.has(device);
        match self.create_for(device, bytes, !is_private) {
            Err(error) if !is_private && !error.is_of(StatusKind::OutOfMemory) => {
                let made = self.create_for(device, bytes, false)?;
                self.private.add(device);
                info!(target: RUNTIME, "{device}: memory cannot be shared with other processes: {error}");
                Ok(made)
            }
            outcome => outcome,
        }
    }

    fn create_for(&self, device: Device, bytes: u64, is_shareable: bool) -> Result<Extent> {
        let mut properties = AllocationProperties::device(self.ordinal(device)?);
        if is_shareable {
            properties.handle_kind = POSIX_FD;
        }
        let mut extent = ptr::null_mut();
        // SAFETY: `extent` is a valid place for one, the properties are whole, and 0 are the only flags.
        let status = unsafe { (self.symbols.extent_create)(&mut extent, bytes as usize, &properties, 0) };
        self.check("hipMemCreate", status)?;
        Ok(Extent(extent.addr() as u64))
    }

    pub(super) fn uuid_bytes(&self, device: Device) -> Result<DeviceUuid> {
        let mut uuid = [0; 16];
        // SAFETY: `uuid` is a valid place for a `hipUUID`, 16 bytes.
        self.check("hipDeviceGetUuid", unsafe { (self.symbols.device_uuid)(&mut uuid, self.ordinal(device)?) })?;
        Ok(uuid)
    }

    /// As [`Runtime::extent_export`](crate::runtime::Runtime::extent_export).
    ///
    /// # Safety
    /// The extent is alive and of this runtime.
    pub(super) unsafe fn export_extent(&self, extent: Extent) -> Result<OwnedFd> {
        let mut descriptor: RawFd = -1;
        let place = ptr::from_mut(&mut descriptor).cast();
        // SAFETY: the caller promises that the extent is alive; `descriptor` is a valid place for one, and 0 are the only
        // flags.
        let status = unsafe { (self.symbols.extent_export)(place, as_pointer(extent.0), POSIX_FD, 0) };
        self.check("hipMemExportToShareableHandle", status)?;
        // SAFETY: the library has just made the descriptor, and only this function has it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    pub(super) fn import_extent(&self, exported: BorrowedFd<'_>) -> Result<Extent> {
        let mut extent = ptr::null_mut();
        // A descriptor is given as a pointer of its value.
        let descriptor = as_pointer(exported.as_raw_fd() as u64);
        // SAFETY: `extent` is a valid place for one, and the descriptor is open.
        let status = unsafe { (self.symbols.extent_import)(&mut extent, descriptor, POSIX_FD) };
        self.check("hipMemImportFromShareableHandle", status)?;
        Ok(Extent(extent.addr() as u64))
    }

    pub(super) fn create_interprocess_event(&self) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid place for an event.
        let status = unsafe { (self.symbols.event_create)(&mut event, INTERPROCESS) };
        self.check("hipEventCreateWithFlags", status)?;
        Ok(RawEvent(event.addr()))
    }

    /// As [`Runtime::event_export`](crate::runtime::Runtime::event_export).
    ///
    /// # Safety
    /// The event is alive and was made for other processes.
    pub(super) unsafe fn export_event(&self, event: RawEvent) -> Result<ExportedEvent> {
        let mut name = [0; 64];
        // SAFETY: `name` is a valid place for a handle, 64 bytes; the caller promises that the event is alive.
        let status = unsafe { (self.symbols.event_export)(&mut name, as_event(event)) };
        self.check("hipIpcGetEventHandle", status)?;
        Ok(ExportedEvent { name, descriptor: None })
    }

    pub(super) fn import_event(&self, exported: &ExportedEvent) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid place for an event; the library refuses a handle that names none.
        let status = unsafe { (self.symbols.event_import)(&mut event, EventHandle(exported.name)) };
        self.check("hipIpcOpenEventHandle", status)?;
        Ok(RawEvent(event.addr()))
    }
}

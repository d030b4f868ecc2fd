//! What CUDA shares with other processes: extents by file descriptors, events by handles of legacy IPC.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use cudarc::driver::sys;
use log::info;

use super::{Cuda, as_event};
use crate::error::{Result, StatusKind};
use crate::ids::{Device, MemoryLocation};
use crate::observe::target::RUNTIME;
use crate::runtime::{DeviceUuid, ExportedEvent, Extent, ExtentUse, RawEvent};

const POSIX_FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// What a device's extents are made for, once it is known.
#[derive(Debug, Default)]
pub(super) struct KnownUse(AtomicU8);

impl KnownUse {
    const KNOWN: u8 = 4;

    fn get(&self) -> Option<ExtentUse> {
        let bits = self.0.load(Ordering::Relaxed);
        (bits & Self::KNOWN != 0).then_some(ExtentUse { is_shareable: bits & 1 != 0, is_rdma: bits & 2 != 0 })
    }

    fn set(&self, extent_use: ExtentUse) {
        let bits = u8::from(extent_use.is_shareable) | u8::from(extent_use.is_rdma) << 1;
        self.0.store(bits | Self::KNOWN, Ordering::Relaxed);
    }
}

/// Returns the uses to try, one after the other, where the driver refuses the first.
fn lesser(wanted: ExtentUse) -> impl Iterator<Item = ExtentUse> {
    let tried = [wanted, ExtentUse { is_rdma: false, ..wanted }, ExtentUse::PRIVATE];
    let is_new = move |index: usize| tried[..index].iter().all(|before| *before != tried[index]);
    (0..tried.len()).filter(move |&index| is_new(index)).map(move |index| tried[index])
}

impl Cuda {
    /// Returns what the driver says that extents there can be used for, or what was found.
    pub(super) fn use_of_extents(&self, location: MemoryLocation) -> Result<ExtentUse> {
        let MemoryLocation::Device(device) = location else { return Ok(ExtentUse::PRIVATE) };
        if let Some(known) = self.slot(device)?.extent_use.get() {
            return Ok(known);
        }
        let shareable = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        let rdma = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        // A driver that does not know an attribute has not what it stands for.
        let has = |attribute| self.attribute(attribute, device).is_ok_and(|value| value != 0);
        Ok(ExtentUse { is_shareable: has(shareable), is_rdma: has(rdma) })
    }

    /// Makes an extent for as many uses as the driver allows, which the first one of a device finds out.
    pub(super) fn create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        let wanted = self.use_of_extents(location)?;
        let mut outcome = self.create_for(location, bytes, wanted);
        let MemoryLocation::Device(device) = location else { return outcome };
        let known_use = &self.slot(device)?.extent_use;
        if known_use.get().is_some() {
            return outcome;
        }
        let mut made_for = wanted;
        for less in lesser(wanted).skip(1) {
            match &outcome {
                Err(error) if !error.is_of(StatusKind::OutOfMemory) => {}
                _ => break,
            }
            outcome = self.create_for(location, bytes, less);
            made_for = less;
        }
        if outcome.is_ok() {
            known_use.set(made_for);
            if made_for != wanted {
                let ExtentUse { is_shareable, is_rdma } = made_for;
                info!(
                    target: RUNTIME,
                    "{device}: the driver refused memory as its attributes announce it; made without: shareable with other \
                     processes {is_shareable}, for RDMA {is_rdma}"
                );
            }
        }
        outcome
    }

    fn create_for(&self, location: MemoryLocation, bytes: u64, extent_use: ExtentUse) -> Result<Extent> {
        let mut properties = self.extent_properties(location)?;
        if extent_use.is_shareable {
            properties.requestedHandleTypes = POSIX_FD;
        }
        properties.allocFlags.gpuDirectRDMACapable = u8::from(extent_use.is_rdma);
        let mut extent = 0;
        // SAFETY: `extent` is a valid place for one, the properties are whole, and 0 are the only flags.
        self.check("cuMemCreate", unsafe {
            (self.symbols.extent_create)(&mut extent, bytes as usize, &properties, 0)
        })?;
        Ok(Extent(extent))
    }

    pub(super) fn uuid_of(&self, device: Device) -> Result<DeviceUuid> {
        let mut uuid = [0; 16];
        // SAFETY: `uuid` is a valid place for a UUID; that of a MIG instance is its own, not its GPU's.
        self.check("cuDeviceGetUuid_v2", unsafe { (self.symbols.device_uuid)(&mut uuid, self.slot(device)?.handle) })?;
        Ok(uuid)
    }

    /// As [`Runtime::extent_export`](crate::runtime::Runtime::extent_export).
    ///
    /// # Safety
    /// The extent is alive and of this runtime.
    pub(super) unsafe fn export_extent(&self, extent: Extent) -> Result<OwnedFd> {
        let mut descriptor: RawFd = -1;
        // SAFETY: the caller promises that the extent is alive; `descriptor` is a valid place for one, and 0 are the only
        // flags.
        let status =
            unsafe { (self.symbols.extent_export)(ptr::from_mut(&mut descriptor).cast(), extent.0, POSIX_FD, 0) };
        self.check("cuMemExportToShareableHandle", status)?;
        // SAFETY: the driver has just made the descriptor, and only this function has it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    pub(super) fn import_extent(&self, exported: BorrowedFd<'_>) -> Result<Extent> {
        let mut extent = 0;
        // A descriptor is given as a pointer of its value.
        let descriptor = ptr::without_provenance_mut(exported.as_raw_fd() as usize);
        // SAFETY: `extent` is a valid place for one, and the descriptor is open.
        let status = unsafe { (self.symbols.extent_import)(&mut extent, descriptor, POSIX_FD) };
        self.check("cuMemImportFromShareableHandle", status)?;
        Ok(Extent(extent))
    }

    pub(super) fn create_interprocess_event(&self) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        let flags =
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | sys::CUevent_flags::CU_EVENT_INTERPROCESS as u32;
        // SAFETY: `event` is a valid place for an event.
        self.check("cuEventCreate", unsafe { (self.symbols.event_create)(&mut event, flags) })?;
        Ok(RawEvent(event.addr()))
    }

    /// As [`Runtime::event_export`](crate::runtime::Runtime::event_export).
    ///
    /// # Safety
    /// The event is alive and was made for other processes.
    pub(super) unsafe fn export_event(&self, event: RawEvent) -> Result<ExportedEvent> {
        let mut name = [0_u8; 64];
        // SAFETY: `name` is a valid place for a handle, 64 bytes; the caller promises that the event is alive.
        let status = unsafe { (self.symbols.event_export)(&mut name, as_event(event)) };
        self.check("cuIpcGetEventHandle", status)?;
        Ok(ExportedEvent { name, descriptor: None })
    }

    pub(super) fn import_event(&self, exported: &ExportedEvent) -> Result<RawEvent> {
        // SAFETY: a handle is 64 bytes of any content.
        let handle = unsafe { mem::transmute::<[u8; 64], sys::CUipcEventHandle>(exported.name) };
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid place for an event; the driver refuses a handle that names none.
        self.check("cuIpcOpenEventHandle", unsafe { (self.symbols.event_import)(&mut event, handle) })?;
        Ok(RawEvent(event.addr()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lesser_use_is_tried_once() {
        let all = ExtentUse { is_shareable: true, is_rdma: true };
        let shareable = ExtentUse { is_shareable: true, is_rdma: false };
        let rdma = ExtentUse { is_shareable: false, is_rdma: true };
        assert_eq!(lesser(all).collect::<Vec<_>>(), [all, shareable, ExtentUse::PRIVATE]);
        assert_eq!(lesser(shareable).collect::<Vec<_>>(), [shareable, ExtentUse::PRIVATE]);
        assert_eq!(lesser(rdma).collect::<Vec<_>>(), [rdma, ExtentUse::PRIVATE]);
        assert_eq!(lesser(ExtentUse::PRIVATE).collect::<Vec<_>>(), [ExtentUse::PRIVATE]);
    }
}

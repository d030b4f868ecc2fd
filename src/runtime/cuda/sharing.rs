//! What CUDA shares with other processes: extents by file descriptors, events by handles of legacy IPC.

use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use cudarc::driver::sys;

use super::{Cuda, as_event};
use crate::error::Result;
use crate::runtime::{ExportedEvent, ExportedExtent, Extent, RawEvent, SharingCalls};

pub(super) const POSIX_FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

impl SharingCalls for Cuda {
    fn event_create_interprocess(&self) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        let flags =
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | sys::CUevent_flags::CU_EVENT_INTERPROCESS as u32;
        // SAFETY: `event` is a valid place for an event.
        self.check(unsafe { self.symbols.event_create.call(&mut event, flags) })?;
        Ok(RawEvent(event.addr()))
    }

    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent> {
        let mut name = [0_u8; 64];
        // SAFETY: `name` is a valid place for a handle, 64 bytes; the caller promises that the event is alive.
        self.check(unsafe { self.symbols.event_export.call(&mut name, as_event(event)) })?;
        Ok(ExportedEvent { name, descriptor: None })
    }

    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent> {
        // SAFETY: a handle is 64 bytes of any content.
        let handle = unsafe { mem::transmute::<[u8; 64], sys::CUipcEventHandle>(exported.name) };
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid place for an event; the driver refuses a handle that names none.
        self.check(unsafe { self.symbols.event_import.call(&mut event, handle) })?;
        Ok(RawEvent(event.addr()))
    }

    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd> {
        let mut descriptor: RawFd = -1;
        // SAFETY: the caller promises that the extent is alive; `descriptor` is a valid place for one, and 0 are the only
        // flags.
        self.check(unsafe {
            self.symbols.extent_export.call(ptr::from_mut(&mut descriptor).cast(), extent.0, POSIX_FD, 0)
        })?;
        // SAFETY: the driver has just made the descriptor, and only this function has it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent> {
        let mut extent = 0;
        // A descriptor is given as a pointer of its value.
        let descriptor = ptr::without_provenance_mut(exported.as_raw_fd() as usize);
        // SAFETY: `extent` is a valid place for one, and the descriptor is open.
        self.check(unsafe { self.symbols.extent_import.call(&mut extent, descriptor, POSIX_FD) })?;
        Ok(Extent(extent))
    }
}

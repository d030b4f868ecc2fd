//! What HIP shares with other processes: extents by file descriptors, events by handles of IPC. Written from HIP's
//! headers (7.2), and tested only with doubles.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use super::symbols::EventHandle;
use super::{Hip, as_event, as_pointer};
use crate::error::Result;
use crate::runtime::{ExportedEvent, ExportedExtent, Extent, RawEvent, SharingCalls};

/// `hipMemHandleTypePosixFileDescriptor`.
pub(super) const POSIX_FD: i32 = 1;
/// `hipEventDisableTiming` and `hipEventInterprocess`.
const INTERPROCESS: u32 = 2 | 4;

impl SharingCalls for Hip {
    fn event_create_interprocess(&self) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid place for an event.
        self.check(unsafe { self.symbols.event_create.call(&mut event, INTERPROCESS) })?;
        Ok(RawEvent(event.addr()))
    }

    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent> {
        let mut name = [0; 64];
        // SAFETY: `name` is a valid place for a handle, 64 bytes; the caller promises that the event is alive.
        self.check(unsafe { self.symbols.event_export.call(&mut name, as_event(event)) })?;
        Ok(ExportedEvent { name, descriptor: None })
    }

    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid place for an event; the library refuses a handle that names none.
        self.check(unsafe { self.symbols.event_import.call(&mut event, EventHandle(exported.name)) })?;
        Ok(RawEvent(event.addr()))
    }

    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd> {
        let mut descriptor: RawFd = -1;
        let place = ptr::from_mut(&mut descriptor).cast();
        // SAFETY: the caller promises that the extent is alive; `descriptor` is a valid place for one, and 0 are the only
        // flags.
        self.check(unsafe { self.symbols.extent_export.call(place, as_pointer(extent.0), POSIX_FD, 0) })?;
        // SAFETY: the library has just made the descriptor, and only this function has it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent> {
        let mut extent = ptr::null_mut();
        // A descriptor is given as a pointer of its value.
        let descriptor = as_pointer(exported.as_raw_fd() as u64);
        // SAFETY: `extent` is a valid place for one, and the descriptor is open.
        self.check(unsafe { self.symbols.extent_import.call(&mut extent, descriptor, POSIX_FD) })?;
        Ok(Extent(extent.addr() as u64))
    }
}

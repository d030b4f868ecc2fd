//! Extents and events that several processes use: one exports, others import. Physical memory goes as a file
//! descriptor, an event as a name; the sender transports them.

use std::os::fd::OwnedFd;

use crate::error::Result;
use crate::runtime::{ExportedEvent, ExportedExtent, Extent, RawEvent};

/// A platform's calls on what other processes use. The rules of [`Runtime`](crate::runtime::Runtime) apply.
pub trait SharingCalls {
    /// Creates an event on the current device, without timing, that can be exported to other processes.
    fn event_create_interprocess(&self) -> Result<RawEvent>;
    /// Returns what another process needs to wait for the event (`cuIpcGetEventHandle`).
    ///
    /// # Safety
    /// The event is alive and was created by [`SharingCalls::event_create_interprocess`].
    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent>;
    /// Creates an event of the current device that represents another process's (`cuIpcOpenEventHandle`), which must
    /// live as long. It is not recorded here.
    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent>;

    /// Exports the extent to other processes as a file descriptor (`cuMemExportToShareableHandle`). The descriptor
    /// keeps the memory.
    ///
    /// # Safety
    /// The extent is alive and of this runtime.
    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd>;
    /// Imports an extent that another process exported (`cuMemImportFromShareableHandle`). The descriptor is not needed
    /// afterwards. The memory lives until every process has released it and no mapping of it is left.
    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent>;
}

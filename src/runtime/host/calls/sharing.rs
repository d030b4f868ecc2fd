//! Extents and events of other processes, which simulate the same devices.

use std::os::fd::OwnedFd;

use crate::error::{Result, StatusKind};
use crate::runtime::host::memory::system_error;
use crate::runtime::host::refusal::{INVALID_HANDLE, refused};
use crate::runtime::host::virtual_memory::space;
use crate::runtime::host::words::Word;
use crate::runtime::host::{Call, Host, check, enter_memory_call, timeline};
use crate::runtime::{ExportedEvent, ExportedExtent, Extent, RawEvent, SharingCalls};

impl SharingCalls for Host {
    fn event_create_interprocess(&self) -> Result<RawEvent> {
        check(Call::EventCreate)?;
        timeline().create_interprocess_event()
    }

    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent> {
        check(Call::EventExport)?;
        let word = timeline().word(event)?;
        let (name, file) = word.export().map_err(|error| system_error("event_export", &error))?;
        Ok(ExportedEvent { name, descriptor: Some(file) })
    }

    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent> {
        check(Call::EventImport)?;
        let invalid = || refused("event_import", INVALID_HANDLE, StatusKind::Other);
        let word = Word::import(&exported.name, exported.descriptor.ok_or_else(invalid)?)
            .map_err(|error| system_error("event_import", &error))?;
        Ok(timeline().import_event(word))
    }

    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd> {
        enter_memory_call(Call::ExtentExport)?;
        space().extent_export(extent)
    }

    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent> {
        enter_memory_call(Call::ExtentImport)?;
        space().extent_import(exported)
    }
}

//! The devices in use. A device's memory is made when first needed, with the process's limit.

use std::sync::Arc;

use super::make_room::settle_in;
use crate::error::Result;
use crate::ids::MemoryLocation;
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{DeviceMemory, Supply};
use crate::memory::pool::{Pool, PoolId, Rules, lock_limit};
use crate::process;

/// Returns the memory, pools and caches of a device, or of a node of the host.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; `ErrorKind::Library` if the driver refuses;
/// `ErrorKind::Forked` in a forked child, where its locks may be held for ever.
pub(crate) fn device_caches(location: impl Into<MemoryLocation>) -> Result<&'static DeviceCaches> {
    process::refuse_forked()?;
    let location = location.into();
    match DeviceCaches::known(location) {
        Some(caches) => Ok(caches),
        None => make(location),
    }
}

#[cold]
fn make(location: MemoryLocation) -> Result<&'static DeviceCaches> {
    // Complete, with its default pool, before any other thread sees it.
    let caches = DeviceCaches::new(DeviceMemory::reserve(location)?);
    let memory = &caches.memory;
    let supply = Supply::new(memory.default_source(), None);
    caches.set_default_pool(Arc::new(Pool::new(PoolId::NONE, 0, memory, Rules::default(), None, supply)));
    // A call that sets the limit of all devices either comes before, or finds this device.
    let limit = lock_limit();
    if !memory.is_of_host() {
        memory.budget.set_limit(limit.on(memory.total));
    }
    let installed = caches.install()?;
    drop(limit);
    if !std::ptr::eq(installed, caches) {
        // SAFETY: another thread was first, so nothing was ever mapped in this range.
        unsafe { memory.range.free() };
    } else {
        settle_in(location);
    }
    Ok(installed)
}

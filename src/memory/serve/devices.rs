//! The devices in use: each one's memory is made when it is first needed, with the process's limit.

use std::sync::{Arc, Once};

use super::make_room::make_room;
use super::pools::end_pool;
use crate::error::{MemoryUse, Result};
use crate::ids::{Device, MemoryLocation};
use crate::memory::cache::{ALL, DeviceCaches};
use crate::memory::device::{DeviceMemory, Supply};
use crate::memory::pool::{Pool, PoolId, Rules, lock_limit};
use crate::memory_users::{self, MemoryUser};
use crate::process;
use crate::sync::ThisThread;

/// Returns the memory, pools and caches of a device, or of a node of the host.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; `ErrorKind::Library` if the driver refuses;
/// `ErrorKind::Forked` in a forked child, where its locks may be held for ever.
pub(in crate::memory) fn device_caches(location: impl Into<MemoryLocation>) -> Result<&'static DeviceCaches> {
    process::refuse_forked()?;
    let location = location.into();
    match DeviceCaches::known(location) {
        Some(caches) => Ok(caches),
        None => make(location),
    }
}

#[cold]
fn make(location: MemoryLocation) -> Result<&'static DeviceCaches> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| memory_users::add(MemoryUser { used, release }));
    // Whole, with its default pool, before any other thread sees it.
    let caches = DeviceCaches::new(DeviceMemory::reserve(location)?);
    let memory = &caches.memory;
    let supply = Supply::new(memory.default_source(), None);
    caches.set_default_pool(Arc::new(Pool::new(PoolId::NONE, 0, memory, Rules::default(), None, supply, end_pool)));
    // A call that sets the limit of all devices comes before, and the limit is set here, or after, and finds this device.
    let limit = lock_limit();
    if !memory.is_of_host() {
        memory.budget.set_limit(limit.on(memory.total));
    }
    let installed = caches.install()?;
    drop(limit);
    if !std::ptr::eq(installed, caches) {
        // SAFETY: another thread was first, so nothing was ever mapped in this range.
        unsafe { memory.range.free() };
    }
    Ok(installed)
}

/// Returns what each pool has of the memory.
fn used(location: MemoryLocation) -> Vec<MemoryUse> {
    let Some(caches) = DeviceCaches::known(location) else { return Vec::new() };
    let describe = |pool: Arc<Pool>| {
        let counts = DeviceCaches::counts_of(&pool, ThisThread::get());
        let name =
            if pool.is_default() { "default memory pool".to_owned() } else { format!("memory pool {}", pool.label()) };
        let live = counts.now[ALL];
        let (bytes, live_bytes) = (pool.budget().reserved(), Some(live.bytes));
        MemoryUse { pool: name, count: live.blocks as usize, bytes, live_bytes }
    };
    caches.pools.all().into_iter().map(describe).filter(|used| used.bytes > 0).collect()
}

/// Gives back what pools that help others have free on the device, after waiting for work that uses it.
fn release(device: Device) {
    if let Some(caches) = DeviceCaches::known(device) {
        make_room(caches, ThisThread::get(), Pool::gives_way);
    }
}

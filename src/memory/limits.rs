//! Limits on the memory of the whole process, and giving back what is free.

use super::cache::DeviceCaches;
use super::host::empty_pinned_cache;
use super::pool::{MemoryLimit, Pool, refuse_no_fraction, replace_limit};
use super::serve::{Patience, device_caches, trim_pools};
use crate::error::Result;
use crate::ids::Device;
use crate::process;
use crate::runtime;
use crate::sync::ThisThread;

/// Lets this process reserve at most a part, 0 to 1, of the device's memory through gpupool.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a part outside 0 to 1, or an unknown device.
pub fn set_per_process_memory_fraction(fraction: f64, device: Device) -> Result<()> {
    refuse_no_fraction(fraction)?;
    let memory = &device_caches(device)?.memory;
    let total = runtime::get()?.total_memory(device)?;
    memory.budget.set_limit((fraction < 1.0).then_some((total as f64 * fraction) as u64));
    Ok(())
}

/// Returns the part of the device's memory that this process may reserve through gpupool; 1 unless it was set.
///
/// # Errors
/// As [`set_per_process_memory_fraction`].
pub fn get_per_process_memory_fraction(device: Device) -> Result<f64> {
    let limit = device_caches(device)?.memory.budget.limit();
    let total = runtime::get()?.total_memory(device)?;
    Ok(limit.map_or(1.0, |limit| limit as f64 / total as f64))
}

/// Lets this process reserve at most so much on each device through gpupool, and returns the former limit. It holds for
/// the devices in use, whatever was set for one alone, and for those used later.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a part outside 0 to 1; `ErrorKind::Forked`.
pub fn set_memory_limit(limit: MemoryLimit) -> Result<MemoryLimit> {
    process::refuse_forked()?;
    replace_limit(limit, || {
        for caches in DeviceCaches::of_devices() {
            caches.memory.budget.set_limit(limit.on(caches.memory.total));
        }
    })
}

/// Returns the devices whose memory this process has used. It asks no driver.
///
/// # Errors
/// `ErrorKind::Forked`.
pub(crate) fn devices_in_use() -> Result<Vec<Device>> {
    process::refuse_forked()?;
    Ok(DeviceCaches::of_devices().map(|caches| caches.memory.device).collect())
}

/// Gives free memory of every pool back to the driver, on every device that was used, pinned memory of the host too, and
/// returns the bytes that went. Large pieces of pinned memory, which the driver lets go only once running kernels have ended,
/// go a little later, on a thread of their own, and are not among those bytes.
/// What this process keeps mapped of buffers that it had attached is unmapped; where other processes still map what this one
/// has freed, it waits a moment for them, a quarter of a second at most.
/// Works inside scopes, and does not wait for the GPU: pages that the GPU may still be using go later. Segments that may be
/// registered stay, those of pools with `no_split` or a source of their own: they go by
/// [`MemPool::trim`](crate::MemPool::trim), or with the pool.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses; what it did not refuse has gone.
pub fn empty_cache() -> Result<u64> {
    let of_devices = empty_cache_of(None);
    let pinned = empty_pinned_cache();
    Ok(of_devices? + pinned?)
}

/// As [`empty_cache`], of one device's memory, or of all devices'.
///
/// # Errors
/// As [`empty_cache`].
pub(in crate::memory) fn empty_cache_of(device: Option<Device>) -> Result<u64> {
    process::refuse_forked()?;
    let mut released = 0;
    let mut outcome = Ok(());
    for caches in DeviceCaches::of_devices().filter(|caches| device.is_none_or(|device| device == caches.memory.device))
    {
        caches.memory.end_idle_attachments();
        let may_go = |pool: &Pool| !pool.keeps_segments();
        match trim_pools(caches, ThisThread::get(), Patience::Ask, may_go) {
            Ok(bytes) => released += bytes,
            Err(error) => outcome = outcome.and(Err(error)),
        }
        caches.memory.wait_for_processes();
    }
    outcome.map(|()| released)
}

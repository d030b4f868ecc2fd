//! Limits on the memory of the whole process, and releasing free memory.

use std::mem;

use super::cache::DeviceCaches;
use super::pinned::empty_pinned_cache;
use super::pool::{MemoryLimit, lock_limit, refuse_no_fraction};
use super::serve::{Patience, device_caches, sum_of_all, trim_pools};
use super::tuning::WAIT;
use crate::error::Result;
use crate::ids::Device;
use crate::process;
use crate::runtime;
use crate::sync::ThisThread;

/// Limits the device memory that this process may reserve through gpupool to a fraction, 0 to 1, of the device's
/// memory.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a fraction outside 0 to 1, or an unknown device.
pub fn set_per_process_memory_fraction(fraction: f64, device: Device) -> Result<()> {
    refuse_no_fraction(fraction)?;
    let memory = &device_caches(runtime::existing(device)?)?.memory;
    memory.budget.set_limit((fraction < 1.0).then_some((memory.total as f64 * fraction) as u64));
    Ok(())
}

/// Returns the fraction of the device's memory that this process may reserve through gpupool; 1 unless it was set.
///
/// # Errors
/// As [`set_per_process_memory_fraction`].
pub fn get_per_process_memory_fraction(device: Device) -> Result<f64> {
    let memory = &device_caches(runtime::existing(device)?)?.memory;
    Ok(memory.budget.limit().map_or(1.0, |limit| limit as f64 / memory.total as f64))
}

/// Limits how much memory this process may reserve through gpupool on each device, and returns the former limit. It
/// applies to the devices in use, whatever was set for a single one, and to those used later.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a fraction outside 0 to 1; `ErrorKind::Forked`.
pub fn set_memory_limit(limit: MemoryLimit) -> Result<MemoryLimit> {
    process::refuse_forked()?;
    limit.fraction.map_or(Ok(()), refuse_no_fraction)?;
    let mut current = lock_limit();
    for caches in DeviceCaches::of_devices() {
        caches.memory.budget.set_limit(limit.on(caches.memory.total));
    }
    Ok(mem::replace(&mut current, limit))
}

/// Returns the limit of [`set_memory_limit`]; without a fraction or a number of bytes unless it was set.
///
/// # Errors
/// `ErrorKind::Forked`.
pub fn memory_limit() -> Result<MemoryLimit> {
    process::refuse_forked()?;
    Ok(*lock_limit())
}

/// Returns what this process has reserved of a device.
pub(in crate::memory) fn reserved_on(device: Device) -> u64 {
    DeviceCaches::known(device).map_or(0, |caches| caches.memory.budget.reserved())
}

/// Returns the devices whose memory this process has used. It asks no driver.
///
/// # Errors
/// `ErrorKind::Forked`.
pub(crate) fn devices_in_use() -> Result<Vec<Device>> {
    process::refuse_forked()?;
    Ok(DeviceCaches::of_devices().filter_map(|caches| caches.memory.location.device()).collect())
}

/// Releases free memory of every pool to the driver, on every device that was used, also pinned memory of the host, and
/// returns the number of bytes released. Large pieces of pinned memory, which the driver frees only once running
/// kernels have ended, are released slightly later, on a separate thread, and are not counted. Mappings that this
/// process keeps of buffers it had attached are unmapped; if other processes still map what this one has freed, it
/// waits for them, for a quarter of a second at most. It works inside scopes, and does not wait for the GPU: pages that
/// the GPU may still be using are released later. Segments that may be registered are kept, those of pools with
/// `no_split` or their own source: they are released by [`MemPool::trim`](crate::MemPool::trim), or with the pool.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses; the rest has been released.
pub fn empty_cache() -> Result<u64> {
    let of_devices = empty_cache_of(None, Patience::Report);
    let pinned = empty_pinned_cache();
    Ok(of_devices? + pinned?)
}

/// As [`empty_cache`], for one device's memory, or for all devices'.
pub(crate) fn empty_cache_of(device: Option<Device>, patience: Patience) -> Result<u64> {
    process::refuse_forked()?;
    let of_device = |caches: &'static DeviceCaches| {
        caches.memory.elsewhere.end_idle();
        let trimmed = trim_pools(caches, ThisThread::get(), patience, |pool| !pool.keeps_segments());
        // What other threads have under way may wait for the GPU, too.
        let by_all = if patience == Patience::Wait { caches.memory.end_retired_by_all() } else { Ok(0) };
        caches.memory.elsewhere.wait_for_processes(WAIT);
        Ok(trimmed? + by_all?)
    };
    let devices = DeviceCaches::of_devices().filter(|caches| device.is_none_or(|on| caches.memory.location == on));
    sum_of_all(devices.map(of_device))
}

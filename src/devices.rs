//! Devices: asking for one, and the sleep of all that gpupool has of it, every pool of memory and the idle handles.

use crate::error::Result;
use crate::ids::Device;
use crate::memory::{self, Backup};
use crate::{handle, process, runtime};

/// Returns the device with this ordinal.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; otherwise as [`runtime::get`].
pub fn device(ordinal: i64) -> Result<Device> {
    memory::begin();
    runtime::device(ordinal)
}

/// Puts all memory of a device to sleep: the default pool, every [`MemPool`](crate::MemPool), and the pools of graphs.
/// Idle handles are destroyed with their workspaces, as by [`trim`](crate::HandlePool::trim), and created again when
/// they are needed. Blocks of one pool that serve another fall asleep with the rest. Returns the number of bytes released
/// to the driver; 0 for what is asleep already. Pools that cannot sleep, those with their own allocator or `no_split`,
/// stay awake, and a log line names each.
///
/// # Errors
/// As [`MemPool::sleep`](crate::MemPool::sleep); then the pools that this call put to sleep are awake again, as far as
/// there is memory for them.
pub fn sleep(device: Device, backup: Backup) -> Result<u64> {
    process::refuse_forked()?;
    let device = runtime::existing(device)?;
    let used = || -> u64 { memory::users(device.into()).iter().map(|used| used.bytes).sum() };
    let before = used();
    memory::sleep_pools(device, backup)?;
    handle::release_idle(device);
    Ok(before.saturating_sub(used()))
}

//! The summary: what holds a device's memory, pools of memory and of handles together. The used memory that the driver
//! reports consists of what gpupool's pools have reserved, what library handles and their workspaces use, and the rest:
//! other processes, CUDA contexts, other allocators of this process. No lock is held during the driver call, and no
//! thread is stopped: each cache and each pool is read separately.

use crate::error::{MemoryHolder, Result};
use crate::handle::{self, HandleStats};
use crate::ids::Device;
use crate::memory::{self, MemoryStats, PoolSummary};
use crate::runtime::{self, MemoryInfo, RelaxedCapture};

/// What holds a device's memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct MemorySummary {
    /// The device.
    pub device: Device,
    /// The free and total memory that the driver reports; or its error, such as after an error of earlier work.
    pub info: Result<MemoryInfo>,
    /// All of gpupool's pools together.
    pub memory: MemoryStats,
    /// Each pool that has or can have memory, the default one first.
    pub pools: Vec<PoolSummary>,
    /// The counts of every handle pool that has been used, by the library's name.
    pub handles: Vec<(String, HandleStats)>,
    /// What other libraries of this process hold, the largest first; empty unless the process is watched.
    pub holders: Vec<MemoryHolder>,
    /// What NVML counts for this process, with its contexts and code. None unless the process is watched.
    pub process_bytes: Option<u64>,
}

impl MemorySummary {
    /// Returns the device memory that library handles used when they were created, in bytes.
    pub fn handle_bytes(&self) -> u64 {
        self.handles.iter().map(|(_, stats)| stats.device_bytes).sum()
    }

    /// Returns the device memory that gpupool gave to handles, and to graphs captured with them, as workspaces, in
    /// bytes.
    pub fn workspace_bytes(&self) -> u64 {
        self.handles.iter().map(|(_, stats)| stats.workspace_bytes).sum()
    }

    fn known_bytes(&self) -> u64 {
        let held: u64 = self.holders.iter().map(|holder| holder.bytes).sum();
        self.memory.total.reserved_bytes + self.handle_bytes() + self.workspace_bytes() + held
    }

    /// Returns what this process has beside what is known, in bytes: contexts, code, and what the driver needs. None
    /// unless the process is watched.
    pub fn context_bytes(&self) -> Option<u64> {
        self.process_bytes.map(|bytes| bytes.saturating_sub(self.known_bytes()))
    }

    /// Returns the used memory that is neither gpupool's nor known to be another library's, in bytes: other processes,
    /// CUDA contexts, other allocators of this process. None if the driver does not report the free memory.
    ///
    /// The memory of handles is measured when they are created, so this is as exact as that measurement; never less
    /// than 0.
    pub fn other_bytes(&self) -> Option<u64> {
        let info = self.info.as_ref().ok()?;
        let known = self.known_bytes() + self.context_bytes().unwrap_or(0);
        Some(info.total.saturating_sub(info.free).saturating_sub(known))
    }
}

/// Returns what holds the device's memory. It queries the driver for the free memory, which creates the device's
/// primary context if this process has none.
///
/// # Errors
/// As [`device`](crate::device).
pub fn memory_summary(device: Device) -> Result<MemorySummary> {
    let device = runtime::existing(device)?;
    let (memory, pools) = memory::pool_summaries(device).unwrap_or_default();
    let handles = handle::handle_stats(Some(device))?;
    let (holders, process_bytes) = (memory::holders(device.into()), memory::process_bytes(device));
    Ok(MemorySummary { device, info: memory_info(device), memory, pools, handles, holders, process_bytes })
}

/// Works also while a stream is captured.
fn memory_info(device: Device) -> Result<MemoryInfo> {
    let _relaxed = RelaxedCapture::new(runtime::get()?).map_err(|e| e.on(device))?;
    runtime::memory_info(device)
}

/// Returns the devices whose memory this process has used, or on which it has created handles. It calls no driver.
///
/// # Errors
/// `ErrorKind::Forked`.
pub fn devices_in_use() -> Result<Vec<Device>> {
    let mut devices = memory::devices_in_use()?;
    devices.extend(handle::devices_in_use());
    devices.sort_unstable();
    devices.dedup();
    Ok(devices)
}

/// Resets all peaks of a device to the current values, those of memory pools and of handles.
///
/// # Errors
/// As [`device`](crate::device).
pub fn reset_peak_stats(device: Device) -> Result<()> {
    let device = runtime::existing(device)?;
    if memory::devices_in_use()?.contains(&device) {
        memory::reset_peak_memory_stats(device)?;
    }
    handle::reset_peak_stats(device);
    Ok(())
}

//! Statistics of pinned memory, of one NUMA node or of all, its limit, and releasing free pinned memory.

use crate::counters::Sum;
use crate::error::Result;
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{CallTimes, PINNED, PINNED_GONE, PINNED_MADE};
use crate::memory::report::{self, DeviceStats, MemoryStats, PoolStats};
use crate::memory::serve::{Patience, sum_of_all, trim_pools};
use crate::process;
use crate::runtime;
use crate::sync::ThisThread;

/// Returns the nodes of the host whose pinned memory this process has used: the one with this number, or all.
fn nodes(numa: Option<u32>) -> Result<Vec<&'static DeviceCaches>> {
    process::refuse_forked()?;
    match numa {
        Some(number) => Ok(DeviceCaches::known(runtime::host_node(number.into())?).into_iter().collect()),
        None => Ok(DeviceCaches::of_nodes().collect()),
    }
}

/// Returns the statistics of pinned memory, on the NUMA node with this number, or on all. For several nodes the peak of
/// reserved bytes is exact, and the peak of live bytes an upper bound, at most as large. It calls no driver.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the host has no such node; `ErrorKind::Forked` in a forked child.
pub fn pinned_stats(numa: Option<u32>) -> Result<MemoryStats> {
    let nodes = nodes(numa)?;
    let mut sum = MemoryStats::default();
    for caches in &nodes {
        sum.add(&report::summarize(caches).0);
    }
    if numa.is_none() && nodes.len() > 1 {
        let total: &mut PoolStats = &mut sum.total;
        total.peak_reserved_bytes = PINNED.peak().max(total.reserved_bytes);
        total.peak_live_bytes = total.peak_live_bytes.min(total.peak_reserved_bytes);
    }
    Ok(sum)
}

/// Resets the peaks of pinned memory to the current values, on the NUMA node with this number, or on all.
///
/// # Errors
/// As [`pinned_stats`].
pub fn reset_peak_pinned_stats(numa: Option<u32>) -> Result<()> {
    let nodes = nodes(numa)?;
    if numa.is_none() {
        PINNED.reset_peak();
        PINNED_MADE.reset_peaks();
        PINNED_GONE.reset_peaks();
    }
    nodes.into_iter().for_each(report::reset_peaks_of);
    Ok(())
}

/// Returns the statistics of pinned memory as PyTorch has them, on the NUMA node with this number, or on all.
pub(crate) fn pinned_device_stats(numa: Option<u32>) -> Result<DeviceStats> {
    let mut sum = DeviceStats::default();
    for caches in nodes(numa)? {
        sum.add(&report::device_stats(caches.memory.location)?);
    }
    Ok(sum)
}

/// Returns how long pieces of pinned memory took to allocate and free, on all NUMA nodes.
pub(crate) fn pinned_times() -> Result<[CallTimes; 2]> {
    process::refuse_forked()?;
    Ok([&PINNED_MADE, &PINNED_GONE].map(|times| times.get()))
}

/// Limits the pinned memory that this process may reserve through gpupool, in bytes, on all NUMA nodes together; none
/// removes the limit. Memory reserved beyond it is kept until it is free and released.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child.
pub fn set_pinned_limit(nbytes: Option<u64>) -> Result<()> {
    process::refuse_forked()?;
    PINNED.set_limit(nbytes);
    Ok(())
}

/// Returns the maximum number of bytes of pinned memory that this process may reserve through gpupool, if there is a
/// limit.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child.
pub fn pinned_limit() -> Result<Option<u64>> {
    process::refuse_forked()?;
    Ok(PINNED.limit())
}

/// Gives free pinned memory back to the system, and returns the bytes. Segments go a little later, on a separate
/// thread.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses; what it did not refuse has gone. `ErrorKind::Forked` in a forked child.
///
/// ```
/// # fn main() -> gpupool::Result<()> {
/// # gpupool::runtime::host::simulate(1, 1 << 30)?;
/// drop(gpupool::empty_pinned(1 << 20, None)?);
/// gpupool::empty_pinned_cache()?;
/// # Ok(())
/// # }
/// ```
pub fn empty_pinned_cache() -> Result<u64> {
    let trim = |caches| trim_pools(caches, ThisThread::get(), Patience::Ask, |_| true);
    sum_of_all(nodes(None)?.into_iter().map(trim))
}

/// Returns the statistics of each NUMA node whose pinned memory this process has used, by its number. It calls no
/// driver.
#[cfg(feature = "python")]
pub(crate) fn pinned_stats_by_node() -> Result<Vec<(u32, MemoryStats)>> {
    let of_node = |caches: &DeviceCaches| Some((caches.memory.location.numa()?, report::summarize(caches).0));
    Ok(nodes(None)?.into_iter().filter_map(of_node).collect())
}

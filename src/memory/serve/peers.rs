//! Peers: other devices that may read and write a device's memory.

use super::devices::device_caches;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::device::Reserve;
use crate::runtime;

/// Lets `peer` read and write the memory of `device`, what there is and what comes.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the two cannot reach each other; `ErrorKind::Library` if the driver refuses.
pub(in crate::memory) fn enable_peer(device: Device, peer: Device) -> Result<()> {
    let caches = device_caches(device)?;
    if peer == device {
        return Ok(());
    }
    if !runtime::get()?.can_access_peer(peer, device)? {
        return Err(Error::invalid_value(format!(
            "{peer} cannot reach the memory of {device}: the two are not connected by NVLink or peer-to-peer PCIe; copy \
             through the host instead"
        )));
    }
    let range = &caches.memory.range;
    if !range.add_peer(peer) {
        return Ok(());
    }
    // SAFETY: each range is a span of a cache's heap below the segments, which consists of whole mappings.
    let set_access = |(start, bytes)| unsafe { range.set_access(start, bytes) };
    let outcome = mapped_ranges(caches).into_iter().try_for_each(set_access);
    if outcome.is_err() {
        // So that asking again does it again.
        range.remove_peer(peer);
    }
    outcome
}

/// Returns every range that is mapped for a pool or a cache: start and bytes.
fn mapped_ranges(caches: &DeviceCaches) -> Vec<(u64, u64)> {
    let end = caches.memory.range.bytes();
    let mut ranges = Vec::new();
    for pool in caches.pools() {
        let reserve = pool.supply.reserve();
        ranges.extend(reserve.into_iter().flat_map(Reserve::extents).map(|extent| (extent.start(), extent.bytes())));
        let kept = reserve.map_or(0..0, Reserve::range);
        for cache in DeviceCaches::caches_of(&pool) {
            let heap = cache.visit();
            // What is asleep is mapped for all peers once it wakes.
            let spans = if heap.is_asleep() { Vec::new() } else { heap.spans_below(end) };
            drop(heap);
            for (start, bytes) in spans {
                // A span may go on beyond the reserve.
                let parts = [(start, (start + bytes).min(kept.start)), (start.max(kept.end), start + bytes)];
                ranges.extend(
                    parts.into_iter().filter(|(start, end)| start < end).map(|(start, end)| (start, end - start)),
                );
            }
        }
    }
    ranges
}

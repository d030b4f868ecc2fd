//! Growth by a segment of the pool's own source.

use log::debug;

use super::claim::{claimed, out_of_addresses};
use crate::error::{Bytes, Error, Result};
use crate::memory::cache::{DeviceCaches, ThreadCache};
use crate::memory::device::{ALIGNMENT, PAGE, Remains, SegmentSource, Until, overlapping};
use crate::memory::pool::supply;
use crate::memory::serve::request::Request;
use crate::observe::Activity;
use crate::observe::target::MEMORY;

/// Adds a segment of the pool's own source; see [`grow`](super::grow).
pub(super) fn grow_by_segment(request: &Request, source: &dyn SegmentSource) -> Result<Option<u64>> {
    let (cache, pool, stream) = (request.cache, request.pool(), &request.service.stream);
    let needed = cache.lock(request.thread).needed_for(request.bytes);
    // Whole pages, so that small requests share one.
    let wanted = needed.next_multiple_of(PAGE);
    let activity = Activity::begin_of(wanted, format_args!("grow memory pool"));
    let start = claimed(cache.memory, pool, wanted, || {
        cache.memory.range.count_driver_call();
        let address = supply(pool, || source.allocate(wanted, stream))?;
        add_segment(cache, address, wanted).inspect_err(|_| {
            // To free what starts where a segment does would take that segment's memory away from its holder.
            if !cache.memory.segments.starts_at(address) {
                let _ = source.free(address, wanted, stream);
            }
        })
    })?;
    let Ok(offset) = cache.add_and_allocate(&request.service, request.thread, start, wanted, request.bytes) else {
        let address = cache.memory.address(start);
        cache.memory.segments.remove(address, start, wanted);
        let remains = Remains::Segment { address, bytes: wanted, stream: stream.clone() };
        // SAFETY: no cache has got the segment, so no work uses it.
        unsafe { cache.memory.retire(remains, Until::at_once(), &pool.supply) };
        return Ok(None);
    };
    let (id, device, took) = (pool.id, cache.memory.device, activity.took());
    let (segment, reserved) = (Bytes(wanted), Bytes(pool.budget().reserved()));
    debug!(target: MEMORY, "pool {id} on {device}: grew by a segment of {segment} in {took}, {reserved} reserved");
    Ok(offset)
}

/// Makes memory at a foreign address known, and the cache's. Returns its offset.
fn add_segment(cache: &ThreadCache, address: u64, bytes: u64) -> Result<u64> {
    let memory = cache.memory;
    let alignment = ALIGNMENT;
    if !address.is_multiple_of(alignment) {
        return Err(Error::invalid_value(format!(
            "the pool's own allocator returned {address:#x}, which is not a multiple of {alignment}; allocate with that \
             alignment"
        )));
    }
    // All devices share one range of addresses. One at a time, so that no two locks are held.
    if DeviceCaches::all().any(|caches| caches.memory.overlaps(address, bytes)) {
        return Err(overlapping(address, bytes));
    }
    let offset = memory.segments.add(address, bytes)?.ok_or_else(|| out_of_addresses(memory))?;
    memory.pages.set_segment(offset, bytes, address);
    Ok(offset)
}

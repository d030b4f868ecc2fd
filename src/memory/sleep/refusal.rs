//! What cannot sleep, and when.

use crate::error::{Error, Result};
use crate::ids::{CaptureStatus, Device};
use crate::memory::cache::DeviceCaches;
use crate::memory::pool::Pool;
use crate::runtime;
use crate::sync::ThisThread;

/// Returns why a pool can never sleep, if it cannot.
pub(super) fn why_not(pool: &Pool) -> Option<String> {
    let reason = if pool.segments.has_listeners() {
        "callbacks of on_segment were called for its segments, which may be registered where they are. Remove the callbacks, and use \
         a pool without no_split, segments and allocator for what is to sleep"
    } else if pool.has_fixed_segments() {
        "its segments stay where they are, for they may be registered elsewhere or came from its own allocator. Leave out \
         allocator, segments and no_split for a pool that is to sleep"
    } else if !pool.source().is_pages() || pool.source().has_segments() {
        "that needs virtual memory management, which the device or its driver does not have"
    } else {
        return None;
    };
    Some(format!("pool {} on {} cannot sleep: {reason}", pool.label(), pool.memory.location))
}

/// Refuses while a stream of the device, or of a peer, is known to be captured: waiting for it would spoil the capture,
/// and its graph would use memory that goes.
pub(super) fn refuse_captures(pool: &Pool, thread: ThisThread) -> Result<()> {
    for device in pool.memory.location.device().into_iter().chain(pool.memory.range.peers.devices()) {
        if runtime::is_known_stream_capturing(runtime::get()?, device)? {
            return Err(captured(pool, device));
        }
    }
    for cache in DeviceCaches::caches_of(pool) {
        let service = &cache.service;
        if let Some(stream) = &service.stream
            && service.is_stream_usable(thread, None)
            && stream.capture_status()? != CaptureStatus::None
        {
            return Err(captured(pool, stream.device()));
        }
    }
    Ok(())
}

/// Refuses while other pools, which had no memory, have blocks of the pool: their users have not asked for sleep. They
/// can take none meanwhile.
pub(super) fn refuse_serving_others(pool: &Pool, thread: ThisThread) -> Result<()> {
    let mut blocks = Vec::new();
    for cache in DeviceCaches::caches_of(pool) {
        // A block that was just taken is noted by the time the heap can be locked.
        let _heap = cache.lock(thread);
        blocks.extend(cache.used_by_other_pools());
    }
    let Some(first) = blocks.iter().min() else { return Ok(()) };
    let device = pool.memory.location;
    Err(Error::unavailable(format!(
        "pool {} on {device} cannot fall asleep: other pools, which had no memory, have {} of its blocks, the first at {:#x}, and \
         still use them. Free those first, or put all memory of the device to sleep, by gpupool.sleep({})",
        pool.label(),
        blocks.len(),
        pool.memory.address(*first),
        device.number()
    )))
}

#[cold]
pub(super) fn captured(pool: &Pool, device: Device) -> Error {
    Error::invalid_value(format!(
        "a stream of {device} is captured, and pool {} cannot fall asleep meanwhile: end the capture first",
        pool.label()
    ))
}

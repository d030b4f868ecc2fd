//! What a range cannot do, and when.

use super::held_range::HeldRange;
use crate::error::{Error, Result};
use crate::ids::CaptureStatus;
use crate::memory::cache::DeviceCaches;
use crate::memory::pool::{self, Pool, closed};
use crate::memory::tuning::PAGE;
use crate::process;
use crate::runtime::{self, Stream};
use crate::sync::{ThisThread, lock};

/// Refuses pools that can have no ranges.
pub(super) fn refuse_pool(pool: &Pool) -> Result<()> {
    process::refuse_forked()?;
    let (label, device) = (pool.label(), pool.memory.location);
    if pool.is_closed() {
        return Err(closed(pool));
    }
    let reason = if pool.has_fixed_segments() {
        "its segments stay where they are, for they may be registered elsewhere or came from its own allocator. Leave out \
         allocator, segments and no_split for a pool that is to have ranges"
    } else if !pool.source().is_pages() || pool.source().has_segments() {
        "that needs virtual memory management, which the device or its driver does not have"
    } else {
        return Ok(());
    };
    Err(Error::unavailable(format!("pool {label} on {device} has no memory ranges: {reason}")))
}

/// Refuses sizes that are no whole pages.
pub(super) fn refuse_sizes(nbytes: u64, page_bytes: u64) -> Result<()> {
    if page_bytes == 0 || !page_bytes.is_multiple_of(PAGE) {
        return Err(Error::invalid_value(format!(
            "a page of {page_bytes} bytes is no multiple of {PAGE} bytes, which physical memory is mapped by: give one"
        )));
    }
    if nbytes == 0 || !nbytes.is_multiple_of(page_bytes) {
        return Err(Error::invalid_value(format!(
            "a range of {nbytes} bytes has no whole pages of {page_bytes} bytes: give a multiple of that"
        )));
    }
    Ok(())
}

/// Refuses to change pages: in a forked child, of a pool that is asleep, and while a stream of the pool is captured, whose
/// graph would use what goes.
pub(super) fn refuse_change(range: &HeldRange, on: Option<&Stream>) -> Result<()> {
    process::refuse_forked()?;
    let pool = &range.pool;
    if pool.sleep.is_asleep() {
        return Err(pool::asleep(pool));
    }
    if let Some(stream) = on {
        refuse_stream(range, stream)?;
        refuse_captured(pool, stream)?;
    }
    let thread = ThisThread::get();
    for cache in DeviceCaches::caches_of(pool) {
        let service = &cache.service;
        if let Some(stream) = service.stream.as_ref().filter(|_| service.is_stream_usable(thread, None)) {
            refuse_captured(pool, stream)?;
        }
    }
    let users = lock(&range.table).lasting_streams();
    users.iter().try_for_each(|stream| refuse_captured(pool, stream))
}

/// Refuses a stream whose device cannot use the range.
pub(super) fn refuse_stream(range: &HeldRange, stream: &Stream) -> Result<()> {
    let memory = range.memory();
    if memory.location == stream.device() || memory.range.peers.has(stream.device()) {
        return Ok(());
    }
    runtime::existing(stream.device())?;
    Err(Error::invalid_value(format!(
        "the range is memory of {}, which a stream of {} cannot use: give a stream of {}, or call enable_peer_access first",
        memory.location,
        stream.device(),
        memory.location
    )))
}

fn refuse_captured(pool: &Pool, stream: &Stream) -> Result<()> {
    if stream.capture_status()? == CaptureStatus::None {
        return Ok(());
    }
    Err(Error::invalid_value(format!(
        "a stream of pool {} on {} is captured, and pages of its ranges come and go for good meanwhile, not when the graph \
         runs: commit and decommit before the capture or after it",
        pool.label(),
        pool.memory.location
    )))
}

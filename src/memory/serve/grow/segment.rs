//! Growth by a segment of the pool's own source.

use log::Level;

use super::claim::{claimed, out_of_addresses};
use super::pages::Grown;
use super::segment_events::{report_added, retire_segment};
use crate::error::{Bytes, Error, GPUPOOL, Result};
use crate::memory::cache::{DeviceCaches, Service, StreamCache};
use crate::memory::device::{Until, call_out, log_out, overlapping};
use crate::memory::pool::supply;
use crate::memory::serve::out_of_memory::no_memory_left;
use crate::memory::serve::request::AllocationRequest;
use crate::memory::tuning::{ALIGNMENT, PAGE};
use crate::observe::Activity;
use crate::observe::delivery::Delivery;
use crate::observe::recording::{Purpose, hold_stack};
use crate::sync::{CallbackKind, ThisThread};

/// Adds a segment of the pool's own source to the request's cache, and serves the request from it.
///
/// # Errors
/// What the source refuses, or the pool's limit, or the process's.
pub(in crate::memory::serve) fn grow_by_segment(request: &AllocationRequest) -> Result<Grown> {
    let (cache, service, pool) = (request.cache, &request.service, request.pool());
    let _moving = cache.memory.under_way.begin();
    // Whole pages, so that small requests share one.
    let wanted = request.needed().next_multiple_of(PAGE);
    let activity = Activity::begin_of(wanted, format_args!("grow memory pool"));
    let start = make_segment(cache, service, wanted)?;
    let Ok(offset) = cache.add_and_allocate(service, request.thread, start, (wanted, 0), request.bytes) else {
        // SAFETY: no cache has got the segment, so no work uses it.
        unsafe { retire_segment(service, (start, wanted), Until::at_once()) };
        return Ok(Grown::TakenAway);
    };
    let (id, device, took) = (pool.id, cache.memory.location, activity.took());
    let (segment, reserved) = (Bytes(wanted), Bytes(pool.budget().reserved()));
    log_out(
        Level::Debug,
        format_args!("pool {id} on {device}: grew by a segment of {segment} in {took}, {reserved} reserved"),
    );
    Ok(offset.map_or(Grown::TakenAway, Grown::Block))
}

/// Makes a segment that no cache has yet, and returns its offset.
fn make_segment(cache: &StreamCache, service: &Service, bytes: u64) -> Result<u64> {
    let (pool, source, stream) = (&service.pool, service.pool.source(), service.stream.as_ref());
    let start = claimed(pool, bytes, || {
        cache.memory.range.count_driver_call();
        let address = supply(pool, || call_out(CallbackKind::Allocator, || source.allocate(bytes, stream)))?;
        add_segment(cache, address, bytes).inspect_err(|_| {
            // Freeing an address where another segment starts would take that from its holder.
            if !cache.memory.segments.starts_at(address) {
                // SAFETY: it was just allocated so, and no cache has it.
                let _ = call_out(CallbackKind::Allocator, || unsafe { source.free(address, bytes, stream) });
            }
        })
    })?;
    report_added(pool, cache.memory.address(start), bytes);
    Ok(start)
}

/// Makes sure that a cache of a pool with segments has so many bytes free, in one piece or in pieces of
/// `most`: makes segments if not.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough; any other refusal of the driver.
pub(in crate::memory) fn warm_by_segments(cache: &StreamCache, bytes: u64, most: u64) -> Result<()> {
    let (largest, free) = cache.lock_by_mutex().free_bytes();
    let Some(service) = cache.service().filter(|_| largest < bytes.min(most) || free < bytes) else { return Ok(()) };
    let _delivery = Delivery::at_end();
    let _stack = hold_stack(Purpose::Allocation);
    let activity = Activity::begin_of(bytes, format_args!("warm memory pool"));
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(most).next_multiple_of(PAGE);
        let made = if bytes <= cache.memory.total {
            make_segment(cache, &service, piece)
        } else {
            Err(Error::no_memory(GPUPOOL, "The host has not that many bytes: request less"))
        };
        let start = made.map_err(|error| no_memory_left(&service.pool, bytes, error))?;
        if cache.add_segment(&service, ThisThread::get(), start, piece).is_err() {
            // SAFETY: no cache has got the segment, so no work uses it.
            unsafe { retire_segment(&service, (start, piece), Until::at_once()) };
            return Err(Error::unavailable("the memory that was made ahead could not be kept: its pool has ended"));
        }
        left = left.saturating_sub(piece);
    }
    let (on, took) = (cache.memory.location, activity.took());
    log_out(Level::Debug, format_args!("made {} ahead on {on} in {took}", Bytes(bytes)));
    Ok(())
}

/// Registers memory at a foreign address as the cache's. Returns its offset.
fn add_segment(cache: &StreamCache, address: u64, bytes: u64) -> Result<u64> {
    let memory = cache.memory;
    if !address.is_multiple_of(ALIGNMENT) {
        return Err(Error::invalid_value(format!(
            "the pool's own allocator returned {address:#x}, which is not a multiple of {ALIGNMENT}; allocate with that \
             alignment"
        )));
    }
    // All devices share one range of addresses. Checked one at a time, so that no two locks are held.
    if DeviceCaches::all().any(|caches| caches.memory.overlaps(address, bytes)) {
        return Err(overlapping(address, bytes));
    }
    let offset = memory.segments.add(address, bytes)?.ok_or_else(|| out_of_addresses(memory))?;
    memory.pages.set_segment(offset, bytes, address);
    Ok(offset)
}

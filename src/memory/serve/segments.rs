//! Segments, which stay where they are: growth by those of a pool's own source, and callbacks for each, called before it is
//! first used, and before it is released. Libraries such as NCCL, UCX and NVSHMEM register memory by its address, and must
//! end that before the memory is released. So callbacks are for pools whose segments are never moved.

use std::sync::Arc;

use log::Level;

use super::extents::{claimed, out_of_addresses};
use super::out_of_memory::no_memory_left;
use super::pages::Grown;
use super::take::AllocationRequest;
use crate::error::{Bytes, Error, GPUPOOL, Result};
use crate::memory::cache::{DeviceCaches, Moved, NotAdded, ServingCache, StreamCache};
use crate::memory::device::{DeviceMemory, Patience, Remains, Until, call_out, log_out, overlapping};
use crate::memory::pool::{Pool, SegmentCallback, SegmentGuard, closed, supply};
use crate::memory::tuning::{ALIGNMENT, PAGE};
use crate::observe::Activity;
use crate::observe::delivery::Delivery;
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::sync::CallbackKind;

/// Adds a segment of the pool's own source to the request's cache, and serves the request from it.
///
/// # Errors
/// What the source refuses, or the pool's limit, or the process's.
pub(super) fn grow_by_segment(request: &AllocationRequest) -> Result<Grown> {
    let pool = request.pool();
    let _moving = request.memory.under_way.begin();
    // Whole pages, so that small requests share one.
    let wanted = request.needed().next_multiple_of(PAGE);
    let activity = Activity::begin_of(wanted, format_args!("grow memory pool"));
    let added = make_segment(request, wanted, |start| {
        request.add_and_allocate(start, wanted, Moved::default(), request.bytes)
    })?;
    let Some(offset) = added else { return Ok(Grown::TakenAway) };
    let (id, device, took) = (pool.id, request.memory.location, activity.took());
    let (segment, reserved) = (Bytes(wanted), Bytes(pool.budget().reserved()));
    log_out(
        Level::Debug,
        format_args!("pool {id} on {device}: grew by a segment of {segment} in {took}, {reserved} reserved"),
    );
    Ok(offset.map_or(Grown::TakenAway, Grown::Block))
}

/// Makes a segment for a cache, which gets it by `add`, with its offset. Returns what that returns; none if the cache cannot
/// have it.
fn make_segment<R>(of: &ServingCache, bytes: u64, add: impl FnOnce(u64) -> Result<R, NotAdded>) -> Result<Option<R>> {
    let (pool, memory, source, stream) = (of.pool(), of.memory, of.pool().source(), of.service.stream.as_ref());
    let start = claimed(pool, bytes, || {
        memory.range.count_driver_call();
        let address = supply(pool, || call_out(CallbackKind::Allocator, || source.allocate(bytes, stream)))?;
        add_segment(memory, address, bytes).inspect_err(|_| {
            // Freeing an address where another segment starts would take that from its holder.
            if !memory.segments.starts_at(address) {
                // SAFETY: it was just allocated so, and no cache has it.
                let _ = call_out(CallbackKind::Allocator, || unsafe { source.free(address, bytes, stream) });
            }
        })
    })?;
    pool.add_segment(memory.address(start), bytes);
    let added = add(start);
    if added.is_err() {
        // SAFETY: no cache has got the segment, so no work uses it.
        unsafe { retire_segment(of, start, bytes, Until::at_once()) };
    }
    Ok(added.ok())
}

/// Makes sure that a cache of a pool with segments has so many bytes free, in one piece or in pieces of
/// `most`: makes segments if not.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough; any other refusal of the driver.
pub(in crate::memory) fn warm_by_segments(cache: &StreamCache, bytes: u64, most: u64) -> Result<()> {
    let (largest, free) = cache.lock_by_mutex().free_bytes();
    let Some(of) = cache.serving().filter(|_| largest < bytes.min(most) || free < bytes) else { return Ok(()) };
    let _delivery = Delivery::at_end();
    let _stack = hold_stack(Purpose::Allocation);
    let activity = Activity::begin_of(bytes, format_args!("warm memory pool"));
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(most).next_multiple_of(PAGE);
        let made = if bytes <= cache.memory.total {
            make_segment(&of, piece, |start| of.add(start, piece))
        } else {
            Err(Error::no_memory(GPUPOOL, "The host has not that many bytes: request less"))
        };
        if made.map_err(|error| no_memory_left(of.pool(), bytes, error))?.is_none() {
            return Err(Error::unavailable("the memory that was made ahead could not be kept: its pool has ended"));
        }
        left = left.saturating_sub(piece);
    }
    let (on, took) = (cache.memory.location, activity.took());
    log_out(Level::Debug, format_args!("made {} ahead on {on} in {took}", Bytes(bytes)));
    Ok(())
}

/// Registers memory at a foreign address. Returns its offset.
fn add_segment(memory: &DeviceMemory, address: u64, bytes: u64) -> Result<u64> {
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

/// Registers a callback and calls it for each segment: for the present ones now, and for others as they come and go.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the pool's memory moves, or the pool is closed; `ErrorKind::Forked` in a forked child.
pub(crate) fn on_segment(pool: &Arc<Pool>, callback: SegmentCallback) -> Result<SegmentGuard> {
    process::refuse_forked()?;
    if pool.is_closed() {
        return Err(closed(pool));
    }
    if !pool.has_fixed_segments() {
        let (label, device) = (pool.label(), pool.memory.location);
        return Err(Error::invalid_value(format!(
            "pool {label} on {device} moves its free pages to where they are needed, so it has no segments that could be \
             registered: make the pool with no_split, or with segments or an allocator"
        )));
    }
    Ok(pool.listen(callback, |remains| {
        let until = Until::recorded_later(pool.memory.location.device());
        // SAFETY: the segment was taken out of its cache and off the list, and all work on the device is waited for.
        unsafe { pool.memory.retire(remains, until, &pool.supply) };
        pool.memory.try_end_retired();
    }))
}

/// Gives back memory that was taken out of a cache. If it is segments, the pool's callbacks are called first, once the work
/// that may use them is done: a library cannot release memory in use.
///
/// # Safety
/// As for [`DeviceMemory::retire`].
pub(super) unsafe fn retire(pool: &Pool, mut remains: Remains, mut until: Until) {
    let memory = pool.memory;
    if pool.has_fixed_segments() {
        if pool.segments.has_listeners() {
            // What the driver refuses here it refuses again when the memory is released, where a call asks for it.
            let _ = until.is_done(&memory.events, Patience::Wait);
        }
        remains = match remains {
            Remains::Extents(mut extents) => {
                extents.mapped.retain(|mapping| {
                    let address = memory.address(mapping.start());
                    pool.end_segment(address, Remains::released(vec![*mapping])).is_some()
                });
                Remains::Extents(extents)
            }
            Remains::Segment { address, .. } => match pool.end_segment(address, remains) {
                Some(remains) => remains,
                None => return,
            },
            remains => remains,
        };
    }
    // SAFETY: the caller's promise.
    unsafe { memory.retire(remains, until, &pool.supply) };
}

/// As [`retire`], for a segment of a pool's source that was made for a cache.
///
/// # Safety
/// As for [`DeviceMemory::retire`].
pub(super) unsafe fn retire_segment(of: &ServingCache, offset: u64, bytes: u64, until: Until) {
    let (memory, stream) = (of.memory, of.service.stream.clone());
    let address = memory.address(offset);
    memory.segments.remove(address, offset, bytes);
    // SAFETY: the caller's promise.
    unsafe { retire(of.pool(), Remains::Segment { address, bytes, stream }, until) };
}

//! Callbacks for a pool's segments: called for each before it is first used, and before it is released. Libraries such
//! as NCCL, UCX and NVSHMEM register memory by its address, and must end that before the memory is released. So this
//! works only for pools whose segments are never moved.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use log::Level;

use crate::error::{Error, Result};
use crate::memory::cache::Service;
use crate::memory::device::{Mapping, Remains, Until, call_out, log_out};
use crate::memory::pool::{Leaving, Listener, Pool, SegmentCallback, SegmentEvent, SegmentEventKind, closed};
use crate::process;
use crate::sync::CallbackKind;

/// A callback for a pool's segments, registered until this is dropped.
#[must_use = "the callback is removed when this is dropped"]
#[derive(Debug)]
pub struct SegmentGuard {
    pool: Weak<Pool>,
    /// The pool's, so that this keeps nothing of the callback's.
    listener: Weak<Listener>,
}

impl SegmentGuard {
    /// Keeps the callback registered as long as the pool has memory.
    pub fn keep(self) {
        let mut this = self;
        this.pool = Weak::new();
    }
}

impl Drop for SegmentGuard {
    fn drop(&mut self) {
        // A forked child calls no callback, and the lock may be held for ever there.
        if !process::is_forked()
            && let Some((pool, listener)) = self.pool.upgrade().zip(self.listener.upgrade())
        {
            pool.segments.end(&listener);
        }
    }
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
    let listener = Arc::new(Listener::new(callback));
    for (address, bytes) in pool.segments.listen(&listener) {
        report(pool, &listener, SegmentEventKind::Added, address, bytes);
        if let Some(leaving) = pool.segments.end_reporting(address) {
            let remains = report_end(pool, leaving);
            let until = Until::recorded_later(pool.memory.location.device());
            // SAFETY: the segment was taken out of its cache and off the list, and all work on the device is waited for.
            unsafe { pool.memory.retire(remains, until, &pool.supply) };
            pool.memory.try_end_retired();
        }
    }
    Ok(SegmentGuard { pool: Arc::downgrade(pool), listener: Arc::downgrade(&listener) })
}

/// Calls the pool's callbacks, if any, for a segment that no cache has yet.
pub(super) fn report_added(pool: &Pool, address: u64, bytes: u64) {
    if pool.has_fixed_segments() {
        for listener in pool.segments.add(address, bytes) {
            report(pool, &listener, SegmentEventKind::Added, address, bytes);
        }
    }
}

/// Gives back mappings that were taken out of a cache. If they are segments, the pool's callbacks are called first,
/// once the work that may use them is done.
///
/// # Safety
/// As for [`DeviceMemory::retire`](crate::memory::device::DeviceMemory::retire).
pub(in crate::memory::serve) unsafe fn retire_mappings(pool: &Pool, mut mapped: Vec<Mapping>, mut until: Until) {
    let memory = pool.memory;
    if pool.has_fixed_segments() {
        wait_for_listeners(pool, &mut until);
        mapped.retain(|mapping| {
            let remains = Remains::Released { mapped: vec![*mapping], unmapped: Vec::new() };
            let leaving = pool.segments.take(memory.address(mapping.start()), remains);
            leaving.map(|leaving| report_end(pool, leaving)).is_some()
        });
    }
    let remains = Remains::Released { mapped, unmapped: Vec::new() };
    // SAFETY: the caller's promise.
    unsafe { memory.retire(remains, until, &pool.supply) };
}

/// As [`retire_mappings`], for a segment of a pool's source that was made for this service: its offset and bytes.
///
/// # Safety
/// As for [`DeviceMemory::retire`](crate::memory::device::DeviceMemory::retire).
pub(in crate::memory::serve) unsafe fn retire_segment(
    service: &Service,
    (offset, bytes): (u64, u64),
    mut until: Until,
) {
    let (pool, memory) = (&service.pool, service.pool.memory);
    let address = memory.address(offset);
    memory.segments.remove(address, offset, bytes);
    let mut remains = Remains::Segment { address, bytes, stream: service.stream.clone() };
    if pool.has_fixed_segments() {
        wait_for_listeners(pool, &mut until);
        let Some(leaving) = pool.segments.take(address, remains) else { return };
        remains = report_end(pool, leaving);
    }
    // SAFETY: the caller's promise.
    unsafe { memory.retire(remains, until, &pool.supply) };
}

/// Waits for the work that may use leaving memory if there are callbacks: a library cannot release memory in use.
fn wait_for_listeners(pool: &Pool, until: &mut Until) {
    if pool.segments.has_listeners() {
        // What the driver refuses here it refuses again when the memory is released, where a call asks for it.
        let _ = until.is_done(&pool.memory.events, true);
    }
}

/// Calls the pool's callbacks for a leaving segment, and returns what remains of it.
fn report_end(pool: &Pool, leaving: Leaving) -> Remains {
    for listener in &leaving.listeners {
        report(pool, listener, SegmentEventKind::Removed, leaving.address, leaving.bytes);
    }
    leaving.remains
}

/// Calls a callback. Its panic is logged only: the call that made or gave back memory is another's.
fn report(pool: &Pool, listener: &Listener, kind: SegmentEventKind, address: u64, nbytes: u64) {
    // Pools of users are of devices.
    let Some(device) = pool.memory.location.device() else { return };
    let event = SegmentEvent { kind, address, nbytes, device, pool: pool.id };
    if catch_unwind(AssertUnwindSafe(|| call_out(CallbackKind::Segment, || listener.call(&event)))).is_err() {
        log_out(
            Level::Error,
            format_args!("pool {} on {device}: a callback of on_segment panicked for {event:?}", pool.label()),
        );
    }
}

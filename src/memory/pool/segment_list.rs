//! The fixed segments of a pool, and the callbacks for each that comes and goes. Callbacks run without a lock, so a
//! segment may be leaving while a new callback is being called for its presence. Then it is left here, and that thread
//! gives it back: so no callback learns of a segment's end before its beginning, and no thread waits for another's
//! callback.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};

use log::Level;

use super::Pool;
use super::id::PoolId;
use crate::ids::Device;
use crate::memory::device::{Remains, call_out, log_out};
use crate::process;
use crate::sync::{AtomicBool, CallbackKind, Ordering, lock, take_last};

/// What happened to the segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SegmentEventKind {
    /// It exists, and was not used yet, unless it existed when the callback was registered.
    Added,
    /// It is about to be released, and no work of its streams uses it any more.
    Removed,
}

/// A segment of a pool that is added or released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SegmentEvent {
    /// What happened to the segment.
    pub kind: SegmentEventKind,
    /// Its start address.
    pub address: u64,
    /// Its size in bytes.
    pub nbytes: u64,
    /// Its device.
    pub device: Device,
    /// Its pool.
    pub pool: PoolId,
}

/// A callback for each segment of a pool that comes or goes.
pub(in crate::memory) type SegmentCallback = Box<dyn Fn(&SegmentEvent) + Send + Sync>;

/// A callback, until it is removed.
pub(in crate::memory) struct Listener {
    callback: SegmentCallback,
    is_over: AtomicBool,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl Listener {
    /// Calls the callback, unless it was removed. Its panic is logged only: the call that made or gave back memory is
    /// another's.
    fn report(&self, pool: &Pool, kind: SegmentEventKind, address: u64, nbytes: u64) {
        // Pools of users are of devices.
        let Some(device) = pool.memory.location.device().filter(|_| !self.is_over.load(Ordering::Acquire)) else {
            return;
        };
        let event = SegmentEvent { kind, address, nbytes, device, pool: pool.id };
        if catch_unwind(AssertUnwindSafe(|| call_out(CallbackKind::Segment, || (self.callback)(&event)))).is_err() {
            let label = pool.label();
            log_out(
                Level::Error,
                format_args!("pool {label} on {device}: a callback of on_segment panicked for {event:?}"),
            );
        }
    }
}

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
            listener.is_over.store(true, Ordering::Release);
            // Only calls under way on other threads go on. Dropped outside the lock: it may hold anything.
            let removed = take_last(&mut lock(&pool.segments.0).listeners, |other| Arc::ptr_eq(other, &listener));
            drop(removed);
        }
    }
}

#[derive(Debug)]
struct Listed {
    bytes: u64,
    /// How many new callbacks are yet to be called for it.
    to_report: u32,
    /// What is to be given back after that.
    left: Option<Remains>,
}

#[derive(Debug, Default)]
struct ListedSegments {
    /// By address.
    segments: BTreeMap<u64, Listed>,
    listeners: Vec<Arc<Listener>>,
}

/// The segments of one pool, and its callbacks.
#[derive(Debug, Default)]
pub(in crate::memory) struct SegmentList(Mutex<ListedSegments>);

impl SegmentList {
    pub(in crate::memory) fn has_listeners(&self) -> bool {
        !lock(&self.0).listeners.is_empty()
    }
}

impl Pool {
    /// Adds a segment that no cache has yet, if the pool has such, and calls the callbacks for it.
    pub(in crate::memory) fn add_segment(&self, address: u64, bytes: u64) {
        if !self.has_fixed_segments() {
            return;
        }
        let listeners = {
            let mut state = lock(&self.segments.0);
            state.segments.insert(address, Listed { bytes, to_report: 0, left: None });
            state.listeners.clone()
        };
        listeners.iter().for_each(|listener| listener.report(self, SegmentEventKind::Added, address, bytes));
    }

    /// Removes a segment that no cache has any more, calls the callbacks for its end, and returns what remains of it. None if new
    /// callbacks are still to be called for its presence: then those threads give it back.
    pub(in crate::memory) fn end_segment(&self, address: u64, remains: Remains) -> Option<Remains> {
        let (bytes, listeners) = {
            let mut state = lock(&self.segments.0);
            if let Some(listed) = state.segments.get_mut(&address).filter(|listed| listed.to_report > 0) {
                listed.left = Some(remains);
                return None;
            }
            (state.segments.remove(&address).map_or(0, |listed| listed.bytes), state.listeners.clone())
        };
        listeners.iter().for_each(|listener| listener.report(self, SegmentEventKind::Removed, address, bytes));
        Some(remains)
    }

    /// Adds a callback, and calls it for each segment. Gives back those that were to go meanwhile by `give_back`.
    pub(in crate::memory) fn listen(
        self: &Arc<Self>,
        callback: SegmentCallback,
        give_back: impl Fn(Remains),
    ) -> SegmentGuard {
        let listener = Arc::new(Listener { callback, is_over: AtomicBool::new(false) });
        let to_report: Vec<_> = {
            let mut state = lock(&self.segments.0);
            state.listeners.push(Arc::clone(&listener));
            let to_report = |(&address, listed): (&u64, &mut Listed)| {
                listed.to_report += 1;
                (address, listed.bytes)
            };
            state.segments.iter_mut().map(to_report).collect()
        };
        for (address, bytes) in to_report {
            listener.report(self, SegmentEventKind::Added, address, bytes);
            let left = lock(&self.segments.0).segments.get_mut(&address).and_then(|listed| {
                listed.to_report -= 1;
                listed.left.take_if(|_| listed.to_report == 0)
            });
            left.and_then(|remains| self.end_segment(address, remains)).into_iter().for_each(&give_back);
        }
        SegmentGuard { pool: Arc::downgrade(self), listener: Arc::downgrade(&listener) }
    }
}

//! The fixed segments of a pool, and the callbacks for each that comes and goes. Callbacks run without a lock, so a
//! segment may be leaving while a new callback is being called for its presence. Then it is left here, and that thread
//! gives it back: so no callback learns of a segment's end before its beginning, and no thread waits for another's
//! callback.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use super::id::PoolId;
use crate::ids::Device;
use crate::memory::device::Remains;
use crate::sync::{AtomicBool, Ordering, lock, take_last};

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
    pub(in crate::memory) fn new(callback: SegmentCallback) -> Self {
        Self { callback, is_over: AtomicBool::new(false) }
    }

    /// Calls the callback, unless it was removed.
    pub(in crate::memory) fn call(&self, event: &SegmentEvent) {
        if !self.is_over.load(Ordering::Acquire) {
            (self.callback)(event);
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

/// A segment that has left the list, and the callbacks for its end.
#[derive(Debug)]
pub(in crate::memory) struct Leaving {
    pub(in crate::memory) address: u64,
    pub(in crate::memory) bytes: u64,
    pub(in crate::memory) remains: Remains,
    pub(in crate::memory) listeners: Vec<Arc<Listener>>,
}

impl ListedSegments {
    fn leave(&mut self, address: u64, remains: Remains) -> Leaving {
        let bytes = self.segments.remove(&address).map_or(0, |listed| listed.bytes);
        Leaving { address, bytes, remains, listeners: self.listeners.clone() }
    }
}

/// The segments of one pool, and its callbacks.
#[derive(Debug, Default)]
pub(in crate::memory) struct SegmentList(Mutex<ListedSegments>);

impl SegmentList {
    /// Adds a segment that no cache has yet, and returns the callbacks for it.
    pub(in crate::memory) fn add(&self, address: u64, bytes: u64) -> Vec<Arc<Listener>> {
        let mut state = lock(&self.0);
        state.segments.insert(address, Listed { bytes, to_report: 0, left: None });
        state.listeners.clone()
    }

    /// Removes a segment that no cache has any more. None if new callbacks are still to be called for its presence:
    /// then those threads give back what remains of it.
    pub(in crate::memory) fn take(&self, address: u64, remains: Remains) -> Option<Leaving> {
        let mut state = lock(&self.0);
        if let Some(listed) = state.segments.get_mut(&address).filter(|listed| listed.to_report > 0) {
            listed.left = Some(remains);
            return None;
        }
        Some(state.leave(address, remains))
    }

    pub(in crate::memory) fn has_listeners(&self) -> bool {
        !lock(&self.0).listeners.is_empty()
    }

    /// Adds a callback, and returns the address and bytes of each segment that it is to be called for, each followed by
    /// [`SegmentList::end_reporting`].
    pub(in crate::memory) fn listen(&self, listener: &Arc<Listener>) -> Vec<(u64, u64)> {
        let mut state = lock(&self.0);
        state.listeners.push(Arc::clone(listener));
        let to_report = |(&address, listed): (&u64, &mut Listed)| {
            listed.to_report += 1;
            (address, listed.bytes)
        };
        state.segments.iter_mut().map(to_report).collect()
    }

    /// Notes that a new callback was called for a segment. Returns the segment if it is to go by now.
    pub(in crate::memory) fn end_reporting(&self, address: u64) -> Option<Leaving> {
        let mut state = lock(&self.0);
        let listed = state.segments.get_mut(&address)?;
        listed.to_report -= 1;
        let remains = listed.left.take_if(|_| listed.to_report == 0)?;
        Some(state.leave(address, remains))
    }

    /// Removes a callback. Only calls under way on other threads go on.
    pub(in crate::memory) fn end(&self, listener: &Arc<Listener>) {
        listener.is_over.store(true, Ordering::Release);
        // Dropped outside the lock: it may hold anything.
        let removed = take_last(&mut lock(&self.0).listeners, |other| Arc::ptr_eq(other, listener));
        drop(removed);
    }
}

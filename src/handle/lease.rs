//! A lease: a handle for a scope rather than for a thread's life.

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::record::Record;
use super::shared::Shared;
use super::trace::{self, HandleAction};
use crate::ids::Device;
use crate::process;

/// A handle that its holder alone uses until the lease is dropped, with its stream set.
///
/// Unlike a [`Handle`](super::Handle) it can be sent to another thread, and many threads that seldom work at once need only
/// as many handles as work at once. Use it from one thread at a time, as the libraries ask.
#[must_use = "the handle goes back to the pool when this is dropped"]
pub struct Lease {
    pool: &'static Shared,
    device: Device,
    /// None only while it is dropped.
    record: Option<Arc<Record>>,
}

impl Lease {
    pub(super) const fn new(pool: &'static Shared, device: Device, record: Arc<Record>) -> Self {
        Self { pool, device, record: Some(record) }
    }

    /// The handle as the library's C API takes it.
    #[inline]
    pub fn as_ptr(&self) -> *mut c_void {
        self.record.as_ref().map_or(std::ptr::null_mut(), |record| record.handle.as_ptr())
    }

    /// The device.
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Ends the lease of a handle that was changed in a way that the pool cannot set back: nobody gets it again, and
    /// [`HandlePool::trim`](super::HandlePool::trim) destroys it.
    pub fn discard(mut self) {
        if let Some(record) = self.record.take() {
            self.pool.retire(self.device, record);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("handle", &self.as_ptr()).field("device", &self.device).finish_non_exhaustive()
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        let state = process::state();
        if let Some(record) = self.record.take()
            && !state.is_forked()
        {
            if state.is_recorded() {
                trace::note(self.pool, self.device, HandleAction::GiveBack, &record);
            }
            self.pool.end_lease(self.device, record);
        }
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(1);

thread_local! {
    static NEAR: Cell<usize> = const { Cell::new(0) };
}

/// The slot of the exchange that this thread looks into first.
#[inline]
pub(super) fn near() -> usize {
    match NEAR.get() {
        0 => {
            let near = THREADS.fetch_add(1, Ordering::Relaxed);
            NEAR.set(near);
            near
        }
        known => known,
    }
}

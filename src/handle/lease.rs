//! A lease: a handle for a scope rather than for a thread's life.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use super::events::HandleAction;
use super::pooled_handle::PooledHandle;
use super::window;
use crate::ids::Device;
use crate::process;

/// A handle that only its holder uses until the lease is dropped, with its stream set.
///
/// Unlike a [`Handle`](super::Handle) it can be sent to another thread, and if few of many threads work at the same
/// time, only that many handles are needed. Use it from one thread at a time, as the libraries require.
#[must_use = "the handle goes back to the pool when this is dropped"]
pub struct Lease {
    device: Device,
    /// None only while it is dropped.
    pooled: Option<Arc<PooledHandle>>,
}

impl Lease {
    /// Makes a lease of a handle that is held so.
    #[inline]
    pub(crate) fn of(pooled: Arc<PooledHandle>) -> Self {
        Self { device: pooled.home.device, pooled: Some(pooled) }
    }

    /// Returns the handle as the library's C API takes it.
    #[inline]
    pub fn as_ptr(&self) -> *mut c_void {
        self.pooled.as_ref().map_or(std::ptr::null_mut(), |pooled| pooled.handle.as_ptr())
    }

    /// Returns the device.
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Returns the handle, which the caller keeps until [`Lease::of`] makes a lease of it again.
    #[inline]
    pub(crate) fn into_pooled(mut self) -> Option<Arc<PooledHandle>> {
        self.pooled.take()
    }

    /// Ends the lease of a handle that was changed in a way that the pool cannot reset: no request gets it again, and
    /// [`HandlePool::trim`](super::HandlePool::trim) destroys it.
    pub fn discard(mut self) {
        if let Some(pooled) = self.pooled.take()
            && !process::is_forked()
        {
            let home = pooled.home;
            home.discard(pooled);
            home.queue.leave_room();
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
        if let Some(pooled) = self.pooled.take()
            && !state.is_forked()
        {
            let home = pooled.home;
            if state.is_recorded() {
                home.note(HandleAction::GiveBack, &pooled.handle);
            }
            window::note_given_back(&pooled);
            pooled.state.release_active();
            home.queue.note_idle();
        }
    }
}

//! A lease: a handle for a scope rather than for a thread's life.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use super::device_pool::{Holder, PooledHandle};
use super::events::{self, HandleAction};
use super::pool::LibraryPool;
use super::request::Claim;
use crate::error::Result;
use crate::ids::Device;
use crate::process;
use crate::runtime::Stream;

/// A handle that only its holder uses until the lease is dropped, with its stream set.
///
/// Unlike a [`Handle`](super::Handle) it can be sent to another thread, and if few of many threads work at the same time, only
/// that many handles are needed. Use it from one thread at a time, as the libraries require.
#[must_use = "the handle goes back to the pool when this is dropped"]
pub struct Lease {
    pool: &'static LibraryPool,
    device: Device,
    /// None only while it is dropped.
    pooled: Option<Arc<PooledHandle>>,
}

impl Lease {
    pub(super) const fn new(pool: &'static LibraryPool, device: Device, pooled: Arc<PooledHandle>) -> Self {
        Self { pool, device, pooled: Some(pooled) }
    }

    /// Returns the handle that this thread gave back last, for a lease, if it last ran on this stream and no request
    /// waits. Not inlined and not a lease yet, so that it is returned in a register and the lease is made in the
    /// caller's place.
    #[inline(never)]
    pub(super) fn take_own(pool: &'static LibraryPool, stream: &Stream) -> Option<Result<Arc<PooledHandle>>> {
        let state = process::state();
        if state.is_forked() || pool.is_closed() {
            return None;
        }
        let device = stream.device();
        let on_device = pool.devices().get(device.ordinal())?;
        let pooled = on_device.take_own(stream)?;
        let ready = match pool.make_ready(on_device, pooled, stream) {
            Ok(Some(pooled)) => pooled,
            Ok(None) => {
                on_device.leave_room();
                return None;
            }
            Err(error) => return Some(Err(error)),
        };
        ready.hold(Holder::lease());
        ready.count_hit();
        on_device.begin_use(&ready);
        if state.is_recorded() {
            events::note(pool.library, device, HandleAction::Take, &ready.handle);
        }
        Some(Ok(ready))
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

    /// Returns the handle, which the caller keeps until [`HandlePool::lease_of`](super::HandlePool::lease_of) makes a lease of it
    /// again.
    #[inline]
    pub(crate) fn into_pooled(mut self) -> Option<Arc<PooledHandle>> {
        self.pooled.take()
    }

    /// Ends the lease of a handle that was changed in a way that the pool cannot reset: no request gets it again, and
    /// [`HandlePool::trim`](super::HandlePool::trim) destroys it.
    pub fn discard(mut self) {
        if let Some(pooled) = self.pooled.take() {
            self.pool.retire(self.device, pooled);
        }
    }
}

impl Claim for Lease {
    fn claim(pool: &'static LibraryPool, stream: &Stream, pooled: Arc<PooledHandle>) -> Result<Self> {
        pooled.hold(Holder::lease());
        events::note(pool.library, stream.device(), HandleAction::Take, &pooled.handle);
        Ok(Self::new(pool, stream.device(), pooled))
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
            if state.is_recorded() {
                events::note(self.pool.library, self.device, HandleAction::GiveBack, &pooled.handle);
            }
            self.pool.end_lease(self.device, pooled);
        }
    }
}

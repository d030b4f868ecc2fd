//! A use of a pool: one of the holders that its use count tells, and that keep its memory.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::cache::thread as local;
use crate::memory::pool::state::Pool;
use crate::memory::serve::trim as release;
use crate::process;

/// Counts among the pool's uses until it is dropped. With the last the pool's memory goes.
#[derive(Debug)]
pub(in crate::memory) struct PoolUse {
    pool: Arc<Pool>,
    /// Whether it is for a captured graph, which may use the memory at any time.
    is_captured: bool,
    /// Whether the count was taken back, or is somebody else's to take back.
    is_over: bool,
}

impl PoolUse {
    /// The use that a new pool begins with, or any other that the pool has counted.
    pub(in crate::memory) fn first(pool: Arc<Pool>, is_captured: bool) -> Self {
        if is_captured {
            pool.begin_capture();
        }
        Self { pool, is_captured, is_over: false }
    }

    /// One more use.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool is gone; `ErrorKind::Forked` in a forked child.
    pub(in crate::memory) fn new(pool: &Arc<Pool>, is_captured: bool) -> Result<Self> {
        process::refuse_forked()?;
        if !pool.acquire() {
            return Err(Error::invalid_value(format!(
                "pool {} was dropped; keep the MemPool as long as it is used",
                pool.id
            )));
        }
        Ok(Self::first(Arc::clone(pool), is_captured))
    }

    /// One more, beside this.
    ///
    /// # Errors
    /// As [`PoolUse::new`].
    pub(in crate::memory) fn again(&self) -> Result<Self> {
        Self::new(&self.pool, self.is_captured)
    }

    pub(in crate::memory) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Leaves the use to whoever ends it by the pool's id.
    pub(in crate::memory) fn into_id(mut self) {
        self.pool.begin_by_id();
        self.is_over = true;
    }

    /// A use that was left by [`PoolUse::into_id`]; none if there is none left.
    pub(in crate::memory) fn from_id(pool: Arc<Pool>, is_captured: bool) -> Option<Self> {
        pool.end_by_id().then(|| Self { pool, is_captured, is_over: false })
    }

    /// Ends the use without a driver call, as a thread does that ends: what the pool holds goes when memory is next given
    /// back.
    pub(in crate::memory) fn abandon(mut self) {
        self.is_over = true;
        if !process::is_forked() && self.release() {
            release::mark_closed(&self.pool);
        }
    }

    /// True if this was the last.
    fn release(&self) -> bool {
        if self.is_captured {
            self.pool.end_capture();
        }
        self.pool.release()
    }
}

impl Drop for PoolUse {
    fn drop(&mut self) {
        if !self.is_over && !process::is_forked() && self.release() {
            // What the driver refuses to take back now is tried again whenever memory is given back.
            let _ = release::close(&self.pool, local::thread());
        }
    }
}

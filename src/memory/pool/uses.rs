//! A use of a pool: its owner, a scope, a capture, or a library. The pool's memory is kept for as long as there is one.

use std::sync::Arc;

use super::state::{Ending, Pool};
use crate::error::{Error, Result};
use crate::process;
use crate::sync::Ordering;

/// One of a pool's uses, until it is dropped. With the last the pool ends.
#[derive(Debug)]
pub(in crate::memory) struct PoolUse {
    pool: Arc<Pool>,
    /// Whether it is for a captured graph, which may use the memory at any time.
    is_captured: bool,
    /// Whether the use has ended, or is left to be ended by the pool's id.
    is_over: bool,
}

impl PoolUse {
    /// Returns the use that a new pool begins with.
    pub(in crate::memory) fn first(pool: Arc<Pool>, is_captured: bool) -> Self {
        if is_captured {
            pool.captures.fetch_add(1, Ordering::AcqRel);
        }
        Self { pool, is_captured, is_over: false }
    }

    /// Makes one more use.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool is gone or closed; `ErrorKind::Forked` in a forked child.
    pub(in crate::memory) fn new(pool: &Arc<Pool>, is_captured: bool) -> Result<Self> {
        process::refuse_forked()?;
        if pool.is_closed() && pool.use_count() > 0 {
            return Err(closed(pool));
        }
        if !pool.acquire() {
            return Err(gone(pool));
        }
        Ok(Self::first(Arc::clone(pool), is_captured))
    }

    /// Makes one more use of the same pool.
    ///
    /// # Errors
    /// As [`PoolUse::new`].
    pub(in crate::memory) fn again(&self) -> Result<Self> {
        Self::new(&self.pool, self.is_captured)
    }

    pub(in crate::memory) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Leaves the use to be ended by the pool's id.
    pub(in crate::memory) fn into_id(mut self) {
        self.pool.uses_by_id.fetch_add(1, Ordering::AcqRel);
        self.is_over = true;
    }

    /// Takes up a use that was left by [`PoolUse::into_id`]; none if none is left.
    pub(in crate::memory) fn from_id(pool: Arc<Pool>, is_captured: bool) -> Option<Self> {
        let take = |uses: u32| uses.checked_sub(1);
        pool.uses_by_id.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        Some(Self { pool, is_captured, is_over: false })
    }

    /// Ends the use without a driver call, as a thread does that ends.
    pub(super) fn abandon(mut self) {
        self.end(Ending::Later);
    }

    fn end(&mut self, ending: Ending) {
        if std::mem::replace(&mut self.is_over, true) || process::is_forked() {
            return;
        }
        if self.is_captured {
            self.pool.captures.fetch_sub(1, Ordering::AcqRel);
        }
        self.pool.release(ending);
    }
}

impl Drop for PoolUse {
    fn drop(&mut self) {
        self.end(Ending::Now);
    }
}

/// Returns the error of a request to a pool that serves none any more.
#[cold]
pub(in crate::memory) fn closed(pool: &Pool) -> Error {
    let (id, device) = (pool.label(), pool.memory.location);
    Error::invalid_value(if pool.use_count() > 0 {
        format!("pool {id} on {device} is closed and serves no more requests; leave its scopes, or make another pool")
    } else {
        format!(
            "pool {id} on {device} was released, and this thread still allocates to it; end that first, by \
             end_allocate_to_pool"
        )
    })
}

/// Returns the error of a call for a pool whose last use has ended.
fn gone(pool: &Pool) -> Error {
    Error::invalid_value(format!("pool {} was dropped; keep the MemPool as long as it is used", pool.label()))
}

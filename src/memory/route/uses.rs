//! Uses of a pool: its owner, scopes, captures, libraries. The pool's memory is kept while there is one.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::pool::{Pool, closed};
use crate::memory::serve::{Ending, end_pool};
use crate::process;
use crate::sync::{AtomicBool, Ordering};

/// One of a pool's uses, until it is dropped. The pool ends with the last.
#[derive(Debug)]
pub(crate) struct PoolUse {
    pool: Arc<Pool>,
    /// Whether it is for a captured graph, which may use the memory at any time.
    is_captured: bool,
    /// Whether the use has ended, or is left to end by the pool's id.
    is_over: AtomicBool,
}

impl PoolUse {
    pub(crate) fn first(pool: Arc<Pool>, is_captured: bool) -> Self {
        if is_captured {
            pool.captures.fetch_add(1, Ordering::AcqRel);
        }
        Self { pool, is_captured, is_over: AtomicBool::new(false) }
    }

    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool is gone or closed; `ErrorKind::Forked` in a forked child.
    pub(crate) fn new(pool: &Arc<Pool>, is_captured: bool) -> Result<Self> {
        process::refuse_forked()?;
        if pool.is_closed() && pool.use_count() > 0 {
            return Err(closed(pool));
        }
        if !pool.acquire() {
            return Err(gone(pool));
        }
        Ok(Self::first(Arc::clone(pool), is_captured))
    }

    pub(crate) fn again(&self) -> Result<Self> {
        Self::new(&self.pool, self.is_captured)
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Leaves the use to be ended by the pool's id.
    pub(in crate::memory) fn into_id(self) {
        self.pool.uses_by_id.fetch_add(1, Ordering::AcqRel);
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Takes up a use left by [`PoolUse::into_id`]; none if none is left.
    pub(in crate::memory) fn from_id(pool: Arc<Pool>, is_captured: bool) -> Option<Self> {
        let take = |uses: u32| uses.checked_sub(1);
        pool.uses_by_id.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        Some(Self { pool, is_captured, is_over: AtomicBool::new(false) })
    }

    /// Ends the use without a driver call, for an ending thread.
    pub(super) fn abandon(self) {
        self.end(Ending::Later);
    }

    /// Ends the use now, as dropping it does.
    #[cfg(feature = "python")]
    pub(in crate::memory) fn end_now(&self) {
        self.end(Ending::Now);
    }

    #[cfg(feature = "python")]
    pub(in crate::memory) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn end(&self, ending: Ending) {
        if self.is_over.swap(true, Ordering::AcqRel) || process::is_forked() {
            return;
        }
        if self.is_captured {
            self.pool.captures.fetch_sub(1, Ordering::AcqRel);
        }
        if self.pool.release() {
            end_pool(&self.pool, ending);
        }
    }
}

impl Drop for PoolUse {
    fn drop(&mut self) {
        self.end(Ending::Now);
    }
}

fn gone(pool: &Pool) -> Error {
    Error::invalid_value(format!("pool {} was dropped; keep the MemPool as long as it is used", pool.label()))
}

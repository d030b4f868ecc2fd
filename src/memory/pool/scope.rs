//! Scopes: what routes a thread's allocations into a pool.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::Result;
use crate::ids::Device;
use crate::memory::cache::thread as local;
use crate::memory::pool::id::PoolId;
use crate::memory::pool::state::Pool;
use crate::memory::pool::uses::PoolUse;
#[cfg(feature = "python")]
use crate::runtime::Stream;

/// A pool that the calling thread's allocations go to until this is dropped.
#[must_use = "allocations go to the pool only while this lives"]
#[derive(Debug)]
pub struct PoolScope {
    _entered: Entered,
    this_thread: PhantomData<*mut ()>,
}

impl PoolScope {
    pub(in crate::memory) fn new(pool: &Arc<Pool>) -> Result<Self> {
        Ok(Self { _entered: enter(pool)?, this_thread: PhantomData })
    }
}

/// A scope that was entered, for a caller that promises to drop it on the same thread.
#[derive(Debug)]
pub(crate) struct Entered {
    ticket: u64,
}

pub(in crate::memory) fn enter(pool: &Arc<Pool>) -> Result<Entered> {
    enter_use(PoolUse::new(pool, false)?)
}

/// [`enter`] with a use that the caller has.
pub(in crate::memory) fn enter_use(in_use: PoolUse) -> Result<Entered> {
    Ok(Entered { ticket: local::enter(in_use)? })
}

impl Drop for Entered {
    fn drop(&mut self) {
        // On another thread it stays until the thread that entered it ends.
        drop(local::leave(self.ticket));
    }
}

/// Lets a thread enter a pool that another thread works in. Can be sent and cloned; it does not keep the pool alive.
#[derive(Clone, Debug)]
pub struct PoolToken {
    pool: Arc<Pool>,
}

impl PoolToken {
    pub(in crate::memory) fn new(pool: &Arc<Pool>) -> Self {
        Self { pool: Arc::clone(pool) }
    }

    /// A use of the pool, which keeps it.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped.
    pub(in crate::memory) fn hold(&self) -> Result<PoolUse> {
        PoolUse::new(&self.pool, false)
    }

    pub(in crate::memory) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The pool's id.
    pub fn id(&self) -> PoolId {
        self.pool.id
    }

    /// The pool's device.
    pub fn device(&self) -> Device {
        self.pool.device.device
    }

    /// As [`MemPool::enter`](crate::memory::MemPool::enter), on the calling thread.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped.
    pub fn enter(&self) -> Result<PoolScope> {
        PoolScope::new(&self.pool)
    }

    /// [`MemPool::capture`](crate::memory::MemPool::capture) without a guard.
    #[cfg(feature = "python")]
    pub(crate) fn enter_capture(&self, stream: &Stream) -> Result<crate::memory::pool::capture::Entered> {
        crate::memory::pool::capture::enter(&self.pool, stream)
    }

    /// [`PoolToken::enter`] without a guard.
    #[cfg(feature = "python")]
    pub(crate) fn enter_scope(&self) -> Result<Entered> {
        enter(&self.pool)
    }
}

//! Scopes: what routes a thread's allocations into a pool.

use std::marker::PhantomData;
use std::sync::Arc;

use super::id::PoolId;
use super::route;
use super::state::Pool;
use super::uses::PoolUse;
use crate::error::Result;
use crate::ids::Device;

/// A scope that routes the calling thread's allocations to a pool, until it is dropped.
#[must_use = "allocations go to the pool only while this lives"]
#[derive(Debug)]
pub struct PoolScope {
    _entered: EnteredScope,
    this_thread: PhantomData<*mut ()>,
}

impl PoolScope {
    pub(in crate::memory) fn new(pool: &Arc<Pool>) -> Result<Self> {
        Self::of_use(PoolUse::new(pool, false)?)
    }

    /// Makes a scope that is also that of every thread without one of its own.
    pub(in crate::memory) fn of_all_threads(pool: &Arc<Pool>) -> Result<Self> {
        let entered = EnteredScope::new(PoolUse::new(pool, false)?, true)?;
        Ok(Self { _entered: entered, this_thread: PhantomData })
    }

    /// Makes a scope with a use that the caller has.
    pub(in crate::memory) fn of_use(in_use: PoolUse) -> Result<Self> {
        Ok(Self { _entered: EnteredScope::new(in_use, false)?, this_thread: PhantomData })
    }
}

/// A scope that was entered, for a caller that promises to drop it on the same thread. Dropped on another one, it stays
/// until the thread that entered it ends.
#[derive(Debug)]
pub(crate) struct EnteredScope {
    ticket: u64,
}

impl EnteredScope {
    fn new(in_use: PoolUse, all_threads: bool) -> Result<Self> {
        Ok(Self { ticket: route::enter(in_use, all_threads)? })
    }

    /// Stays until the thread ends.
    #[cfg(feature = "python")]
    pub(crate) fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for EnteredScope {
    fn drop(&mut self) {
        drop(route::leave(self.ticket));
    }
}

/// Lets a thread enter a pool that another thread uses. It can be sent and cloned; it does not keep the pool alive.
#[derive(Clone, Debug)]
pub struct PoolToken {
    pool: Arc<Pool>,
}

impl PoolToken {
    pub(in crate::memory) fn new(pool: &Arc<Pool>) -> Self {
        Self { pool: Arc::clone(pool) }
    }

    /// Returns a use of the pool, which keeps it.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped.
    pub(in crate::memory) fn hold(&self) -> Result<PoolUse> {
        PoolUse::new(&self.pool, false)
    }

    pub(in crate::memory) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns the pool's id.
    pub fn id(&self) -> PoolId {
        self.pool.id
    }

    /// Returns the pool's device.
    pub fn device(&self) -> Device {
        self.pool.memory.device
    }

    /// As [`MemPool::enter`](crate::MemPool::enter), on the calling thread.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped.
    pub fn enter(&self) -> Result<PoolScope> {
        PoolScope::new(&self.pool)
    }

    /// As [`MemPool::enter_all_threads`](crate::MemPool::enter_all_threads).
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped or closed.
    pub fn enter_all_threads(&self) -> Result<PoolScope> {
        PoolScope::of_all_threads(&self.pool)
    }

    /// [`PoolToken::enter`], or for all threads, for a caller that cannot keep a guard on its thread.
    #[cfg(feature = "python")]
    pub(crate) fn enter_scope(&self, all_threads: bool) -> Result<EnteredScope> {
        EnteredScope::new(self.hold()?, all_threads)
    }
}

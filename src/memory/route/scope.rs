//! Scopes, which route a thread's allocations into a pool.

use std::marker::PhantomData;
use std::sync::Arc;

use super::routes::EnteredRoute;
use crate::error::Result;
use crate::ids::Device;
use crate::memory::pool::{Pool, PoolId, UseOf};
use crate::memory::serve::PoolUse;
#[cfg(feature = "python")]
use crate::memory::serve::wake_if_taken;

/// A scope that routes the calling thread's allocations to a pool, until it is dropped.
#[must_use = "allocations go to the pool only while this lives"]
#[derive(Debug)]
pub struct PoolScope {
    _entered: EnteredRoute,
    this_thread: PhantomData<*mut ()>,
}

impl PoolScope {
    /// Makes a scope with a use of the pool; with `all_threads` also for every thread without one of its own.
    pub(in crate::memory) fn new(in_use: PoolUse, all_threads: bool) -> Result<Self> {
        let entered = EnteredRoute::scope(in_use, all_threads)?;
        Ok(Self { _entered: entered, this_thread: PhantomData })
    }
}

/// Lets a thread enter a pool that another thread uses. It can be sent and cloned; it does not keep the pool alive.
#[derive(Clone, Debug)]
pub struct PoolToken {
    pool: Arc<Pool>,
    device: Device,
}

impl PoolToken {
    pub(in crate::memory) fn new(pool: &Arc<Pool>, device: Device) -> Self {
        Self { pool: Arc::clone(pool), device }
    }

    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped.
    pub(in crate::memory) fn hold(&self) -> Result<PoolUse> {
        PoolUse::new(&self.pool, UseOf::Requests)
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
        self.device
    }

    /// As [`MemPool::enter`](crate::MemPool::enter), on the calling thread.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped.
    pub fn enter(&self) -> Result<PoolScope> {
        PoolScope::new(self.hold()?, false)
    }

    /// As [`MemPool::enter_all_threads`](crate::MemPool::enter_all_threads).
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped or closed.
    pub fn enter_all_threads(&self) -> Result<PoolScope> {
        PoolScope::new(self.hold()?, true)
    }

    /// Returns whether entering the pool would wake it first, or wait for that: see [`PoolToken::wake_for_use`].
    #[cfg(feature = "python")]
    pub(crate) fn is_taken(&self) -> bool {
        self.pool.sleep.offer.is_taken()
    }

    /// Wakes a pool that sleeps for another process, if it wakes on use.
    ///
    /// # Errors
    /// Those of waking it.
    #[cfg(feature = "python")]
    pub(crate) fn wake_for_use(&self) -> Result<()> {
        wake_if_taken(&self.pool)
    }

    /// As [`PoolToken::enter`], or for all threads, for a caller that cannot keep a guard on its thread.
    #[cfg(feature = "python")]
    pub(crate) fn enter_scope(&self, all_threads: bool) -> Result<EnteredRoute> {
        EnteredRoute::scope(self.hold()?, all_threads)
    }
}

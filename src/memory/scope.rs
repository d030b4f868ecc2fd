//! Scopes: what routes a thread's allocations into a pool.

use std::marker::PhantomData;
use std::sync::Arc;

use super::id::PoolId;
use super::pool::Pool;
use super::{local, mem_pool};
use crate::error::{Error, Result};
#[cfg(feature = "python")]
use crate::runtime::Stream;
use crate::stream::Device;

/// A pool that the calling thread's allocations go to until this is dropped.
#[must_use = "allocations go to the pool only while this lives"]
#[derive(Debug)]
pub struct PoolScope {
    entered: Entered,
    this_thread: PhantomData<*mut ()>,
}

impl PoolScope {
    pub(super) fn new(pool: &Arc<Pool>) -> Result<Self> {
        Ok(Self { entered: enter(pool)?, this_thread: PhantomData })
    }
}

impl Drop for PoolScope {
    fn drop(&mut self) {
        // This type stays on its thread, so the route is there. What the driver refuses to take back is tried again later.
        let _ = leave(&self.entered);
    }
}

/// A scope that was entered, for a caller that promises to leave it on the same thread.
#[derive(Debug)]
pub(crate) struct Entered {
    pool: Arc<Pool>,
    ticket: u64,
}

fn gone(id: PoolId) -> Error {
    Error::invalid_value(format!("pool {id} was dropped; keep the MemPool as long as it is used"))
}

pub(super) fn enter(pool: &Arc<Pool>) -> Result<Entered> {
    if !pool.acquire() {
        return Err(gone(pool.id));
    }
    match local::enter(Arc::clone(pool), false) {
        Ok(ticket) => Ok(Entered { pool: Arc::clone(pool), ticket }),
        Err(error) => {
            let _ = mem_pool::let_go(pool);
            Err(error)
        }
    }
}

/// Leaves a scope.
///
/// # Errors
/// `ErrorKind::InvalidValue` on another thread than the one that entered: the scope stays as it is.
pub(crate) fn leave(entered: &Entered) -> Result<()> {
    if !local::leave(entered.ticket) {
        return Err(Error::invalid_value(format!(
            "the scope of pool {} was entered on another thread, or left before; leave it once, on the thread that entered it",
            entered.pool.id
        )));
    }
    mem_pool::let_go(&entered.pool)
}

/// Lets a thread enter a pool that another thread works in. Can be sent and cloned; it does not keep the pool alive.
#[derive(Clone, Debug)]
pub struct PoolToken {
    pool: Arc<Pool>,
}

impl PoolToken {
    pub(super) fn new(pool: &Arc<Pool>) -> Self {
        Self { pool: Arc::clone(pool) }
    }

    /// The pool's id.
    pub fn id(&self) -> PoolId {
        self.pool.id
    }

    /// The pool's device.
    pub fn device(&self) -> Device {
        self.pool.device.device
    }

    /// As [`MemPool::enter`](super::MemPool::enter), on the calling thread.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped.
    pub fn enter(&self) -> Result<PoolScope> {
        PoolScope::new(&self.pool)
    }

    /// [`MemPool::capture`](super::MemPool::capture) without a guard.
    #[cfg(feature = "python")]
    pub(crate) fn enter_capture(&self, stream: &Stream) -> Result<super::capture::Entered> {
        super::capture::enter(&self.pool, stream)
    }

    /// [`PoolToken::enter`] without a guard.
    #[cfg(feature = "python")]
    pub(crate) fn enter_scope(&self) -> Result<Entered> {
        enter(&self.pool)
    }
}

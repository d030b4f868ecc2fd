//! Scopes and captures, which route a thread's allocations into a pool, and stays in pools that were offered.

use std::marker::PhantomData;
use std::sync::Arc;

use super::choice::RouteKind;
#[cfg(feature = "python")]
use super::routes::Route;
use super::routes::{EnteredRoute, Followers};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::pool::{Pool, PoolId, UseOf};
use crate::memory::serve::{PoolUse, wake_if_taken};
use crate::process;
use crate::runtime::{KnownCapture, Stream, note_capture};

/// A scope that routes the calling thread's allocations to a pool, until it is dropped.
#[must_use = "allocations go to the pool only while this lives"]
#[derive(Debug)]
pub struct PoolScope {
    _entered: EnteredRoute,
    this_thread: PhantomData<*mut ()>,
}

impl PoolScope {
    /// Makes a scope with a use of the pool.
    pub(in crate::memory) fn new(in_use: PoolUse, followers: Followers) -> Result<Self> {
        let entered = EnteredRoute::with_use(in_use, RouteKind::Scope, followers)?;
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
        PoolScope::new(self.hold()?, Followers::Thread)
    }

    /// As [`MemPool::enter_all_threads`](crate::MemPool::enter_all_threads).
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was dropped or closed.
    pub fn enter_all_threads(&self) -> Result<PoolScope> {
        PoolScope::new(self.hold()?, Followers::AllThreads)
    }
}

/// For callers that cannot keep a guard on its thread.
#[cfg(feature = "python")]
impl PoolToken {
    /// Returns whether entering the pool would wake it first, or wait for that: see [`PoolToken::wake_for_use`].
    pub(crate) fn is_taken(&self) -> bool {
        self.pool.sleep.offer.is_taken()
    }

    /// Wakes a pool that sleeps for another process, if it wakes on use.
    ///
    /// # Errors
    /// Those of waking it.
    pub(crate) fn wake_for_use(&self) -> Result<()> {
        wake_if_taken(&self.pool)
    }

    /// As [`PoolToken::enter`], and for those that `followers` says.
    pub(crate) fn enter_scope(&self, followers: Followers) -> Result<EnteredRoute> {
        EnteredRoute::with_use(self.hold()?, RouteKind::Scope, followers)
    }

    /// As [`PoolToken::enter_scope`], for a context, which the caller notes the route in.
    pub(crate) fn enter_context(&self, followers: Followers) -> Result<Arc<Route>> {
        Route::enter_context(self.hold()?, followers)
    }
}

/// A scope in which the calling thread's allocations become parts of a graph, until it is ended or dropped.
///
/// If it is dropped without [`CaptureScope::end`], as when the capture fails, it releases everything.
#[must_use = "allocations go to the graph only while this lives"]
#[derive(Debug)]
pub struct CaptureScope {
    entered: EnteredCapture,
    this_thread: PhantomData<*mut ()>,
}

/// The memory of a captured graph. Reset or drop it with the graph.
#[must_use = "the graph's memory is free for others once this is dropped"]
#[derive(Debug)]
pub struct GraphMemory {
    pool: PoolId,
    /// Uses of the pool, and of pools in whose scopes the capture allocated.
    _uses: Vec<PoolUse>,
}

/// A capture under way, for a caller that promises to end it on the same thread. Dropped without an end it releases
/// everything, also on another thread.
#[derive(Debug)]
pub(crate) struct EnteredCapture {
    pool: PoolId,
    route: EnteredRoute,
    _known: KnownCapture,
}

impl EnteredCapture {
    /// As [`MemPool::capture`](crate::MemPool::capture), for a caller that cannot keep a guard on its thread.
    pub(crate) fn new(token: &PoolToken, stream: &Stream) -> Result<Self> {
        let pool = token.pool();
        if stream.device() != token.device() {
            return Err(Error::invalid_value(format!(
                "pool {} is of {} and cannot serve a capture on {}; make a pool there",
                pool.id,
                token.device(),
                stream.device()
            )));
        }
        let route = EnteredRoute::with_use(
            PoolUse::new(pool, UseOf::Graphs)?,
            RouteKind::Capture(Some(stream.raw())),
            Followers::Thread,
        )?;
        Ok(Self { pool: pool.id, route, _known: note_capture(stream)? })
    }

    /// Ends the routing of the capture and returns its memory.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` on another thread than the one that began it.
    pub(crate) fn leave(&self) -> Result<GraphMemory> {
        self.route.leave().map(|uses| GraphMemory { pool: self.pool, _uses: uses }).ok_or_else(|| {
            Error::invalid_value(format!(
                "the capture into pool {} began on another thread, or was ended before; end it once, where it began",
                self.pool
            ))
        })
    }
}

impl CaptureScope {
    pub(in crate::memory) fn new(token: &PoolToken, stream: &Stream) -> Result<Self> {
        Ok(Self { entered: EnteredCapture::new(token, stream)?, this_thread: PhantomData })
    }

    /// Ends the scope; the memory that it allocated belongs to the graph.
    ///
    /// # Errors
    /// None on the thread that began it, which this type cannot leave.
    pub fn end(self) -> Result<GraphMemory> {
        self.entered.leave()
    }
}

impl GraphMemory {
    /// Returns the pool's id.
    pub fn pool_id(&self) -> PoolId {
        self.pool
    }

    /// Releases the memory for reuse: the graph must not be replayed again.
    pub fn reset(self) {}
}

/// A stay in a pool that was offered to other processes, of a scope or of a call that uses what the pool holds: meanwhile
/// the pool is not put to sleep for them, and one that wakes on use is awake when the stay begins.
#[derive(Debug)]
pub(in crate::memory) struct PoolStay(Arc<Pool>);

impl PoolStay {
    /// Begins a stay; none in a pool that was not offered.
    ///
    /// # Errors
    /// Those of waking the pool; as that of a request, `ErrorKind::OutOfMemory`.
    pub(in crate::memory) fn begin(pool: &Arc<Pool>) -> Result<Option<Self>> {
        if !pool.sleep.offer.is_made {
            return Ok(None);
        }
        let is_taken = pool.sleep.offer.begin_use();
        let stay = Self(Arc::clone(pool));
        if is_taken {
            wake_if_taken(pool)?;
        }
        Ok(Some(stay))
    }
}

impl Drop for PoolStay {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.0.sleep.offer.end_use();
        }
    }
}

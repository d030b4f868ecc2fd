//! Memory for stream capture: blocks that are part of a graph alone until it is reset.

use std::marker::PhantomData;

use super::routes::EnteredRoute;
use super::scope::PoolToken;
use crate::error::{Error, Result};
use crate::memory::pool::{PoolId, UseOf};
use crate::memory::serve::PoolUse;
use crate::runtime::{KnownCapture, Stream, note_capture};

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
        let route = EnteredRoute::capture(PoolUse::new(pool, UseOf::Graphs)?, stream.raw())?;
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

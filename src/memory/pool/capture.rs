//! Memory for stream capture: blocks that become parts of a graph, and are nobody else's until the graph is reset.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::cache::thread as local;
use crate::memory::pool::id::PoolId;
use crate::memory::pool::state::Pool;
use crate::memory::pool::uses::PoolUse;
use crate::runtime::{KnownCapture, Stream, note_capture};

/// Allocations of the calling thread that become parts of a graph, until this is ended or dropped.
///
/// Dropped without [`CaptureScope::end`], as when the capture fails, it releases everything.
#[must_use = "allocations go to the graph only while this lives"]
#[derive(Debug)]
pub struct CaptureScope {
    entered: Option<Entered>,
    this_thread: PhantomData<*mut ()>,
}

/// The memory of a captured graph. Reset or drop it with the graph.
#[must_use = "the graph's memory is free for others once this is dropped"]
#[derive(Debug)]
pub struct GraphMemory {
    pool: PoolId,
    /// The pool's, and those of pools in whose scopes the capture allocated.
    _uses: Vec<PoolUse>,
}

/// A capture under way, for a caller that promises to end it on the same thread.
#[derive(Debug)]
pub(crate) struct Entered {
    pool: PoolId,
    ticket: u64,
    _known: KnownCapture,
}

pub(in crate::memory) fn enter(pool: &Arc<Pool>, stream: &Stream) -> Result<Entered> {
    if stream.device() != pool.device.device {
        return Err(Error::invalid_value(format!(
            "pool {} is of {} and cannot serve a capture on {}; make a pool there",
            pool.id,
            pool.device.device,
            stream.device()
        )));
    }
    let in_use = PoolUse::new(pool, true)?;
    let ticket = local::enter_capture(in_use, stream.raw())?;
    Ok(Entered { pool: pool.id, ticket, _known: note_capture(stream) })
}

/// Ends the routing of a capture and answers its memory.
///
/// # Errors
/// `ErrorKind::InvalidValue` on another thread than the one that began it.
pub(crate) fn leave(entered: &Entered) -> Result<GraphMemory> {
    let left = local::leave(entered.ticket);
    left.map(|uses| GraphMemory { pool: entered.pool, _uses: uses }).ok_or_else(|| {
        Error::invalid_value(format!(
            "the capture into pool {} began on another thread, or was ended before; end it once, where it began",
            entered.pool
        ))
    })
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Nothing once it was ended. On another thread it ends with the thread that began it.
        drop(local::leave(self.ticket));
    }
}

impl CaptureScope {
    pub(in crate::memory) fn new(pool: &Arc<Pool>, stream: &Stream) -> Result<Self> {
        Ok(Self { entered: Some(enter(pool, stream)?), this_thread: PhantomData })
    }

    /// Ends the capture's allocations; what they took belongs to the graph.
    ///
    /// # Errors
    /// None on the thread that began it, which is where this type stays.
    pub fn end(mut self) -> Result<GraphMemory> {
        match self.entered.take() {
            Some(entered) => leave(&entered),
            None => Err(Error::invalid_value("this capture was ended before")),
        }
    }
}

impl GraphMemory {
    /// The pool's id.
    pub fn pool_id(&self) -> PoolId {
        self.pool
    }

    /// Lets others use the memory: the graph is not replayed again.
    pub fn reset(self) {}
}

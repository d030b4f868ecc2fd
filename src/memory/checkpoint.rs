//! Checkpoints of a pool for graphs: which of its blocks are live, to be made live again later at the same addresses. A
//! graph that is replayed writes to blocks that were live at its capture. A checkpoint makes the allocator know what is
//! live after it, so that the next capture allocates around it. The memory of such a pool stays mapped, and in its
//! stream's cache, while the pool has a use: so the blocks fit in again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::cache::{
    BlockUser, DeviceCaches, Freed, LivePiece, Misfit, Restoration, ServingCache, Waiting, is_recorded,
};
use super::pool::{Pool, asleep, closed};
use super::report::{Frozen, FrozenCache};
use super::serve::{Patience, settle};
use crate::error::{Error, Result};
use crate::observe::delivery::Delivery;
use crate::observe::recording::{self, Purpose};
use crate::process;
use crate::sync::ThisThread;

/// The live blocks of a pool at a moment.
#[derive(Debug)]
pub(crate) struct PoolCheckpoint {
    pool: u32,
    label: String,
    pieces: Vec<LivePiece>,
}

/// What restoring a checkpoint has changed.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    /// The addresses of the blocks that were live before.
    pub(crate) freed: Vec<u64>,
    /// The addresses and requested bytes of the blocks that are live after.
    pub(crate) allocated: Vec<(u64, u64)>,
}

impl PoolCheckpoint {
    /// Notes the pool's live blocks, after freeing those that were freed and waited for streams.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool was not made for graphs or is closed, or a block waits for a stream that is
    /// captured; `ErrorKind::Asleep`; `ErrorKind::Library` if the driver refuses.
    pub(crate) fn take(pool: &Pool) -> Result<Self> {
        refuse_others(pool)?;
        settle_all(pool)?;
        let frozen = Frozen::of(pool);
        refuse_waiting(pool, &frozen)?;
        let heaps = frozen.caches.iter();
        let mut pieces: Vec<_> = heaps.flat_map(|frozen| frozen.heap.pieces(&frozen.cache.memory.pages)).collect();
        pieces.sort_unstable_by_key(LivePiece::start);
        Ok(Self { pool: pool.number, label: pool.label(), pieces })
    }

    /// Makes exactly the checkpoint's blocks live, at the same addresses: all that are live now are freed. Waits for
    /// further streams that used them. Nothing else may use the pool meanwhile.
    ///
    /// # Errors
    /// As [`PoolCheckpoint::take`]; `ErrorKind::InvalidValue` if it is another pool's, or memory of it is no longer the
    /// pool's. Nothing has changed then.
    pub(crate) fn restore(&self, pool: &Arc<Pool>) -> Result<Restored> {
        refuse_others(pool)?;
        if pool.number != self.pool {
            return Err(Error::invalid_value(format!(
                "the checkpoint is of pool {}, not of pool {}: restore each in its own pool",
                self.label,
                pool.label()
            )));
        }
        settle_all(pool)?;
        wait_for_users(pool)?;
        let _delivery = Delivery::at_end();
        // Taken without a lock.
        let _stack = recording::hold_stack(Purpose::Allocation);
        let mut frozen = Frozen::of(pool);
        refuse_waiting(pool, &frozen)?;
        let restorations = self.prepare(pool, &frozen)?;
        let mut restored = Restored::default();
        let caches = frozen.caches.drain(..).zip(restorations);
        let forgotten: Vec<_> = caches.map(|(cache, restoration)| apply(cache, restoration, &mut restored)).collect();
        drop(frozen);
        drop(forgotten);
        Ok(restored)
    }

    fn prepare(&self, pool: &Pool, frozen: &Frozen) -> Result<Vec<Restoration>> {
        let pages = &pool.memory.pages;
        let mut pieces: Vec<Vec<LivePiece>> = frozen.caches.iter().map(|_| Vec::new()).collect();
        let mut outcome = Ok(());
        for piece in &self.pieces {
            let number = pages.cache(piece.start());
            match frozen.caches.iter().position(|frozen| Some(frozen.cache.number) == number) {
                Some(place) => pieces[place].push(piece.clone()),
                None => outcome = Err(Misfit::Gone(piece.start())),
            }
        }
        let mut ready = Vec::new();
        for (frozen, pieces) in frozen.caches.iter().zip(pieces) {
            outcome = outcome.and_then(|()| frozen.heap.prepare(pages, pieces)).map(|one| ready.push(one));
        }
        outcome.map_err(|misfit| {
            ready.drain(..).for_each(|restoration| restoration.give_up(pages));
            refuse(pool, misfit)
        })?;
        Ok(ready)
    }
}

/// Restores one cache, and adds its blocks before and after to `restored`. Returns the users of blocks that are gone,
/// whose work was waited for.
fn apply(frozen: FrozenCache, restoration: Restoration, restored: &mut Restored) -> HashMap<u64, Vec<BlockUser>> {
    let FrozenCache { cache, recorded, mut heap } = frozen;
    let memory = cache.memory;
    drop(recorded);
    let is_recorded = is_recorded();
    let blocks = |pieces: Vec<LivePiece>| pieces.into_iter().flat_map(|piece| piece.blocks());
    for (offset, _) in blocks(heap.pieces(&memory.pages)) {
        cache.note_free(offset, Freed::AtOnce);
        restored.freed.push(memory.address(offset));
    }
    heap.restore(&memory.pages, restoration);
    let live: BTreeMap<u64, u64> = blocks(heap.pieces(&memory.pages)).collect();
    for (&offset, &requested) in &live {
        if is_recorded {
            cache.record_alloc(offset, requested);
        }
        restored.allocated.push((memory.address(offset), requested));
    }
    // A block that is live before and after may keep its users.
    cache.keep_uses(|offset| live.contains_key(&offset))
}

/// Refuses a pool that has no checkpoints.
fn refuse_others(pool: &Pool) -> Result<()> {
    process::refuse_forked()?;
    if pool.is_closed() {
        return Err(closed(pool));
    }
    if pool.sleep.is_asleep() {
        return Err(asleep(pool));
    }
    if !pool.is_for_graphs() {
        return Err(Error::invalid_value(format!(
            "pool {} on {} was not made for graphs, and only those have checkpoints: make it with for_graphs",
            pool.label(),
            pool.memory.location
        )));
    }
    Ok(())
}

/// Frees what was freed and waits for streams, after waiting for them.
fn settle_all(pool: &Pool) -> Result<()> {
    let settle = |cache: Arc<ServingCache>| settle(&cache, ThisThread::get(), Patience::Wait).map(drop);
    DeviceCaches::caches_of(pool).into_iter().try_for_each(settle)
}

/// Waits for the work of further streams with live blocks.
fn wait_for_users(pool: &Pool) -> Result<()> {
    let events = &pool.memory.events;
    for (offset, users) in DeviceCaches::caches_of(pool).into_iter().flat_map(|cache| cache.all_uses()) {
        let Waiting { mut until, .. } = Waiting::for_users(offset, &users, events, Some(ThisThread::get()));
        if !until.is_done(events, Patience::Wait)? {
            return Err(waiting(pool));
        }
    }
    Ok(())
}

fn refuse_waiting(pool: &Pool, frozen: &Frozen) -> Result<()> {
    let has_waiting = |frozen: &FrozenCache| frozen.heap.has_waiting(&frozen.cache.memory.pages);
    if frozen.caches.iter().any(has_waiting) { Err(waiting(pool)) } else { Ok(()) }
}

#[cold]
fn waiting(pool: &Pool) -> Error {
    Error::invalid_value(format!(
        "a block of pool {} on {} waits for work of a stream that is captured, or is just being freed: end the capture, \
         and let nothing else use the pool meanwhile",
        pool.label(),
        pool.memory.location
    ))
}

#[cold]
fn refuse(pool: &Pool, misfit: Misfit) -> Error {
    let (label, device) = (pool.label(), pool.memory.location);
    match misfit {
        Misfit::Gone(offset) => Error::invalid_value(format!(
            "{:#x}, which was live at the checkpoint, is memory of pool {label} on {device} no more",
            pool.memory.address(offset)
        )),
        Misfit::TooMany => Error::unavailable(format!(
            "pool {label} on {device} has more blocks than gpupool can number; free some of other pools"
        )),
    }
}

//! Pools that are used by their ids alone, as PyTorch's are: made when first begun, and released as often as begun.

use std::sync::{Arc, Mutex};

use super::pool::{PoolId, PoolUse, Rules, enter_by_id, leave_by_id};
use super::serve;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::runtime;
use crate::sync::lock;

/// Routes what the calling thread allocates on the device into the pool with this id, which is made if there is none
/// yet (see [`graph_pool_handle`](super::graph_pool_handle)). Adds one to the pool's use count, which [`release_pool`]
/// takes back. As PyTorch's `beginAllocateToPool`, but for the calling thread alone, and it nests.
///
/// # Errors
/// `ErrorKind::InvalidValue` for the id of no pool, or an unknown device.
pub fn begin_allocate_to_pool(device: Device, id: PoolId) -> Result<()> {
    let device = runtime::device(device.ordinal() as i64)?;
    if !id.is_known() {
        return Err(Error::invalid_value(format!(
            "{id} is no pool's id; take one from graph_pool_handle() or a MemPool"
        )));
    }
    // Two threads that begin at once get one pool.
    static BEGINNING: Mutex<()> = Mutex::new(());
    let beginning = lock(&BEGINNING);
    let is_captured = id.is_of_graph();
    let known = serve::pool_with_id(device, id)?;
    let in_use = match known.and_then(|pool| PoolUse::new(&pool, is_captured).ok()) {
        Some(in_use) => in_use,
        None => PoolUse::first(serve::make_pool(device, id, Rules::default(), None, None, 0)?, is_captured),
    };
    drop(beginning);
    enter_by_id(Arc::clone(in_use.pool()), is_captured)?;
    in_use.into_id();
    Ok(())
}

/// Ends what [`begin_allocate_to_pool`] began, on the same thread.
///
/// # Errors
/// `ErrorKind::InvalidValue` if this thread does not allocate to that pool.
pub fn end_allocate_to_pool(device: Device, id: PoolId) -> Result<()> {
    if leave_by_id(device, id) {
        return Ok(());
    }
    Err(Error::invalid_value(format!(
        "this thread does not allocate to pool {id} on {device}: begin and end on the same thread, and once each"
    )))
}

/// Takes back one use of the pool with this id that [`begin_allocate_to_pool`] added. With the last use the memory
/// goes.
///
/// # Errors
/// `ErrorKind::InvalidValue` if none is left that [`begin_allocate_to_pool`] added.
pub fn release_pool(device: Device, id: PoolId) -> Result<()> {
    let in_use = serve::pool_with_id(device, id)?.and_then(|pool| PoolUse::from_id(pool, id.is_of_graph()));
    in_use.map(drop).ok_or_else(|| {
        Error::invalid_value(format!(
            "pool {id} on {device} has no use to release: call release_pool once for each begin_allocate_to_pool"
        ))
    })
}

/// Returns how many use the pool with this id; none if there is no such pool.
///
/// # Errors
/// As [`device`](crate::device).
pub fn pool_use_count(device: Device, id: PoolId) -> Result<Option<u32>> {
    Ok(serve::pool_with_id(device, id)?.map(|pool| pool.use_count()))
}

//! Pools used by their ids alone, as PyTorch's are: made when first begun, and released as often as begun.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::pool::{PoolId, UseOf};
use super::route::{EnteredRoute, RouteKind, leave_by_id};
use super::serve::{self, PoolSettings, PoolUse};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::runtime;
use crate::sync::lock;

/// The uses that were begun and not released.
static BEGUN: Mutex<BTreeMap<PoolId, Vec<PoolUse>>> = Mutex::new(BTreeMap::new());

/// Routes the calling thread's allocations on the device to the pool with this id. The pool is created if the id was
/// returned by [`graph_pool_handle`](super::graph_pool_handle) and has no pool yet. Adds one to the pool's use count,
/// which [`release_pool`] subtracts. As PyTorch's `beginAllocateToPool`, but only for the calling thread, and calls
/// nest.
///
/// # Errors
/// `ErrorKind::InvalidValue` for an id without a pool, of a pool that no longer exists or is closed, or of another
/// device's pool, or for an unknown device.
pub fn begin_allocate_to_pool(device: Device, id: PoolId) -> Result<()> {
    let device = runtime::existing(device)?;
    // The device is in use from here on, so no driver is called under the lock.
    serve::pool_of_id(device, id)?;
    let (of, kind) = match id.is_of_graph() {
        true => (UseOf::Graphs, RouteKind::Capture(None)),
        false => (UseOf::Requests, RouteKind::Scope),
    };
    let in_use = {
        // Two threads that begin at once get one pool.
        let _begun = lock(&BEGUN);
        match serve::pool_of_id(device, id)? {
            Some(pool) => PoolUse::new(&pool, of)?,
            None => {
                let first = serve::make_pool(device, id, PoolSettings { first: of, ..PoolSettings::default() })?;
                id.use_up();
                first
            }
        }
    };
    EnteredRoute::without_use(Arc::clone(in_use.pool()), kind)?.stay();
    lock(&BEGUN).entry(id).or_default().push(in_use);
    Ok(())
}

/// Ends what [`begin_allocate_to_pool`] began, on the same thread.
///
/// # Errors
/// `ErrorKind::InvalidValue` if this thread does not allocate to that pool, and as [`begin_allocate_to_pool`].
pub fn end_allocate_to_pool(device: Device, id: PoolId) -> Result<()> {
    if leave_by_id(device, id) {
        return Ok(());
    }
    serve::pool_of_id(device, id)?;
    Err(Error::invalid_value(format!(
        "this thread does not allocate to pool {id} on {device}: begin and end on the same thread, and once each"
    )))
}

/// Releases one use of the pool with this id that [`begin_allocate_to_pool`] added. With the last use the memory is
/// released, and the id becomes invalid.
///
/// # Errors
/// `ErrorKind::InvalidValue` if no use is left that [`begin_allocate_to_pool`] added; otherwise as
/// [`begin_allocate_to_pool`].
pub fn release_pool(device: Device, id: PoolId) -> Result<()> {
    serve::pool_of_id(device, id)?;
    // Dropped outside the lock: with the last use of a pool its memory goes back to the driver.
    take_begun(id).map(drop).ok_or_else(|| {
        Error::invalid_value(format!(
            "pool {id} on {device} has no use to release: call release_pool once for each begin_allocate_to_pool"
        ))
    })
}

fn take_begun(id: PoolId) -> Option<PoolUse> {
    let mut begun = lock(&BEGUN);
    let uses = begun.get_mut(&id)?;
    let taken = uses.pop();
    if uses.is_empty() {
        begun.remove(&id);
    }
    taken
}

/// Returns the use count of the pool with this id; none if the pool is not created yet.
///
/// # Errors
/// As [`begin_allocate_to_pool`].
pub fn pool_use_count(device: Device, id: PoolId) -> Result<Option<u32>> {
    Ok(serve::pool_of_id(device, id)?.map(|pool| pool.use_count()))
}

/// Returns the device of the pool with this id; none if the pool is yet to be made.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the id is no pool's, a gone one's, or another device's.
#[cfg(feature = "python")]
pub(crate) fn device_of_pool(id: PoolId, device: Option<Device>) -> Result<Option<Device>> {
    Ok(serve::pool_anywhere(id, device)?.and_then(|pool| pool.memory.location.device()))
}

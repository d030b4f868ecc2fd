//! Pools, for C: creation, settings, trimming, release, and requests that name a pool.

mod checkpoint;
mod handle;
mod options;
mod scope;
mod segment_callbacks;
mod sleep;
mod source;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

pub use checkpoint::{AllocatedFunction, Checkpoint, FreedFunction};
pub(super) use checkpoint::{checkpoint_release, pool_checkpoint, pool_restore};
pub use handle::PoolHandle;
use handle::{end, held, make, slot};
pub use options::{PoolOptions, PoolSource};
pub(super) use scope::{pool_enter, scope_leave};
pub(super) use segment_callbacks::{pool_add_segment_callback, pool_remove_segment_callback};
pub(super) use sleep::{pool_is_asleep, pool_sleep, pool_wake, sleep_device, wake_device};

use crate::error::{Error, Result};
use crate::memory::cache::GivenKey;
use crate::memory::neighbour::join;
use crate::memory::plug::call::{address_of, answer, answer_or_none, count, device_of, null, run, stream_on};
use crate::memory::pool::{Pool, PoolId, next_ticket};
use crate::memory::route::{self, GivenPool, PoolUse};
use crate::memory::serve::{self, Allocation, Patience};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::runtime::Stream;
use crate::sync::ThisThread;

pub(super) unsafe extern "C" fn pool_create(
    device: c_int,
    options: *const PoolOptions,
    pool: *mut *mut PoolHandle,
) -> c_int {
    // First, so that the source is released if anything fails.
    // SAFETY: the caller passes options that begin with their size, whose name and source are null or alive.
    let options = unsafe { options::read(options) };
    let create = || {
        let device = device_of(device)?;
        let options = options?;
        let (is_for_graphs, is_offered) = (options.rules.is_for_graphs, options.rules.sleeps_for_others);
        let pool = serve::make_pool(device, PoolId::next(!is_for_graphs), options)?;
        let in_use = PoolUse::first(pool, is_for_graphs);
        if is_offered {
            join()?;
        }
        make(in_use)
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(pool, "pool", ptr::null_mut(), create) }
}

pub(super) unsafe extern "C" fn pool_by_id(device: c_int, id: *const PoolId, pool: *mut *mut PoolHandle) -> c_int {
    let take = || {
        let device = device_of(device)?;
        // SAFETY: the caller passes an id, or null.
        let id = *unsafe { id.as_ref() }.ok_or_else(|| null("id"))?;
        let pool = serve::pool_of_id(device, id)?.ok_or_else(|| {
            Error::invalid_value(format!(
                "pool {id} on {device} is yet to be made: its id was handed out, and nothing has been allocated to it"
            ))
        })?;
        make(PoolUse::new(&pool, pool.is_for_graphs)?)
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(pool, "pool", ptr::null_mut(), take) }
}

pub(super) unsafe extern "C" fn pool_release(pool: *mut PoolHandle) -> c_int {
    // Under no lock: the last use of a pool releases its memory to the driver.
    run(|| end(pool).map(drop))
}

/// Returns the pool of a handle.
///
/// # Errors
/// `ErrorKind::InvalidValue` if it is null, or was released; `ErrorKind::Forked`.
pub(super) fn pool_of(pool: *const PoolHandle) -> Result<Arc<Pool>> {
    process::refuse_forked()?;
    held(pool).map(|held| Arc::clone(held.in_use.pool()))
}

/// Returns another use of the pool of a handle.
///
/// # Errors
/// As [`pool_of`]; `ErrorKind::InvalidValue` if the pool is closed.
pub(super) fn use_of(pool: *const PoolHandle) -> Result<PoolUse> {
    process::refuse_forked()?;
    held(pool)?.in_use.again()
}

pub(super) unsafe extern "C" fn pool_id(pool: *const PoolHandle, id: *mut PoolId) -> c_int {
    // SAFETY: the caller passes a place for an id, or null.
    unsafe { answer(id, "id", || Ok(pool_of(pool)?.id)) }
}

pub(super) unsafe extern "C" fn pool_set_use_on_oom(pool: *mut PoolHandle, use_on_oom: c_int) -> c_int {
    run(|| pool_of(pool).map(|pool| pool.set_use_on_oom(use_on_oom != 0)))
}

pub(super) unsafe extern "C" fn pool_set_no_split(pool: *mut PoolHandle) -> c_int {
    run(|| pool_of(pool)?.set_no_split())
}

pub(super) unsafe extern "C" fn pool_trim(pool: *mut PoolHandle, bytes: *mut u64) -> c_int {
    let trim = || {
        let pool = pool_of(pool)?;
        let _stack = hold_stack(Purpose::Free);
        process::refuse_forked()?;
        let released = serve::trim(&pool, ThisThread::get(), Patience::Wait)?;
        Ok(released + pool.memory.end_retired_by_all()?)
    };
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, trim) }
}

pub(super) unsafe extern "C" fn ticket() -> u64 {
    next_ticket()
}

pub(super) unsafe extern "C" fn pool_allocate(
    pool: *mut PoolHandle,
    ticket: u64,
    bytes: u64,
    stream: *mut c_void,
    place: *mut *mut c_void,
) -> c_int {
    let take = || {
        let (number, device, is_for_graphs) = slot(pool)?.pool();
        address_of(bytes, || {
            // SAFETY: the caller names a stream of the pool's device, which is alive.
            let stream = unsafe { stream_on(device, stream) }?;
            // What a captured stream gets becomes a part of its graph.
            let is_captured = is_for_graphs || stream.is_captured()?;
            let key = GivenKey { pool: number, ticket, is_captured };
            route::allocate_as_last(bytes, &stream, key).unwrap_or_else(|| allocate(pool, key, bytes, &stream))
        })
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "pointer", ptr::null_mut(), take) }
}

/// Allocates from a pool that did not serve the thread last.
#[cold]
fn allocate(pool: *const PoolHandle, key: GivenKey, bytes: u64, stream: &Stream) -> Result<Allocation> {
    process::refuse_forked()?;
    let held = held(pool)?;
    let GivenKey { ticket, is_captured, .. } = key;
    route::allocate_given(
        bytes,
        stream,
        &GivenPool { pool: held.in_use.pool(), ticket, is_captured, further: &held.further },
    )
}

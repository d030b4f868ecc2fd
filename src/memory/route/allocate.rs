//! Allocation: a free block of the stream's cache, or the miss to serve.

use super::find_cache::{cache_for, given_cache_for, rerouted_cache_for};
use super::routes::GivenPool;
use crate::error::Result;
use crate::memory::cache::{self, Found, GivenKey, Order};
use crate::memory::serve::{Allocation, Miss};
use crate::observe::delivery::Delivery;
use crate::observe::recording::{self, Purpose};
use crate::process;
use crate::runtime::Stream;

/// The result of trying a request.
#[derive(Debug)]
pub(in crate::memory) enum AllocationAttempt {
    Ready(Allocation),
    /// None was ready; serving the miss may call the driver, and may wait.
    Miss(Miss),
}

impl AllocationAttempt {
    /// Serves a miss; none if the request must be tried again, as for [`Miss::serve`].
    #[inline]
    fn serve(self) -> Result<Option<Allocation>> {
        match self {
            Self::Ready(block) => Ok(Some(block)),
            Self::Miss(miss) => miss.serve(),
        }
    }
}

/// Allocates in the order of a stream, from the pool of the calling thread's scope; or pinned memory.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough also after everything was tried; `ErrorKind::InvalidValue` for 0
/// bytes or an unknown device; `ErrorKind::Library` if the driver refuses.
#[inline]
pub(crate) fn allocate(bytes: u64, order: &impl Order) -> Result<Allocation> {
    loop {
        if let Some(block) = try_allocate(bytes, order)?.serve()? {
            return Ok(block);
        }
    }
}

/// Allocates on the stream from the cache of the thread's last request for one pool, if that matches, nothing is out of
/// the ordinary, and the cache has not ended.
#[inline]
pub(crate) fn allocate_as_last(bytes: u64, stream: &Stream, given: GivenKey) -> Option<Result<Allocation>> {
    let found = cache::last_given(stream, given).filter(|_| process::state().is_plain())?;
    take(found, bytes).serve().transpose()
}

/// Allocates on the stream from a pool, unless the calling thread has entered a scope since.
///
/// # Errors
/// As [`allocate`]; `ErrorKind::InvalidValue` if the pool is closed.
#[cold]
pub(crate) fn allocate_given(bytes: u64, stream: &Stream, given: &GivenPool) -> Result<Allocation> {
    process::refuse_forked()?;
    let state = process::state();
    let _delivery = Delivery::at_end();
    let _stack = recording::hold_stack(Purpose::Allocation);
    loop {
        let found = given_cache_for(given, stream, state.is_rerouted())?;
        if let Some(block) = take(found, bytes).serve()? {
            return Ok(block);
        }
    }
}

/// Takes a ready block of the order's cache.
///
/// # Errors
/// `ErrorKind::InvalidValue` for an unknown device; `ErrorKind::Library` if the driver refuses.
#[inline]
pub(in crate::memory) fn try_allocate(bytes: u64, order: &impl Order) -> Result<AllocationAttempt> {
    if process::state().is_plain() { Ok(take(cache_for(order)?, bytes)) } else { take_slowly(bytes, order) }
}

/// Takes a block while events are recorded, or other threads or contexts may have routed requests.
#[cold]
fn take_slowly(bytes: u64, order: &impl Order) -> Result<AllocationAttempt> {
    process::refuse_forked()?;
    let state = process::state();
    let _delivery = Delivery::at_end();
    // No stack is held unless something is recorded.
    let _stack = recording::hold_stack(Purpose::Allocation);
    let found = if state.is_rerouted() { rerouted_cache_for(order)? } else { cache_for(order)? };
    Ok(take(found, bytes))
}

#[inline]
fn take(found: Found, bytes: u64) -> AllocationAttempt {
    match found.cache.allocate_block(found.thread, bytes) {
        Some(offset) => AllocationAttempt::Ready(Allocation { cache: found.cache, offset }),
        None => AllocationAttempt::Miss(Miss::new(found.cache, bytes)),
    }
}

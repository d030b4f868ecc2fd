//! Allocating in two parts, so that a caller can let others work during driver calls.

use super::cache::Order;
use super::route::{AllocationAttempt, allocate, try_allocate};
use super::serve::Allocation;
use crate::error::Result;

/// The rest of a request that found no free block.
pub(crate) type Rest<'a> = &'a mut (dyn FnMut() -> Result<Allocation> + Send);

/// Allocates a block. What may call the driver or wait is left to `serve`, which runs it on the same thread.
#[inline]
pub(crate) fn allocate_in_parts(
    bytes: u64,
    order: &(impl Order + Sync),
    serve: impl FnOnce(Rest<'_>) -> Result<Allocation>,
) -> Result<Allocation> {
    match try_allocate(bytes, order)? {
        AllocationAttempt::Ready(block) => Ok(block),
        AllocationAttempt::Miss(miss) => serve(&mut || match miss.serve()? {
            Some(block) => Ok(block),
            None => allocate(bytes, order),
        }),
    }
}

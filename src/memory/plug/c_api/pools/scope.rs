//! Scopes, for C: numbers, so that one that was left is recognised.

use std::ffi::c_int;

use super::{PoolHandle, pool_of};
use crate::error::Error;
use crate::memory::plug::c_api::call::{place, run};
use crate::memory::pool::{PoolUse, enter_by_ticket, leave_by_ticket};
use crate::process;

/// Sends what the calling thread allocates on the pool's device to the pool.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn pool_enter(pool: *const PoolHandle, scope: *mut u64) -> c_int {
    run(|| {
        // SAFETY: the caller passes a place for a number.
        let place = unsafe { place(scope, "scope") }?;
        *place = 0;
        *place = enter_by_ticket(PoolUse::new(&pool_of(pool)?, false)?)?;
        Ok(())
    })
}

/// Ends a scope of the calling thread's.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn scope_leave(scope: u64) -> c_int {
    run(|| {
        process::refuse_forked()?;
        // Under no borrow of the routes: with the last use of a pool its memory goes back to the driver.
        let left = leave_by_ticket(scope).ok_or_else(|| {
            Error::invalid_value(format!(
                "{scope} is not a scope of this thread: leave each scope once, on the thread that entered it"
            ))
        });
        left.map(drop)
    })
}

//! Scopes, for C: numbers, so that a scope that was left is recognised.

use std::ffi::c_int;

use super::{PoolHandle, pool_of};
use crate::error::Error;
use crate::memory::plug::call::{answer_or_none, run};
use crate::memory::route::{EnteredRoute, PoolUse, leave_by_ticket};

pub(in super::super) unsafe extern "C" fn pool_enter(pool: *const PoolHandle, scope: *mut u64) -> c_int {
    let enter = || EnteredRoute::scope(PoolUse::new(&pool_of(pool)?, false)?, false);
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { answer_or_none(scope, "scope", 0, || enter().map(EnteredRoute::stay)) }
}

pub(in super::super) unsafe extern "C" fn scope_leave(scope: u64) -> c_int {
    run(|| {
        // Under no borrow of the routes: the last use of a pool releases its memory to the driver.
        if leave_by_ticket(scope) {
            return Ok(());
        }
        Err(Error::invalid_value(format!(
            "{scope} is not a scope of this thread: leave each scope once, on the thread that entered it"
        )))
    })
}

//! Scopes of a Python context, as of an asyncio task, rather than of a thread. Only Python knows a thread's context, so
//! it is asked at each request while there is such a scope.

use std::sync::{Arc, Mutex, OnceLock};

use super::scope::PoolToken;
use super::shared_route::{AllThreads, Rerouted};
use super::stay::PoolStay;
use crate::error::Result;
use crate::ids::Device;
use crate::memory::pool::{Pool, next_ticket};
use crate::memory::serve::PoolUse;
use crate::process;
use crate::sync::lock;

/// A scope of a context, and of those copied from it, until it is left or dropped.
#[derive(Debug)]
pub(crate) struct ContextScope {
    ticket: u64,
    device: Device,
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    _all_threads: Option<AllThreads>,
    _rerouted: Rerouted,
    _stay: Option<PoolStay>,
    in_use: PoolUse,
}

/// Returns the innermost open scope on the device in the calling thread's context, if its ticket is at least this.
pub(crate) type FindContextScope = fn(Device, u64) -> Option<Arc<ContextScope>>;

static FIND: OnceLock<FindContextScope> = OnceLock::new();

/// Sets the function that finds a request's context scope.
pub(crate) fn set_find_context_scope(find: FindContextScope) {
    let _ = FIND.set(find);
}

/// Returns the ticket and pool of the innermost scope on the device in the thread's context, if its ticket is at least
/// this.
pub(super) fn of_context(device: Device, first: u64) -> Option<(u64, Arc<Pool>)> {
    let scope = FIND.get()?(device, first)?;
    lock(&scope.open).as_ref().map(|open| (scope.ticket, Arc::clone(open.in_use.pool())))
}

impl ContextScope {
    /// Returns whether it is open. None is in a forked child, where the lock may be held for ever.
    pub(crate) fn is_open(&self) -> bool {
        !process::is_forked() && lock(&self.open).is_some()
    }

    /// Returns whether it is open for requests on the device, with at least this ticket.
    pub(crate) fn serves(&self, device: Device, first: u64) -> bool {
        self.device == device && self.ticket >= first && self.is_open()
    }

    pub(crate) fn leave(&self) {
        if process::is_forked() {
            return;
        }
        let ended = lock(&self.open).take();
        // Outside the lock: with the last use of a pool its memory goes back to the driver.
        drop(ended);
    }
}

impl PoolToken {
    /// Enters the pool for a context, which the caller notes the scope in.
    pub(crate) fn enter_context_scope(&self, all_threads: bool) -> Result<Arc<ContextScope>> {
        let in_use = self.hold()?;
        let (stay, ticket) = (PoolStay::begin(in_use.pool())?, next_ticket());
        let all_threads = all_threads.then(|| AllThreads::new(in_use.pool(), ticket));
        let open = Open { _all_threads: all_threads, _rerouted: Rerouted::new(), _stay: stay, in_use };
        Ok(Arc::new(ContextScope { ticket, device: self.device(), open: Mutex::new(Some(open)) }))
    }
}

//! Where a request goes: the pool of the thread's scopes and captures, and there the cache of the stream. Ready blocks
//! are taken here; `serve` handles misses. A use keeps a pool, which ends with its last use.

mod allocate;
mod capture;
#[cfg(feature = "python")]
mod context_scope;
mod find_cache;
mod routes;
mod scope;
mod shared_route;
mod stay;

#[cfg(feature = "python")]
pub(in crate::memory) use allocate::{AllocationAttempt, try_allocate};
pub(crate) use allocate::{allocate, allocate_as_last, allocate_given};
#[cfg(feature = "python")]
pub(crate) use capture::EnteredCapture;
pub use capture::{CaptureScope, GraphMemory};
#[cfg(feature = "python")]
pub(crate) use context_scope::{ContextScope, set_find_context_scope};
pub(in crate::memory) use find_cache::cache_on;
pub(crate) use routes::{EnteredRoute, GivenPool, RouteKind, leave_by_ticket};
pub(in crate::memory) use routes::{feed_from, leave_by_id};
pub use scope::{PoolScope, PoolToken};
pub(in crate::memory) use stay::PoolStay;

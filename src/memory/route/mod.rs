//! Where a request goes: to the pool of the thread's scopes and captures, and there to the cache of the stream. Ready
//! blocks are taken here; `serve` handles misses. A use keeps a pool alive, and the pool ends with its last use.

mod choice;
mod requests;
mod routes;
mod scopes;

pub(crate) use choice::RouteKind;
#[cfg(feature = "python")]
pub(crate) use requests::allocate_in_parts;
pub(in crate::memory) use requests::cache_on;
pub(crate) use requests::{allocate, allocate_as_last, allocate_given};
pub(in crate::memory) use routes::leave_by_id;
pub(crate) use routes::{EnteredRoute, Followers, GivenPool, leave_by_ticket};
#[cfg(feature = "python")]
pub(crate) use routes::{Route, set_find_context_route};
#[cfg(feature = "python")]
pub(crate) use scopes::EnteredCapture;
pub(in crate::memory) use scopes::PoolStay;
pub use scopes::{CaptureScope, GraphMemory, PoolScope, PoolToken};

//! What a pool is: its id, its rules and uses, and the scopes and captures that lead a thread's requests into it.

mod asleep;
mod capture;
#[cfg(feature = "python")]
mod context_scope;
mod id;
mod ledger;
mod limit;
mod role;
mod route;
mod scope;
mod segment_list;
mod shared_route;
mod state;
mod uses;

pub(in crate::memory) use asleep::{BackedUp, BackupPiece, Change, Kept, Record, Wanted, asleep};
#[cfg(feature = "python")]
pub(crate) use capture::EnteredCapture;
pub use capture::{CaptureScope, GraphMemory};
#[cfg(feature = "python")]
pub(crate) use context_scope::{ContextScope, set_find_context_scope};
pub use id::{PoolId, graph_pool_handle};
pub(in crate::memory) use ledger::Ledger;
pub use limit::MemoryLimit;
#[cfg(feature = "python")]
pub(crate) use limit::no_fraction;
pub(in crate::memory) use limit::{lock_limit, refuse_no_fraction, replace_limit};
pub(in crate::memory) use role::Role;
pub(crate) use route::EnteredRoute;
pub(in crate::memory) use route::{
    Destination, Given, RouteKind, changes, destination, ending, feed_from, leave_by_id, leave_by_ticket, next_ticket,
    supply,
};
pub use scope::{PoolScope, PoolToken};
pub(in crate::memory) use segment_list::{Leaving, Listener, SegmentCallback};
pub use segment_list::{SegmentEvent, SegmentEventKind};
pub(in crate::memory) use state::{Ending, Pool, Rules};
pub(in crate::memory) use uses::{PoolUse, closed};

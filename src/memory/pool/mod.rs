//! A pool: its id, rules, supply, life and sleep, and what its heaps publish.

mod asleep;
mod followed;
mod id;
mod ledger;
mod life;
mod limit;
mod segment_list;
mod state;

pub(in crate::memory) use asleep::{
    BackedUp, BackupPiece, Change, KeptExtents, Record, SleepChange, asleep, out_of_service,
};
pub(crate) use followed::next_ticket;
pub(in crate::memory) use followed::{changes, ending, first_ticket, note_change, supply};
pub use id::{PoolId, graph_pool_handle};
pub(in crate::memory) use ledger::Ledger;
pub(crate) use life::UseOf;
pub(in crate::memory) use life::{LifeChange, Stage};
pub use limit::MemoryLimit;
#[cfg(feature = "python")]
pub(crate) use limit::no_fraction;
pub(in crate::memory) use limit::{lock_limit, refuse_no_fraction};
pub(in crate::memory) use segment_list::SegmentCallback;
pub use segment_list::{SegmentEvent, SegmentEventKind, SegmentGuard};
pub(in crate::memory) use state::closed;
pub(crate) use state::{Pool, Rules};

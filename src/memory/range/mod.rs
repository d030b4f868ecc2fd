//! Memory ranges: addresses that stay, whose pages are committed and decommitted by the caller.
//!
//! A range holds addresses of its device. A committed page is one extent, and a live block of the cache that its pool has
//! for ranges; a decommitted one is a freed block there. It is free once the streams that used it are done, and then
//! serves any page, request or stream of its pool, as other free pages do: its extent moves, and the address stays the
//! range's. Committed again before that, it is taken back where it is. So no call waits for the GPU while there is
//! memory, and limits, statistics, snapshots and sleep need to know nothing of ranges.
//!
//! `page_table.rs` has the state of each page. A page that a call commits or decommits is busy meanwhile, and other calls
//! wait for it; no lock is held during a driver call.

mod commit;
mod decommit;
mod discard;
mod held_range;
mod memory_range;
mod page_set;
mod page_table;
mod pins;
mod prepare;
mod refusal;

pub use discard::DiscardGuard;
pub(crate) use memory_range::reserve_range;
pub use memory_range::{CommitOptions, MemoryRange};
pub use page_set::RangePages;

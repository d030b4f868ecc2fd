//! Memory ranges: addresses that stay, whose pages the caller commits and decommits.
//!
//! A range holds addresses of its device. A committed page is one extent, and a live block of the cache that its pool
//! has for ranges. A decommitted page is a freed block there, and free once the streams that used it are done. Then it
//! serves any page, request or stream of its pool, as other free pages do: its extent moves, and its address stays with
//! the range. A page that is committed again before that is taken back where it is. So no call waits for the GPU while
//! there is memory, and the code for limits, statistics, snapshots and sleep knows nothing of ranges.
//!
//! `page_table.rs` has the state of each page. While a call commits, decommits or takes a page, the page is busy: the
//! call keeps its state (`BusyPages`), and other calls wait until that one ends. No lock is held during a driver call.

mod commit;
mod discard;
mod held_range;
mod memory_range;
mod page_table;
mod prepare;

pub use discard::DiscardGuard;
pub use memory_range::{CommitOptions, MemoryRange, RangePages};
pub(crate) use memory_range::{reserve_range, why_fixed};

//! Memory ranges: addresses that stay, whose pages are committed and decommitted by the caller.
//!
//! A range holds addresses of its device. A committed page is one extent, and a live block of the cache that its pool
//! has for ranges. A decommitted page is a freed block there. It is free once the streams that used it are done. Then
//! it serves any page, request or stream of its pool, as other free pages do: its extent moves, and the address stays
//! the range's. If the page is committed again before that, it is taken back where it is. So no call waits for the GPU
//! while there is memory, and limits, statistics, snapshots and sleep need to know nothing of ranges.
//!
//! `page_table.rs` has the state of each page. A page that a call commits, decommits or takes is busy meanwhile: the
//! call has its state until it ends (`BusyPages`), and other calls wait for it. No lock is held during a driver call.

mod commit;
mod discard;
mod held_range;
mod memory_range;
mod page_table;
mod prepare;

pub use discard::DiscardGuard;
pub use memory_range::{CommitOptions, MemoryRange, RangePages};
pub(crate) use memory_range::{reserve_range, why_fixed};

//! Growth: finds the pages for a request that no free block can serve.
//!
//! No new page is created while free ones are ready: first those of another stream that are in a row, in place, until the
//! cache has the most that it has needed; then any, its own first, mapped together where the fewest are missing. A device's
//! heap to which too much was moved gets new ones (`cache/heap/moves.rs`); pinned memory, which the rest of the system
//! lacks, always moves. The driver is asked for what the request lacks, and nothing ahead: in extents of one page for a
//! request of less than 16 MiB and for pinned memory, of at most four for one of less than 64 MiB, else of two, of more for
//! much larger requests and beside larger heaps, or of as many as the user sets. Old mappings stay until their streams are
//! done, so nothing waits for the GPU unless memory has run out. No lock is held during a driver call.

mod asleep;
mod claim;
mod commit;
mod extents;
mod gather;
mod growth;
mod in_place;
mod pages;
mod place;
mod reserve;
mod segment;
mod segment_events;
mod slabs;

pub(super) use asleep::let_go_asleep;
pub(in crate::memory) use asleep::{extent_for_waking, pages_asleep};
pub(super) use claim::{beyond_a_limit, is_no_memory};
pub(in crate::memory) use commit::{commit_run, decommit_blocks, free_places, ranges_cache, release_places};
pub(in crate::memory) use extents::{make_ready, retire_extents};
pub(super) use in_place::serve_in_place;
pub(super) use pages::{Grown, grow_by_pages};
pub(super) use reserve::{make_reserve, retire_reserve, serve_from_reserve};
pub(super) use segment::grow_by_segment;
pub(in crate::memory) use segment::warm_by_segments;
pub use segment_events::SegmentGuard;
pub(crate) use segment_events::on_segment;
pub(super) use segment_events::{retire_mappings, retire_segment};
pub(super) use slabs::{return_slabs, serve_from_empty_slabs, serve_from_lent_slab};

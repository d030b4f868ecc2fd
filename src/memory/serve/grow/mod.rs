//! Growth: finds the pages for a request that no free block can serve.
//!
//! No new page is taken while free ones are ready: first those of another stream that stand in a row, where they are, then any,
//! of this cache before others, mapped together where the fewest are missing. What is taken from the driver is what the request
//! lacks, and nothing ahead. It comes in extents of one page for a request of less than 16 MiB, else of two at most, or of as
//! many as the user sets. A heap that has moved more than a small part of what it handed out, by as much as it has, takes new
//! pages instead until none can be had, or it is trimmed. Old mappings stay until their streams have passed, so nothing waits
//! for the GPU unless memory has run out. No lock is held during a driver call.

mod asleep;
mod claim;
mod effort;
mod empty_slabs;
mod gather;
mod growth;
mod in_place;
mod lent_slabs;
mod pages;
mod place;
mod reserve;
mod segment;
mod segment_events;

pub(super) use asleep::let_go_asleep;
pub(in crate::memory) use asleep::{extent_for_waking, pages_asleep};
pub(super) use claim::is_no_memory;
pub(super) use effort::Effort;
pub(super) use lent_slabs::return_slabs;
pub(in crate::memory) use reserve::retire_extents;
pub(super) use reserve::{end_reserve, make_reserve, retire_reserve};
pub(in crate::memory) use segment::warm_by_segments;
pub use segment_events::SegmentGuard;
pub(in crate::memory) use segment_events::on_segment;
pub(super) use segment_events::{retire_mappings, retire_segment};

use super::request::Request;
use crate::error::Result;
use crate::memory::device::Source;

/// Adds memory to the request's cache and serves the request from it: the offset of the block. None if another thread
/// took pages that the request was to use, so that it must be tried again.
///
/// # Errors
/// One for which [`is_no_memory`] holds if there is not enough; any other refusal of the driver. Everything is then as
/// it was.
pub(super) fn grow(request: &Request, effort: Effort) -> Result<Option<u64>> {
    let _moving = request.memory().under_way.begin();
    if let Some(reserve) = request.pool().supply.reserve()
        && let Some(offset) = reserve::grow_by_reserve(request, reserve, effort)?
    {
        return Ok(Some(offset));
    }
    match request.pool().source() {
        Source::Pages => grow_by_own_pages(request, effort),
        Source::PagesAndSegments(source) => match grow_by_own_pages(request, effort) {
            // Extents are of one NUMA node of the host; a segment takes of others what that has not got.
            Err(error) if is_no_memory(&error) => segment::grow_by_segment(request, source.as_ref()).or(Err(error)),
            grown => grown,
        },
        Source::Segments(source) => segment::grow_by_segment(request, source.as_ref()),
    }
}

fn grow_by_own_pages(request: &Request, effort: Effort) -> Result<Option<u64>> {
    if effort == Effort::Ready
        && let Some(offset) = lent_slabs::serve_from_lent_slab(request)?
    {
        return Ok(Some(offset));
    }
    pages::grow_by_pages(request, effort)
}

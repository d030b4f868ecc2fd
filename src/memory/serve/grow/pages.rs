//! Growth by pages: those that are free are moved, and extents are created for what is missing.

use log::Level;

use super::claim::out_of_addresses;
use super::effort::Effort;
use super::empty_slabs::serve_from_empty_slabs;
use super::gather::{gather, is_worth_new_pages};
use super::growth::Growth;
use super::in_place::serve_in_place;
use super::place::{EXTENT_PAGES_AMONG_RIVALS, find_place, rivals, spare};
use super::segment::grow_by_segment;
use crate::error::{Bytes, Result};
use crate::memory::device::{PAGE, log_out};
use crate::memory::serve::request::Request;
use crate::observe::Activity;

/// Where a pool has segments for large needs, one serves a request for which as many pages are missing: 256 MiB, which take
/// 70 ms in extents of the host's memory and 15 ms in a segment, but stay where they are.
const SEGMENT_PAGES_LEAST: u32 = 128;

/// For a request of as many bytes, the largest extent among rivals, a cache's own pages are moved whatever other threads do:
/// on an H200 to move an extent takes 44 us, and to create and map one 38. The threads of
/// [`EXTENT_PAGES_AMONG_RIVALS`] so took 688 MiB instead of 1,018, with 310 driver calls instead of 290.
const MOVED_LEAST: u64 = EXTENT_PAGES_AMONG_RIVALS.most as u64 * PAGE;

/// Grows the request's cache by pages; see [`grow`](super::grow).
pub(super) fn grow_by_pages(request: &Request, effort: Effort) -> Result<Option<u64>> {
    let Request { cache, service, thread, bytes } = request;
    let memory = cache.memory;
    let activity = Activity::begin_of(*bytes, format_args!("grow memory pool"));
    // Work on a captured stream runs whenever its graph does, so what it used is never known to be done; and segments that
    // may be registered stay where they are.
    let may_move = !service.is_captured && !service.pool.no_split() && !service.stream.is_captured()?;
    let rivals = if effort == Effort::Ready { rivals(&service.pool) } else { 0 };
    if effort == Effort::Ready
        && rivals == 0
        && let Some(offset) = serve_from_empty_slabs(request)
    {
        return Ok(Some(offset));
    }
    if effort == Effort::Ready
        && may_move
        && let Some(offset) = serve_in_place(request, rivals)?
    {
        return Ok(Some(offset));
    }
    let moves;
    let (place, own) = {
        let Some(mut heap) = cache.lock_in(service, *thread) else { return Ok(None) };
        if effort > Effort::Exact {
            heap.drop_empty_slabs(&memory.pages);
        }
        let place = find_place(memory, &heap, &service.pool, *bytes, effort, rivals);
        let place = place.ok_or_else(|| out_of_addresses(memory))?;
        let (wanted, slack) = (u64::from(place.pages) * PAGE, u64::from(place.taken - place.pages) * PAGE);
        let (wanted, slack) = spare(&heap, wanted, slack, if *bytes < MOVED_LEAST { rivals } else { 0 });
        moves = may_move && !(effort == Effort::Ready && is_worth_new_pages(request, &heap, place));
        let own = if moves { cache.take_mappings(&mut heap, wanted, slack, place.start()) } else { Vec::new() };
        (place, own)
    };
    let source = service.pool.source().segments();
    let mut growth = Growth::new(request, place, rivals);
    let outcome = (|| {
        growth.add(cache, service, own)?;
        if moves {
            gather(&mut growth, effort)?;
        }
        // What is asked for without a segment has failed with one.
        if effort == Effort::Ready && growth.missing_pages() >= SEGMENT_PAGES_LEAST && source.is_some() {
            return Ok(false);
        }
        growth.create()?;
        growth.map().map(|()| true)
    })();
    match outcome {
        Ok(false) => {
            growth.undo();
            source.map_or(Ok(None), |source| grow_by_segment(request, source.as_ref()))
        }
        Ok(true) => {
            let (created, moved) = (Bytes(growth.created_bytes()), Bytes(growth.moved_bytes()));
            let offset = growth.finish();
            let (id, on, took) = (service.pool.id, memory.device, activity.took());
            let reserved = Bytes(service.pool.budget().reserved());
            log_out(
                Level::Debug,
                format_args!(
                    "pool {id} on {on}: grew by {created} of new and {moved} of moved pages in {took} \
                 for {bytes} bytes, {reserved} reserved"
                ),
            );
            // What the driver refuses here it refuses again later, where a call asked for it.
            let _ = memory.end_retired(false);
            Ok(offset)
        }
        Err(error) => {
            growth.undo();
            Err(error)
        }
    }
}

//! Growth by pages: those that are free are moved, and extents are created for what is missing.

use std::sync::Arc;

use log::Level;

use super::claim::{is_no_memory, out_of_addresses};
use super::effort::Effort;
use super::empty_slabs::serve_from_empty_slabs;
use super::gather::gather;
use super::growth::Growth;
use super::in_place::serve_in_place;
use super::place::{Beside, find_place};
use super::segment::grow_by_segment;
use crate::error::{Bytes, Result};
use crate::memory::cache::is_recorded;
use crate::memory::device::{SegmentSource, log_out};
use crate::memory::serve::request::Request;
use crate::memory::tuning::{LARGE_EXTENT_PAGES, PAGE};
use crate::observe::Activity;

/// Grows the request's cache by pages; see [`grow`](super::grow).
pub(super) fn grow_by_pages(request: &Request, effort: Effort) -> Result<Option<u64>> {
    let source = request.service.pool.source().segments();
    match grow_by_pages_or(request, effort, source, Beside::Counts)? {
        // Another thread took what stood free beside the new pages, as often as it likes.
        None => grow_by_pages_or(request, effort, source, Beside::CountsNot),
        found => Ok(found),
    }
}

/// As [`grow_by_pages`], or by a segment, if there is a source of such. None if the service has ended, or what counts was taken.
fn grow_by_pages_or(
    request: &Request,
    effort: Effort,
    source: Option<&Arc<dyn SegmentSource>>,
    beside: Beside,
) -> Result<Option<u64>> {
    let Request { cache, service, thread, bytes } = request;
    let memory = cache.memory;
    let activity = Activity::begin_of(*bytes, format_args!("grow memory pool"));
    // Work on a captured stream runs whenever its graph does, so what it used is never known to be done; and segments that
    // may be registered stay where they are.
    let may_move = !service.is_captured && !service.pool.no_split() && !service.stream.is_captured()?;
    if effort == Effort::Ready
        && let Some(offset) = serve_from_empty_slabs(request)
    {
        return Ok(Some(offset));
    }
    if effort == Effort::Ready
        && may_move
        && let Some(offset) = serve_in_place(request)?
    {
        return Ok(Some(offset));
    }
    let (place, own, moves) = {
        let Some(mut heap) = cache.lock_in(service, *thread) else { return Ok(None) };
        if effort > Effort::Ready {
            heap.drop_empty_slabs(&memory.pages);
        }
        // Another thread may have freed or added memory meanwhile.
        if !cache.is_lender()
            && let Some(offset) = cache.allocate_locked(&mut heap, *bytes, is_recorded())
        {
            return Ok(Some(offset));
        }
        let place = find_place(memory, &heap, *bytes, beside);
        let place = place.ok_or_else(|| out_of_addresses(memory))?;
        let (wanted, slack) = (u64::from(place.pages) * PAGE, u64::from(place.taken - place.pages) * PAGE);
        let moves = may_move && (effort > Effort::Ready || heap.moves_pages());
        let own = if moves { cache.take_mappings(&mut heap, wanted, slack, place.start()) } else { Vec::new() };
        (place, own, moves)
    };
    let mut growth = Growth::new(request, place);
    let outcome = (|| {
        growth.add(cache, service, own)?;
        if moves {
            gather(&mut growth, effort)?;
        }
        if u64::from(growth.missing_pages()) >= LARGE_EXTENT_PAGES && source.is_some() {
            return Ok(false);
        }
        growth.create()?;
        growth.map().map(|()| true)
    })();
    match outcome {
        Ok(false) => {
            growth.undo();
            match source.map_or(Ok(None), |source| grow_by_segment(request, source.as_ref())) {
                Err(error) if is_no_memory(&error) => grow_by_pages_or(request, effort, None, beside),
                grown => grown,
            }
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
            if may_move && !moves && is_no_memory(&error) {
                if let Some(mut heap) = cache.lock_in(service, *thread) {
                    heap.move_again();
                }
                return grow_by_pages_or(request, effort, source, beside);
            }
            Err(error)
        }
    }
}

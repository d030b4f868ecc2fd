//! Growth by pages: finds those for a request that no free block can serve. Free ones are moved, and extents are created
//! for what is missing.
//!
//! No new page is created while free ones are ready: first those of another stream that are in a row, in place, until the
//! cache has the most that it has needed; then any, its own first, mapped together where the fewest are missing. A device's
//! heap to which too much was moved gets new ones (`cache/heap/moves.rs`); pinned memory, which the rest of the system
//! lacks, always moves. The driver is asked for what the request lacks, and nothing ahead: in extents of one page for a
//! request of less than 16 MiB and for pinned memory, of at most four for one of less than 64 MiB, else of two, of more for
//! much larger requests and beside larger heaps, or of as many as the user sets. Old mappings stay until their streams are
//! done, so nothing waits for the GPU unless memory has run out. No lock is held during a driver call.

use log::Level;

use super::extents::{Beside, find_place, is_no_memory, out_of_addresses};
use super::growth::Growth;
use super::take::{AllocationRequest, Reach};
use crate::error::{Bytes, Result};
use crate::memory::cache::{MovedPages, Portion};
use crate::memory::device::{Mapping, log_out};
use crate::memory::tuning::{LARGE_EXTENT_PAGES, PAGE};
use crate::observe::Activity;

/// The result of a step that adds memory to a request's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grown<T = u64> {
    /// The offset of a block for the request, or what else was needed.
    Block(T),
    /// Another thread took what the request was to use, or the cache has ended.
    TakenAway,
    /// This step has nothing for the request; the next is to be tried.
    Nothing,
}

impl<T> Grown<T> {
    pub(super) fn found(found: Option<T>) -> Self {
        found.map_or(Self::Nothing, Self::Block)
    }

    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> Grown<U> {
        match self {
            Self::Block(found) => Grown::Block(f(found)),
            Self::TakenAway => Grown::TakenAway,
            Self::Nothing => Grown::Nothing,
        }
    }
}

/// Adds pages to the request's cache, and serves the request from them; nothing if so many would be created that a segment
/// is to be tried first.
///
/// # Errors
/// One for which [`is_no_memory`] holds if there is not enough; any other refusal of the driver. Everything is then as it was.
pub(super) fn grow_by_pages(request: &AllocationRequest, reach: &Reach) -> Result<Grown> {
    let _moving = request.memory.under_way.begin();
    match grow_beside(request, reach, Beside::Counts)? {
        // Other threads may take what is free beside the new pages, again and again.
        Grown::TakenAway => grow_beside(request, reach, Beside::CountsNot),
        grown => Ok(grown),
    }
}

fn grow_beside(request: &AllocationRequest, reach: &Reach, beside: Beside) -> Result<Grown> {
    let (cache, pool, memory, bytes) = (request.cache, request.pool(), request.memory, request.bytes);
    let activity = Activity::begin_of(bytes, format_args!("grow memory pool"));
    let may_move = request.may_move()?;
    let (place, own, moved, company) = {
        let Some(mut heap) = request.lock_awake() else { return Ok(Grown::TakenAway) };
        if reach.waits {
            heap.drop_empty_slabs(&memory.pages);
        }
        // Another thread may have freed or added memory meanwhile.
        if !cache.is_lender()
            && let Some(offset) = cache.allocate_locked(&mut heap, bytes, reach.search())
        {
            return Ok(Grown::Block(offset));
        }
        let place = find_place(memory, &heap, bytes, beside);
        let place = place.ok_or_else(|| out_of_addresses(memory))?;
        let (wanted, slack) = (u64::from(place.pages) * PAGE, u64::from(place.taken - place.pages) * PAGE);
        let moved = match reach.waits {
            _ if !may_move => MovedPages::None,
            true => MovedPages::All,
            false => heap.moved_pages(pool, bytes),
        };
        let company = heap.company(pool, bytes);
        let own = match moved {
            MovedPages::None => Vec::new(),
            _ => cache.take_mappings(&mut heap, Portion::Bytes { wanted, slack, kept: Some(place.start()) }),
        };
        (place, own, moved, company)
    };
    let mut growth = Growth::new(request, place, company);
    match fill(&mut growth, own, reach, moved) {
        Ok(false) => {
            growth.undo();
            Ok(Grown::Nothing)
        }
        Ok(true) => Ok(finish(growth, request, &activity)),
        Err(error) => {
            let missing = growth.missing_pages();
            growth.undo();
            if !is_no_memory(&error) {
                return Err(error);
            }
            // What was created is given back by now.
            reach.note_refusal(missing);
            if !may_move || moved == MovedPages::All {
                return Err(error);
            }
            if let Some(mut heap) = request.lock_awake() {
                heap.move_again();
            }
            match grow_beside(request, reach, beside)? {
                Grown::Nothing => Err(error),
                grown => Ok(grown),
            }
        }
    }
}

/// Fills the place with pages of the cache itself, of others within the reach, if those are moved, and with new ones. Returns
/// false if a segment is to be tried first, or the driver has just refused as many.
pub(super) fn fill(growth: &mut Growth<'_>, own: Vec<Mapping>, reach: &Reach, moved: MovedPages) -> Result<bool> {
    growth.add_own(own)?;
    if moved == MovedPages::All {
        growth.gather(reach)?;
    }
    growth.add_ready();
    let missing = growth.missing_pages();
    // Until something is refused a segment comes before many new pages.
    let prefers_segment = !reach.waits && growth.request.pool().source().has_segments();
    if (prefers_segment && u64::from(missing) >= LARGE_EXTENT_PAGES) || reach.would_be_refused(missing) {
        return Ok(false);
    }
    growth.create()?;
    growth.map().map(|()| true)
}

/// Serves the request from the new pages, and logs it.
fn finish(growth: Growth<'_>, request: &AllocationRequest, activity: &Activity) -> Grown {
    let (memory, pool, bytes) = (request.memory, request.pool(), request.bytes);
    let (created, moved) = (Bytes(growth.created_bytes()), Bytes(growth.moved_bytes()));
    let offset = growth.finish();
    let (id, on, took, reserved) = (pool.id, memory.location, activity.took(), Bytes(pool.budget().reserved()));
    log_out(
        Level::Debug,
        format_args!(
            "pool {id} on {on}: grew by {created} of new and {moved} of moved pages in {took} for {bytes} bytes, \
             {reserved} reserved"
        ),
    );
    memory.try_end_retired();
    offset.map_or(Grown::TakenAway, Grown::Block)
}

//! Growth in place: enough free pages in a row of another stream's cache serve a request where they are. They change
//! hands without a driver call, once the GPU is done with them, so this comes before any move, until the stream has as much
//! as it has needed at its most.

use std::sync::Arc;

use super::take::{AllocationRequest, Giver, NotTaken, Reach, Taken, take_from};
use crate::error::Result;
use crate::memory::cache::{DeviceCaches, Moved, Portion, Role, Service};
use crate::memory::device::Mapping;
use crate::memory::tuning::{A_FEW, MANY, PAGE};

/// Serves the request from ready free pages in a row of another cache of its pool: the offset of the block. None if no
/// cache has enough.
///
/// # Errors
/// Any refusal of the driver. Everything is then as it was.
pub(super) fn serve_in_place(request: &AllocationRequest, reach: &Reach) -> Result<Option<u64>> {
    if !request.may_move()? {
        return Ok(None);
    }
    let (pool, needed) = (request.pool(), request.needed().max(PAGE));
    let Some(mut heap) = request.lock_awake() else { return Ok(None) };
    let lacking = heap.note_need(needed);
    drop(heap);
    // Others would have to create what this one gets beyond its need, while its own free pages are out of their reach.
    if !reach.waits && lacking < needed {
        return Ok(None);
    }
    let mut others = DeviceCaches::of_births(pool, &pool.ledger.with_pages(MANY));
    others.retain(|cache| !Arc::ptr_eq(cache, &request.of));
    if others.is_empty() {
        return Ok(None);
    }
    let _moving = request.memory.under_way.begin();
    let mut at_work = 0;
    for cache in &others {
        let giver = Giver { cache, least: needed, drops_slabs: false };
        // The addresses of a range's pages are the range's.
        let select = |heap: &mut _, service: &Service| {
            let is_of_range = service.role == Role::Ranges;
            let row = Portion::Row { bytes: needed, most: lacking };
            (!is_of_range).then(|| cache.take_mappings(heap, row)).filter(|row| !row.is_empty())
        };
        match take_from(request, reach, giver, select)? {
            Ok(row) => return Ok(hand_over(request, row)),
            Err(NotTaken::AtWork) => at_work += 1,
            Err(NotTaken::Bare | NotTaken::Kept) => {}
        }
        if at_work >= A_FEW {
            break;
        }
    }
    Ok(None)
}

/// Gives pages in a row to the request's cache: the offset of the block; none if it cannot take any.
fn hand_over(request: &AllocationRequest, row: Taken<Vec<Mapping>>) -> Option<u64> {
    let (start, end) = (row.memory.first()?.start(), row.memory.last()?.end());
    let Ok(offset) = request.add_and_allocate(start, end - start, Moved::default(), request.bytes) else {
        // No driver can refuse pages that are put back.
        let _ = row.put_back();
        return None;
    };
    row.until.recycle(&request.memory.events);
    offset
}

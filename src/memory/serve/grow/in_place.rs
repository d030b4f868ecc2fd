//! Growth in place: free pages of another stream's cache, enough of them in a row, that serve a request where they stand.
//!
//! They change hands without a driver call, once the GPU is done with them, so this is tried before any page is moved.

use super::effort::Effort;
use super::gather::{Readiness, readiness};
use super::growth::Gathered;
use crate::error::Result;
use crate::memory::cache::{DeviceCaches, StreamCache};
use crate::memory::device::Until;
use crate::memory::serve::request::Request;
use crate::memory::tuning::{A_FEW, MANY, PAGE};
use crate::observe::delivery::deliver;

/// Serves the request from free pages of another cache of its pool: the offset of the block. None if none has enough in a
/// row that are ready now.
///
/// # Errors
/// Any refusal of the driver. Everything is then as it was.
pub(super) fn serve_in_place(request: &Request) -> Result<Option<u64>> {
    let Request { cache: own, thread, bytes, .. } = *request;
    let needed = own.lock(thread).needed_for(bytes).max(PAGE);
    let told = request.pool().ledger.with_pages(MANY);
    let mut at_work = 0;
    for cache in DeviceCaches::numbered(request.pool(), &told) {
        if at_work >= A_FEW {
            break;
        }
        if std::ptr::eq(cache, own) {
            continue;
        }
        // A look into a cache that this thread locks cheaply costs less than a question about its stream.
        if cache.is_owned_by(thread) && cache.lock(thread).unused() < needed {
            continue;
        }
        match take_from(request, cache, needed)? {
            Some(Taken::Row(row)) => return Ok(hand_over(request, row)),
            Some(Taken::AtWork) => at_work += 1,
            None => {}
        }
    }
    Ok(None)
}

enum Taken {
    AtWork,
    Row(Gathered),
}

/// Takes pages in a row out of a cache, that no work uses which the request's stream would not wait for.
fn take_from(request: &Request, cache: &'static StreamCache, needed: u64) -> Result<Option<Taken>> {
    let Request { ref service, thread, .. } = *request;
    let Some(other) = cache.service_of(&service.pool) else { return Ok(None) };
    let readiness = readiness(cache, &other, request, Effort::Ready)?;
    match readiness {
        Readiness::Never => return Ok(None),
        Readiness::AtWork => return Ok(Some(Taken::AtWork)),
        Readiness::AfterWork | Readiness::Done { .. } => {}
    }
    let mappings = {
        let Some(mut heap) = cache.lock_to_take(&other, thread) else { return Ok(None) };
        if matches!(readiness, Readiness::Done { turnover } if turnover != heap.turnover()) {
            return Ok(None);
        }
        cache.take_row(&mut heap, needed)
    };
    if mappings.is_empty() {
        return Ok(None);
    }
    // Before any thread can have them.
    deliver();
    let memory = cache.memory;
    // What stands for the work on the stream, should the driver not record that.
    let until = Until::recorded_later(vec![memory.device]);
    let mut row = Gathered { cache, service: other, mappings, until };
    if matches!(readiness, Readiness::Done { .. }) {
        row.until = Until::at_once();
        return Ok(Some(Taken::Row(row)));
    }
    let is_in_order = row.service.is_in_order_with(service) && !row.service.is_captured;
    let is_done = row.service.work_so_far(&memory.events, thread, Some(service)).and_then(|until| {
        row.until = until;
        Ok(is_in_order || row.until.is_done(&memory.events, false)?)
    });
    match is_done {
        Ok(true) => Ok(Some(Taken::Row(row))),
        outcome => {
            row.put_back(memory, thread);
            outcome.map(|_| Some(Taken::AtWork))
        }
    }
}

/// Gives pages in a row to the request's cache: the offset of the block; none if that can take none.
fn hand_over(request: &Request, row: Gathered) -> Option<u64> {
    let Request { cache, ref service, thread, bytes } = *request;
    let (start, end) = (row.mappings.first()?.start(), row.mappings.last()?.end());
    let Ok(offset) = cache.add_and_allocate(service, thread, start, end - start, bytes) else {
        row.put_back(cache.memory, thread);
        return None;
    };
    if let Until::Events(events) = row.until {
        cache.memory.events.put_back(events);
    }
    offset
}

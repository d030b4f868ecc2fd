//! Growth at addresses that a memory range names: free extents of the right size are moved there, and created for what
//! is missing.

use super::gather::gather;
use super::growth::Growth;
use super::place::PagePlacement;
use crate::error::Result;
use crate::memory::device::Run;
use crate::memory::pool::{self, closed};
use crate::memory::serve::request::AllocationRequest;
use crate::memory::serve::take::Reach;
use crate::observe::Activity;
use crate::sync::lock;

/// Maps memory at held addresses where nothing is mapped, and makes each extent of `each` pages a live block of the
/// request's cache. Returns false if something is mapped there still.
///
/// # Errors
/// One for which [`is_no_memory`](super::is_no_memory) holds if there is not enough; `ErrorKind::Asleep` or
/// `ErrorKind::InvalidValue` if the pool fell asleep or was closed meanwhile; any other refusal of the driver. Nothing
/// is mapped there then.
pub(in crate::memory::serve) fn grow_at(
    request: &AllocationRequest,
    reach: &Reach,
    run: Run,
    each: u32,
) -> Result<bool> {
    let AllocationRequest { cache, service, thread, bytes } = request;
    let memory = cache.memory;
    let _moving = memory.under_way.begin();
    if !lock(&memory.space).map_held(run) {
        return Ok(false);
    }
    let _activity = Activity::begin_of(*bytes, format_args!("commit memory"));
    let own = match cache.lock_in(service, *thread) {
        Some(mut heap) => cache.take_mappings_of(&mut heap, run.pages / each, each),
        None => Vec::new(),
    };
    let place = PagePlacement { first: run.first, pages: run.pages, taken: run.pages };
    let mut growth = Growth::of_extents(request, place, each);
    let filled = (|| {
        growth.add_own(own)?;
        gather(&mut growth, reach)?;
        growth.create()?;
        growth.map()
    })();
    if let Err(error) = filled {
        growth.undo();
        return Err(error);
    }
    let each = u64::from(each) * crate::memory::tuning::PAGE;
    let added = growth.finish_by(|request, start, (bytes, _)| {
        request.cache.add_live(&request.service, request.thread, (start, bytes), each)
    });
    memory.try_end_retired();
    added.map(|()| true).map_err(|_| {
        let pool = request.pool();
        if pool.is_closed() { closed(pool) } else { pool::asleep(pool) }
    })
}

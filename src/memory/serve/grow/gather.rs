//! Free pages of other caches: which can be taken, and when their old mappings can go.

use std::sync::Arc;

use super::effort::Effort;
use super::growth::{Gathered, Growth};
use crate::error::Result;
use crate::ids::CaptureStatus;
use crate::memory::cache::{DeviceCaches, Service, StreamCache};
use crate::memory::device::Until;
use crate::memory::pool::Pool;
use crate::memory::serve::request::Request;
use crate::memory::serve::work_marks;
use crate::memory::tuning::{A_FEW, MANY, PAGE};
use crate::runtime::{self, RelaxedCapture};

/// Takes free pages of other caches, those of the same pool first, until there are enough.
pub(super) fn gather(growth: &mut Growth<'_>, effort: Effort) -> Result<()> {
    let may_move = |pool: &&Arc<Pool>| pool.source().is_pages() && !pool.no_split();
    for pool in pools(growth.request, effort).iter().filter(may_move) {
        if effort == Effort::Ready {
            gather_from_few(growth, pool, effort)?;
            continue;
        }
        for (cache, service) in DeviceCaches::services_of(pool) {
            if growth.missing_pages() == 0 {
                return Ok(());
            }
            gather_from(growth, cache, service, effort)?;
        }
    }
    Ok(())
}

/// Takes free pages of those caches of a pool that have told of some. Goes on as long as half of them have none any more.
fn gather_from_few(growth: &mut Growth<'_>, pool: &Pool, effort: Effort) -> Result<()> {
    let mut at_work = 0;
    loop {
        let told = pool.ledger.with_pages(MANY);
        let caches = DeviceCaches::numbered(pool, &told);
        let mut bare = told.len() - caches.len();
        for cache in caches {
            if growth.missing_pages() == 0 || at_work >= 3 * A_FEW {
                return Ok(());
            }
            let Some(service) = cache.service_of(pool) else { continue };
            match gather_from(growth, cache, service, effort)? {
                Found::Nothing => bare += 1,
                Found::AtWork => at_work += 1,
                Found::Pages => {}
            }
        }
        if bare < MANY / 2 {
            return Ok(());
        }
    }
}

/// Returns the pools whose pages are looked at.
fn pools(request: &Request, effort: Effort) -> Vec<Arc<Pool>> {
    let own = &request.service.pool;
    let mut pools = vec![Arc::clone(own)];
    if effort == Effort::Device
        && let Some(caches) = DeviceCaches::known(request.memory().device)
    {
        pools.extend(caches.pools().into_iter().filter(|pool| pool.number != own.number && pool.gives_way()));
    }
    pools
}

/// What a look at a cache has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// It had told of free pages, and has none any more.
    Nothing,
    /// Its stream is at work, which the driver was asked.
    AtWork,
    /// Pages that were taken, or that cannot be for now.
    Pages,
}

/// Takes free pages of one cache, at most those that are missing and a little more.
fn gather_from(growth: &mut Growth<'_>, cache: &'static StreamCache, other: Service, effort: Effort) -> Result<Found> {
    let Request { cache: asker, ref service, thread, .. } = *growth.request;
    let missing = growth.missing_pages();
    if std::ptr::eq(cache, asker) {
        return Ok(Found::Pages);
    }
    // A look into a cache that this thread locks cheaply costs less than a question about its stream.
    if cache.is_owned_by(thread) {
        let mut heap = cache.lock(thread);
        let is_bare = cache.tell_if_no_pages(&mut heap);
        if heap.unused() == 0 || (is_bare && effort == Effort::Ready) {
            return Ok(if is_bare { Found::Nothing } else { Found::Pages });
        }
    }
    let readiness = readiness(cache, &other, growth.request, effort)?;
    match readiness {
        Readiness::Never => return Ok(Found::Pages),
        Readiness::AtWork => return Ok(Found::AtWork),
        Readiness::AfterWork | Readiness::Done { .. } => {}
    }
    let slack = u64::from(growth.place.taken.saturating_sub(growth.gathered_pages() + missing)) * PAGE;
    let (mappings, is_bare) = {
        let Some(mut heap) = cache.lock_to_take(&other, thread) else { return Ok(Found::Pages) };
        if matches!(readiness, Readiness::Done { turnover } if turnover != heap.turnover()) {
            return Ok(Found::Pages);
        }
        if effort > Effort::Ready {
            heap.drop_empty_slabs(&growth.memory.pages);
        } else if readiness == Readiness::AfterWork {
            // Where the work was marked earlier, slots may have been freed since.
            heap.drop_empty_slabs_at_times(&growth.memory.pages);
        }
        let mappings = cache.take_mappings(&mut heap, u64::from(missing) * PAGE, slack, u64::MAX);
        let is_bare = cache.tell_if_no_pages(&mut heap);
        (mappings, is_bare)
    };
    if mappings.is_empty() {
        return Ok(if is_bare { Found::Nothing } else { Found::Pages });
    }
    if matches!(readiness, Readiness::Done { .. }) {
        growth.gathered.push(Gathered { cache, service: other, mappings, until: Until::at_once() });
        return Ok(Found::Pages);
    }
    growth.add(cache, &other, mappings)?;
    let is_in_order = other.is_in_order_with(service);
    if !is_in_order || other.is_captured {
        pass_on(growth, effort >= Effort::Pool)?;
    }
    Ok(Found::Pages)
}

/// Keeps pages last used on another stream only if the GPU is done with them; otherwise they go back.
fn pass_on(growth: &mut Growth<'_>, wait: bool) -> Result<()> {
    let Some(last) = growth.gathered.last_mut() else { return Ok(()) };
    if !last.until.is_done(&growth.memory.events, wait)?
        && let Some(from) = growth.gathered.pop()
    {
        from.put_back(growth.memory, growth.request.thread);
    }
    Ok(())
}

/// Whether free pages of a cache can be taken for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Readiness {
    Never,
    /// Not now: its stream is at work.
    AtWork,
    /// With the work so far on its stream, or on the device.
    AfterWork,
    /// At once, if its heap's turnover is still this.
    Done {
        turnover: u64,
    },
}

/// Returns whether a request of this effort can take free pages of another cache.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses, also for an error of earlier work.
pub(super) fn readiness(cache: &StreamCache, other: &Service, asker: &Request, effort: Effort) -> Result<Readiness> {
    if other.is_lender {
        return Ok(Readiness::AfterWork);
    }
    // A graph may use them at any time.
    if other.is_of_live_graph() {
        return Ok(Readiness::Never);
    }
    if !other.is_stream_usable(asker.thread, Some(&asker.service)) {
        if effort >= Effort::Pool {
            return Ok(Readiness::AfterWork);
        }
        if other.is_captured {
            // No call names a stream there, so this one marks. Without a mark the pages are not taken.
            let _ = work_marks::mark_all_work(cache, asker.thread);
        } else if !other.pool.marks_work() && cache.lock(asker.thread).unused() >= PAGE {
            work_marks::begin(&other.pool);
        }
        let turnover = work_marks::finished_turnover(cache)?;
        return Ok(turnover.map_or(Readiness::Never, |turnover| Readiness::Done { turnover }));
    }
    if other.is_of_stream_of(&asker.service) {
        return Ok(Readiness::AfterWork);
    }
    if other.stream.capture_status()? != CaptureStatus::None {
        return Ok(Readiness::Never);
    }
    if effort >= Effort::Pool {
        return Ok(Readiness::AfterWork);
    }
    // The question spoils captures as an allocation does.
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    let is_idle = other.stream.query()?;
    Ok(if is_idle { Readiness::AfterWork } else { Readiness::AtWork })
}

//! Free pages of other caches: which can be taken, and when their old mappings can go.

use std::sync::Arc;

use super::effort::Effort;
use super::growth::{Gathered, Growth};
use super::place::spare;
use crate::error::Result;
use crate::ids::CaptureStatus;
use crate::memory::cache::{DeviceCaches, Service, ThreadCache};
use crate::memory::device::{PAGE, Until};
use crate::memory::pool::Pool;
use crate::memory::serve::lending;
use crate::memory::serve::request::Request;
use crate::runtime::{self, RelaxedCapture};

/// Takes free pages of other caches, those of the same pool first, until there are enough.
pub(super) fn gather(growth: &mut Growth<'_>, effort: Effort) -> Result<()> {
    if effort == Effort::Ready && is_worth_new_pages(growth) {
        return Ok(());
    }
    for pool in pools(growth.request, effort).iter().filter(|pool| pool.source().is_pages()) {
        for cache in DeviceCaches::caches_of(pool) {
            let missing = growth.place.pages.saturating_sub(growth.gathered_pages());
            if missing == 0 {
                return Ok(());
            }
            gather_from(growth, cache, missing, effort)?;
        }
    }
    Ok(())
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

/// Returns whether the request had better take new pages than those that other streams would want back.
fn is_worth_new_pages(growth: &Growth<'_>) -> bool {
    let Request { cache, thread, .. } = *growth.request;
    let heap = cache.lock(thread);
    let pages = heap.mapped() / PAGE + u64::from(growth.place.pages);
    cache.traffic.is_worth_new_pages(pages, heap.counts().allocations)
}

/// Takes free pages of one cache, at most those that are missing and a little more.
fn gather_from(growth: &mut Growth<'_>, cache: &'static ThreadCache, missing: u32, effort: Effort) -> Result<()> {
    let Request { cache: asker, ref service, thread, .. } = *growth.request;
    // A look into a cache of this thread costs less than a question about its stream.
    let is_bare = || cache.is_owned_by(thread) && cache.lock(thread).unused() == 0;
    if std::ptr::eq(cache, asker) || is_bare() {
        return Ok(());
    }
    let Some(other) = cache.service() else { return Ok(()) };
    let readiness = readiness(cache, &other, growth.request, effort)?;
    if readiness == Readiness::Never {
        return Ok(());
    }
    let is_at_work = cache.owner().is_some_and(|owner| owner != thread.number());
    let slack = u64::from(growth.place.taken.saturating_sub(growth.gathered_pages() + missing)) * PAGE;
    let mappings = {
        let mut heap = cache.lock(thread);
        if matches!(readiness, Readiness::Done { turnover } if turnover != heap.turnover()) {
            return Ok(());
        }
        if effort > Effort::Exact {
            heap.drop_empty_slabs(&growth.memory.pages);
        }
        let rivals = if is_at_work { growth.rivals } else { 0 };
        let (wanted, slack) = spare(&heap, u64::from(missing) * PAGE, slack, rivals);
        cache.take_mappings(&mut heap, wanted, slack, u64::MAX)
    };
    if matches!(readiness, Readiness::Done { .. }) {
        let (pool, until) = (Arc::clone(&other.pool), Until::at_once());
        growth.gathered.push(Gathered { cache, pool, mappings, until });
        return Ok(());
    }
    growth.add(cache, &other, mappings)?;
    let is_in_order = other.stream.raw() == service.stream.raw() && other.per_thread_of == service.per_thread_of;
    if !is_in_order || other.is_captured {
        pass_on(growth, effort >= Effort::Pool)?;
    }
    Ok(())
}

/// Keeps pages last used on another stream only if the GPU is done with them; otherwise they go back.
fn pass_on(growth: &mut Growth<'_>, wait: bool) -> Result<()> {
    let Some(last) = growth.gathered.last_mut() else { return Ok(()) };
    if !last.until.is_done(&growth.memory.events, wait)?
        && let Some(from) = growth.gathered.pop()
    {
        from.put_back(growth.memory);
    }
    Ok(())
}

/// Whether free pages of a cache can be taken for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Readiness {
    Never,
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
pub(super) fn readiness(cache: &ThreadCache, other: &Service, asker: &Request, effort: Effort) -> Result<Readiness> {
    // A graph may use them at any time.
    if other.is_captured && other.pool.has_captures() {
        return Ok(Readiness::Never);
    }
    let stream = &asker.service.stream;
    if !other.is_stream_usable(asker.thread, Some(stream)) {
        if effort >= Effort::Pool {
            return Ok(Readiness::AfterWork);
        }
        if other.is_captured {
            // No call names a stream there, so this one marks. Without a mark the pages are not lent.
            let _ = lending::mark_all_work(cache, asker.thread);
        } else if !other.pool.is_lending() && cache.lock(asker.thread).unused() >= PAGE {
            lending::begin(&other.pool);
        }
        let turnover = lending::finished_turnover(cache)?;
        return Ok(turnover.map_or(Readiness::Never, |turnover| Readiness::Done { turnover }));
    }
    if other.stream.raw() == stream.raw() {
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
    Ok(if is_idle { Readiness::AfterWork } else { Readiness::Never })
}

//! Taking what another cache has free: the one way in which a request gets memory of another stream, or of another pool.
//!
//! Is it ready? Lock it in its service; has anything changed since it was asked? Take; record the work so far; give back what
//! that work still uses. The work is recorded after the memory was taken, so that it is all that ever used it, and no lock is
//! held while the driver is asked.

use super::reach::Reach;
use super::request::Request;
use super::work_marks;
use crate::error::Result;
use crate::ids::CaptureStatus;
use crate::memory::cache::{Heap, Service, StreamCache};
use crate::memory::device::Until;
use crate::memory::pool::{Pool, Role};
use crate::memory::tuning::PAGE;
use crate::observe::delivery::deliver;
use crate::runtime::{self, RelaxedCapture};
use crate::sync::ThisThread;

/// Free memory that can be taken out of a cache, and given back to it.
pub(super) trait FreeMemory {
    /// Returns whether nothing was taken.
    fn is_nothing(&self) -> bool;

    /// Gives it back to the cache that had it, or to its pool once `until` is done if that cache has ended its service.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses to take back memory of a pool that is gone; it has left the caller all the same.
    fn put_back(self, cache: &'static StreamCache, service: &Service, thread: ThisThread, until: Until) -> Result<()>;
}

/// What was taken of a cache.
#[derive(Debug)]
pub(super) struct Taken<T> {
    pub(super) cache: &'static StreamCache,
    /// What the cache served then.
    pub(super) service: Service,
    pub(super) memory: T,
    /// When the work that used it is done.
    pub(super) until: Until,
}

impl<T: FreeMemory> Taken<T> {
    /// Records the work so far that may use what was just taken; that goes back if the driver refuses.
    ///
    /// # Errors
    /// `ErrorKind::Library`, the driver's refusal.
    pub(super) fn after_work_so_far(
        cache: &'static StreamCache,
        service: &Service,
        memory: T,
        request: &Request,
    ) -> Result<Self> {
        // What stands for the work on the stream, should the driver not record that.
        let until = Until::recorded_later(vec![cache.memory.device]);
        let taken = Self { cache, service: service.clone(), memory, until };
        match service.work_so_far(&cache.memory.events, request.thread, Some(&request.service)) {
            Ok(until) => Ok(Self { until, ..taken }),
            Err(error) => {
                taken.put_back(request.thread)?;
                Err(error)
            }
        }
    }

    /// Gives it back.
    ///
    /// # Errors
    /// As [`FreeMemory::put_back`].
    pub(super) fn put_back(self, thread: ThisThread) -> Result<()> {
        let Self { cache, service, memory, until } = self;
        memory.put_back(cache, &service, thread, until)
    }

    /// Returns whether later work of the request's stream comes after all work that used it.
    pub(super) fn is_in_order_with(&self, request: &Request) -> bool {
        self.service.is_in_order_with(&request.service) && !self.service.role.is_captured()
    }
}

/// Why nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotTaken {
    /// The cache's stream is at work, which the driver was asked.
    AtWork,
    /// The cache has no free pages.
    Bare,
    /// What the cache has cannot be taken for now.
    Kept,
}

/// Takes what `select` takes out of the heap of another cache of a pool, if no work uses it that the request's stream does not
/// come after. Of a cache that has less than `least` bytes unused the driver is not asked.
///
/// # Errors
/// Any refusal of the driver. Everything is then as it was.
pub(super) fn take_from<T: FreeMemory>(
    request: &Request,
    reach: &Reach,
    (cache, pool): (&'static StreamCache, &Pool),
    least: u64,
    select: impl FnOnce(&mut Heap, &Service) -> T,
) -> Result<std::result::Result<Taken<T>, NotTaken>> {
    let Some(service) = cache.service_of(pool).filter(|_| !std::ptr::eq(cache, request.cache)) else {
        return Ok(Err(NotTaken::Kept));
    };
    // A look into a cache that this thread locks cheaply costs less than a question about its stream.
    if cache.is_owned_by(request.thread) {
        let mut heap = cache.lock(request.thread);
        let is_bare = cache.tell_if_no_pages(&mut heap);
        if heap.unused() < least || (is_bare && !reach.waits()) {
            return Ok(Err(if is_bare { NotTaken::Bare } else { NotTaken::Kept }));
        }
    }
    let readiness = readiness(cache, &service, request, reach)?;
    let (memory, is_bare) = {
        let heap = match readiness {
            Readiness::Never => None,
            Readiness::AtWork => return Ok(Err(NotTaken::AtWork)),
            Readiness::AfterWork => cache.lock_to_take(&service, request.thread),
            Readiness::Done { turnover } => {
                cache.lock_to_take(&service, request.thread).filter(|heap| heap.turnover() == turnover)
            }
        };
        let Some(mut heap) = heap else { return Ok(Err(NotTaken::Kept)) };
        if reach.waits() {
            heap.drop_empty_slabs(&cache.memory.pages);
        } else if readiness == Readiness::AfterWork {
            // Where the work was marked earlier, slots may have been freed since.
            heap.drop_empty_slabs_at_times(&cache.memory.pages);
        }
        let memory = select(&mut heap, &service);
        (memory, cache.tell_if_no_pages(&mut heap))
    };
    if memory.is_nothing() {
        return Ok(Err(if is_bare { NotTaken::Bare } else { NotTaken::Kept }));
    }
    // Before any thread can have it.
    deliver();
    if let Readiness::Done { .. } = readiness {
        return Ok(Ok(Taken { cache, service, memory, until: Until::at_once() }));
    }
    let mut taken = Taken::after_work_so_far(cache, &service, memory, request)?;
    if taken.is_in_order_with(request) {
        return Ok(Ok(taken));
    }
    match taken.until.is_done(&cache.memory.events, reach.waits()) {
        Ok(true) => Ok(Ok(taken)),
        outcome => {
            taken.put_back(request.thread)?;
            outcome.map(|_| Err(NotTaken::AtWork))
        }
    }
}

/// Whether what a cache has free can be taken for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Readiness {
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

/// Returns whether a request can take what another cache has free.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses, also for an error of earlier work.
fn readiness(cache: &StreamCache, service: &Service, request: &Request, reach: &Reach) -> Result<Readiness> {
    if service.role == Role::Lender {
        return Ok(Readiness::AfterWork);
    }
    // A graph may use it at any time.
    if service.is_of_live_graph() {
        return Ok(Readiness::Never);
    }
    if !service.is_stream_usable(request.thread, Some(&request.service)) {
        if reach.waits() {
            return Ok(Readiness::AfterWork);
        }
        if service.role.is_captured() {
            // No call names a stream there, so this one marks. Without a mark nothing is taken.
            let _ = work_marks::mark_all_work(cache, request.thread);
        } else if !service.pool.marks_work() && cache.lock(request.thread).unused() >= PAGE {
            work_marks::begin(&service.pool);
        }
        let turnover = work_marks::finished_turnover(cache)?;
        return Ok(turnover.map_or(Readiness::Never, |turnover| Readiness::Done { turnover }));
    }
    if service.is_of_stream_of(&request.service) {
        return Ok(Readiness::AfterWork);
    }
    if service.stream.capture_status()? != CaptureStatus::None {
        return Ok(Readiness::Never);
    }
    if reach.waits() {
        return Ok(Readiness::AfterWork);
    }
    // The question spoils captures as an allocation does.
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    let is_idle = service.stream.query()?;
    Ok(if is_idle { Readiness::AfterWork } else { Readiness::AtWork })
}

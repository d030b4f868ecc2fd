//! Taking another cache's free memory: the one way in which a request gets memory of another stream or pool. Check that
//! it is ready, lock the cache in its service, check that nothing changed, take it, record the work so far, and put
//! back what that work still uses. The work is recorded after the memory was taken, so that it is all that ever used
//! it, and no lock is held during driver calls.

mod reach;
mod readiness;
mod work_marks;

pub(super) use reach::{Reach, other_pools};
pub(super) use work_marks::mark_work;

use self::readiness::{Readiness, readiness};
use super::request::AllocationRequest;
use crate::error::Result;
use crate::memory::cache::{Heap, Service, StreamCache};
use crate::memory::device::Until;
use crate::memory::pool::Pool;
use crate::observe::delivery::deliver;
use crate::sync::ThisThread;

/// Free memory that can be taken out of a cache, and given back to it.
pub(super) trait FreeMemory {
    /// Puts it back into its cache, or gives it to its pool once `until` is done if that cache has ended its service.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses to take back memory of a pool that is gone; the caller has lost it anyway.
    fn put_back(self, cache: &'static StreamCache, service: &Service, thread: ThisThread, until: Until) -> Result<()>;
}

/// What was taken out of a cache.
#[derive(Debug)]
pub(super) struct Taken<T> {
    pub(super) cache: &'static StreamCache,
    /// The cache's service then.
    pub(super) service: Service,
    pub(super) memory: T,
    /// When the work that used it is done.
    pub(super) until: Until,
}

impl<T: FreeMemory> Taken<T> {
    /// Records the work so far that may use what was just taken. On a refusal the memory goes back.
    pub(super) fn after_work_so_far(
        cache: &'static StreamCache,
        service: &Service,
        memory: T,
        request: &AllocationRequest,
    ) -> Result<Self> {
        // Waits for all work if the driver does not record the stream's.
        let until = Until::recorded_later(cache.memory.location.device());
        let taken = Self { cache, service: service.clone(), memory, until };
        match service.work_so_far(&cache.memory.events, request.thread, Some(&request.service)) {
            Ok(until) => Ok(Self { until, ..taken }),
            Err(error) => {
                taken.put_back(request.thread)?;
                Err(error)
            }
        }
    }

    pub(super) fn put_back(self, thread: ThisThread) -> Result<()> {
        let Self { cache, service, memory, until } = self;
        memory.put_back(cache, &service, thread, until)
    }

    /// Returns whether later work of the request's stream comes after all work that used it.
    pub(super) fn is_in_order_with(&self, request: &AllocationRequest) -> bool {
        self.service.is_in_order_with(&request.service) && !self.service.role.is_captured()
    }
}

/// A cache that something may be taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Giver<'a> {
    pub(super) cache: &'static StreamCache,
    /// The pool that it must serve.
    pub(super) pool: &'a Pool,
    /// The unused bytes that it must have before its stream is queried.
    pub(super) least: u64,
    /// Whether its empty slabs are dropped now and then, also by a request that does not wait.
    pub(super) drops_slabs: bool,
}

/// Why nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotTaken {
    /// The cache's stream is at work, according to the driver.
    AtWork,
    Bare,
    /// What the cache has cannot be taken for now.
    Kept,
}

/// Takes what `select` selects, perhaps nothing, out of another cache's heap, if no work uses it that the request's
/// stream does not come after.
///
/// # Errors
/// Any refusal of the driver. Everything is then as it was.
pub(super) fn take_from<T: FreeMemory>(
    request: &AllocationRequest,
    reach: &Reach,
    Giver { cache, pool, least, drops_slabs }: Giver<'_>,
    select: impl FnOnce(&mut Heap, &Service) -> Option<T>,
) -> Result<std::result::Result<Taken<T>, NotTaken>> {
    let Some(service) = cache.service_of(pool).filter(|_| !std::ptr::eq(cache, request.cache)) else {
        return Ok(Err(NotTaken::Kept));
    };
    // A look into a cache that this thread locks cheaply costs less than querying its stream.
    if cache.is_owned_by(request.thread) {
        let mut heap = cache.lock(request.thread);
        let is_bare = cache.withdraw_if_no_pages(&mut heap);
        if heap.unused() < least || (is_bare && !reach.waits) {
            return Ok(Err(if is_bare { NotTaken::Bare } else { NotTaken::Kept }));
        }
    }
    let readiness = readiness(cache, &service, request, reach)?;
    let (memory, is_bare) = {
        let heap = match readiness {
            Readiness::Never => None,
            Readiness::AtWork => return Ok(Err(NotTaken::AtWork)),
            Readiness::AfterWork => cache.lock_to_take(&service, request.thread),
            Readiness::Done(turnover) => {
                cache.lock_to_take(&service, request.thread).filter(|heap| heap.turnover() == turnover)
            }
        };
        let Some(mut heap) = heap else { return Ok(Err(NotTaken::Kept)) };
        if reach.waits {
            heap.drop_empty_slabs(&cache.memory.pages);
        } else if drops_slabs && readiness == Readiness::AfterWork {
            // If the work was marked earlier, slots may have been freed since.
            heap.drop_empty_slabs_at_times(&cache.memory.pages);
        }
        let memory = select(&mut heap, &service);
        (memory, cache.withdraw_if_no_pages(&mut heap))
    };
    let Some(memory) = memory else { return Ok(Err(if is_bare { NotTaken::Bare } else { NotTaken::Kept })) };
    // Before any thread can have it.
    deliver();
    if let Readiness::Done(_) = readiness {
        return Ok(Ok(Taken { cache, service, memory, until: Until::at_once() }));
    }
    let mut taken = Taken::after_work_so_far(cache, &service, memory, request)?;
    if taken.is_in_order_with(request) {
        return Ok(Ok(taken));
    }
    match taken.until.is_done(&cache.memory.events, reach.waits) {
        Ok(true) => Ok(Ok(taken)),
        outcome => {
            taken.put_back(request.thread)?;
            outcome.map(|_| Err(NotTaken::AtWork))
        }
    }
}

//! What a request does when no free block fits: the ladder, from what costs least to what memory can be had at all.
//!
//! Only once the driver or a limit has said no does anything wait for the GPU.

use log::info;

use super::allocate::Miss;
use super::grow::{Effort, grow, is_no_memory};
use super::out_of_memory::{call, callbacks, no_memory_left, note};
use super::request::{Allocation, Request};
use super::settle::{Patience, settle};
use super::trim::trim_device;
use crate::error::{Error, Result};
use crate::memory::cache::{BLOCK_BYTES_MAX, DeviceCaches};
use crate::observe::Activity;
use crate::observe::target::MEMORY;
use crate::sync::ThisThread;

/// A step of the ladder: a block, or none if the next step is to be tried.
type Rung = fn(&mut Climb) -> Result<Option<Allocation>>;

/// The way of a request that found no free block, from the first rung to the last.
#[rustfmt::skip] // the right column tells what the left one names
const LADDER: [Rung; 10] = [
    Climb::blocks_of_other_streams, // blocks of this cache that waited for other streams, if those are done
    Climb::ready_pages,             // free pages of this pool that are ready; new ones for the rest, a few ahead of need
    Climb::exact_pages,             // the same, with no more new ones than needed
    Climb::blocks_of_pool,          // from here on the driver or a limit has said no: wait for this pool's streams
    Climb::pages_of_pool,           // free pages of this pool, whatever they wait for
    Climb::blocks_of_device,        // wait for the streams of every pool
    Climb::pages_of_device,         // free pages of every pool
    Climb::blocks_of_stand_ins,     // blocks of pools that stand in for the default pool
    Climb::given_back_pages,        // give everything free back to the driver, and ask it once more
    Climb::called_back_pages,       // ask the user's callbacks to free something, each followed by another try
];

impl Miss {
    /// Goes on with the request on the thread that made it.
    ///
    /// # Errors
    /// `ErrorKind::OutOfMemory` once nothing is left to try; `ErrorKind::InvalidValue` for 0 bytes, or if the pool has
    /// ended; any other refusal of the driver.
    #[cold]
    pub(in crate::memory) fn serve(self) -> Result<Allocation> {
        let Self { cache, bytes } = self;
        if bytes == 0 {
            return Err(Error::invalid_value("an allocation of 0 bytes has no address"));
        }
        let Some(service) = cache.service() else {
            return Err(Error::invalid_value("the pool of this scope is gone; leave the scope before its pool ends"));
        };
        let request = Request { cache, service, thread: ThisThread::get(), bytes };
        let mut climb = Climb { request, refused: None, waiting: None };
        climb.climb().inspect_err(|error| info!(target: MEMORY, "{error}"))
    }
}

/// A request on the ladder.
struct Climb {
    request: Request,
    /// The last refusal for want of memory.
    refused: Option<Error>,
    /// The part of the way that waits, once it has begun.
    waiting: Option<Activity>,
}

impl Climb {
    fn climb(&mut self) -> Result<Allocation> {
        self.refuse_more_than_any_device_has()?;
        for rung in LADDER {
            if let Some(found) = rung(self)? {
                self.log_end();
                return Ok(found);
            }
        }
        let refused = self.last_refusal();
        Err(no_memory_left(&self.request, refused))
    }

    fn refuse_more_than_any_device_has(&self) -> Result<()> {
        if self.request.bytes <= self.request.memory().total.min(BLOCK_BYTES_MAX) {
            return Ok(());
        }
        note(&self.request);
        Err(no_memory_left(&self.request, Error::no_memory("gpupool", "no device has that many bytes")))
    }

    fn last_refusal(&mut self) -> Error {
        self.refused.take().unwrap_or_else(|| Error::internal("a request climbed the ladder and nothing refused it"))
    }

    fn blocks_of_other_streams(&mut self) -> Result<Option<Allocation>> {
        let has_settled = settle(self.request.cache, self.request.thread, Patience::Ask)?;
        Ok(if has_settled { self.request.search() } else { None })
    }

    fn ready_pages(&mut self) -> Result<Option<Allocation>> {
        self.grow(Effort::Ready)
    }

    fn exact_pages(&mut self) -> Result<Option<Allocation>> {
        self.grow(Effort::Exact)
    }

    fn blocks_of_pool(&mut self) -> Result<Option<Allocation>> {
        self.log_begin();
        Ok(self.blocks_after_waiting(false))
    }

    fn pages_of_pool(&mut self) -> Result<Option<Allocation>> {
        self.grow(Effort::Pool)
    }

    fn blocks_of_device(&mut self) -> Result<Option<Allocation>> {
        Ok(self.blocks_after_waiting(true))
    }

    fn pages_of_device(&mut self) -> Result<Option<Allocation>> {
        self.grow(Effort::Device)
    }

    /// Returns a block of a pool with `use_on_oom`, of the same stream; for a request of the default pool alone.
    fn blocks_of_stand_ins(&mut self) -> Result<Option<Allocation>> {
        let Request { service, thread, bytes, .. } = &self.request;
        let Some(caches) = DeviceCaches::known(self.request.memory().device).filter(|_| service.pool.is_default())
        else {
            return Ok(None);
        };
        let stand_ins = caches.pools().into_iter().filter(|pool| pool.rules.use_on_oom && !pool.is_closed());
        Ok(stand_ins.flat_map(|pool| DeviceCaches::caches_of(&pool)).find_map(|cache| {
            let other = cache.service().filter(|other| other.is_in_order_with(service) && !other.is_captured)?;
            drop(other);
            cache.allocate(*thread, *bytes).map(|offset| Allocation { cache, offset })
        }))
    }

    /// Gives back to the driver what cannot be moved into this pool, so that the driver can give it here.
    fn given_back_pages(&mut self) -> Result<Option<Allocation>> {
        self.trim_device();
        self.grow(Effort::Device)
    }

    fn called_back_pages(&mut self) -> Result<Option<Allocation>> {
        note(&self.request);
        for callback in callbacks() {
            if !call(&callback, self.request.memory().device, self.request.bytes) {
                continue;
            }
            self.trim_device();
            let found = match self.request.search() {
                Some(found) => Some(found),
                None => self.grow(Effort::Device)?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Waits for blocks, and for pages, that wait for streams of this pool, or of every pool; then searches once. What
    /// another pool is refused here is not this request's end.
    fn blocks_after_waiting(&self, of_device: bool) -> Option<Allocation> {
        let _ = wait_for_streams(&self.request, of_device);
        self.request.search()
    }

    fn trim_device(&self) {
        if let Some(caches) = DeviceCaches::known(self.request.memory().device) {
            // What cannot be given back leaves the rest to help.
            let _ = trim_device(caches, self.request.thread, Patience::Wait);
        }
    }

    /// How often a request grows its cache before it gives up: each time but the last, another thread took pages
    /// meanwhile.
    const ATTEMPTS: usize = 100;

    /// Grows the cache and takes a block; none for want of memory, which is kept as the last refusal.
    fn grow(&mut self, effort: Effort) -> Result<Option<Allocation>> {
        for _ in 0..Self::ATTEMPTS {
            match grow(&self.request, effort) {
                Ok(Some(offset)) => return Ok(Some(self.request.allocation(offset))),
                Ok(None) => {}
                // Whatever a pool's own allocator refuses is taken for a lack of memory.
                Err(error) if is_no_memory(&error) || !self.request.pool().source().is_pages() => {
                    self.refused = Some(error);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::unavailable(
            "a thread holds more blocks than gpupool can number; free some, or allocate larger ones",
        ))
    }

    fn log_begin(&mut self) {
        self.waiting = Some(Activity::begin_of(self.request.bytes, format_args!("free memory for a request")));
        let (id, device) = (self.request.pool().id, self.request.memory().device);
        let bytes = self.request.bytes;
        info!(target: MEMORY, "pool {id} on {device}: no memory for {bytes} bytes, waiting for streams and trimming");
    }

    fn log_end(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let (id, device) = (self.request.pool().id, self.request.memory().device);
            let bytes = self.request.bytes;
            info!(target: MEMORY, "pool {id} on {device}: found {bytes} bytes after {}", waiting.took());
        }
    }
}

/// Waits for the streams that blocks and pages of the request's pool wait for, or those of every pool of the device.
fn wait_for_streams(request: &Request, of_device: bool) -> Result<()> {
    let memory = request.memory();
    let caches = match DeviceCaches::known(memory.device) {
        Some(caches) if of_device => caches.serving(),
        _ => DeviceCaches::caches_of(request.pool()),
    };
    let mut outcome = Ok(());
    for cache in caches {
        outcome = outcome.and(settle(cache, request.thread, Patience::Wait).map(drop));
    }
    outcome.and(memory.end_retired(true).map(drop))
}

//! Free blocks in the caches of other threads on the same stream, which need no event: threads that take turns on a stream
//! share its memory.
//!
//! Where they do, all their large blocks are in the cache that was there first, which grows for the others too: so free
//! memory is in one piece, and the peaks of what is live are counted in one place.

use super::{Climb, is_apart, take_block};
use crate::error::Result;
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{PAGE, SMALL_MAX};
use crate::memory::serve::request::{Allocation, Request};
use crate::memory::serve::settle::{Patience, settle};

/// A stream with more caches than this has threads that work at once.
const CACHES_MOST: usize = 4;
/// How many caches are looked at for a free block before memory has run out.
const LOOKED_AT: usize = 64;

impl Climb {
    /// Returns a free block of the cache of another thread on this stream; no slot, of which each thread has slabs of its own.
    pub(super) fn blocks_of_other_threads(&mut self) -> Result<Option<Allocation>> {
        if self.request.memory().is_of_host() {
            return self.pinned_blocks_of_other_threads();
        }
        let Request { cache: own, service, thread, bytes } = &self.request;
        if own.is_shared() || is_apart(service) {
            return Ok(None);
        }
        let caches = DeviceCaches::caches_on(&service.pool, service.stream.raw());
        if caches.len() > CACHES_MOST {
            return Ok(None);
        }
        let mut home = None;
        let mut is_before_own = true;
        for cache in caches {
            if std::ptr::eq(cache, *own) {
                is_before_own = false;
                continue;
            }
            let Some(other) = cache.service().filter(|other| other.is_as(service)) else { continue };
            let Some(mut heap) = cache.begin_visit(own, &other, *thread) else { continue };
            if *bytes <= SMALL_MAX {
                // Only where this thread's cache grows is it asked whether the owner is at work.
                continue;
            }
            if let Some(found) = take_block(cache, &mut heap, *bytes) {
                return Ok(Some(found));
            }
            drop(heap);
            if settle(cache, *thread, Patience::Ask)?
                && let Some(found) = self.block_of(cache, &other)?
            {
                return Ok(Some(found));
            }
            if is_before_own && home.is_none() && cache.is_at_rest() {
                home = Some(Request { cache, service: other, thread: *thread, bytes: *bytes });
            }
        }
        self.home = home;
        Ok(None)
    }

    /// Returns a large block of another thread's cache, which goes back there. What is free of pinned memory can be used at
    /// once, and segments of it cannot be moved to this cache.
    pub(super) fn pinned_blocks_of_other_threads(&self) -> Result<Option<Allocation>> {
        let Request { cache: own, service, bytes, .. } = &self.request;
        if *bytes < PAGE {
            return Ok(None);
        }
        let told = service.pool.ledger.with_pages(LOOKED_AT);
        for cache in DeviceCaches::numbered(&service.pool, &told) {
            let Some(other) = cache.service_of(&service.pool).filter(|_| !std::ptr::eq(cache, *own)) else { continue };
            if let Some(found) = self.block_of(cache, &other)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

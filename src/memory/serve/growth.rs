//! One growth under way: what was taken and done so far, so that it can be undone; and where it finds free pages: first in
//! its own pool, until there are enough.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::extents::{Limit, PagePlacement, create, extent_pages, limit_reached};
use super::segments::retire;
use super::take::{AllocationRequest, FreeMemory, Giver, NotTaken, Reach, Taken, take_from};
use crate::error::Result;
use crate::memory::cache::{Company, Moved, NotAdded, Portion, ServingCache};
use crate::memory::device::{
    BudgetClaim, DeviceMemory, EndingExtents, ExtentEnd, Mapping, Remains, Run, UNKNOWN, Until,
};
use crate::memory::pool::Pool;
use crate::memory::tuning::{A_FEW, MANY, PAGE};
use crate::observe::Activity;
use crate::runtime::Extent;

#[derive(Debug)]
pub(super) struct Growth<'a> {
    pub(super) request: &'a AllocationRequest,
    pub(super) memory: &'static DeviceMemory,
    pub(super) place: PagePlacement,
    company: Company,
    /// The pages of each extent, if they must be so many.
    pub(super) each: Option<u32>,
    pub(super) gathered: Vec<Taken<Vec<Mapping>>>,
    /// New extents, with the bytes counted for each.
    created: Vec<Mapping>,
    /// What is mapped at the new place so far.
    mapped: Vec<Mapping>,
    /// Gathered extents that the driver maps nowhere else, and the new one in place of each.
    replaced: Vec<(Extent, Mapping)>,
}

impl<'a> Growth<'a> {
    pub(super) fn new(request: &'a AllocationRequest, place: PagePlacement, company: Company) -> Self {
        let (gathered, created, mapped, replaced) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { request, memory: request.memory, place, company, each: None, gathered, created, mapped, replaced }
    }

    fn pool(&self) -> &'a Arc<Pool> {
        self.request.pool()
    }

    fn gathered_mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.gathered.iter().flat_map(|taken| &taken.memory)
    }

    pub(super) fn gathered_pages(&self) -> u32 {
        self.gathered_mappings().map(|mapping| mapping.run.pages).sum()
    }

    /// Returns how many pages are still to be found, or created.
    pub(super) fn missing_pages(&self) -> u32 {
        self.place.pages.saturating_sub(self.gathered_pages())
    }

    pub(super) fn moved_bytes(&self) -> u64 {
        u64::from(self.gathered_pages()) * PAGE
    }

    pub(super) fn created_bytes(&self) -> u64 {
        self.created.iter().map(|mapping| mapping.bytes()).sum()
    }

    /// Adds free pages of the request's own cache.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver does not record the work so far. The cache has them back.
    pub(super) fn add_own(&mut self, mappings: Vec<Mapping>) -> Result<()> {
        if !mappings.is_empty() {
            let own = Arc::clone(&self.request.of);
            self.gathered.push(Taken::after_work_so_far(own, mappings, self.request)?);
        }
        Ok(())
    }

    /// Adds what was made ahead of need, which no work has used.
    pub(super) fn add_ready(&mut self) {
        let Some(each) = self.each else { return };
        let memory = self.pool().supply.ready.take(each, self.missing_pages() / each);
        if !memory.is_empty() {
            self.gathered.push(Taken { from: Arc::clone(&self.request.of), memory, until: Until::at_once() });
        }
    }

    /// Takes free pages of other caches, until there are enough: of all once memory has run out, else of a few, and of more
    /// while half of those have none any more.
    pub(super) fn gather(&mut self, reach: &Reach) -> Result<()> {
        let may_move = |pool: &&Arc<Pool>| pool.source().is_pages() && !pool.no_split();
        for pool in reach.pools.iter().filter(may_move) {
            let (mut at_work, mut goes_on) = (0, true);
            while goes_on {
                let (caches, mut bare) = reach.caches_with_pages(pool);
                for cache in caches {
                    if self.missing_pages() == 0 || (!reach.waits && at_work >= 3 * A_FEW) {
                        return Ok(());
                    }
                    match self.gather_from(reach, &cache)? {
                        Some(NotTaken::Bare) => bare += 1,
                        Some(NotTaken::AtWork) => at_work += 1,
                        Some(NotTaken::Kept) | None => {}
                    }
                }
                goes_on = !reach.waits && bare >= MANY / 2;
            }
        }
        Ok(())
    }

    /// Takes free pages of one cache, or returns why there are none: at most those that are missing and a little more.
    fn gather_from(&mut self, reach: &Reach, cache: &Arc<ServingCache>) -> Result<Option<NotTaken>> {
        let missing = self.missing_pages();
        let slack = u64::from(self.place.taken.saturating_sub(self.gathered_pages() + missing)) * PAGE;
        let wanted = u64::from(missing) * PAGE;
        let portion = match self.each {
            Some(pages) => Portion::Each { most: missing / pages, pages },
            None => Portion::Bytes { wanted, slack, kept: None },
        };
        let select = |heap: &mut _, _: &_| Some(cache.take_mappings(heap, portion)).filter(|taken| !taken.is_empty());
        let taken = take_from(self.request, reach, Giver { cache, least: 1, drops_slabs: true }, select)?;
        Ok(taken.map(|taken| self.gathered.push(taken)).err())
    }

    pub(super) fn create(&mut self) -> Result<()> {
        let missing = self.missing_pages();
        let part = extent_pages(self.memory, self.request.bytes, self.company);
        // A segment that may be registered is one extent: libraries register no more than one at an address.
        let is_whole = self.pool().no_split();
        let most = if is_whole { missing } else { self.each.unwrap_or(part) };
        let _activity =
            (missing > 0).then(|| Activity::begin_of(u64::from(missing) * PAGE, format_args!("create pages")));
        // Where they go is set when they are mapped.
        create(self.pool(), Run { first: 0, pages: missing }, most, &mut self.created)
    }

    /// Maps everything at the new place.
    pub(super) fn map(&mut self) -> Result<()> {
        // Pages of another pool are this pool's from now on.
        let foreign: u64 = self.foreign().map(|(_, bytes)| bytes).sum();
        let pool = self.pool();
        let claim = BudgetClaim::new(pool.budget(), foreign).ok_or_else(|| limit_reached(pool, Limit::Pool))?;
        let _activity =
            (self.moved_bytes() > 0).then(|| Activity::begin_of(self.moved_bytes(), format_args!("move pages")));
        let mut first = self.place.first;
        for &mapping in self.gathered.iter().flat_map(|taken| &taken.memory).chain(&self.created) {
            self.mapped.push(Mapping { run: Run { first, pages: mapping.run.pages }, ..mapping });
            first += mapping.run.pages;
        }
        let range = &self.memory.range;
        let mut done = 0;
        let outcome = loop {
            // SAFETY: `find_place` took the pages for this growth, which has the extents.
            let (count, outcome) = unsafe { range.map(&range.placed(&self.mapped[done..])) };
            done += count;
            match outcome {
                Err(error) if error.is_status(UNKNOWN) && self.replace(done) => {}
                outcome => break outcome,
            }
        };
        self.mapped.truncate(done);
        outcome?;
        if !self.replaced.is_empty() {
            // What was mapped before the refusal.
            // SAFETY: all of it was just mapped, and this growth alone unmaps it.
            unsafe { range.open(&range.placed(&self.mapped)) }?;
        }
        claim.settle();
        Ok(())
    }

    /// Replaces a gathered extent by a new one, which counts as the old one; that goes once the work at its old place
    /// is done. False for an extent that is new, or if the driver creates none.
    fn replace(&mut self, index: usize) -> bool {
        // None if all is mapped, but not opened.
        let Some(&Mapping { run, extent: old }) = self.mapped.get(index) else { return false };
        if !self.gathered_mappings().any(|mapping| mapping.extent == old) {
            return false;
        }
        let Ok(new) = self.memory.range.create(run.pages) else { return false };
        self.mapped[index].extent = new;
        self.replaced.push((old, self.mapped[index]));
        true
    }

    /// Bytes gathered from the request's own cache, and from others.
    fn moved(&self) -> Moved {
        let mut moved = Moved::default();
        for taken in &self.gathered {
            let is_own = std::ptr::eq(taken.from.cache, self.request.cache);
            let of = if is_own { &mut moved.own } else { &mut moved.others };
            *of += taken.memory.iter().map(|mapping| mapping.bytes()).sum::<u64>();
        }
        moved
    }

    /// Bytes gathered from other pools.
    fn foreign(&self) -> impl Iterator<Item = (&Arc<Pool>, u64)> {
        let others = self.gathered.iter().filter(|taken| taken.from.pool().number != self.pool().number);
        others.map(|taken| (taken.from.pool(), taken.memory.iter().map(|mapping| mapping.bytes()).sum()))
    }

    /// Gives the new pages to the cache, and retires the old places. Returns the offset of a block for the request.
    pub(super) fn finish(self) -> Option<u64> {
        let wanted = self.request.bytes;
        self.finish_by(|cache, start, bytes, moved| cache.add_and_allocate(start, bytes, moved, wanted)).ok().flatten()
    }

    /// Gives the new pages to the cache by `add`, with where they start, their bytes, and those that were moved; then
    /// retires the old places.
    ///
    /// # Errors
    /// [`NotAdded`] as of `add`: the new pages go back to the driver.
    pub(super) fn finish_by<R>(
        self,
        add: impl FnOnce(&ServingCache, u64, u64, Moved) -> Result<R, NotAdded>,
    ) -> Result<R, NotAdded> {
        for (pool, bytes) in self.foreign() {
            pool.budget().release(bytes);
        }
        let pages: u32 = self.mapped.iter().map(|mapping| mapping.run.pages).sum();
        let (memory, pool, start, bytes) = (self.memory, self.pool(), self.place.start(), u64::from(pages) * PAGE);
        memory.moved_pages.fetch_add(self.gathered_pages().into(), Ordering::Relaxed);
        for &mapping in &self.mapped {
            memory.pages.set_mapping(mapping);
        }
        pool.add_segment(memory.address(start), bytes);
        let added = add(self.request, start, bytes, self.moved());
        if added.is_err() {
            // SAFETY: no cache has got the new place, so no work uses it.
            unsafe { retire(pool, Remains::released(self.mapped), Until::at_once()) };
        }
        memory.put_back_pages(self.place.left_of(pages));
        for taken in self.gathered {
            let is_replaced = |mapping: &Mapping| self.replaced.iter().any(|(old, _)| *old == mapping.extent);
            let (mapped, moved) = taken.memory.into_iter().partition(is_replaced);
            let ending = EndingExtents { moved, ..EndingExtents::new(ExtentEnd::Replaced, mapped, Vec::new()) };
            // SAFETY: the old mappings were taken out of their cache, and `until` is all work on the streams that used
            // them.
            unsafe { memory.retire(Remains::Extents(ending), taken.until, &taken.from.pool().supply) };
        }
        added
    }

    /// Puts everything back to where it was; what the driver refuses now is tried again later.
    pub(super) fn undo(mut self) {
        let memory = self.memory;
        let pages: u32 = self.mapped.iter().map(|mapping| mapping.run.pages).sum();
        // Created memory was mapped after what was gathered.
        let moved = self.mapped.len().min(self.gathered_mappings().count());
        let created = self.mapped.split_off(moved);
        let unmapped = self.created.split_off(created.len());
        let is_new = |mapping: &Mapping| self.replaced.iter().any(|(_, new)| new == mapping);
        let (mapped, moved): (Vec<_>, Vec<_>) = std::mem::take(&mut self.mapped).into_iter().partition(is_new);
        let all_new = self.replaced.iter().map(|(_, new)| *new);
        let unused = all_new.filter(|new| !mapped.contains(new)).collect();
        let moved = EndingExtents { moved, ..EndingExtents::new(ExtentEnd::Replaced, mapped, unused) };
        let supply = &self.pool().supply;
        // SAFETY: no cache has got the new place, so no work uses it.
        unsafe { memory.retire(Remains::Extents(moved), Until::at_once(), supply) };
        let created = EndingExtents::new(ExtentEnd::Released, created, unmapped);
        // SAFETY: no cache has got the new extents, so no work uses them.
        unsafe { memory.retire(Remains::Extents(created), Until::at_once(), supply) };
        for taken in self.gathered {
            // No driver can refuse pages that are put back.
            let _ = taken.put_back();
        }
        memory.put_back_pages(self.place.left_of(pages));
        memory.try_end_retired();
    }
}

/// Pages that move. Those given back are still mapped.
impl FreeMemory for Vec<Mapping> {
    fn put_back(mut self, from: &ServingCache, until: Until) -> Result<()> {
        self.retain(|mapping| from.add(mapping.start(), mapping.bytes()).is_err());
        if !self.is_empty() {
            // SAFETY: these mappings were taken out of the cache, and `until` is all work on the stream that it served, or
            // on the device.
            unsafe { from.memory.retire(Remains::released(self), until, &from.pool().supply) };
        }
        Ok(())
    }
}

//! Physical memory for pools: what the limits grant of it, how large its pieces are, and where they are mapped.
//!
//! Some extents no cache has: those of a pool's reserve, and those that are made ahead of need. What is mapped somewhere
//! already NVIDIA's driver maps at another place in five sixths of the time (`benches/results/h200/pages_ahead.txt`), so
//! pages made ahead are mapped too, until a commit moves them.

use crate::error::{Error, ErrorKind, GPUPOOL, Result, StatusKind};
use crate::memory::cache::{Company, Heap};
use crate::memory::device::{
    Budget, BudgetClaim, DeviceMemory, EndingExtents, ExtentEnd, Mapping, PINNED_MADE, Remains, Run, Until,
};
use crate::memory::pool::Pool;
use crate::memory::tuning::{EXTENT_PAGES, EXTENT_PARTS, LARGE_EXTENT_PAGES, LOWEST_BELOW, PAGE, SHARED_EXTENT_PARTS};
use crate::sync::lock;

/// Returns whether an error means that memory ran out, so that freeing some may help.
pub(super) fn is_no_memory(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Library(refused) if refused.kind == StatusKind::OutOfMemory)
}

pub(super) fn out_of_addresses(memory: &DeviceMemory) -> Error {
    Error::no_memory(
        GPUPOOL,
        format!(
            "no addresses are left of the {} bytes reserved for {}: free blocks there, or request less",
            memory.range.bytes, memory.location
        ),
    )
}

/// A limit on what a pool has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Limit {
    Pool,
    Process,
    Pinned,
}

pub(super) fn limit_reached(pool: &Pool, limit: Limit) -> Error {
    let which = match limit {
        Limit::Pool => {
            format!("The limit of pool {} is reached: raise it, free live blocks of the pool", pool.label())
        }
        Limit::Process => {
            "This process's memory fraction is used up: raise it (set_per_process_memory_fraction), free \
                             live blocks (other pools keep their free memory until their trim())"
                .to_owned()
        }
        Limit::Pinned => {
            "The limit of pinned memory is reached: raise it (set_pinned_limit), free pinned memory".to_owned()
        }
    };
    Error::no_memory(GPUPOOL, format!("{which}, or request less"))
}

/// Returns the budgets that what a pool takes is within.
fn budgets(pool: &Pool) -> impl Iterator<Item = (&Budget, Limit)> {
    let of_pinned = pool.memory.process_budget().map(|budget| (budget, Limit::Pinned));
    [(pool.budget(), Limit::Pool), (&pool.memory.budget, Limit::Process)].into_iter().chain(of_pinned)
}

/// Returns the refusal of a block that is larger than a limit, so that whatever is freed does not help.
pub(super) fn beyond_a_limit(pool: &Pool, bytes: u64) -> Option<Error> {
    let (_, limit) = budgets(pool).find(|(budget, _)| !budget.can_hold(bytes))?;
    Some(limit_reached(pool, limit))
}

/// Returns a piece of physical memory from `supply`, within the limits of the pool and the process. `supply` may panic.
pub(super) fn claimed<R>(pool: &Pool, bytes: u64, supply: impl FnOnce() -> Result<R>) -> Result<R> {
    let claim = |(budget, limit)| BudgetClaim::new(budget, bytes).ok_or_else(|| limit_reached(pool, limit));
    let claims = budgets(pool).map(claim).collect::<Result<Vec<_>>>()?;
    let supplied = if pool.memory.is_of_host() { PINNED_MADE.time(supply) } else { supply() }?;
    pool.memory.pieces.come(bytes);
    claims.into_iter().for_each(BudgetClaim::settle);
    Ok(supplied)
}

/// Creates extents for the pages of a run, of at most `most` each. A refusal leaves those before it.
pub(super) fn create(pool: &Pool, run: Run, most: u32, created: &mut Vec<Mapping>) -> Result<()> {
    let mut first = run.first;
    while first < run.next() {
        let pages = most.min(run.next() - first);
        let extent = claimed(pool, u64::from(pages) * PAGE, || pool.memory.range.create(pages))?;
        created.push(Mapping { run: Run { first, pages }, extent });
        first += pages;
    }
    Ok(())
}

/// Where new pages will be.
#[derive(Clone, Copy, Debug)]
pub(super) struct PagePlacement {
    pub(super) first: u32,
    /// Pages needed, and those taken so that an extent may be larger than the rest to fill.
    pub(super) pages: u32,
    pub(super) taken: u32,
}

impl PagePlacement {
    pub(super) const fn start(self) -> u64 {
        self.first as u64 * PAGE
    }

    /// Returns the rest of what was taken after so many pages.
    pub(super) const fn left_of(self, pages: u32) -> Run {
        Run { first: self.first + pages, pages: self.taken - pages }
    }
}

/// Whether free memory beside new pages counts for the request. It can be taken before they are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beside {
    Counts,
    CountsNot,
}

/// Chooses where pages for the request will be: where the fewest are needed beside free memory, in a hole rather than
/// in new space.
pub(super) fn find_place(memory: &DeviceMemory, heap: &Heap, bytes: u64, beside: Beside) -> Option<PagePlacement> {
    let needed = heap.needed_for(bytes);
    // At least one page: the search may have passed over what is free there.
    let pages_for = |bytes: u64| Some(u32::try_from(bytes.div_ceil(PAGE)).ok()?.max(1));
    let whole = pages_for(needed)?;
    let mut space = lock(&memory.space);
    let mut best = space.hole(whole).map(|hole| (whole, hole.pages, hole.first));
    if beside == Beside::Counts {
        // Free memory that saves no page does not count.
        let least = needed.saturating_sub(u64::from(whole - 1) * PAGE);
        for (end, free) in heap.tails(least).filter(|(end, _)| *end < memory.range.bytes) {
            let pages = pages_for(needed.saturating_sub(free))?;
            if pages < whole && best.is_none_or(|(fewest, ..)| pages <= fewest) {
                let first = (end / PAGE) as u32;
                let room = space.free_at(first);
                let place = (pages <= room).then_some((pages, room, first));
                best = best.into_iter().chain(place).min();
            }
        }
    }
    let (pages, room, first) = match best {
        Some(best) => best,
        None => {
            let is_beside = |run: &Run| beside == Beside::Counts && heap.ends_at(run.start());
            let beside = space.runs_from(whole).find(is_beside).map(|run| run.first);
            let first = beside.or_else(|| space.far(whole))?;
            (whole, space.free_at(first), first)
        }
    };
    let taken = (pages + memory.set_extent_pages.unwrap_or(EXTENT_PAGES)).min(room);
    space.take(Run { first, pages: taken }).then_some(PagePlacement { first, pages, taken })
}

/// Bytes of the smallest large request. A smaller one, from [`LOWEST_BELOW`] on, is often a short-lived work area.
const LARGE: u64 = LOWEST_BELOW << 2;

/// Returns the most pages of an extent created for a request of so many bytes.
pub(super) fn extent_pages(memory: &DeviceMemory, bytes: u64, company: Company) -> u32 {
    let parts = match company {
        Company::Alone | Company::WithFew => EXTENT_PARTS,
        Company::WithMany => SHARED_EXTENT_PARTS,
    };
    match memory.set_extent_pages {
        _ if bytes < LOWEST_BELOW => 1,
        Some(pages) => pages,
        None if bytes < LARGE => EXTENT_PAGES << 1,
        None => (bytes / PAGE / parts).clamp(EXTENT_PAGES.into(), LARGE_EXTENT_PAGES) as u32,
    }
}

/// Creates so many pages, in extents of at most `most`, and maps them in a row.
///
/// # Errors
/// One for which [`is_no_memory`] holds if there is not enough; any other refusal of the driver.
/// Nothing is kept then.
pub(super) fn map_new(pool: &Pool, pages: u32, most: u32) -> Result<Vec<Mapping>> {
    let memory = pool.memory;
    let _moving = memory.under_way.begin();
    let run = lock(&memory.space).take_any(pages).ok_or_else(|| out_of_addresses(memory))?;
    let (mut extents, mut mapped) = (Vec::new(), 0);
    let outcome = create(pool, run, most, &mut extents).and_then(|()| {
        // SAFETY: the pages were taken above, and the extents are this call's alone.
        let (count, outcome) = unsafe { memory.range.map(&memory.range.placed(&extents)) };
        mapped = count;
        outcome
    });
    let Err(error) = outcome else { return Ok(extents) };
    let unmapped = extents.split_off(mapped);
    let first = extents.last().map_or(run.first, |mapping| mapping.run.next());
    memory.put_back_pages(Run { first, pages: run.next() - first });
    let unused = EndingExtents::new(ExtentEnd::Released, extents, unmapped);
    // SAFETY: no cache has got any of it, so no work uses it.
    unsafe { memory.retire(Remains::Extents(unused), Until::at_once(), &pool.supply) };
    memory.try_end_retired();
    Err(error)
}

/// Makes an extent ahead of need.
///
/// # Errors
/// As [`map_new`].
pub(in crate::memory) fn make_ready(pool: &Pool, pages: u32) -> Result<()> {
    for mapping in map_new(pool, pages, pages)? {
        pool.memory.pages.set_mapping(mapping);
        pool.supply.ready.put(mapping);
    }
    Ok(())
}

/// Releases mapped extents that no cache has.
pub(in crate::memory) fn retire_extents(pool: &Pool, mapped: Vec<Mapping>) {
    if !mapped.is_empty() {
        let remains = Remains::released(mapped);
        // SAFETY: no cache has any of it, and no work uses it.
        unsafe { pool.memory.retire(remains, Until::at_once(), &pool.supply) };
    }
}

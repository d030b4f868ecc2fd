//! Where new pages go: beside free memory, in a hole rather than in new space; and how large their extents are.

use crate::memory::cache::{Company, Heap};
use crate::memory::device::{DeviceMemory, Run};
use crate::memory::tuning::{EXTENT_PAGES, EXTENT_PARTS, LARGE_EXTENT_PAGES, LOWEST_BELOW, PAGE, SHARED_EXTENT_PARTS};
use crate::sync::lock;

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

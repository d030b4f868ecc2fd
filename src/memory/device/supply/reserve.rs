//! A pool's reserve: physical memory that is the pool's from its birth to its end, at addresses in one piece.
//!
//! Its extents are mapped once. The pool's caches take pages of it and give them back where they stand, without a driver
//! call; what is here is free, and no work uses it. After the pool's end each extent goes once all of it is here.

use std::ops::Range;
use std::sync::Mutex;

use super::super::address_space::AddressSpace;
use super::super::pages::Mapping;
use crate::memory::tuning::PAGE;
use crate::sync::lock;

/// Pages in a row: the first, and how many.
pub(in crate::memory) type Run = (u32, u32);

/// Memory that a pool keeps.
#[derive(Debug)]
pub(in crate::memory) struct Reserve {
    first: u32,
    pages: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: AddressSpace,
    /// The extents that have not gone.
    extents: Vec<Mapping>,
    has_ended: bool,
}

impl State {
    /// Takes out the extents that are wholly free, if the pool has ended.
    fn take_free_extents(&mut self) -> Vec<Mapping> {
        if !self.has_ended {
            return Vec::new();
        }
        let free = &mut self.free;
        self.extents.extract_if(.., |extent| free.take(extent.first, extent.pages)).collect()
    }
}

impl Reserve {
    /// Makes a reserve of extents that are mapped in a row and that no other has.
    pub(in crate::memory) fn new(extents: Vec<Mapping>) -> Self {
        let first = extents.first().map_or(0, |extent| extent.first);
        let pages = extents.iter().map(|extent| extent.pages).sum();
        let free = AddressSpace::new(first, pages);
        Self { first, pages, state: Mutex::new(State { free, extents, has_ended: false }) }
    }

    /// Returns the offsets at which it stands.
    pub(in crate::memory) fn range(&self) -> Range<u64> {
        u64::from(self.first) * PAGE..u64::from(self.first + self.pages) * PAGE
    }

    /// Returns its size in bytes.
    pub(in crate::memory) fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE
    }

    /// Takes the smallest run of so many free pages that there is. The asker's own free pages count as free, too; those
    /// of them that are not in what it gets stay in `own`.
    pub(in crate::memory) fn take(&self, own: &mut Vec<Run>, pages: u32) -> Option<u32> {
        let mut state = lock(&self.state);
        for &(first, pages) in own.iter() {
            state.free.put_back(first, pages);
        }
        let found = state.free.smallest(pages).map(|(first, _)| first);
        let taken = found.map_or(0..0, |first| first..first + pages);
        if !taken.is_empty() {
            state.free.take(taken.start, pages);
        }
        let parts = own.iter().flat_map(|&(first, pages)| without(first..first + pages, &taken));
        *own = parts.map(|part| (part.start, part.end - part.start)).collect();
        for &(first, pages) in own.iter() {
            state.free.take(first, pages);
        }
        found
    }

    /// Takes pages back that no work uses any more, and returns the extents that are to go, for the pool has ended.
    #[must_use]
    pub(in crate::memory) fn put_back(&self, runs: Vec<Run>) -> Vec<Mapping> {
        let mut state = lock(&self.state);
        for (first, pages) in runs {
            state.free.put_back(first, pages);
        }
        state.take_free_extents()
    }

    /// Ends the reserve with its pool, and returns the extents that are to go.
    #[must_use]
    pub(in crate::memory) fn end(&self) -> Vec<Mapping> {
        let mut state = lock(&self.state);
        state.has_ended = true;
        state.take_free_extents()
    }

    /// Takes all extents out, whose memory is to go while the pool is asleep.
    pub(in crate::memory) fn take_extents(&self) -> Vec<Mapping> {
        std::mem::take(&mut lock(&self.state).extents)
    }

    /// Takes in the extents that stand there now. Returns those that are to go, for the pool has ended.
    #[must_use]
    pub(in crate::memory) fn set_extents(&self, extents: Vec<Mapping>) -> Vec<Mapping> {
        let mut state = lock(&self.state);
        state.extents = extents;
        state.take_free_extents()
    }

    /// Returns whether its pool has ended.
    pub(in crate::memory) fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    /// Takes all free pages, which have no extents, for their pool is asleep.
    pub(in crate::memory) fn take_free(&self) -> Vec<Run> {
        let mut state = lock(&self.state);
        let runs: Vec<_> = state.free.runs().collect();
        for &(first, pages) in &runs {
            state.free.take(first, pages);
        }
        runs
    }

    /// Returns what is free here: start and bytes of each piece.
    pub(in crate::memory) fn free(&self) -> Vec<(u64, u64)> {
        let in_bytes = |(first, pages)| (u64::from(first) * PAGE, u64::from(pages) * PAGE);
        lock(&self.state).free.runs().map(in_bytes).collect()
    }

    /// Returns the extents that have not gone.
    pub(in crate::memory) fn extents(&self) -> Vec<Mapping> {
        lock(&self.state).extents.clone()
    }
}

/// Returns the parts of a range that another leaves of it.
fn without(whole: Range<u32>, taken: &Range<u32>) -> impl Iterator<Item = Range<u32>> + use<> {
    let parts = if taken.is_empty() {
        [whole, 0..0]
    } else {
        [whole.start..whole.end.min(taken.start), whole.start.max(taken.end)..whole.end]
    };
    parts.into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Extent;

    /// Four extents of four pages from page 100 on.
    fn reserve() -> Reserve {
        let extent =
            |number: u32| Mapping { first: 100 + 4 * number, pages: 4, extent: Extent::from_number(number.into()) };
        Reserve::new((0..4).map(extent).collect())
    }

    #[test]
    fn what_was_taken_and_put_back_is_in_one_piece_again() {
        let reserve = reserve();
        let taken: Vec<_> = [3, 5, 8].into_iter().map(|pages| reserve.take(&mut vec![], pages)).collect();
        assert_eq!(taken, [Some(100), Some(103), Some(108)]);
        assert_eq!(reserve.take(&mut vec![], 1), None);
        for run in [(103, 5), (100, 3), (108, 8)] {
            assert!(reserve.put_back(vec![run]).is_empty());
        }
        assert_eq!(reserve.take(&mut vec![], 16), Some(100));
        assert_eq!(reserve.take(&mut vec![(100, 16)], 17), None);
    }

    #[test]
    fn pages_of_the_asker_join_what_is_free_and_what_is_left_of_them_stays_its() {
        let reserve = reserve();
        assert_eq!(reserve.take(&mut vec![], 10), Some(100));
        // Free: 110 to 116, and the asker's 100 to 102 and 104 to 110.
        let mut own = vec![(100, 2), (104, 6)];
        assert_eq!(reserve.take(&mut own, 12), Some(104));
        assert!(own == [(100, 2)] && reserve.free().is_empty());
        let mut own = vec![(100, 3)];
        assert_eq!(reserve.take(&mut own, 2), Some(100));
        assert!(own == [(102, 1)] && reserve.free().is_empty());
        let mut own = vec![(102, 1)];
        assert_eq!(reserve.take(&mut own, 2), None);
        assert!(own == [(102, 1)] && reserve.free().is_empty());
    }

    #[test]
    fn after_the_end_each_extent_goes_once_all_of_it_is_free() {
        let reserve = reserve();
        let firsts = |extents: Vec<Mapping>| extents.into_iter().map(|extent| extent.first).collect::<Vec<_>>();
        assert_eq!(reserve.take(&mut vec![], 6), Some(100));
        assert_eq!(firsts(reserve.end()), [108, 112]);
        assert!(reserve.put_back(vec![(100, 3)]).is_empty());
        assert_eq!(firsts(reserve.put_back(vec![(103, 2)])), [100]);
        assert_eq!(firsts(reserve.put_back(vec![(105, 1)])), [104]);
        assert!(reserve.extents().is_empty() && reserve.free().is_empty());
        assert!(reserve.end().is_empty());
    }
}

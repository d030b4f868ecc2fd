//! A pool's reserve: physical memory that it keeps from birth to end, at addresses in one piece. Its extents are mapped
//! once. The pool's caches take pages of it and return them without a driver call; what is here is free, and no work
//! uses it. After the pool's end each extent goes once all of it is here.

use std::sync::Mutex;

use super::super::pages::{Mapping, run_of};
use super::super::address_space::{Run, RunSet};
use crate::sync::lock;

#[derive(Debug)]
pub(in crate::memory) struct Reserve {
    pub(in crate::memory) run: Run,
    state: Mutex<ReserveState>,
}

#[derive(Debug)]
struct ReserveState {
    free: RunSet,
    /// The extents that have not gone.
    extents: Vec<Mapping>,
    has_ended: bool,
}

impl ReserveState {
    /// Removes the extents that are wholly free, if the pool has ended.
    fn take_free_extents(&mut self) -> Vec<Mapping> {
        if !self.has_ended {
            return Vec::new();
        }
        let free = &mut self.free;
        self.extents.extract_if(.., |extent| free.take(extent.run)).collect()
    }
}

impl Reserve {
    /// Makes a reserve of extents that are mapped in a row and have no other owner.
    pub(in crate::memory) fn new(extents: Vec<Mapping>) -> Self {
        let run = run_of(&extents);
                Self { run, state: Mutex::new(ReserveState { free: RunSet::of(run), extents, has_ended: false }) }
    }

    /// Takes the smallest run of so many free pages. The caller's `own` pages count as free, too; those not used stay
    /// there.
    pub(in crate::memory) fn take(&self, own: &mut Vec<Run>, pages: u32) -> Option<Run> {
        let mut state = lock(&self.state);
        own.iter().for_each(|&run| state.free.insert(run));
        let taken = state.free.runs_from(pages).next().map(|run| Run { pages, ..run });
        taken.map(|taken| state.free.take(taken));
        *own = own.iter().flat_map(|&run| state.free.parts(run)).collect();
        own.iter().for_each(|&run| _ = state.free.take(run));
        taken
    }

    /// Takes back pages that no work uses, and returns extents to release if the pool has ended.
    #[must_use]
    pub(in crate::memory) fn put_back(&self, runs: Vec<Run>) -> Vec<Mapping> {
        let mut state = lock(&self.state);
        runs.into_iter().for_each(|run| state.free.insert(run));
        state.take_free_extents()
    }

    /// Ends the reserve with its pool, and returns extents to release.
    #[must_use]
    pub(in crate::memory) fn end(&self) -> Vec<Mapping> {
        let mut state = lock(&self.state);
        state.has_ended = true;
        state.take_free_extents()
    }

    /// Removes all extents, whose memory is to go while the pool is asleep.
    pub(in crate::memory) fn take_extents(&self) -> Vec<Mapping> {
        std::mem::take(&mut lock(&self.state).extents)
    }

    /// Sets the extents that are there now. Returns those to release if the pool has ended.
    #[must_use]
    pub(in crate::memory) fn set_extents(&self, extents: Vec<Mapping>) -> Vec<Mapping> {
        let mut state = lock(&self.state);
        state.extents = extents;
        state.take_free_extents()
    }

    pub(in crate::memory) fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    /// Takes all free pages, which have no extents, since their pool is asleep.
    pub(in crate::memory) fn take_free(&self) -> Vec<Run> {
        let mut state = lock(&self.state);
        let runs: Vec<_> = state.free.runs().collect();
        runs.iter().for_each(|&run| _ = state.free.take(run));
        runs
    }

    pub(in crate::memory) fn free(&self) -> Vec<Run> {
        lock(&self.state).free.runs().collect()
    }

    pub(in crate::memory) fn extents(&self) -> Vec<Mapping> {
        lock(&self.state).extents.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Extent;

    const fn run(first: u32, pages: u32) -> Run {
        Run { first, pages }
    }

    fn reserve() -> Reserve {
        let extent =
            |number: u32| Mapping { run: run(100 + 4 * number, 4), extent: Extent::from_number(number.into()) };
        Reserve::new((0..4).map(extent).collect())
    }

    #[test]
    fn what_was_taken_and_put_back_is_in_one_piece_again() {
        let reserve = reserve();
        let taken: Vec<_> =
            [3, 5, 8].into_iter().map(|pages| reserve.take(&mut vec![], pages).map(|run| run.first)).collect();
        assert_eq!(taken, [Some(100), Some(103), Some(108)]);
        assert_eq!(reserve.take(&mut vec![], 1), None);
        for run in [run(103, 5), run(100, 3), run(108, 8)] {
            assert!(reserve.put_back(vec![run]).is_empty());
        }
        assert_eq!(reserve.take(&mut vec![], 16), Some(run(100, 16)));
        assert_eq!(reserve.take(&mut vec![run(100, 16)], 17), None);
    }

    #[test]
    fn pages_of_the_asker_join_what_is_free_and_what_is_left_of_them_stays_its() {
        let reserve = reserve();
        assert_eq!(reserve.take(&mut vec![], 10), Some(run(100, 10)));
        // Free: 110 to 116, and the caller's 100 to 102 and 104 to 110.
        let mut own = vec![run(100, 2), run(104, 6)];
        assert_eq!(reserve.take(&mut own, 12), Some(run(104, 12)));
        assert!(own == [run(100, 2)] && reserve.free().is_empty());
        let mut own = vec![run(100, 3)];
        assert_eq!(reserve.take(&mut own, 2), Some(run(100, 2)));
        assert!(own == [run(102, 1)] && reserve.free().is_empty());
        let mut own = vec![run(102, 1)];
        assert_eq!(reserve.take(&mut own, 2), None);
        assert!(own == [run(102, 1)] && reserve.free().is_empty());
    }

    #[test]
    fn after_the_end_each_extent_goes_once_all_of_it_is_free() {
        let reserve = reserve();
        let firsts = |extents: Vec<Mapping>| extents.into_iter().map(|extent| extent.run.first).collect::<Vec<_>>();
        assert_eq!(reserve.take(&mut vec![], 6), Some(run(100, 6)));
        assert_eq!(firsts(reserve.end()), [108, 112]);
        assert!(reserve.put_back(vec![run(100, 3)]).is_empty());
        assert_eq!(firsts(reserve.put_back(vec![run(103, 2)])), [100]);
        assert_eq!(firsts(reserve.put_back(vec![run(105, 1)])), [104]);
        assert!(reserve.extents().is_empty() && reserve.free().is_empty());
        assert!(reserve.end().is_empty());
    }
}

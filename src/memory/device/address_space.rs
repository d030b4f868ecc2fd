//! Runs of pages, and the unused ones of an address range. Memory ranges keep the addresses of some: what is mapped there
//! comes and goes page by page, as elsewhere; only the addresses serve nothing else.

use std::collections::{BTreeMap, BTreeSet};

use crate::memory::tuning::PAGE;

/// Successive pages of a device's address range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::memory) struct Run {
    pub(in crate::memory) first: u32,
    pub(in crate::memory) pages: u32,
}

impl Run {
    /// Returns the whole pages between two offsets; none if there is no whole one.
    pub(in crate::memory) const fn between(start: u64, end: u64) -> Option<Self> {
        let (first, end) = (start.div_ceil(PAGE) as u32, (end / PAGE) as u32);
        if first < end { Some(Self { first, pages: end - first }) } else { None }
    }

    pub(in crate::memory) const fn next(self) -> u32 {
        self.first + self.pages
    }

    pub(in crate::memory) const fn start(self) -> u64 {
        self.first as u64 * PAGE
    }

    pub(in crate::memory) const fn end(self) -> u64 {
        self.next() as u64 * PAGE
    }

    pub(in crate::memory) const fn bytes(self) -> u64 {
        self.pages as u64 * PAGE
    }

    pub(in crate::memory) fn common(self, other: Self) -> Option<Self> {
        Self::between(self.start().max(other.start()), self.end().min(other.end()))
    }

    /// Returns the parts that are not in the other.
    pub(in crate::memory) fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let behind = self.start().max(other.end());
        let before = self.end().min(other.start());
        [Self::between(self.start(), before), Self::between(behind, self.end())].into_iter().flatten()
    }
}

/// Returns the parts of runs that are in no other run, in order.
pub(in crate::memory) fn without_all(mut runs: Vec<Run>, others: &[Run]) -> Vec<Run> {
    for &other in others {
        runs = runs.into_iter().flat_map(|run| run.without(other)).collect();
    }
    runs
}

/// Runs that do not touch.
#[derive(Debug, Default)]
pub(super) struct RunSet {
    /// First page and length.
    by_first: BTreeMap<u32, u32>,
    /// The same by length and first page, so that a search stays quick with thousands of runs.
    by_length: BTreeSet<(u32, u32)>,
}

impl RunSet {
    pub(super) fn of(run: Run) -> Self {
        let mut set = Self::default();
        set.insert(run);
        set
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        self.by_first.iter().map(|(&first, &pages)| Run { first, pages })
    }

    /// Returns the runs of at least so many pages, the smallest first, and the first of equals.
    pub(super) fn runs_from(&self, pages: u32) -> impl Iterator<Item = Run> {
        self.by_length.range((pages, 0)..).map(|&(pages, first)| Run { first, pages })
    }

    /// Returns the run that this page is in.
    fn at(&self, page: u32) -> Option<Run> {
        let (&first, &pages) = self.by_first.range(..=page).next_back()?;
        (first + pages > page).then_some(Run { first, pages })
    }

    /// Returns the parts of a run that are in the set, in order.
    pub(super) fn parts(&self, run: Run) -> Vec<Run> {
        let from = self.at(run.first).map_or(run.first, |whole| whole.first);
        let parts = self.by_first.range(from..run.next());
        parts.filter_map(|(&first, &pages)| Run { first, pages }.common(run)).collect()
    }

    /// Removes pages. Returns false, and removes none, if some are not in the set.
    pub(super) fn take(&mut self, run: Run) -> bool {
        let Some(whole) = self.at(run.first).filter(|whole| run.next() <= whole.next()) else { return false };
        self.remove(whole);
        whole.without(run).for_each(|rest| self.add(rest));
        true
    }

    /// Adds pages, none of which is in the set.
    pub(super) fn insert(&mut self, mut run: Run) {
        debug_assert!(self.parts(run).is_empty());
        if run.pages == 0 {
            return;
        }
        let before = run.first.checked_sub(1).and_then(|page| self.at(page));
        for beside in [before, self.at(run.next())].into_iter().flatten() {
            self.remove(beside);
            run = Run { first: run.first.min(beside.first), pages: run.pages + beside.pages };
        }
        self.add(run);
    }

    fn add(&mut self, Run { first, pages }: Run) {
        self.by_first.insert(first, pages);
        self.by_length.insert((pages, first));
    }

    fn remove(&mut self, Run { first, pages }: Run) {
        self.by_first.remove(&first);
        self.by_length.remove(&(pages, first));
    }
}

/// The unused pages of an address range.
#[derive(Debug)]
pub(in crate::memory) struct AddressSpace {
    free: RunSet,
    /// Runs of at least so many pages are room to grow for caches, not holes to fill.
    wide: u32,
    /// Pages that stay taken, whatever is mapped there.
    held: RunSet,
    /// Those of them at which nothing is mapped.
    vacant: RunSet,
}

impl AddressSpace {
    /// Makes a space of `pages` unused pages from `first` on.
    pub(in crate::memory) fn new(first: u32, pages: u32) -> Self {
        Self {
            free: RunSet::of(Run { first, pages }),
            wide: (pages / 256).max(1),
            held: RunSet::default(),
            vacant: RunSet::default(),
        }
    }

    /// Returns how many pages are unused from this one on.
    pub(in crate::memory) fn free_at(&self, page: u32) -> u32 {
        self.free.at(page).map_or(0, |run| run.next() - page)
    }

    pub(in crate::memory) fn runs_from(&self, pages: u32) -> impl Iterator<Item = Run> {
        self.free.runs_from(pages)
    }

    /// Returns the smallest hole (unused pages between used ones) with so many pages, the first of equals.
    pub(in crate::memory) fn hole(&self, pages: u32) -> Option<Run> {
        self.runs_from(pages).next().filter(|run| run.pages < self.wide)
    }

    /// Returns a place far from used pages, with room to grow.
    pub(in crate::memory) fn far(&self, pages: u32) -> Option<u32> {
        let &(length, first) = self.free.by_length.last()?;
        let middle = if length >= self.wide { length / 2 } else { 0 };
        if length - middle >= pages { Some(first + middle) } else { (length >= pages).then_some(first) }
    }

    /// Takes so many unused pages, of a hole if one fits; none if there are not so many in a row.
    pub(in crate::memory) fn take_any(&mut self, pages: u32) -> Option<Run> {
        let first = self.hole(pages).map(|hole| hole.first).or_else(|| self.far(pages))?;
        let run = Run { first, pages };
        self.take(run).then_some(run)
    }

    /// Takes unused pages. Returns false if some are used.
    pub(in crate::memory) fn take(&mut self, run: Run) -> bool {
        self.free.take(run)
    }

    /// Takes so many unused pages in a row, which stay taken until [`AddressSpace::let_go`]; none if there are not so
    /// many. Nothing is mapped there. They are the last of the smallest run that has as many: what is held does not grow, and
    /// in the middle it would leave no room for more of its size.
    pub(in crate::memory) fn hold(&mut self, pages: u32) -> Option<Run> {
        let unused = self.runs_from(pages).next()?;
        let run = Run { first: unused.next() - pages, pages };
        if !self.take(run) {
            return None;
        }
        self.held.insert(run);
        self.vacant.insert(run);
        Some(run)
    }

    /// Notes that something will be mapped at held pages. Returns false, and notes nothing, if something is.
    pub(in crate::memory) fn map_held(&mut self, run: Run) -> bool {
        self.vacant.take(run)
    }

    /// Ends the hold of a run: its pages become unused, each once nothing is mapped there.
    pub(in crate::memory) fn let_go(&mut self, run: Run) {
        self.held.take(run);
        for vacant in self.vacant.parts(run) {
            self.vacant.take(vacant);
            self.free.insert(vacant);
        }
    }

    /// Notes that nothing is mapped at these pages any more. Those that are not held become unused.
    pub(in crate::memory) fn put_back(&mut self, run: Run) {
        let held = self.held.parts(run);
        held.iter().for_each(|&part| self.vacant.insert(part));
        without_all(vec![run], &held).into_iter().for_each(|unused| self.free.insert(unused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn run(first: u32, pages: u32) -> Run {
        Run { first, pages }
    }

    #[test]
    fn whole_pages_between_offsets() {
        assert_eq!(Run::between(0, 3 * PAGE), Some(run(0, 3)));
        assert_eq!(Run::between(1, 3 * PAGE - 1), Some(run(1, 1)));
        assert_eq!(Run::between(1, 2 * PAGE - 1), None);
        assert_eq!(Run::between(3 * PAGE, PAGE), None);
        assert_eq!((run(2, 3).start(), run(2, 3).end(), run(2, 3).bytes()), (2 * PAGE, 5 * PAGE, 3 * PAGE));
    }

    #[test]
    fn what_two_have_in_common_and_what_is_left() {
        let whole = run(10, 10);
        for (other, common, left) in [
            (run(12, 3), Some(run(12, 3)), vec![run(10, 2), run(15, 5)]),
            (run(5, 10), Some(run(10, 5)), vec![run(15, 5)]),
            (run(15, 10), Some(run(15, 5)), vec![run(10, 5)]),
            (run(0, 30), Some(whole), vec![]),
            (run(20, 5), None, vec![whole]),
            (run(0, 10), None, vec![whole]),
        ] {
            assert_eq!((whole.common(other), whole.without(other).collect()), (common, left), "{other:?}");
        }
        let runs = vec![run(0, 10), run(20, 10)];
        assert_eq!(without_all(runs.clone(), &[run(2, 2), run(8, 14)]), [run(0, 2), run(4, 4), run(22, 8)]);
        assert_eq!(without_all(runs, &[run(0, 10), run(15, 15)]), []);
    }
    fn all(space: &AddressSpace) -> Vec<Run> {
        assert_eq!(space.free.by_first.len(), space.free.by_length.len());
        space.free.runs().collect()
    }

    #[test]
    fn what_is_put_back_is_parted_into_held_and_other_pages() {
        let mut space = AddressSpace::new(0, 100);
        assert_eq!([space.hold(5), space.hold(5)], [Some(run(95, 5)), Some(run(90, 5))]);
        assert!(space.take(run(80, 10)) && space.map_held(run(95, 5)) && space.map_held(run(92, 3)));
        assert!(!space.map_held(run(91, 2)), "only a part is vacant");
        assert!(!space.map_held(run(80, 2)), "they are not held");
        space.put_back(run(85, 5));
        space.put_back(run(92, 6));
        assert_eq!(all(&space), [run(0, 80), run(85, 5)]);
        assert!(space.map_held(run(90, 5)) && space.map_held(run(95, 3)) && !space.map_held(run(98, 1)));
        space.put_back(run(90, 2));
        space.let_go(run(90, 5));
        assert_eq!(all(&space), [run(0, 80), run(85, 7)]);
        space.put_back(run(92, 4));
        assert_eq!(all(&space), [run(0, 80), run(85, 10)]);
        assert!(space.map_held(run(95, 1)) && !space.map_held(run(94, 1)));
    }

    #[test]
    fn what_is_taken_comes_back_in_one_piece() {
        let mut space = AddressSpace::new(10, 1000);
        assert!(
            space.take(Run { first: 10, pages: 5 })
                && space.take(Run { first: 20, pages: 5 })
                && space.take(Run { first: 15, pages: 5 })
        );
        assert!(!space.take(Run { first: 24, pages: 1 }) && !space.take(Run { first: 1009, pages: 2 }));
        assert_eq!((space.free_at(12), space.free_at(25)), (0, 985));
        space.put_back(Run { first: 10, pages: 5 });
        space.put_back(Run { first: 20, pages: 5 });
        space.put_back(Run { first: 15, pages: 5 });
        assert_eq!(all(&space), [run(10, 1000)]);
    }

    #[test]
    fn held_pages_stay_taken_until_they_are_let_go_and_nothing_is_mapped_there() {
        let mut space = AddressSpace::new(0, 1000);
        let held = space.hold(10).unwrap_or(Run { first: 0, pages: 0 });
        assert_eq!(held.pages, 10);
        let at = |first, pages| Run { first: held.first + first, pages };
        assert!(space.map_held(at(2, 5)) && !space.map_held(at(6, 2)));
        space.put_back(at(2, 2));
        assert!(space.map_held(at(3, 1)) && space.free_at(held.first) == 0);
        space.let_go(held);
        assert_eq!(
            (space.free_at(held.first), space.free_at(held.first + 3), space.free_at(held.first + 7)),
            (3, 0, 3)
        );
        space.put_back(at(3, 4));
        assert_eq!(all(&space), [run(0, 1000)]);
    }

    #[test]
    fn what_is_held_leaves_the_rest_in_one_piece() {
        let mut space = AddressSpace::new(0, 1000);
        let [first, second, third] = [100, 200, 300].map(|pages| space.hold(pages));
        assert_eq!((first.map(|run| run.pages), space.free.by_length.len()), (Some(100), 1));
        second.into_iter().for_each(|run| space.let_go(run));
        // Into the hole, not into the rest.
        let again = space.hold(150);
        assert_eq!(again.zip(second).map(|(again, hole)| again.next() == hole.next()), Some(true));
        [first, third, again].into_iter().flatten().for_each(|run| space.let_go(run));
        assert_eq!(all(&space), [run(0, 1000)]);
    }

    #[test]
    fn the_smallest_hole_with_room_is_found_and_wide_space_is_none() {
        let mut space = AddressSpace::new(0, 1024);
        // Holes of 3, 2 and 2 pages, then the wide rest.
        for used in [0, 4, 7, 10] {
            assert!(space.take(Run { first: used, pages: 1 }));
        }
        assert_eq!(space.hole(1), Some(Run { first: 5, pages: 2 }));
        assert_eq!(space.hole(3), Some(Run { first: 1, pages: 3 }));
        assert_eq!(space.hole(4), None);
        assert_eq!(space.far(4), Some(11 + 1013 / 2));
    }
}

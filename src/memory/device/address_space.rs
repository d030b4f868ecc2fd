//! The unused pages of an address range.

use std::collections::{BTreeMap, BTreeSet};

use super::held_runs::HeldRuns;
use super::run::Run;

/// Unused pages, in runs that do not touch.
#[derive(Debug)]
pub(in crate::memory) struct AddressSpace {
    /// First page and length.
    free: BTreeMap<u32, u32>,
    /// The same by length and first page, so that a search stays quick with thousands of runs.
    by_length: BTreeSet<(u32, u32)>,
    /// Runs of at least so many pages are room to grow for caches, not holes to fill.
    wide: u32,
    /// Runs that stay taken, whatever is mapped there.
    held: HeldRuns,
}

impl AddressSpace {
    /// Makes a space of `pages` unused pages from `first` on.
    pub(in crate::memory) fn new(first: u32, pages: u32) -> Self {
        Self {
            free: BTreeMap::from([(first, pages)]),
            by_length: BTreeSet::from([(pages, first)]),
            wide: (pages / 256).max(1),
            held: HeldRuns::default(),
        }
    }

    /// Returns how many pages are unused from this one on.
    pub(in crate::memory) fn free_at(&self, page: u32) -> u32 {
        match self.free.range(..=page).next_back() {
            Some((&first, &pages)) if first + pages > page => first + pages - page,
            _ => 0,
        }
    }

    pub(in crate::memory) fn runs(&self) -> impl Iterator<Item = Run> {
        self.free.iter().map(|(&first, &pages)| Run { first, pages })
    }

    pub(in crate::memory) fn runs_from(&self, pages: u32) -> impl Iterator<Item = Run> {
        self.by_length.range((pages, 0)..).map(|&(pages, first)| Run { first, pages })
    }

    /// Returns the smallest hole (unused pages between used ones) with so many pages, the first of equals.
    pub(in crate::memory) fn hole(&self, pages: u32) -> Option<Run> {
        self.runs_from(pages).next().filter(|run| run.pages < self.wide)
    }

    /// Returns a place far from used pages, with room to grow.
    pub(in crate::memory) fn far(&self, pages: u32) -> Option<u32> {
        let &(length, first) = self.by_length.last()?;
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
        let Some((&first, &length)) = self.free.range(..=run.first).next_back() else { return false };
        let end = first + length;
        if run.next() > end {
            return false;
        }
        self.remove(first);
        self.insert(first, run.first - first);
        self.insert(run.next(), end - run.next());
        true
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
        self.held.add(run);
        Some(run)
    }

    /// Notes that something will be mapped at held pages. Returns false, and notes nothing, if something is.
    pub(in crate::memory) fn map_held(&mut self, run: Run) -> bool {
        self.held.map(run)
    }

    /// Ends the hold of a run: its pages become unused, each once nothing is mapped there.
    pub(in crate::memory) fn let_go(&mut self, run: Run) {
        self.held.remove(run).into_iter().for_each(|unmapped| self.free(unmapped));
    }

    /// Notes that nothing is mapped at these pages any more. Those that are not held become unused.
    pub(in crate::memory) fn put_back(&mut self, run: Run) {
        self.held.unmap(run).into_iter().for_each(|unused| self.free(unused));
    }

    fn free(&mut self, Run { mut first, mut pages }: Run) {
        if pages == 0 {
            return;
        }
        pages += self.remove(first + pages);
        if let Some((&before, &length)) = self.free.range(..first).next_back()
            && before + length == first
        {
            self.remove(before);
            first = before;
            pages += length;
        }
        self.insert(first, pages);
    }

    fn insert(&mut self, first: u32, pages: u32) {
        if pages > 0 {
            self.free.insert(first, pages);
            self.by_length.insert((pages, first));
        }
    }

    /// Removes the run that starts at this page, and returns its length, or 0.
    fn remove(&mut self, first: u32) -> u32 {
        let length = self.free.remove(&first).unwrap_or(0);
        self.by_length.remove(&(length, first));
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(space.free, BTreeMap::from([(10, 1000)]));
        assert_eq!(space.by_length, BTreeSet::from([(1000, 10)]));
    }

    #[test]
    fn held_pages_stay_taken_until_they_are_let_go_and_nothing_is_mapped_there() {
        let mut space = AddressSpace::new(0, 1000);
        let run = space.hold(10).unwrap_or(Run { first: 0, pages: 0 });
        assert_eq!(run.pages, 10);
        let at = |first, pages| Run { first: run.first + first, pages };
        assert!(space.map_held(at(2, 5)) && !space.map_held(at(6, 2)));
        space.put_back(at(2, 2));
        assert!(space.map_held(at(3, 1)) && space.free_at(run.first) == 0);
        space.let_go(run);
        assert_eq!((space.free_at(run.first), space.free_at(run.first + 3), space.free_at(run.first + 7)), (3, 0, 3));
        space.put_back(at(3, 4));
        assert_eq!(space.free, BTreeMap::from([(0, 1000)]));
    }

    #[test]
    fn what_is_held_leaves_the_rest_in_one_piece() {
        let mut space = AddressSpace::new(0, 1000);
        let [first, second, third] = [100, 200, 300].map(|pages| space.hold(pages));
        assert_eq!((first.map(|run| run.pages), space.by_length.len()), (Some(100), 1));
        second.into_iter().for_each(|run| space.let_go(run));
        // Into the hole, not into the rest.
        let again = space.hold(150);
        assert_eq!(again.zip(second).map(|(again, hole)| again.next() == hole.next()), Some(true));
        [first, third, again].into_iter().flatten().for_each(|run| space.let_go(run));
        assert_eq!(space.free, BTreeMap::from([(0, 1000)]));
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

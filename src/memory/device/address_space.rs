//! Which pages of an address range are unused.

use std::collections::{BTreeMap, BTreeSet};

/// Unused pages, in runs that do not touch.
#[derive(Debug)]
pub(in crate::memory) struct AddressSpace {
    /// First page and length.
    free: BTreeMap<u32, u32>,
    /// The same by length and first page, so that the search for one takes no longer where there are thousands.
    by_length: BTreeSet<(u32, u32)>,
    /// Runs of at least this many pages are the space that caches grow into, not holes to fill.
    wide: u32,
}

impl AddressSpace {
    /// Makes a space of `pages` unused pages from `first` on.
    pub(in crate::memory) fn new(first: u32, pages: u32) -> Self {
        Self {
            free: BTreeMap::from([(first, pages)]),
            by_length: BTreeSet::from([(pages, first)]),
            wide: (pages / 256).max(1),
        }
    }

    /// Returns the unused pages from this one on.
    pub(in crate::memory) fn free_at(&self, page: u32) -> u32 {
        match self.free.range(..=page).next_back() {
            Some((&first, &pages)) if first + pages > page => first + pages - page,
            _ => 0,
        }
    }

    /// Returns every run of unused pages: the first, and how many.
    pub(in crate::memory) fn runs(&self) -> impl Iterator<Item = (u32, u32)> {
        self.free.iter().map(|(&first, &pages)| (first, pages))
    }

    /// Returns the smallest run with room for so many pages, the first of equals: first page and length.
    pub(in crate::memory) fn smallest(&self, pages: u32) -> Option<(u32, u32)> {
        self.runs_from(pages).next().map(|(length, first)| (first, length))
    }

    /// Returns the runs with room for so many pages, the smallest first: length and first page.
    pub(in crate::memory) fn runs_from(&self, pages: u32) -> impl Iterator<Item = (u32, u32)> {
        self.by_length.range((pages, 0)..).copied()
    }

    /// As [`AddressSpace::smallest`], if that is a hole: unused pages between used ones.
    pub(in crate::memory) fn hole(&self, pages: u32) -> Option<(u32, u32)> {
        self.smallest(pages).filter(|&(_, length)| length < self.wide)
    }

    /// Returns a place far from what others use, with room to grow.
    pub(in crate::memory) fn far(&self, pages: u32) -> Option<u32> {
        let &(length, first) = self.by_length.last()?;
        let middle = if length >= self.wide { length / 2 } else { 0 };
        if length - middle >= pages { Some(first + middle) } else { (length >= pages).then_some(first) }
    }

    /// Takes unused pages.
    pub(in crate::memory) fn take(&mut self, page: u32, pages: u32) -> bool {
        let Some((&first, &length)) = self.free.range(..=page).next_back() else { return false };
        let (end, wanted_end) = (first + length, page + pages);
        if wanted_end > end {
            return false;
        }
        self.remove(first);
        self.insert(first, page - first);
        self.insert(wanted_end, end - wanted_end);
        true
    }

    /// Gives pages back.
    pub(in crate::memory) fn put_back(&mut self, mut first: u32, mut pages: u32) {
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

    /// Adds a run, which may have no pages.
    fn insert(&mut self, first: u32, pages: u32) {
        if pages > 0 {
            self.free.insert(first, pages);
            self.by_length.insert((pages, first));
        }
    }

    /// Removes the run that starts at this page, if there is one, and returns its length.
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
        assert!(space.take(10, 5) && space.take(20, 5) && space.take(15, 5));
        assert!(!space.take(24, 1) && !space.take(1009, 2));
        assert_eq!((space.free_at(12), space.free_at(25)), (0, 985));
        space.put_back(10, 5);
        space.put_back(20, 5);
        space.put_back(15, 5);
        assert_eq!(space.free, BTreeMap::from([(10, 1000)]));
        assert_eq!(space.by_length, BTreeSet::from([(1000, 10)]));
    }

    #[test]
    fn the_smallest_hole_with_room_is_found_and_wide_space_is_none() {
        let mut space = AddressSpace::new(0, 1024);
        // Holes of 3, 2 and 2 pages, then the wide rest.
        for used in [0, 4, 7, 10] {
            assert!(space.take(used, 1));
        }
        assert_eq!(space.hole(1), Some((5, 2)));
        assert_eq!(space.hole(3), Some((1, 3)));
        assert_eq!(space.hole(4), None);
        assert_eq!(space.far(4), Some(11 + 1013 / 2));
    }
}

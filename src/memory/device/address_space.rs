//! Which pages of an address range are unused.

use std::collections::BTreeMap;

/// Unused pages, in runs that do not touch.
#[derive(Debug)]
pub(in crate::memory) struct AddressSpace {
    /// First page and length.
    free: BTreeMap<u32, u32>,
    /// Runs of at least this many pages are the space that caches grow into, not holes to fill.
    wide: u32,
}

impl AddressSpace {
    /// Makes a space of `pages` unused pages from `first` on.
    pub(in crate::memory) fn new(first: u32, pages: u32) -> Self {
        Self { free: BTreeMap::from([(first, pages)]), wide: (pages / 256).max(1) }
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

    /// Returns every hole: unused pages between used ones.
    pub(in crate::memory) fn holes(&self) -> impl Iterator<Item = (u32, u32)> {
        let wide = self.wide;
        self.runs().filter(move |&(_, pages)| pages < wide)
    }

    /// Returns a place far from what others use, with room to grow.
    pub(in crate::memory) fn far(&self, pages: u32) -> Option<u32> {
        let (&first, &length) = self.free.iter().max_by_key(|(_, length)| **length)?;
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
        self.free.remove(&first);
        if page > first {
            self.free.insert(first, page - first);
        }
        if end > wanted_end {
            self.free.insert(wanted_end, end - wanted_end);
        }
        true
    }

    /// Gives pages back.
    pub(in crate::memory) fn put_back(&mut self, mut first: u32, mut pages: u32) {
        if pages == 0 {
            return;
        }
        if let Some(length) = self.free.remove(&(first + pages)) {
            pages += length;
        }
        if let Some((&before, &length)) = self.free.range(..first).next_back()
            && before + length == first
        {
            first = before;
            pages += length;
        }
        self.free.insert(first, pages);
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
    }
}

//! The extents of a pool that wakes. The driver's time grows with their number, so they are large; but one is released
//! only when all of it is free. So a large block gets extents of its own, and the rest gets ordinary ones. A page of a
//! range gets one, however large it is, since pages come and go one by one.

use crate::memory::device::Run;
use crate::memory::tuning::{EXTENT_PARTS, LARGE_EXTENT_PAGES, PAGE, WAKE_PAGES_LEAST};

/// The most pages of an extent inside one block: 512 MiB. An H200 takes 1 GiB in 0.1 to 0.4 ms from extents of 128 MiB
/// and more, and in 1.5 ms from those of 32 MiB (`docs/sleep.md`).
const OF_BLOCK_PAGES: u32 = 2 * LARGE_EXTENT_PAGES as u32;
/// From so many pages on a block has extents of its own.
pub(super) const LARGE_PAGES: u32 = 2 * WAKE_PAGES_LEAST as u32;
/// The most pages that access is set for at once: 1 GiB. Meanwhile earlier ones are filled.
const GROUP_PAGES: u32 = 2 * OF_BLOCK_PAGES;

/// Returns the most pages of an extent outside of large blocks, for a pool that takes so many bytes.
pub(super) fn other_pages(bytes: u64) -> u32 {
    (bytes / PAGE / EXTENT_PARTS).clamp(WAKE_PAGES_LEAST, LARGE_EXTENT_PAGES) as u32
}

/// A block that gets extents of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LargeBlock {
    /// Its whole pages.
    run: Run,
    /// The most pages of one of its extents.
    most: u32,
}

impl LargeBlock {
    pub(super) const fn new(run: Run) -> Self {
        Self { run, most: OF_BLOCK_PAGES }
    }

    /// A page of a range.
    pub(super) const fn of_one_extent(run: Run) -> Self {
        Self { run, most: run.pages }
    }
}

/// Returns the extents of a run of pages, in groups: outside of the blocks in `large`, which are given in order, each has
/// at most `other` pages.
pub(super) fn groups(run: Run, large: &[LargeBlock], other: u32) -> Vec<Vec<Run>> {
    let mut groups: Vec<Vec<Run>> = Vec::new();
    let mut next = large.partition_point(|block| block.run.next() <= run.first);
    let mut first = run.first;
    while first < run.next() {
        let block = large.get(next).filter(|block| block.run.first < run.next());
        let (end, most) = match block {
            Some(block) if first >= block.run.first => (block.run.next(), block.most),
            Some(block) => (block.run.first, other),
            None => (run.next(), other),
        };
        let pages = (end.min(run.next()) - first).min(most);
        let has_room = |group: &&mut Vec<Run>| first + pages - group[0].first <= GROUP_PAGES;
        match groups.last_mut().filter(has_room) {
            Some(group) => group.push(Run { first, pages }),
            None => groups.push(vec![Run { first, pages }]),
        }
        first += pages;
        if block.is_some_and(|block| first >= block.run.next()) {
            next += 1;
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn run(first: u32, end: u32) -> Run {
        Run { first, pages: end - first }
    }

    /// Returns the first page of each extent, and its pages.
    fn extents(run: Run, large: &[Run]) -> Vec<Vec<(u32, u32)>> {
        let places = |group: Vec<Run>| group.into_iter().map(|run| (run.first, run.pages)).collect();
        let large: Vec<_> = large.iter().copied().map(LargeBlock::new).collect();
        groups(run, &large, 16).into_iter().map(places).collect()
    }

    #[test]
    fn a_large_block_has_extents_of_its_own_and_what_is_beside_it_ordinary_ones() {
        assert_eq!(extents(run(5, 42), &[]), [[(5, 16), (21, 16), (37, 5)]]);
        let large = [run(0, 4), run(10, 50), run(50, 90)];
        assert_eq!(extents(run(5, 95), &large), [[(5, 5), (10, 40), (50, 40), (90, 5)]]);
        let one = extents(run(0, 1100), &[run(0, 1100)]);
        assert_eq!(one, [vec![(0, 256), (256, 256)], vec![(512, 256), (768, 256)], vec![(1024, 76)]]);
        // Only a part of the block is there.
        assert_eq!(extents(run(20, 60), &[run(10, 90)]), [[(20, 40)]]);
    }

    #[test]
    fn a_page_of_a_range_has_one_extent() {
        let pages = [LargeBlock::of_one_extent(run(0, 600)), LargeBlock::of_one_extent(run(600, 1200))];
        assert_eq!(groups(run(0, 1200), &pages, 16), [[run(0, 600)], [run(600, 1200)]]);
    }

    #[test]
    fn a_large_pool_has_larger_extents() {
        assert_eq!([1, 10, 20, 64, 400].map(|gib| other_pages(gib << 30)), [16, 17, 34, 109, 128]);
    }
}

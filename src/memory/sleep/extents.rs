//! Which extents stand at the addresses of a pool that wakes.
//!
//! The driver takes its time by the extent, so they are large; but one goes only when all of it is free. So a large block
//! gets extents of its own, as large as it is, and what stands between gets ordinary ones.

use std::ops::Range;

use crate::memory::tuning::{LARGE_EXTENT_PAGES, PAGE, WAKE_PAGES_LEAST, WAKE_PARTS};

/// The most pages of an extent that is inside one block: 512 MiB. On an H200 1 GiB is taken in 0.1 to 0.4 ms from extents of
/// 128 MiB and more, and in 1.5 ms from those of 32 MiB (`docs/sleep.md`).
const OF_BLOCK_PAGES: u64 = 2 * LARGE_EXTENT_PAGES;
/// From so many pages on a block has extents of its own.
pub(super) const LARGE_PAGES: u64 = 2 * WAKE_PAGES_LEAST;
/// Access is set for at most so many pages at once: 1 GiB. Meanwhile the ones before are filled.
const GROUP_PAGES: u64 = 2 * OF_BLOCK_PAGES;

/// Returns the most pages of an extent that is not inside a block, of a pool that takes so many bytes.
pub(super) fn other_pages(bytes: u64) -> u64 {
    (bytes / PAGE / WAKE_PARTS).clamp(WAKE_PAGES_LEAST, LARGE_EXTENT_PAGES)
}

/// Returns the extents of a run of pages in groups, first page and number of pages of each: `other` at most for those that are
/// not inside a block. `large` has the whole pages inside of each large block, in order.
pub(super) fn groups(run: &Range<u64>, large: &[Range<u64>], other: u64) -> Vec<Vec<(u32, u32)>> {
    let (mut groups, mut group, mut in_group) = (Vec::new(), Vec::new(), 0);
    let mut next = large.partition_point(|block| block.end <= run.start);
    let mut at = run.start;
    while at < run.end {
        let block = large.get(next).filter(|block| block.start < run.end);
        let (end, most) = match block {
            Some(block) if at >= block.start => (block.end, OF_BLOCK_PAGES),
            Some(block) => (block.start, other),
            None => (run.end, other),
        };
        let bytes = (end.min(run.end) - at).min(most * PAGE);
        if in_group > 0 && in_group + bytes > GROUP_PAGES * PAGE {
            groups.push(std::mem::take(&mut group));
            in_group = 0;
        }
        group.push(((at / PAGE) as u32, (bytes / PAGE) as u32));
        in_group += bytes;
        at += bytes;
        if block.is_some_and(|block| at >= block.end) {
            next += 1;
        }
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

/// Returns the parts of runs that others leave of them; both in order.
pub(super) fn without(runs: Vec<Range<u64>>, taken: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for run in runs {
        let mut at = run.start;
        for other in taken.iter().filter(|other| other.start < run.end && other.end > run.start) {
            if other.start > at {
                left.push(at..other.start);
            }
            at = at.max(other.end);
        }
        if at < run.end {
            left.push(at..run.end);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(range: Range<u64>) -> Range<u64> {
        range.start * PAGE..range.end * PAGE
    }

    #[test]
    fn a_large_block_has_extents_of_its_own_and_what_is_beside_it_ordinary_ones() {
        assert_eq!(groups(&pages(5..42), &[], 16), [[(5, 16), (21, 16), (37, 5)]]);
        let large = [pages(0..4), pages(10..50), pages(50..90)];
        assert_eq!(groups(&pages(5..95), &large, 16), [[(5, 5), (10, 40), (50, 40), (90, 5)]]);
        let one = groups(&pages(0..1100), &[pages(0..1100)], 16);
        assert_eq!(one, [vec![(0, 256), (256, 256)], vec![(512, 256), (768, 256)], vec![(1024, 76)]]);
        // Only a part of the block is there.
        assert_eq!(groups(&pages(20..60), &[pages(10..90)], 16), [[(20, 40)]]);
    }

    #[test]
    fn a_large_pool_has_larger_extents() {
        assert_eq!([1, 10, 20, 64, 400].map(|gib| other_pages(gib << 30)), [16, 17, 34, 109, 128]);
    }

    #[test]
    fn runs_without_others() {
        assert_eq!(without(vec![0..10, 20..30], &[2..4, 8..22]), [0..2, 4..8, 22..30]);
        assert_eq!(without(vec![0..10, 20..30], &[0..10, 15..30]), []);
    }
}

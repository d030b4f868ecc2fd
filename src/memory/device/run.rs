//! A run: successive pages of a device's address range.

use crate::memory::tuning::PAGE;

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
}

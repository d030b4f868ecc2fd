//! Runs of pages whose addresses memory ranges keep. What is mapped there comes and goes page by page, as elsewhere; only
//! the addresses serve nothing else.

use std::collections::BTreeMap;

use super::run::Run;

/// For each page of a held run, by its first page, whether something is mapped there.
#[derive(Debug, Default)]
pub(super) struct HeldRuns(BTreeMap<u32, Vec<bool>>);

impl HeldRuns {
    pub(super) fn add(&mut self, run: Run) {
        self.0.insert(run.first, vec![false; run.pages as usize]);
    }

    /// Removes a run, and returns the parts at which nothing is mapped.
    pub(super) fn remove(&mut self, run: Run) -> Vec<Run> {
        let mapped = self.0.remove(&run.first).unwrap_or_default();
        let mut first = run.first;
        let mut unmapped = Vec::new();
        for part in mapped.chunk_by(|is_mapped, next| is_mapped == next) {
            let pages = part.len() as u32;
            if !part[0] {
                unmapped.push(Run { first, pages });
            }
            first += pages;
        }
        unmapped
    }

    /// Notes that pages of one held run are mapped. Returns false, and notes nothing, if one is, or is not held.
    pub(super) fn map(&mut self, run: Run) -> bool {
        let Some(mapped) = self.with(run) else { return false };
        if mapped.contains(&true) {
            return false;
        }
        mapped.fill(true);
        true
    }

    fn with(&mut self, run: Run) -> Option<&mut [bool]> {
        let (&first, mapped) = self.0.range_mut(..=run.first).next_back()?;
        mapped.get_mut((run.first - first) as usize..(run.next() - first) as usize)
    }

    /// Notes that nothing is mapped at these pages. Returns the parts that are not held.
    pub(super) fn unmap(&mut self, run: Run) -> Vec<Run> {
        let mut others = Vec::new();
        let mut at = run.first;
        while at < run.next() {
            let before = self.0.range(..=at).next_back();
            let held_until = before.map(|(first, mapped)| first + mapped.len() as u32).filter(|&end| end > at);
            let end = match held_until {
                Some(end) => end,
                None => self.0.range(at..).next().map_or(run.next(), |(&first, _)| first),
            };
            let part = Run { first: at, pages: end.min(run.next()) - at };
            match held_until.and_then(|_| self.with(part)) {
                Some(mapped) => mapped.fill(false),
                None => others.push(part),
            }
            at = part.next();
        }
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unmapped_is_parted_into_held_and_other_pages() {
        let run = |first, pages| Run { first, pages };
        let mut held = HeldRuns::default();
        assert_eq!(held.unmap(run(5, 3)), [run(5, 3)]);
        held.add(run(10, 5));
        held.add(run(20, 5));
        assert!(held.map(run(10, 5)) && held.map(run(22, 2)));
        assert!(!held.map(run(14, 2)), "only a part is held");
        assert_eq!(held.unmap(run(8, 14)), [run(8, 2), run(15, 5)]);
        assert!(held.map(run(10, 5)) && held.map(run(20, 2)) && !held.map(run(23, 1)));
        assert_eq!(held.remove(run(20, 5)), [run(24, 1)]);
        assert_eq!(held.unmap(run(20, 5)), [run(20, 5)]);
    }
}

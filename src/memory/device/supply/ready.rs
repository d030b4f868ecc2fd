//! Extents made ahead of need, for pages of memory ranges: a commit then only maps them. They are mapped nowhere, and
//! count as the pool's reserved memory.

use std::sync::Mutex;

use rustc_hash::FxHashMap;

use crate::memory::tuning::PAGE;
use crate::runtime::Extent;
use crate::sync::lock;

/// Extents of one size.
#[derive(Debug, Default)]
struct OfSize {
    made: Vec<Extent>,
    /// How many all ranges together want to be kept.
    wanted: usize,
}

/// Extents by their pages of 2 MiB.
#[derive(Debug, Default)]
pub(in crate::memory) struct Ready(Mutex<FxHashMap<u32, OfSize>>);

impl Ready {
    pub(in crate::memory) fn put(&self, pages: u32, extent: Extent) {
        lock(&self.0).entry(pages).or_default().made.push(extent);
    }

    /// Takes an extent of exactly so many pages.
    pub(in crate::memory) fn take(&self, pages: u32) -> Option<Extent> {
        lock(&self.0).get_mut(&pages)?.made.pop()
    }

    pub(in crate::memory) fn take_all(&self) -> Vec<(u32, Extent)> {
        let mut sizes = lock(&self.0);
        sizes.iter_mut().flat_map(|(&pages, of)| of.made.drain(..).map(move |extent| (pages, extent))).collect()
    }

    /// Changes how many extents of so many pages a range wants to be kept.
    pub(in crate::memory) fn want(&self, pages: u32, before: u32, now: u32) {
        let mut sizes = lock(&self.0);
        let of = sizes.entry(pages).or_default();
        of.wanted = of.wanted.saturating_sub(before as usize) + now as usize;
    }

    /// Returns whether more extents of so many pages are wanted than there are.
    pub(in crate::memory) fn lacks(&self, pages: u32) -> bool {
        lock(&self.0).get(&pages).is_some_and(|of| of.made.len() < of.wanted)
    }

    /// Returns the bytes of all.
    pub(in crate::memory) fn bytes(&self) -> u64 {
        lock(&self.0).iter().map(|(&pages, of)| u64::from(pages) * PAGE * of.made.len() as u64).sum()
    }
}

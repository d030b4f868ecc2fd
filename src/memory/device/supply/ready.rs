//! Extents made ahead of need, for pages of memory ranges: a commit then only maps them. Until then they are mapped at
//! addresses that no cache has, and count as the pool's reserved memory.

use std::sync::Mutex;

use rustc_hash::FxHashMap;

use crate::memory::device::Mapping;
use crate::sync::lock;

/// Extents of one size.
#[derive(Debug, Default)]
struct OfSize {
    made: Vec<Mapping>,
    /// How many all ranges together want to be kept.
    wanted: usize,
}

/// Extents by their pages of 2 MiB.
#[derive(Debug, Default)]
pub(in crate::memory) struct Ready(Mutex<FxHashMap<u32, OfSize>>);

impl Ready {
    pub(in crate::memory) fn put(&self, made: Mapping) {
        lock(&self.0).entry(made.run.pages).or_default().made.push(made);
    }

    /// Takes at most so many extents of exactly so many pages.
    pub(in crate::memory) fn take(&self, pages: u32, most: u32) -> Vec<Mapping> {
        let mut sizes = lock(&self.0);
        let Some(OfSize { made, .. }) = sizes.get_mut(&pages) else { return Vec::new() };
        made.split_off(made.len().saturating_sub(most as usize))
    }

    pub(in crate::memory) fn take_all(&self) -> Vec<Mapping> {
        lock(&self.0).values_mut().flat_map(|of| of.made.drain(..)).collect()
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
        lock(&self.0).values().flat_map(|of| &of.made).map(|made| made.bytes()).sum()
    }
}

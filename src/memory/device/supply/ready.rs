//! Extents made ahead of need, for pages of memory ranges: a commit then only maps them. They are mapped nowhere, and
//! count as the pool's reserved memory.

use std::sync::Mutex;

use crate::runtime::Extent;
use crate::sync::lock;

/// Extents, each with its pages of 2 MiB.
#[derive(Debug, Default)]
pub(in crate::memory) struct Ready(Mutex<Vec<(u32, Extent)>>);

impl Ready {
    pub(in crate::memory) fn put(&self, pages: u32, extent: Extent) {
        lock(&self.0).push((pages, extent));
    }

    /// Takes an extent of exactly so many pages.
    pub(in crate::memory) fn take(&self, pages: u32) -> Option<Extent> {
        let mut ready = lock(&self.0);
        let place = ready.iter().rposition(|(of, _)| *of == pages)?;
        Some(ready.swap_remove(place).1)
    }

    pub(in crate::memory) fn take_all(&self) -> Vec<(u32, Extent)> {
        std::mem::take(&mut *lock(&self.0))
    }

    /// Returns how many there are of so many pages.
    pub(in crate::memory) fn count(&self, pages: u32) -> usize {
        lock(&self.0).iter().filter(|(of, _)| *of == pages).count()
    }

    /// Returns the bytes of all.
    pub(in crate::memory) fn bytes(&self) -> u64 {
        lock(&self.0).iter().map(|(pages, _)| u64::from(*pages) * crate::memory::tuning::PAGE).sum()
    }
}

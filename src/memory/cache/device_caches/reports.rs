//! What was reported of a device's memory: counts that only grow, and peaks that only looking finds.

use std::sync::{Arc, Mutex};

use crate::memory::cache::heap::{Amounts, most};
use crate::memory::cache::stream_cache::ServingCache;
use crate::memory::device::Flow;
use crate::sync::{ThisThread, lock};

/// What was reported of a device's memory.
#[derive(Debug, Default)]
pub(in crate::memory) struct Reports {
    /// The most blocks, of all pools, ever reported as handed out and as come back.
    flows: Mutex<(Amounts, Amounts)>,
    /// Free blocks beside held ones, and their bytes, as far as found.
    free_beside_held: Mutex<[(Flow, Flow); 3]>,
}

impl Reports {
    /// Returns how many blocks to report as handed out and as come back. Neither falls, though a cache that changed its
    /// stream between two looks is missing in one of them.
    pub(in crate::memory) fn grow(&self, out: Amounts, back: Amounts) -> (Amounts, Amounts) {
        let mut reported = lock(&self.flows);
        *reported = (most(reported.0, out), most(reported.1, back));
        *reported
    }

    /// Looks for free blocks beside held ones, and returns those found so far: all, small ones, large ones.
    pub(in crate::memory) fn find_free_beside_held(
        &self,
        caches: Vec<Arc<ServingCache>>,
        thread: ThisThread,
    ) -> [(Flow, Flow); 3] {
        let mut found = [(0, 0); 3];
        for cache in caches {
            let [small, large] = cache.lock(thread).free_beside_held(&cache.memory.pages);
            for (sum, more) in found.iter_mut().zip([(small.0 + large.0, small.1 + large.1), small, large]) {
                *sum = (sum.0 + more.0, sum.1 + more.1);
            }
        }
        let mut known = lock(&self.free_beside_held);
        for (known, found) in known.iter_mut().zip(found) {
            known.0.find(found.0);
            known.1.find(found.1);
        }
        *known
    }

    /// Resets the peaks of free blocks beside held ones.
    pub(in crate::memory) fn reset_free_beside_held(&self) {
        for (blocks, bytes) in &mut *lock(&self.free_beside_held) {
            blocks.reset_peak();
            bytes.reset_peak();
        }
    }
}

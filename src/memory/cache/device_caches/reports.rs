//! What reports have said of a device's memory so far: counts that grow only, and peaks of what is found by looking.

use std::sync::Mutex;

use crate::memory::cache::heap::{Amounts, most};
use crate::memory::cache::stream_cache::StreamCache;
use crate::memory::device::Flow;
use crate::sync::{ThisThread, lock};

/// What was reported of a device's memory.
#[derive(Debug, Default)]
pub(in crate::memory) struct Reports {
    /// The most blocks of all pools that were ever reported to have been handed out, and to have come back.
    flows: Mutex<(Amounts, Amounts)>,
    /// Free blocks beside ones that are held, and their bytes, as far as they were found.
    free_beside_held: Mutex<[(Flow, Flow); 3]>,
}

impl Reports {
    /// Returns how many blocks are to be reported as handed out so far, and as come back. Neither goes back: a cache that
    /// began to serve another stream between two looks is counted nowhere in one of them.
    pub(in crate::memory) fn grow(&self, out: Amounts, back: Amounts) -> (Amounts, Amounts) {
        let mut reported = lock(&self.flows);
        *reported = (most(reported.0, out), most(reported.1, back));
        *reported
    }

    /// Looks for free blocks beside ones that are held, and returns what was found so far: of all, of small and of large
    /// ones.
    pub(in crate::memory) fn find_free_beside_held(
        &self,
        caches: Vec<&'static StreamCache>,
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

    /// Starts the peaks of what was found so anew.
    pub(in crate::memory) fn reset_free_beside_held(&self) {
        for (blocks, bytes) in &mut *lock(&self.free_beside_held) {
            blocks.reset_peak();
            bytes.reset_peak();
        }
    }
}

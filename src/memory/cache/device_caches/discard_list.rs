//! What can be taken when memory is short: the pages of memory ranges that were committed with a priority.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, Weak};

use crate::sync::lock;

/// What has memory that may be taken: a memory range.
pub(in crate::memory) trait Discardable: Debug + Send + Sync {
    /// Returns the number of the pool whose memory it is.
    fn pool_number(&self) -> u32;

    /// Returns the lowest priority of what may be taken now; none if nothing may.
    fn lowest(&self) -> Option<i32>;

    /// Returns the bytes that may be taken now.
    fn bytes(&self) -> u64;

    /// Gives pages of this priority back to the driver until so many bytes went, or `most` of them would be exceeded, and
    /// returns the bytes. It waits for the work that uses them; unless it `waits`, what is in use stays. No lock is held.
    fn discard(&self, priority: i32, bytes: u64, most: u64, waits: bool) -> u64;
}

/// All of a device that have such memory.
#[derive(Debug, Default)]
pub(in crate::memory) struct DiscardList(Mutex<Vec<Weak<dyn Discardable>>>);

impl DiscardList {
    pub(in crate::memory) fn add(&self, one: Weak<dyn Discardable>) {
        let mut all = lock(&self.0);
        all.retain(|known| known.strong_count() > 0);
        all.push(one);
    }

    fn all(&self) -> Vec<Arc<dyn Discardable>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the bytes that may be taken now.
    pub(in crate::memory) fn bytes(&self) -> u64 {
        self.all().iter().map(|one| one.bytes()).sum()
    }

    /// Gives back at least so many bytes of the lowest priorities, but not more than `most`, or all there are, and returns
    /// how many; of one pool alone, if one is named. Unless it `waits`, what is in use stays.
    pub(in crate::memory) fn discard(&self, bytes: u64, most: u64, pool: Option<u32>, waits: bool) -> u64 {
        let mut all = self.all();
        all.retain(|one| pool.is_none_or(|pool| one.pool_number() == pool));
        let mut gone = 0;
        while gone < bytes {
            let lowest = all.iter().filter_map(|one| Some((one.lowest()?, one))).min_by_key(|(priority, _)| *priority);
            let Some((priority, one)) = lowest else { break };
            match one.discard(priority, bytes - gone, most.saturating_sub(gone), waits) {
                // What is in use by now, or was taken by another thread.
                0 => break,
                more => gone += more,
            }
        }
        gone
    }
}

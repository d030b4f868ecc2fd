//! What can be taken when memory is short: the pages of memory ranges that were committed with a priority.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, Weak};

use crate::memory::device::Patience;
use crate::sync::lock;

/// What has memory that may be taken: a memory range.
pub(in crate::memory) trait Discardable: Debug + Send + Sync {
    /// Returns the number of the pool whose memory it is.
    fn pool_number(&self) -> u32;

    /// Returns the lowest priority of what may be taken now, above one if that is given; none if nothing may.
    fn lowest(&self, above: Option<i32>) -> Option<i32>;

    /// Returns the bytes that may be taken now.
    fn bytes(&self) -> u64;

    /// Takes pages of this priority, and gives them back to the driver. Returns the bytes, also of what the driver refuses,
    /// which goes when memory is next given back. No lock is held.
    fn discard(&self, priority: i32, what: ToDiscard) -> u64;
}

/// How much is to be taken.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct ToDiscard {
    /// At least so many bytes, or all there are.
    pub(in crate::memory) wanted: u64,
    /// But not more than these.
    pub(in crate::memory) most: u64,
    /// Whether it waits for the work that uses them; what is in use stays otherwise.
    pub(in crate::memory) patience: Patience,
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

    /// Takes of the lowest priorities, as [`Discardable::discard`], and returns how many bytes; of one pool alone, if one is
    /// named.
    pub(in crate::memory) fn discard(&self, what: ToDiscard, pool: Option<u32>) -> u64 {
        let all = self.all().into_iter().filter(|one| pool.is_none_or(|pool| one.pool_number() == pool));
        // Each with the priority up to which nothing more of it goes, as it is in use by now, or was taken.
        let mut all: Vec<_> = all.map(|one| (one, None)).collect();
        let mut gone = 0;
        while gone < what.wanted {
            let candidates = all.iter_mut().filter_map(|(one, done)| Some((one.lowest(*done)?, one, done)));
            let Some((priority, one, done)) = candidates.min_by_key(|(priority, ..)| *priority) else { break };
            let wanted = what.wanted - gone;
            let more = one.discard(priority, ToDiscard { wanted, most: what.most.saturating_sub(gone), ..what });
            if more < wanted {
                *done = Some(priority);
            }
            gone += more;
        }
        gone
    }
}

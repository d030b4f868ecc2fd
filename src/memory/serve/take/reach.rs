//! A request's reach: the pools whose free pages it may take, and whether it waits for the work that used them. It
//! grows once the driver or a limit has refused memory.

use std::sync::Arc;

use crate::memory::cache::{DeviceCaches, HeapSearch};
use crate::memory::pool::Pool;

/// The pools whose free pages a request may take, its own first, and whether it waits for the work that used them.
#[derive(Debug)]
pub(in crate::memory::serve) struct Reach {
    pub(in crate::memory::serve) pools: Vec<Arc<Pool>>,
    pub(in crate::memory::serve) waits: bool,
}

impl Reach {
    /// Reaches for ready pages of one pool.
    pub(in crate::memory::serve) fn of_pool(pool: &Arc<Pool>) -> Self {
        Self { pools: vec![Arc::clone(pool)], waits: false }
    }

    /// Returns how many free blocks of a heap are looked at.
    pub(in crate::memory::serve) fn search(&self) -> HeapSearch {
        if self.waits { HeapSearch::Whole } else { HeapSearch::AFew }
    }
}

/// Returns the other pools of the device that `is_meant` selects.
pub(in crate::memory::serve) fn other_pools(
    own: &Pool,
    is_meant: fn(&Pool) -> bool,
) -> impl Iterator<Item = Arc<Pool>> {
    let pools = DeviceCaches::known(own.memory.location).map(|caches| caches.pools.all()).unwrap_or_default();
    pools.into_iter().filter(move |pool| pool.number != own.number && is_meant(pool))
}

//! How far a request reaches for memory that others have free: the pools whose pages it may take, and whether it waits for
//! the work that used them. It grows on the way down the ladder, once the driver or a limit has said no.

use std::sync::Arc;

use super::settle::Patience;
use crate::memory::cache::DeviceCaches;
use crate::memory::pool::Pool;

/// The pools whose free pages a request may take, its own first, and whether it waits for the work that used them.
#[derive(Debug)]
pub(super) struct Reach {
    pub(super) pools: Vec<Arc<Pool>>,
    pub(super) patience: Patience,
}

impl Reach {
    /// Reaches for what is ready in a pool.
    pub(super) fn of_pool(pool: &Arc<Pool>) -> Self {
        Self { pools: vec![Arc::clone(pool)], patience: Patience::Ask }
    }

    /// Reaches for the pages of all pools of the device that give way to others, too.
    pub(super) fn widen(&mut self) {
        let Some(own) = self.pools.first().cloned() else { return };
        let others = DeviceCaches::known(own.memory.device).map(DeviceCaches::pools).unwrap_or_default();
        self.pools.truncate(1);
        self.pools.extend(others.into_iter().filter(|pool| pool.number != own.number && pool.gives_way()));
    }

    /// Returns whether it waits for work.
    pub(super) fn waits(&self) -> bool {
        self.patience == Patience::Wait
    }
}

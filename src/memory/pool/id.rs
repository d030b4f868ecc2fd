//! Ids of pools: pairs of two process-wide counters, as PyTorch's `MempoolId_t`.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use crate::process;
use crate::sync::{Ordering, lock};

/// The id of a pool, unique in the process: `(0, n)` for pools made by users, `(n, 0)` for those made for graph
/// capture, `(0, 0)` for none, which is the device's default pool. An id is never used twice.
#[repr(C)] // gpupool_pool_id
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolId(pub u64, pub u64);

static USER: AtomicU64 = AtomicU64::new(1);
static CAPTURE: AtomicU64 = AtomicU64::new(1);
/// The ids that were handed out for pools yet to be made.
static UNUSED: Mutex<BTreeSet<PoolId>> = Mutex::new(BTreeSet::new());

impl PoolId {
    /// No pool: the device's default one.
    pub const NONE: Self = Self(0, 0);

    /// Returns whether it is for graph capture.
    pub(in crate::memory) const fn is_of_graph(self) -> bool {
        self.0 != 0
    }

    /// Returns whether it was handed out.
    pub(in crate::memory) fn is_known(self) -> bool {
        match self {
            Self(0, user) => user > 0 && user < USER.load(Ordering::Relaxed),
            Self(graph, 0) => graph < CAPTURE.load(Ordering::Relaxed),
            _ => false,
        }
    }

    /// Returns whether it was handed out for a pool that is yet to be made.
    pub(in crate::memory) fn is_unused(self) -> bool {
        lock(&UNUSED).contains(&self)
    }

    /// Notes that the pool was made that the id was handed out for.
    pub(in crate::memory) fn use_up(self) {
        lock(&UNUSED).remove(&self);
    }

    /// Returns the next id, for a pool made by a user or for graph capture.
    pub(in crate::memory) fn next(is_user_created: bool) -> Self {
        if is_user_created {
            Self(0, USER.fetch_add(1, Ordering::Relaxed))
        } else {
            Self(CAPTURE.fetch_add(1, Ordering::Relaxed), 0)
        }
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

/// Returns a new id, for a pool that is created at its first use: by a user (`(0, n)`) or for graph capture (`(n, 0)`).
pub fn graph_pool_handle(user_created: bool) -> PoolId {
    let id = PoolId::next(user_created);
    // In a forked child the lock may be held for ever, and no call takes the id there.
    if !process::is_forked() {
        lock(&UNUSED).insert(id);
    }
    id
}

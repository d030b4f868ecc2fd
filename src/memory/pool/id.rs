//! Ids of pools: pairs of two process-wide counters, as PyTorch's `MempoolId_t`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// What identifies a pool in the process: `(0, n)` for pools made by users, `(n, 0)` for those made for graph capture,
/// `(0, 0)` for none, which is the device's default pool. An id is never used twice.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolId(pub u64, pub u64);

static USER: AtomicU64 = AtomicU64::new(1);
static CAPTURE: AtomicU64 = AtomicU64::new(1);

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

    /// Returns the next id for a pool made by a user.
    pub(in crate::memory) fn user() -> Self {
        Self(0, USER.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the next id for a pool made for graph capture.
    pub(in crate::memory) fn capture() -> Self {
        Self(CAPTURE.fetch_add(1, Ordering::Relaxed), 0)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

/// Returns an id that no pool has yet, for a pool that is made when it is first used: by a user (`(0, n)`) or for graph
/// capture (`(n, 0)`).
pub fn graph_pool_handle(user_created: bool) -> PoolId {
    if user_created { PoolId::user() } else { PoolId::capture() }
}

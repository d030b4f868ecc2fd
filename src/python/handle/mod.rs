//! Handle pools for Python, one file a concept.

mod callbacks;
mod lease;
mod pool;
mod simulated;
mod stats;

pub(super) use lease::PyLease;
pub(super) use pool::PyHandlePool;
pub(super) use simulated::simulate_costly_handles;
pub(super) use stats::{PyHandleStats, handle_stats};

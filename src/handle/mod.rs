//! Handle pools: each thread gets, on each device, a ready handle with its stream set.
//!
//! A [`HandlePool`] holds all handles of one library in the process. A thread keeps the handles it got in its
//! [`window`] until it ends; then they go back to the pool, and the next thread gets them. A [`Lease`] lends one for a scope.

mod built_in;
mod create;
mod device_pool;
mod exchange;
mod hand_over;
mod holder;
mod lease;
mod pool;
mod record;
mod shared;
mod stats;
mod trace;
mod window;

pub use built_in::{Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, HostHandles, Miopen, Pooled, handle, lease};
pub use lease::Lease;
pub use pool::{Handle, HandlePool, handle_stats};
pub(crate) use pool::{devices_in_use, reset_peak_stats};
pub use stats::HandleStats;
pub use trace::{HandleAction, HandleEvent};
pub(crate) use trace::{clear as clear_events, events};

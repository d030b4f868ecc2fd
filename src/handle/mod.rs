//! Handle pools: each thread gets, on each device, a ready handle with its stream set.
//!
//! A [`HandlePool`] holds all handles of one library in the process. A thread keeps the handles it got in its
//! [`window`] until it ends; then they go back to the pool, and the next thread gets them.

mod built_in;
mod create;
mod device_pool;
mod pool;
mod record;
mod stats;
mod window;

pub use built_in::{Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, HostHandles, Miopen, Pooled, handle};
pub use pool::{Handle, HandlePool};
pub use stats::HandleStats;

//! Handle pools: each thread gets, on each device, a ready handle with its stream set.
//!
//! A [`HandlePool`] holds all handles of one library in the process. A thread keeps its handles in its [`window`] until
//! the thread ends. Then they go back to the pool, and the next thread gets them. A [`Lease`] lends a handle for a
//! scope.

mod built_in;
mod create;
mod device_pool;
mod events;
mod handle_queue;
mod lease;
mod pool;
mod pooled_handle;
mod request;
mod stats;
mod window;

pub(crate) use built_in::pool_of_number;
pub use built_in::{
    Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, CusparseLt, Custatevec, Cutensor, Cutensornet, Hipblas,
    HipblasLt, Hipsolver, Hipsparse, Miopen, Pooled, Simulated, handle, lease,
};
pub(crate) use events::events;
pub use events::{HandleAction, HandleEvent};
pub use lease::Lease;
pub use pool::{HandlePool, handle_stats};
pub(crate) use pool::{devices_in_use, release_idle, reset_peak_stats};
pub(crate) use pooled_handle::PooledHandle;
pub use stats::HandleStats;
pub(crate) use stats::handle_counters;
pub use window::Handle;

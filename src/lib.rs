//! gpupool gives every thread, on every device, a ready handle of cuDNN, cuSPARSE, cuDSS, cuBLAS, cuBLASLt or
//! cuSOLVER, or of ROCm's MIOpen, hipBLAS, hipBLASLt, hipSPARSE or hipSOLVER, with its stream set, and device memory
//! from a caching allocator.
//!
//! A thread's handles go back to the pool when it ends, and the next thread gets them: nothing is created twice,
//! nothing is destroyed behind your back, and nothing spoils a stream capture.
//!
//! ```no_run
//! use gpupool::{Cusparse, Stream};
//!
//! let stream = Stream::new(gpupool::device(0)?)?;
//! let handle = gpupool::handle::<Cusparse>(&stream)?;
//! // Pass `handle.as_ptr()` to cuSPARSE as its cusparseHandle_t.
//! # Ok::<(), gpupool::Error>(())
//! ```
//!
//! What is freed is used again in stream order, on the same stream at once. A [`MemPool`] is private memory:
//!
//! ```
//! use gpupool::{MemPool, Stream};
//!
//! let stream = Stream::new(gpupool::device(0)?)?;
//! let buffer = gpupool::empty(1 << 20, &stream)?; // freed in stream order when dropped
//!
//! let pool = MemPool::builder().limit(1 << 30).build()?;
//! let _scope = pool.enter()?; // this thread's requests go to the pool
//! let private = gpupool::empty(1 << 20, &stream)?;
//! assert_eq!(private.pool_id(), pool.id());
//! # Ok::<(), gpupool::Error>(())
//! ```
//!
//! Where there is no GPU, devices are simulated in plain memory, with [`HostHandles`] as the library.
//!
//! | to do | begin at |
//! | --- | --- |
//! | a handle for this thread, or for a scope | [`handle()`], [`lease()`] |
//! | warm, limit, trim and count handles | [`HandlePool`], by [`Pooled::pool`] |
//! | a library that gpupool does not know | [`library::Library`], [`HandlePool::new`] |
//! | allocate device memory | [`empty`], [`DeviceBuffer`], [`memory::allocate`] |
//! | allocate pinned memory of the host | [`empty_pinned`], [`PinnedBuffer`], [`warm_pinned`] |
//! | private pools, memory of captured graphs | [`MemPool`], [`MemPool::capture`] |
//! | streams, also those of others | [`Stream`], [`Stream::from_raw`] |
//! | slices for programs of cudarc | `PooledSlice`, with the feature `cudarc` |
//!
//! What it does is logged through the [`log`] crate, at `info` what is seldom and at `debug` what is not, to the
//! targets `gpupool::runtime`, `gpupool::library`, `gpupool::handle` and `gpupool::memory`. No lock is held meanwhile.
//! With `GPUPOOL_NVTX=1` in the environment profilers see it as NVTX ranges.
//!
//! Pools are process-wide and keyed by nothing but library and device. A Python extension that contains this crate has
//! pools of its own, apart from those of a Rust program in the same process.

// No panic and no output reaches a user; tests and benches may do both.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

/// The Rust samples of the guide and the README, which run as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
#[doc = include_str!("../README.md")]
mod guide {}

mod environment;
mod error;
mod handle;
mod ids;
pub mod library;
pub mod memory;
mod memory_users;
mod observe;
#[cfg(feature = "cudarc")]
mod pooled_slice;
mod process;
#[cfg(feature = "python")]
mod python;
mod recording;
pub mod replay;
pub mod runtime;
mod shared_object;
mod site_packages;
mod summary;
mod sync;

pub use error::{
    Cause, Error, ErrorKind, LibraryError, MemoryUse, OutOfMemory, PoolExhausted, Result, StatusKind, Wanted,
};
pub use handle::{
    Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, Handle, HandleAction, HandleEvent, HandlePool, HandleStats,
    Hipblas, HipblasLt, Hipsolver, Hipsparse, HostHandles, Lease, Miopen, Pooled, handle, handle_stats, lease,
};
pub use ids::{CaptureMode, CaptureStatus, Device, RawStream};
pub use memory::{Backup, sleep, wake};
pub use memory::{
    CaptureScope, DeviceBuffer, GraphMemory, MemPool, MemPoolBuilder, MemoryStats, PoolId, PoolScope, PoolStats,
    PoolSummary, PoolToken, SegmentEvent, SegmentEventKind, StreamStats, empty, empty_cache, enable_peer_access,
    graph_pool_handle, memory_snapshot, memory_stats, on_oom,
};
pub use memory::{PinnedBuffer, empty_pinned, empty_pinned_on_node, pinned_stats, set_pinned_limit, warm_pinned};
pub use memory::{ShareToken, attach};
#[cfg(feature = "cudarc")]
pub use pooled_slice::PooledSlice;
pub use recording::{MAX_ENTRIES, Recording, Snapshot, StackContext, snapshot};
pub use runtime::{DeviceInfo, Event, Stream, StreamScope, device, device_info, synchronize};
pub use summary::{MemorySummary, devices_in_use, memory_summary, reset_peak_stats};

//! gpupool provides every thread, on every device, with a ready handle of cuDNN, cuSPARSE, cuDSS, cuBLAS, cuBLASLt, cuSOLVER,
//! cuStateVec, cuTensorNet, cuTENSOR or cuSPARSELt, or of ROCm's MIOpen, hipBLAS, hipBLASLt, hipSPARSE or hipSOLVER, with its
//! stream set, and with device memory from a caching allocator.
//!
//! When a thread ends, its handles return to the pool, and the next thread gets them: handles are reused instead of
//! being destroyed and created again, and nothing that gpupool does invalidates a stream capture that it knows of.
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
//! Freed memory is reused in stream order, on the same stream immediately. A [`MemPool`] is a private pool:
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
//! If there is no GPU, devices are simulated in plain memory, with [`Simulated`] as the library.
//!
//! | to | start at |
//! | --- | --- |
//! | get a handle for this thread, or for a scope | [`handle()`], [`lease()`] |
//! | warm, limit, trim and count handles | [`HandlePool`], by [`Pooled::pool`] |
//! | add a library that gpupool does not know | [`library::Library`], [`HandlePool::new`] |
//! | allocate device memory | [`empty`], [`DeviceBuffer`], [`memory::allocate`] |
//! | allocate pinned host memory | [`empty_pinned`], [`PinnedBuffer`], [`warm_pinned`] |
//! | use private pools, and memory of captured graphs | [`MemPool`], [`MemPool::capture`] |
//! | use streams, including those of other code | [`Stream`], [`Stream::from_raw`] |
//! | use slices with cudarc, including candle's custom operations | `PooledSlice`, with the feature `cudarc` |
//!
//! gpupool logs through the [`log`] crate: problems without an error at `warn`, rare events at `info` and frequent ones
//! at `debug`. The targets are `gpupool::runtime`, `gpupool::library`, `gpupool::handle` and `gpupool::memory`. gpupool
//! holds no lock while it logs. With `GPUPOOL_NVTX=1` in the environment, profilers show its work as NVTX ranges.
//!
//! There is one pool for each library and device in the process. A Python extension that contains this crate has its own
//! pools, separate from those of a Rust program in the same process.

// No panic and no output reaches a user; tests and benches may panic and print.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
// The limit is in clippy.toml; a test may be longer.
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

/// The Rust samples of the guide and the README, which run as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
#[doc = include_str!("../README.md")]
mod guide {}

pub mod c_api;
mod counters;
mod devices;
mod environment;
mod error;
mod handle;
mod ids;
pub mod library;
pub mod memory;
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

pub use devices::{device, sleep};
pub use error::{
    AskedNeighbours, Cause, Error, ErrorKind, LibraryError, MemoryHolder, MemoryUse, NeighbourUse, OutOfMemory,
    PoolExhausted, Result, StatusKind, Wanted,
};
pub use handle::{
    Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, CusparseLt, Custatevec, Cutensor, Cutensornet, Handle,
    HandleAction, HandleEvent, HandlePool, HandleStats, Hipblas, HipblasLt, Hipsolver, Hipsparse, Lease, Miopen,
    Pooled, Simulated, handle, handle_stats, lease,
};
pub use ids::{CaptureMode, CaptureStatus, Device, MemoryLocation, NumaNode, RawStream};
pub use memory::{Backup, wake};
pub use memory::{
    CaptureScope, CommitOptions, DeviceBuffer, DiscardGuard, GraphMemory, MemPool, MemPoolBuilder, MemoryRange,
    MemoryStats, PoolId, PoolScope, PoolStats, PoolSummary, PoolToken, RangePages, SegmentEvent, SegmentEventKind,
    StreamStats, empty, empty_cache, enable_peer_access, graph_pool_handle, memory_snapshot, memory_stats, on_oom,
    oom_callbacks, peers,
};
pub use memory::{
    MemoryClaim, Neighbour, NeighbourPool, NeighbourSettings, available_memory, claim, claim_within, neighbours,
    neighbours_with_pools, set_neighbour,
};
pub use memory::{
    PinnedBuffer, empty_pinned, empty_pinned_cache, empty_pinned_on_node, pinned_limit, pinned_stats, set_pinned_limit,
    warm_pinned, warm_pinned_in_background,
};
pub use memory::{ShareToken, attach};
#[cfg(feature = "cudarc")]
pub use pooled_slice::{PooledSlice, ValidAsAnyBits};
pub use recording::{MAX_ENTRIES, Recording, Snapshot, StackContext, snapshot};
pub use runtime::{DeviceInfo, Event, Stream, StreamScope, device_info, synchronize};
pub use summary::{MemorySummary, devices_in_use, memory_summary, reset_peak_stats};

//! Device memory: a caching allocator, and private pools on top of it.
//!
//! A request goes from the thread's cache (`thread_cache`) to a block of its heap (`heap`); only where none fits do the
//! pages move or grow (`grow`), and only where there are none left do the steps of `oom` follow. Freed blocks are
//! used again in stream order (`order`). Nothing here touches the memory itself.

pub(crate) mod cache;
mod device;
mod device_buffer;
#[cfg(feature = "python")]
pub(crate) mod dlpack;
#[cfg(feature = "python")]
pub(crate) mod frames;
mod mem_pool;
pub(crate) mod plug;
pub(crate) mod pool;
mod replay;
pub(crate) mod report;
mod serve;

use crate::error::Result;
use crate::ids::Device;
use crate::process;
use crate::runtime::{self, Stream};

pub use crate::library::DeviceMemHandler;
pub use cache::event::{Action, TraceEvent};
use device::device_memory::DeviceMemory;
pub use device::segment_source::{AllocateFunction, FreeFunction, SegmentFunctions, SegmentSource};
#[cfg(feature = "python")]
pub(crate) use device_buffer::empty_if_cached;
pub use device_buffer::{DeviceBuffer, empty};
pub use mem_pool::{
    MemPool, MemPoolBuilder, begin_allocate_to_pool, end_allocate_to_pool, pool_use_count, release_pool,
};
pub use plug::c_api::{Api, C_API, DEVICE_MEM_HANDLER};
pub use plug::feed::feed;
pub(crate) use plug::library_memory::LibraryMemory;
pub use pool::capture::{CaptureScope, GraphMemory};
pub use pool::id::{PoolId, graph_pool_handle};
use pool::limit;
pub(crate) use pool::limit::devices_in_use;
pub use pool::limit::{MemoryLimit, set_memory_limit};
pub use pool::scope::{PoolScope, PoolToken};
pub use replay::{ReplayAllocator, ReplayEvent, ReplayResult, replay, replay_reserved};
pub use report::snapshot::{BlockView, MemorySnapshot, SegmentView, memory_snapshot};
pub use report::stats::{MemoryStats, PoolStats, empty_cache, memory_stats, reset_peak_memory_stats};
pub(crate) use report::summary::pool_summaries;
pub use report::summary::{PoolSummary, StreamStats};
use serve::allocate as allocator;
pub use serve::miss::{OomCallback, OomGuard, on_oom};
#[cfg(feature = "python")]
pub(crate) use serve::settle::fence;

/// Allocates device memory by its address alone, for callers that free it by [`deallocate`]. As [`empty`] otherwise.
///
/// # Errors
/// As [`empty`], and `ErrorKind::InvalidValue` for 0 bytes.
#[inline]
pub fn allocate(nbytes: u64, stream: &Stream) -> Result<u64> {
    allocator::allocate(nbytes, stream).map(allocator::Allocation::address)
}

/// Frees what [`allocate`] gave, in the order of the stream it was allocated on, or after the work so far on the one that is
/// named, which must be alive and may be of another device if [`enable_peer_access`] has let it in.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the address is not the start of a block, or was freed before; `ErrorKind::Library` if the
/// driver refuses to take back memory of a pool that is gone: the block is freed all the same.
#[inline]
pub fn deallocate(address: u64, on: Option<&Stream>) -> Result<()> {
    process::refuse_forked()?;
    let block = allocator::find(address, None)?;
    allocator::free(block.cache, block.offset, on)
}

/// Keeps a block, once freed, from being used again before the stream's work at that time is done. The stream may be of
/// another device if [`enable_peer_access`] has let it in.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the address is not the start of a block that somebody holds.
pub fn record_stream(address: u64, stream: &Stream) -> Result<()> {
    process::refuse_forked()?;
    let block = allocator::find(address, None)?;
    allocator::record_stream(block.cache, block.offset, stream)
}

/// Lets this process reserve at most a part, 0 to 1, of the device's memory through gpupool.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a part outside 0 to 1, or an unknown device.
pub fn set_per_process_memory_fraction(fraction: f64, device: Device) -> Result<()> {
    limit::refuse_no_fraction(fraction)?;
    let memory = DeviceMemory::of(device)?;
    let total = runtime::get()?.total_memory(device)?;
    memory.budget.set_limit((fraction < 1.0).then_some((total as f64 * fraction) as u64));
    Ok(())
}

/// The part of the device's memory that this process may reserve through gpupool; 1 unless it was set.
///
/// # Errors
/// As [`set_per_process_memory_fraction`].
pub fn get_per_process_memory_fraction(device: Device) -> Result<f64> {
    let limit = DeviceMemory::of(device)?.budget.limit();
    let total = runtime::get()?.total_memory(device)?;
    Ok(limit.map_or(1.0, |limit| limit as f64 / total as f64))
}

/// Lets `peer` read and write the memory that gpupool has on `device`, now and later.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the two cannot reach each other; `ErrorKind::Library` if the driver refuses.
pub fn enable_peer_access(device: Device, peer: Device) -> Result<()> {
    runtime::device(peer.ordinal() as i64)?;
    DeviceMemory::of(device)?.enable_peer(peer)
}

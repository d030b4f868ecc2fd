//! Device memory: a caching allocator, and private pools on top of it.
//!
//! A request goes from the thread's cache (`thread_cache`) to a block of its heap (`heap`); only where none fits do the
//! pages move or grow (`grow`), and only where there are none left do the steps of `oom` follow. Freed blocks are
//! used again in stream order (`order`). Nothing here touches the memory itself.

mod address_space;
mod allocator;
mod budget;
mod c_api;
pub(crate) mod capture;
mod device_buffer;
mod device_memory;
mod exchange;
mod feed;
mod frozen;
mod grow;
mod heap;
mod id;
mod lending;
mod library_memory;
mod limit;
mod local;
mod mem_pool;
mod oom;
mod order;
mod pages;
mod physical;
mod pool;
mod pool_use;
mod release;
mod replay;
mod retired;
pub(crate) mod scope;
mod segment;
pub(crate) mod snapshot;
mod stats;
mod summary;
mod thread_cache;
#[cfg(feature = "python")]
pub(crate) mod torch;
#[cfg(feature = "python")]
mod torch_error;
#[cfg(feature = "python")]
mod torch_stream;
pub(crate) mod trace;

use crate::error::Result;
use crate::ids::Device;
use crate::process;
use crate::runtime::{self, Stream};

pub use crate::library::DeviceMemHandler;
pub use c_api::{Api, C_API, DEVICE_MEM_HANDLER};
pub use capture::{CaptureScope, GraphMemory};
#[cfg(feature = "python")]
pub(crate) use device_buffer::empty_if_cached;
pub use device_buffer::{DeviceBuffer, empty};
pub use feed::feed;
pub use id::{PoolId, graph_pool_handle};
pub(crate) use library_memory::LibraryMemory;
pub(crate) use limit::devices_in_use;
pub use limit::{MemoryLimit, set_memory_limit};
pub use mem_pool::{
    MemPool, MemPoolBuilder, begin_allocate_to_pool, end_allocate_to_pool, pool_use_count, release_pool,
};
pub use oom::{OomCallback, OomGuard, on_oom};
#[cfg(feature = "python")]
pub(crate) use order::fence;
pub use replay::{ReplayAllocator, ReplayEvent, ReplayResult, replay, replay_reserved};
pub use scope::{PoolScope, PoolToken};
pub use segment::{AllocateFunction, FreeFunction, SegmentFunctions, SegmentSource};
pub use snapshot::{BlockView, MemorySnapshot, SegmentView, memory_snapshot};
pub use stats::{MemoryStats, PoolStats, empty_cache, memory_stats, reset_peak_memory_stats};
pub(crate) use summary::pool_summaries;
pub use summary::{PoolSummary, StreamStats};
pub use trace::{Action, TraceEvent};

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
    let memory = device_memory::DeviceMemory::of(device)?;
    let total = runtime::get()?.total_memory(device)?;
    memory.budget.set_limit((fraction < 1.0).then_some((total as f64 * fraction) as u64));
    Ok(())
}

/// The part of the device's memory that this process may reserve through gpupool; 1 unless it was set.
///
/// # Errors
/// As [`set_per_process_memory_fraction`].
pub fn get_per_process_memory_fraction(device: Device) -> Result<f64> {
    let limit = device_memory::DeviceMemory::of(device)?.budget.limit();
    let total = runtime::get()?.total_memory(device)?;
    Ok(limit.map_or(1.0, |limit| limit as f64 / total as f64))
}

/// Lets `peer` read and write the memory that gpupool has on `device`, now and later.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the two cannot reach each other; `ErrorKind::Library` if the driver refuses.
pub fn enable_peer_access(device: Device, peer: Device) -> Result<()> {
    runtime::device(peer.ordinal() as i64)?;
    device_memory::DeviceMemory::of(device)?.enable_peer(peer)
}

//! Device memory, and pinned memory of the host: a caching allocator, and private pools on top of it.
//!
//! A request finds its thread's cache and takes a free block of its heap; only where none fits does it
//! climb the ladder of `serve/miss.rs`: pages move or grow, and at last memory is given back. Freed blocks are used
//! again in stream order. Nothing here touches the memory itself.

mod cache;
mod checkpoint;
mod copies;
mod device;
mod device_buffer;
mod host;
mod limits;
mod mem_pool;
mod plug;
mod pool;
mod pool_by_id;
mod report;
mod serve;
mod share;
mod sleep;

use crate::error::Result;
use crate::ids::Device;
use crate::process;
use crate::runtime::{self, Stream};

pub use crate::library::DeviceMemHandler;
pub use cache::{MemoryAction, MemoryEvent};
#[cfg(feature = "python")]
pub(crate) use copies::HostBytes;
pub use device::{AllocateFunction, FreeFunction, SegmentFunctions, SegmentSource};
pub use device_buffer::{DeviceBuffer, attach, empty};
#[cfg(feature = "python")]
pub(crate) use device_buffer::{Empty, try_empty};
#[cfg(feature = "python")]
pub(crate) use host::{EmptyPinned, empty_pinned_cache, order_of, pinned_stats_by_node, try_empty_pinned};
pub use host::{
    PinnedBuffer, empty_pinned, empty_pinned_on_node, pinned_limit, pinned_stats, reset_peak_pinned_stats,
    set_pinned_limit, warm_pinned,
};
pub(crate) use limits::devices_in_use;
pub use limits::{empty_cache, get_per_process_memory_fraction, set_memory_limit, set_per_process_memory_fraction};
pub use mem_pool::{MemPool, MemPoolBuilder};
pub(crate) use plug::LibraryMemory;
pub use plug::{Api, C_API, DEVICE_MEM_HANDLER, PINNED_MEM_HANDLER, c_api, feed};
#[cfg(feature = "python")]
pub(crate) use plug::{TorchAllocator, fence, torch_functions};
pub use pool::{
    CaptureScope, GraphMemory, MemoryLimit, PoolId, PoolScope, PoolToken, SegmentEvent, SegmentEventKind,
    graph_pool_handle,
};
#[cfg(feature = "python")]
pub(crate) use pool::{ContextScope, EnteredCapture, EnteredScope, set_find_context_scope};
#[cfg(feature = "python")]
pub(crate) use pool_by_id::device_of_pool;
pub use pool_by_id::{begin_allocate_to_pool, end_allocate_to_pool, pool_use_count, release_pool};
#[cfg(feature = "python")]
pub(crate) use report::stacks_in_use;
pub use report::{
    BlockView, MemorySnapshot, MemoryStats, PoolStats, PoolSummary, SegmentView, StreamStats, memory_snapshot,
    memory_stats, reset_peak_memory_stats,
};
pub(crate) use report::{begin_recording, end_recording, pool_summaries, take_snapshot};
#[cfg(feature = "python")]
pub(crate) use serve::owns;
pub(crate) use serve::{Allocation, allocate as allocate_block, free as free_block};
pub use serve::{OomCallback, OomGuard, SegmentGuard, on_oom};
#[cfg(feature = "python")]
pub(crate) use share::share_at;
pub use share::{ShareToken, SharedSummary, shared_blocks};
pub use sleep::{Backup, sleep, wake};

/// Allocates device memory by its address alone, for callers that free it by [`deallocate`]. As [`empty`] otherwise.
///
/// # Errors
/// As [`empty`], and `ErrorKind::InvalidValue` for 0 bytes.
#[inline]
pub fn allocate(nbytes: u64, stream: &Stream) -> Result<u64> {
    serve::allocate(nbytes, stream).map(Allocation::address)
}

/// Frees what [`allocate`] gave, in the order of the stream it was allocated on, or after the work so far on the one
/// that is named, which must be alive and may be of another device if [`enable_peer_access`] has let it in.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the address is not the start of a block, or was freed before; `ErrorKind::Library` if
/// the driver refuses to take back memory of a pool that is gone: the block is freed all the same.
#[inline]
pub fn deallocate(address: u64, on: Option<&Stream>) -> Result<()> {
    process::refuse_forked()?;
    serve::free(serve::find(address, None)?, on)
}

/// Keeps a block, once freed, from being used again before the stream's work at that time is done. The stream may be of
/// another device if [`enable_peer_access`] has let it in.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the address is not the start of a block that a caller holds.
pub fn record_stream(address: u64, stream: &Stream) -> Result<()> {
    process::refuse_forked()?;
    serve::record_stream(serve::find(address, None)?, stream)
}

/// Returns the bytes that gpupool has reserved of the device, for all its pools.
pub(crate) fn reserved_bytes(device: Device) -> Result<u64> {
    Ok(serve::device_caches(device)?.memory.budget.reserved())
}

/// Lets `peer` read and write the memory that gpupool has on `device`, now and later.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the two cannot reach each other; `ErrorKind::Library` if the driver refuses.
pub fn enable_peer_access(device: Device, peer: Device) -> Result<()> {
    runtime::device(peer.ordinal() as i64)?;
    serve::enable_peer(device, peer)
}

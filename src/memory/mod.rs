//! Device memory, and pinned memory of the host: a caching allocator, and private pools on top of it.
//!
//! A request goes to its stream's cache, and takes a free block of the cache's heap. If none fits, the steps of
//! `serve/acquire.rs` follow: pages move, the pool grows, and at last cached memory is released. Freed blocks are
//! reused in stream order. Nothing here touches the memory itself.
//!
//! | word | what it means here, and in the pages and messages |
//! | --- | --- |
//! | page | 2 MiB of physical memory, or of addresses: what moves |
//! | extent | physical memory as the driver gives it: whole pages, mapped, exported and given back together |
//! | mapping | an extent, and the addresses where it is mapped |
//! | run | pages in a row |
//! | segment | memory of another source than extents, which stays where it is |
//! | span | memory of a heap without a gap |
//! | block | a part of a span: live, if a caller holds it, or free |
//! | slab | a block that is cut into slots of one size, for small blocks |
//! | heap | the spans of a cache, and how they are cut |
//! | cache | a heap with what waits beside it, for one pool, stream and role |
//! | role | what a cache's memory is for: requests, graphs, another allocator, lending slabs, or ranges |
//! | lender | a cache whose slabs other caches of its pool borrow |
//! | pool | the owner of memory, for requests of a scope, a capture or a caller that names it |
//! | supply | where a pool's memory comes from, and its budget: how much the pool has, and may have |
//! | reserve | extents that a pool keeps from its birth to its end |
//! | stream | the order in which memory is used; its identity tells a stream from another at the same address |
//! | route | what leads a thread's requests to a pool: a scope, a capture, or the stream alone |
//! | need | what memory is asked for: a block, a run at an address, a reserve, extents of a pool that wakes |
//! | step | one way to find memory for a need, in the order of `serve/acquire.rs` |
//! | move | to map extents at another place, in front of the work that comes later |
//! | under way | of memory: taken out of one place, and not yet in another; searches wait for it |
//! | range | addresses that stay, whose pages are committed and decommitted |
//! | asleep | of a pool: its addresses stay while its extents are gone |
//! | node | a NUMA node of the host, where pinned memory is; a device or a node is a location |
//! | neighbour | another process on the device, which gives memory back when it is asked |

pub(crate) mod cache;
pub(crate) mod checkpoint;
mod copies;
pub(crate) mod device;
pub(crate) mod device_buffer;
pub(crate) mod limits;
mod mem_pool;
pub(crate) mod peer;
pub(crate) mod pinned;
pub(crate) mod plug;
pub(crate) mod pool;
mod pool_by_id;
mod range;
pub(crate) mod report;
pub(crate) mod route;
pub(crate) mod serve;
mod shared_block;
pub(crate) mod sleep;
mod staging;
mod system_limit;
mod tuning;

use crate::error::Result;
use crate::ids::Device;
use crate::process;
use crate::runtime::{self, Stream};

// Used by the Python module alone.
#[cfg(feature = "python")]
pub(crate) use self::{
    cache::Order,
    copies::{CopyDirection, HostBytes},
    device_buffer::empty_by,
    peer::share_at,
    pinned::{empty_pinned_by, node_of, pinned_stats_by_node},
    plug::{TorchAllocator, fence, follow_blocking},
    pool::no_fraction,
    pool_by_id::device_of_pool,
    report::stacks_in_use,
    route::{EnteredCapture, EnteredRoute, Followers, Route, allocate_in_parts, set_find_context_route},
    serve::owns,
};
pub use crate::library::DeviceMemHandler;
pub use cache::{MemoryAction, MemoryEvent};
pub(crate) use device::call_out;
pub use device::{AllocateFunction, FreeFunction, SegmentFunctions, SegmentSource};
pub use device_buffer::{DeviceBuffer, attach, empty};
pub(crate) use limits::devices_in_use;
pub use limits::{
    empty_cache, get_per_process_memory_fraction, memory_limit, set_memory_limit, set_per_process_memory_fraction,
};
pub use mem_pool::{MemPool, MemPoolBuilder};
#[cfg(feature = "python")]
pub(crate) use peer::claim_unless_interrupted;
#[cfg(all(feature = "fault-injection", feature = "python"))]
pub(crate) use peer::set_clock;
pub use peer::{
    MemoryClaim, Neighbour, NeighbourPool, NeighbourSettings, ShareToken, SharedSummary, available_memory, claim,
    claim_within, neighbours, neighbours_with_pools, set_neighbour, shared_blocks,
};
pub use pinned::{
    PinnedBuffer, empty_pinned, empty_pinned_cache, empty_pinned_on_node, pinned_limit, pinned_stats,
    reset_peak_pinned_stats, set_pinned_limit, warm_pinned, warm_pinned_in_background,
};
#[cfg(feature = "python")]
pub(crate) use plug::is_watched;
pub use plug::{BareAllocate, BareFree, DEVICE_MEM_HANDLER, EmptyCache, PINNED_MEM_HANDLER, bare_feed, feed};
pub(crate) use plug::{LibraryMemory, process_bytes};
pub use pool::{MemoryLimit, PoolId, SegmentEvent, SegmentEventKind, SegmentGuard, graph_pool_handle};
pub use pool_by_id::{begin_allocate_to_pool, end_allocate_to_pool, pool_use_count, release_pool};
pub(crate) use range::reserve_range as reserve_range_of;
pub use range::{CommitOptions, DiscardGuard, MemoryRange, RangePages};
pub use report::{
    BlockView, MemorySnapshot, MemoryStats, PoolStats, PoolSummary, SegmentView, StreamStats, memory_snapshot,
    memory_stats, reset_peak_memory_stats,
};
pub(crate) use report::{begin_recording, end_recording, pool_summaries, take_snapshot};
pub(crate) use route::allocate as allocate_block;
pub use route::{CaptureScope, GraphMemory, PoolScope, PoolToken};
#[cfg(feature = "python")]
pub(crate) use serve::on_oom_as;
pub(crate) use serve::{Allocation, Help, Helper, all_holders, free as free_block, holders, make_room_for, users};
pub use serve::{OomGuard, on_oom, oom_callbacks};
pub(crate) use sleep::sleep_pools;
pub use sleep::{Backup, wake};

/// Allocates device memory and returns its address, for callers that free it with [`deallocate`], which is unsafe.
/// Otherwise as [`empty`].
///
/// # Errors
/// As [`empty`], and `ErrorKind::InvalidValue` for 0 bytes.
#[inline]
pub fn allocate(nbytes: u64, stream: &Stream) -> Result<u64> {
    route::allocate(nbytes, stream).map(Allocation::address)
}

/// Frees memory of [`allocate`], in the order of the stream it was allocated on, or after the work submitted so far to
/// the given stream, which may be of another device if [`enable_peer_access`] has granted that device access.
///
/// ```
/// use gpupool::memory::{allocate, deallocate};
///
/// let stream = gpupool::Stream::new(gpupool::device(0)?)?;
/// let address = allocate(1 << 20, &stream)?;
/// // SAFETY: the block is this program's, which frees it once.
/// unsafe { deallocate(address, None) }?;
/// # Ok::<(), gpupool::Error>(())
/// ```
///
/// Safe code can free no address, neither one whose memory a buffer frees when dropped, nor one a second time:
///
/// ```compile_fail,E0133
/// let pinned = gpupool::empty_pinned(4096, None)?;
/// gpupool::memory::deallocate(pinned.ptr(), None)?;
/// # Ok::<(), gpupool::Error>(())
/// ```
/// ```compile_fail,E0133
/// let stream = gpupool::Stream::new(gpupool::device(0)?)?;
/// let buffer = gpupool::empty(4096, &stream)?;
/// gpupool::memory::deallocate(buffer.ptr(), None)?;
/// # Ok::<(), gpupool::Error>(())
/// ```
/// ```compile_fail,E0133
/// let address = gpupool::empty_pinned(4096, None)?.into_ptr();
/// // SAFETY: the block is this program's.
/// unsafe { gpupool::memory::deallocate(address, None) }?;
/// gpupool::memory::deallocate(address, None)?;
/// # Ok::<(), gpupool::Error>(())
/// ```
///
/// # Errors
/// `ErrorKind::InvalidValue` if the address is not the start of a block, was freed before, or is of a block that gpupool holds
/// for its own work, or the stream's device cannot reach it. After an error the block is as it was.
///
/// # Safety
/// The block at the address is the caller's: it came from [`allocate`], from a buffer's `into_ptr`, or from a function of
/// [`C_API`](crate::c_api::C_API), no other code frees it, and nothing uses it later but the work that its streams have by then. A block that was
/// freed before may be another owner's by now, which no error can show.
#[inline]
pub unsafe fn deallocate(address: u64, on: Option<&Stream>) -> Result<()> {
    process::refuse_forked()?;
    serve::free(serve::find(address, None)?, on)
}

/// Lets requests ask neighbours, and others in the process ask this one, if these are there. Cheap: every program calls it as
/// it begins.
pub(crate) fn begin() {
    peer::watch();
    plug::join();
}

/// Prevents a block, once freed, from being reused before the work that the stream has at that time is done. The stream
/// may be of another device if [`enable_peer_access`] has granted that device access. Of a block that was freed meanwhile this
/// delays the next owner's free, and does no other harm.
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

/// Grants `peer` read and write access to all memory that gpupool has on `device`, now and later. Once it returns, the peer
/// has access, whatever other threads do with the memory meanwhile.
///
/// # Errors
/// `ErrorKind::InvalidValue` if `peer` cannot access memory of `device`; `ErrorKind::Library` if the driver refuses: the
/// peer then gets no access to later memory, and the call may be repeated.
pub fn enable_peer_access(device: Device, peer: Device) -> Result<()> {
    serve::enable_peer(runtime::existing(device)?, runtime::existing(peer)?)
}

/// Returns the devices that [`enable_peer_access`] has granted access to the memory of `device`.
///
/// # Errors
/// As [`device`](crate::device).
pub fn peers(device: Device) -> Result<Vec<Device>> {
    Ok(serve::device_caches(runtime::existing(device)?)?.memory.range.peers.devices())
}

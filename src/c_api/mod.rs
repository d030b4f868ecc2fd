//! The C interface: one table of functions, with the layout of `gpupool.h`, for adapters and for C programs.
//!
//! No panic leaves a function, and a call that fails returns a status; see [`Api::last_error`]. The table is [`C_API`];
//! the fields of [`Api`] describe its functions.

mod blocks;
mod device;
#[cfg(feature = "c-api")]
mod exports;
mod handles;
mod header;
mod pools;
mod ranges;
mod recording;
mod share;

use std::ffi::{c_char, c_int, c_void};

pub use blocks::{Block, Durations};
pub use device::{ClaimHandle, OomFunction};
pub use handles::{HandleCounts, HandleLease};
pub use pools::{AllocatedFunction, Checkpoint, FreedFunction, PoolHandle, PoolOptions, PoolSource};
pub use ranges::{DiscardFunction, RangeHandle};
pub use recording::{Event, Observer, Recording, Segment, SnapshotVisitor, TakeStack};
pub use share::Attached;

use crate::memory::plug::{allocators, call};
use crate::memory::pool::PoolId;
pub use crate::memory::report::{DeviceStats, Stat, Stats};

/// `GPUPOOL_API_VERSION`.
const VERSION: u64 = 2;

/// Declares the table: each function once, by the module that has it, with its type.
macro_rules! api {
    ($($(#[$doc:meta])* $module:ident::$name:ident: fn($($argument:ty),*) $(-> $result:ty)?,)*) => {
        /// `gpupool_api`: the functions, as the header describes them. The layout only grows: a program may use what lies
        /// within `size`.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct Api {
            /// 2.
            pub version: u64,
            /// The size of this table, in bytes.
            pub size: u64,
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        header::in_header! { Api as "gpupool_api" [version as version, size as size, $($name as $name,)*] }

        /// The functions.
        pub static C_API: Api =
            Api { version: VERSION, size: size_of::<Api>() as u64, $($name: $module::$name),* };
    };
}

api! {
    /// PyTorch's pluggable allocator: `void *(ssize_t size, int device, cudaStream_t stream)`.
    allocators::malloc: fn(isize, c_int, *mut c_void) -> *mut c_void,
    /// PyTorch's pluggable allocator: `void (void *pointer, ssize_t size, int device, cudaStream_t stream)`.
    allocators::free: fn(*mut c_void, isize, c_int, *mut c_void),
    /// `cupy.cuda.CFunctionAllocator`: `void *(void *param, size_t size, int device)`, on gpupool's current stream.
    allocators::cupy_malloc: fn(*mut c_void, usize, c_int) -> *mut c_void,
    /// `cupy.cuda.CFunctionAllocator`: `void (void *param, void *pointer, int device)`.
    allocators::cupy_free: fn(*mut c_void, *mut c_void, c_int),
    /// A device memory handler of cuDSS or cuQuantum: `int (void *context, void **pointer, size_t size, cudaStream_t
    /// stream)`, 0 on success.
    allocators::handler_alloc: fn(*mut c_void, *mut *mut c_void, usize, *mut c_void) -> c_int,
    /// The same: `int (void *context, void *pointer, size_t size, cudaStream_t stream)`.
    allocators::handler_free: fn(*mut c_void, *mut c_void, usize, *mut c_void) -> c_int,
    /// Returns why the calling thread's last failed call failed: never null, and valid until its next one that fails.
    call::last_error: fn() -> *const c_char,
    /// Allocates on a stream, from the pool whose scope the calling thread is in.
    blocks::allocate: fn(u64, c_int, *mut c_void, *mut *mut c_void) -> c_int,
    /// Frees a block in the order of the stream that it was allocated on.
    blocks::deallocate: fn(*mut c_void) -> c_int,
    /// Prevents a block, once freed, from being reused before the work that the stream has at that time is done.
    blocks::record_stream: fn(*mut c_void, c_int, *mut c_void) -> c_int,
    /// Returns whether an address is in gpupool's memory.
    blocks::owns: fn(*const c_void) -> c_int,
    /// Describes the live block that starts at an address.
    blocks::find_block: fn(*const c_void, *mut Block) -> c_int,
    /// Releases free memory of one device, or of all for -1.
    device::empty_cache: fn(c_int, *mut u64) -> c_int,
    /// Returns the fraction of the device's memory that this process may reserve.
    device::get_per_process_memory_fraction: fn(c_int, *mut f64) -> c_int,
    /// Sets the fraction of the device's memory that this process may reserve.
    device::set_per_process_memory_fraction: fn(c_int, f64) -> c_int,
    /// Returns the size of the largest block that could be allocated without releasing anything.
    device::largest_block: fn(c_int, *mut u64) -> c_int,
    /// Grants the first device access to the memory of the second.
    device::enable_peer_access: fn(c_int, c_int) -> c_int,
    /// Registers a function that is called before a request fails for lack of memory.
    device::on_oom: fn(Option<OomFunction>, *mut c_void) -> c_int,
    /// Removes it.
    device::remove_oom_callback: fn(Option<OomFunction>, *mut c_void) -> c_int,
    /// Creates a pool with one use.
    pools::pool_create: fn(c_int, *const PoolOptions, *mut *mut PoolHandle) -> c_int,
    /// Releases that use.
    pools::pool_release: fn(*mut PoolHandle) -> c_int,
    /// Returns the id of a pool.
    pools::pool_id: fn(*const PoolHandle, *mut PoolId) -> c_int,
    /// Sets whether other pools may use the pool's free memory when memory runs out.
    pools::pool_set_use_on_oom: fn(*mut PoolHandle, c_int) -> c_int,
    /// Makes each segment serve one block at a time.
    pools::pool_set_no_split: fn(*mut PoolHandle) -> c_int,
    /// Releases the pool's free memory.
    pools::pool_trim: fn(*mut PoolHandle, *mut u64) -> c_int,
    /// Returns a number larger than that of every scope entered before.
    pools::ticket: fn() -> u64,
    /// Allocates from a pool, unless the thread has entered a scope after the ticket.
    pools::pool_allocate: fn(*mut PoolHandle, u64, u64, *mut c_void, *mut *mut c_void) -> c_int,
    /// Creates a checkpoint of the live blocks.
    pools::pool_checkpoint: fn(*mut PoolHandle, *mut *mut Checkpoint) -> c_int,
    /// Restores it: exactly those blocks are live again.
    pools::pool_restore: fn(*mut PoolHandle, *const Checkpoint, *mut c_void, Option<FreedFunction>,
        Option<AllocatedFunction>) -> c_int,
    /// Frees a checkpoint.
    pools::checkpoint_release: fn(*mut Checkpoint),
    /// Returns the statistics of a device's memory.
    device::device_stats: fn(c_int, *mut DeviceStats) -> c_int,
    /// Resets a device's peaks.
    device::reset_peak_stats: fn(c_int) -> c_int,
    /// Calls a visitor for the memory and for the recorded events.
    recording::snapshot: fn(c_int, *const PoolId, *const SnapshotVisitor) -> c_int,
    /// Starts or stops recording.
    recording::record: fn(*const Recording) -> c_int,
    /// Calls a function for each stack that an event or a live block names.
    recording::visit_stacks: fn(*mut c_void, Option<unsafe extern "C" fn(*mut c_void, u32)>) -> c_int,
    /// Calls an observer for every event from now on.
    recording::observe: fn(Option<Observer>, *mut c_void) -> c_int,
    /// Adds a use of the pool with an id.
    pools::pool_by_id: fn(c_int, *const PoolId, *mut *mut PoolHandle) -> c_int,
    /// Declares that a stream is never destroyed.
    device::declare_lasting: fn(c_int, *mut c_void) -> c_int,
    /// Declares that streams of a device may be captured from now on.
    device::expect_captures: fn(c_int) -> c_int,
    /// Ends the declaration of one call of `expect_captures`.
    device::end_expecting_captures: fn(c_int) -> c_int,
    /// Allocates pinned memory on a NUMA node of the host.
    blocks::allocate_pinned: fn(u64, c_int, *mut *mut c_void) -> c_int,
    /// Allocates pinned memory in advance.
    blocks::warm_pinned: fn(u64, c_int, c_int) -> c_int,
    /// Releases free pinned memory.
    blocks::empty_pinned_cache: fn(*mut u64) -> c_int,
    /// Sets the maximum number of bytes of pinned memory that this process may reserve.
    blocks::set_pinned_limit: fn(u64) -> c_int,
    /// Returns the statistics of pinned memory.
    blocks::pinned_stats: fn(c_int, *mut DeviceStats) -> c_int,
    /// Resets the peaks of pinned memory.
    blocks::reset_peak_pinned_stats: fn(c_int) -> c_int,
    /// Returns how long pinned memory took to allocate and to free.
    blocks::pinned_times: fn(*mut Durations, *mut Durations) -> c_int,
    /// Calls a visitor for pinned memory, and for its recorded events.
    recording::pinned_snapshot: fn(*const SnapshotVisitor) -> c_int,
    /// Puts a pool to sleep.
    pools::pool_sleep: fn(*mut PoolHandle, c_int, *mut u64) -> c_int,
    /// Wakes a pool.
    pools::pool_wake: fn(*mut PoolHandle, *mut u64) -> c_int,
    /// Returns whether a pool is asleep.
    pools::pool_is_asleep: fn(*const PoolHandle, *mut c_int) -> c_int,
    /// Puts all memory of a device to sleep.
    pools::sleep_device: fn(c_int, c_int, *mut u64) -> c_int,
    /// Wakes all memory of a device.
    pools::wake_device: fn(c_int, *mut u64) -> c_int,
    /// Registers a function that is called for a pool's segments.
    pools::pool_on_segment: fn(*mut PoolHandle, Option<Observer>, *mut c_void) -> c_int,
    /// Removes it.
    pools::pool_remove_segment_callback: fn(*mut PoolHandle, Option<Observer>, *mut c_void) -> c_int,
    /// Shares the block that contains an address with other processes.
    share::share: fn(*const c_void, c_int, *mut c_void, c_int, *mut c_void, *mut u64, *mut u64) -> c_int,
    /// Attaches a block that another process shares.
    share::attach: fn(*const c_void, u64, c_int, *mut c_void, *mut *mut Attached, *mut *mut c_void) -> c_int,
    /// Keeps attached memory, once it is detached, until the work that the stream has at that time is done.
    share::attached_record_stream: fn(*const Attached, c_int, *mut c_void) -> c_int,
    /// Detaches attached memory.
    share::detach: fn(*mut Attached, c_int, *mut c_void) -> c_int,
    /// Frees a block in the order of a stream.
    blocks::deallocate_on: fn(*mut c_void, c_int, *mut c_void) -> c_int,
    /// Routes the calling thread's requests to a pool.
    pools::pool_enter: fn(*const PoolHandle, *mut u64) -> c_int,
    /// Ends that scope.
    pools::scope_leave: fn(u64) -> c_int,
    /// Waits for the work of a stream.
    device::synchronize: fn(c_int, *mut c_void) -> c_int,
    /// Allocates bytes at an address where they are free.
    blocks::allocate_at: fn(*mut c_void, u64, c_int, *mut c_void) -> c_int,
    /// Returns the calling thread's handle of a library, with its stream set.
    handles::handle: fn(c_int, c_int, *mut c_void, *mut *mut c_void) -> c_int,
    /// Begins a lease of a handle.
    handles::lease: fn(c_int, c_int, *mut c_void, u64, *mut HandleLease) -> c_int,
    /// Ends it.
    handles::lease_release: fn(*mut HandleLease) -> c_int,
    /// Ends it, and no request gets the handle again.
    handles::lease_discard: fn(*mut HandleLease) -> c_int,
    /// Returns whether handles of a library can be requested.
    handles::library_is_available: fn(c_int, *mut c_int) -> c_int,
    /// Returns the counts of a library's handles.
    handles::handle_stats: fn(c_int, c_int, *mut HandleCounts) -> c_int,
    /// Resets the peaks of those counts.
    handles::reset_peak_handle_stats: fn(c_int, c_int) -> c_int,
    /// Creates handles in advance.
    handles::warm_handles: fn(c_int, c_int, u64, c_int, *mut u64) -> c_int,
    /// Destroys idle handles.
    handles::trim_handles: fn(c_int, c_int, *mut u64) -> c_int,
    /// Sets the maximum number of a library's handles on each device.
    handles::set_handle_limit: fn(c_int, u64) -> c_int,
    /// Reserves addresses for a range of a pool.
    ranges::pool_reserve_range: fn(*const PoolHandle, u64, u64, *mut *mut RangeHandle, *mut *mut c_void) -> c_int,
    /// Commits pages of a range.
    ranges::range_commit: fn(*const RangeHandle, *const u32, u64, c_int, *mut c_void, *const c_int, c_int) -> c_int,
    /// Decommits pages of a range.
    ranges::range_decommit: fn(*const RangeHandle, *const u32, u64, c_int, *mut c_void) -> c_int,
    /// Pins committed pages of a range.
    ranges::range_pin: fn(*const RangeHandle, *const u32, u64, c_int, *mut c_void, *mut c_void) -> c_int,
    /// Ends one pin of each page.
    ranges::range_unpin: fn(*const RangeHandle, *const u32, u64, c_int, *mut c_void) -> c_int,
    /// Keeps pages ready for commits.
    ranges::range_prepare: fn(*const RangeHandle, u64) -> c_int,
    /// Returns the bytes of a range that are committed, and those that may be taken.
    ranges::range_bytes: fn(*const RangeHandle, *mut u64, *mut u64) -> c_int,
    /// Registers a function that is called for pages that were taken.
    ranges::range_on_discard: fn(*const RangeHandle, Option<DiscardFunction>, *mut c_void) -> c_int,
    /// Frees a range.
    ranges::range_release: fn(*mut RangeHandle, c_int, *mut c_void) -> c_int,
    /// Frees a range of an owner that cannot keep it.
    ranges::range_drop: fn(*mut RangeHandle) -> c_int,
    /// Makes this process a neighbour of the user's others, and sets what they are told of it.
    device::set_neighbour: fn(c_int, *const c_char, u64, u64, c_int) -> c_int,
    /// Returns how many bytes of a device this process could have.
    device::available_memory: fn(c_int, *mut u64) -> c_int,
    /// Claims memory before it is taken, once there is so much.
    device::claim: fn(c_int, u64, u64, *mut *mut ClaimHandle) -> c_int,
    /// Ends a claim.
    device::claim_release: fn(*mut ClaimHandle) -> c_int,
    /// Allocates memory that no work uses, for any stream.
    blocks::feed_allocate: fn(*const PoolHandle, c_int, u64, *mut *mut c_void) -> c_int,
    /// Frees memory that any stream may have used.
    blocks::feed_deallocate: fn(*mut c_void) -> c_int,
}

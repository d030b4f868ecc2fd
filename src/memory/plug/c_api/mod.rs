//! The C interface: one table of functions, with the layout of `gpupool.h`, for adapters and for C programs.
//!
//! No panic leaves them, and a call that fails returns a status; see [`Api::last_error`]. [`C_API`] is the table.

mod allocation;
mod allocators;
mod block;
mod call;
mod checkpoint;
mod device;
mod device_stats;
mod event;
mod oom_callbacks;
mod pinned;
mod pools;
mod recording;
mod share;
mod sized;
mod snapshot;

use std::ffi::{c_char, c_int, c_void};

pub use allocators::{DEVICE_MEM_HANDLER, PINNED_MEM_HANDLER};
pub(super) use allocators::{free_plain, library_handler};
pub use block::Block;
pub(super) use call::{address_of, bytes_of, guard, stream_of};
pub use checkpoint::{AllocatedFunction, Checkpoint, FreedFunction};
pub use device_stats::{DeviceStats, Stat, Stats};
pub use event::{Event, Observer};
pub use oom_callbacks::OomFunction;
pub use pinned::Durations;
pub use pools::{PoolHandle, PoolOptions, PoolSource};
pub use recording::{Recording, TakeStack};
pub use share::Attached;
pub use snapshot::{Segment, SnapshotVisitor};

use crate::memory::pool::PoolId;

/// `gpupool_api`: the functions, as the header describes them. The layout only grows: a program may use what lies within
/// `size`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Api {
    /// 2.
    pub version: u64,
    /// The size of this table, in bytes.
    pub size: u64,
    /// PyTorch's pluggable allocator: `void *(ssize_t size, int device, cudaStream_t stream)`.
    pub malloc: unsafe extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void,
    /// PyTorch's pluggable allocator: `void (void *pointer, ssize_t size, int device, cudaStream_t stream)`.
    pub free: unsafe extern "C" fn(*mut c_void, isize, c_int, *mut c_void),
    /// `cupy.cuda.CFunctionAllocator`: `void *(void *param, size_t size, int device)`, on gpupool's current stream.
    pub cupy_malloc: unsafe extern "C" fn(*mut c_void, usize, c_int) -> *mut c_void,
    /// `cupy.cuda.CFunctionAllocator`: `void (void *param, void *pointer, int device)`.
    pub cupy_free: unsafe extern "C" fn(*mut c_void, *mut c_void, c_int),
    /// A device memory handler of cuDSS or cuQuantum: `int (void *context, void **pointer, size_t size, cudaStream_t
    /// stream)`, 0 on success.
    pub handler_alloc: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, usize, *mut c_void) -> c_int,
    /// The same: `int (void *context, void *pointer, size_t size, cudaStream_t stream)`.
    pub handler_free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut c_void) -> c_int,
    /// Returns why the calling thread's last failed call failed: never null, and valid until its next one that fails.
    pub last_error: unsafe extern "C" fn() -> *const c_char,
    /// Allocates on a stream, from the pool whose scope the calling thread is in.
    pub allocate: unsafe extern "C" fn(u64, c_int, *mut c_void, *mut *mut c_void) -> c_int,
    /// Frees a block in the order of the stream that it was allocated on.
    pub deallocate: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// Prevents a block, once freed, from being reused before the work that the stream has at that time is done.
    pub record_stream: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int,
    /// Returns whether an address is in gpupool's memory.
    pub owns: unsafe extern "C" fn(*const c_void) -> c_int,
    /// Describes the live block that starts at an address.
    pub find_block: unsafe extern "C" fn(*const c_void, *mut Block) -> c_int,
    /// Releases free memory of one device, or of all for -1.
    pub empty_cache: unsafe extern "C" fn(c_int, *mut u64) -> c_int,
    /// Returns the fraction of the device's memory that this process may reserve.
    pub get_memory_fraction: unsafe extern "C" fn(c_int, *mut f64) -> c_int,
    /// Sets the fraction of the device's memory that this process may reserve.
    pub set_memory_fraction: unsafe extern "C" fn(c_int, f64) -> c_int,
    /// Returns the size of the largest block that could be allocated without releasing anything.
    pub largest_block: unsafe extern "C" fn(c_int, *mut u64) -> c_int,
    /// Grants the first device access to the memory of the second.
    pub enable_peer_access: unsafe extern "C" fn(c_int, c_int) -> c_int,
    /// Registers a function that is called before a request fails for lack of memory.
    pub add_oom_callback: unsafe extern "C" fn(Option<OomFunction>, *mut c_void) -> c_int,
    /// Removes it.
    pub remove_oom_callback: unsafe extern "C" fn(Option<OomFunction>, *mut c_void) -> c_int,
    /// Creates a pool with one use.
    pub pool_create: unsafe extern "C" fn(c_int, *const PoolOptions, *mut *mut PoolHandle) -> c_int,
    /// Releases that use.
    pub pool_release: unsafe extern "C" fn(*mut PoolHandle) -> c_int,
    /// Returns the id of a pool.
    pub pool_id: unsafe extern "C" fn(*const PoolHandle, *mut PoolId) -> c_int,
    /// Sets whether other pools may use the pool's free memory when memory runs out.
    pub pool_set_use_on_oom: unsafe extern "C" fn(*mut PoolHandle, c_int) -> c_int,
    /// Makes each segment serve one block at a time.
    pub pool_set_no_split: unsafe extern "C" fn(*mut PoolHandle) -> c_int,
    /// Releases the pool's free memory.
    pub pool_trim: unsafe extern "C" fn(*mut PoolHandle, *mut u64) -> c_int,
    /// Returns a number larger than that of every scope entered before.
    pub ticket: unsafe extern "C" fn() -> u64,
    /// Allocates from a pool, unless the thread has entered a scope after the ticket.
    pub pool_allocate: unsafe extern "C" fn(*mut PoolHandle, u64, u64, *mut c_void, *mut *mut c_void) -> c_int,
    /// Creates a checkpoint of the live blocks.
    pub pool_checkpoint: unsafe extern "C" fn(*mut PoolHandle, *mut *mut Checkpoint) -> c_int,
    /// Restores it: exactly those blocks are live again.
    pub pool_restore: unsafe extern "C" fn(
        *mut PoolHandle,
        *const Checkpoint,
        *mut c_void,
        Option<FreedFunction>,
        Option<AllocatedFunction>,
    ) -> c_int,
    /// Frees a checkpoint.
    pub checkpoint_release: unsafe extern "C" fn(*mut Checkpoint),
    /// Returns the statistics of a device's memory.
    pub device_stats: unsafe extern "C" fn(c_int, *mut DeviceStats) -> c_int,
    /// Resets a device's peaks.
    pub reset_peak_stats: unsafe extern "C" fn(c_int) -> c_int,
    /// Calls a visitor for the memory and for the recorded events.
    pub snapshot: unsafe extern "C" fn(c_int, *const PoolId, *const SnapshotVisitor) -> c_int,
    /// Starts or stops recording.
    pub record: unsafe extern "C" fn(*const Recording) -> c_int,
    /// Calls a function for each stack that an event or a live block names.
    pub visit_stacks: unsafe extern "C" fn(*mut c_void, Option<unsafe extern "C" fn(*mut c_void, u32)>) -> c_int,
    /// Calls an observer for every event from now on.
    pub observe: unsafe extern "C" fn(Option<Observer>, *mut c_void) -> c_int,
    /// Adds a use of the pool with an id.
    pub pool_by_id: unsafe extern "C" fn(c_int, *const PoolId, *mut *mut PoolHandle) -> c_int,
    /// Declares that a stream is never destroyed.
    pub declare_lasting: unsafe extern "C" fn(c_int, *mut c_void) -> c_int,
    /// Declares that streams of a device may be captured from now on.
    pub expect_captures: unsafe extern "C" fn(c_int) -> c_int,
    /// Ends the declaration of one call of `expect_captures`.
    pub end_expecting_captures: unsafe extern "C" fn(c_int) -> c_int,
    /// Allocates pinned memory on a NUMA node of the host.
    pub allocate_pinned: unsafe extern "C" fn(u64, c_int, *mut *mut c_void) -> c_int,
    /// Allocates pinned memory in advance.
    pub warm_pinned: unsafe extern "C" fn(u64, c_int, c_int) -> c_int,
    /// Releases free pinned memory.
    pub empty_pinned_cache: unsafe extern "C" fn(*mut u64) -> c_int,
    /// Sets the maximum number of bytes of pinned memory that this process may reserve.
    pub set_pinned_limit: unsafe extern "C" fn(u64) -> c_int,
    /// Returns the statistics of pinned memory.
    pub pinned_stats: unsafe extern "C" fn(c_int, *mut DeviceStats) -> c_int,
    /// Resets the peaks of pinned memory.
    pub reset_peak_pinned_stats: unsafe extern "C" fn(c_int) -> c_int,
    /// Returns how long pinned memory took to allocate and to free.
    pub pinned_times: unsafe extern "C" fn(*mut Durations, *mut Durations) -> c_int,
    /// Calls a visitor for pinned memory, and for its recorded events.
    pub pinned_snapshot: unsafe extern "C" fn(*const SnapshotVisitor) -> c_int,
    /// Puts a pool to sleep.
    pub pool_sleep: unsafe extern "C" fn(*mut PoolHandle, c_int, *mut u64) -> c_int,
    /// Wakes a pool.
    pub pool_wake: unsafe extern "C" fn(*mut PoolHandle, *mut u64) -> c_int,
    /// Returns whether a pool is asleep.
    pub pool_is_asleep: unsafe extern "C" fn(*const PoolHandle, *mut c_int) -> c_int,
    /// Puts all memory of a device to sleep.
    pub sleep_device: unsafe extern "C" fn(c_int, c_int, *mut u64) -> c_int,
    /// Wakes all memory of a device.
    pub wake_device: unsafe extern "C" fn(c_int, *mut u64) -> c_int,
    /// Registers a function that is called for a pool's segments.
    pub pool_add_segment_callback: unsafe extern "C" fn(*mut PoolHandle, Option<Observer>, *mut c_void) -> c_int,
    /// Removes it.
    pub pool_remove_segment_callback: unsafe extern "C" fn(*mut PoolHandle, Option<Observer>, *mut c_void) -> c_int,
    /// Shares the block that contains an address with other processes.
    pub share: unsafe extern "C" fn(*const c_void, c_int, *mut c_void, c_int, *mut c_void, *mut u64, *mut u64) -> c_int,
    /// Attaches a block that another process shares.
    pub attach:
        unsafe extern "C" fn(*const c_void, u64, c_int, *mut c_void, *mut *mut Attached, *mut *mut c_void) -> c_int,
    /// Keeps attached memory, once it is detached, until the work that the stream has at that time is done.
    pub attached_record_stream: unsafe extern "C" fn(*const Attached, c_int, *mut c_void) -> c_int,
    /// Detaches attached memory.
    pub detach: unsafe extern "C" fn(*mut Attached, c_int, *mut c_void) -> c_int,
    /// Frees a block in the order of a stream.
    pub deallocate_on: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int,
    /// Routes the calling thread's requests to a pool.
    pub pool_enter: unsafe extern "C" fn(*const PoolHandle, *mut u64) -> c_int,
    /// Ends that scope.
    pub scope_leave: unsafe extern "C" fn(u64) -> c_int,
    /// Waits for the work of a stream.
    pub synchronize: unsafe extern "C" fn(c_int, *mut c_void) -> c_int,
}

/// `GPUPOOL_API_VERSION`.
pub(super) const VERSION: u64 = 2;

/// The functions.
pub static C_API: Api = Api {
    version: VERSION,
    size: size_of::<Api>() as u64,
    malloc: allocators::malloc,
    free: allocators::free,
    cupy_malloc: allocators::cupy_malloc,
    cupy_free: allocators::cupy_free,
    handler_alloc: allocators::handler_alloc,
    handler_free: allocators::handler_free,
    last_error: call::last_error,
    allocate: allocation::allocate,
    deallocate: allocation::deallocate,
    record_stream: allocation::record_stream,
    owns: block::owns,
    find_block: block::find_block,
    empty_cache: device::empty_cache,
    get_memory_fraction: device::get_memory_fraction,
    set_memory_fraction: device::set_memory_fraction,
    largest_block: device::largest_block,
    enable_peer_access: device::enable_peer_access,
    add_oom_callback: oom_callbacks::add_oom_callback,
    remove_oom_callback: oom_callbacks::remove_oom_callback,
    pool_create: pools::pool_create,
    pool_release: pools::pool_release,
    pool_id: pools::pool_id,
    pool_set_use_on_oom: pools::pool_set_use_on_oom,
    pool_set_no_split: pools::pool_set_no_split,
    pool_trim: pools::pool_trim,
    ticket: pools::ticket,
    pool_allocate: pools::pool_allocate,
    pool_checkpoint: checkpoint::pool_checkpoint,
    pool_restore: checkpoint::pool_restore,
    checkpoint_release: checkpoint::checkpoint_release,
    device_stats: device_stats::device_stats,
    reset_peak_stats: device_stats::reset_peak_stats,
    snapshot: snapshot::snapshot,
    record: recording::record,
    visit_stacks: recording::visit_stacks,
    observe: event::observe,
    pool_by_id: pools::pool_by_id,
    declare_lasting: device::declare_lasting,
    expect_captures: device::expect_captures,
    end_expecting_captures: device::end_expecting_captures,
    allocate_pinned: pinned::allocate_pinned,
    warm_pinned: pinned::warm_pinned,
    empty_pinned_cache: pinned::empty_pinned_cache,
    set_pinned_limit: pinned::set_pinned_limit,
    pinned_stats: pinned::pinned_stats,
    reset_peak_pinned_stats: pinned::reset_peak_pinned_stats,
    pinned_times: pinned::pinned_times,
    pinned_snapshot: snapshot::pinned_snapshot,
    pool_sleep: pools::pool_sleep,
    pool_wake: pools::pool_wake,
    pool_is_asleep: pools::pool_is_asleep,
    sleep_device: pools::sleep_device,
    wake_device: pools::wake_device,
    pool_add_segment_callback: pools::pool_add_segment_callback,
    pool_remove_segment_callback: pools::pool_remove_segment_callback,
    share: share::share,
    attach: share::attach,
    attached_record_stream: share::attached_record_stream,
    detach: share::detach,
    deallocate_on: allocation::deallocate_on,
    pool_enter: pools::pool_enter,
    scope_leave: pools::scope_leave,
    synchronize: device::synchronize,
};

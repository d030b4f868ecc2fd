//! Functions that supply another allocator with memory, which it caches and splits into blocks, such as PyTorch's
//! `MemPool`. Such an allocator calls from any thread, for a stream that may not be the one that uses the memory, and
//! uses it in graphs on any stream. So scopes are not followed, each pool has its own function, and the functions
//! behave as `cudaMalloc` and `cudaFree`: no work uses the memory they return, and freed memory is reused once all work
//! so far on the device is done. They never wait for the GPU while there is other memory. In the barest form, for ONNX
//! Runtime's CUDA provider, they are given a size or a pointer and nothing else.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, RwLock};

use super::allocators::malloc_from;
use super::call::{address_of, guard};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::{AllocateFunction, FreeFunction};
use crate::memory::limits;
use crate::memory::pool::Pool;
use crate::memory::route::{self, EnteredRoute, PoolToken, RouteKind};
use crate::memory::serve::{Allocation, Patience, device_caches, find, free_after_all_work, without_callbacks};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::runtime::{self, RelaxedCapture, Stream};
use crate::sync::{lock, read, write};

/// The pools that have a function. C functions carry no state, so their number is fixed.
static FED: RwLock<Vec<Arc<Pool>>> = RwLock::new(Vec::new());

/// A request for so many bytes: `void *(size_t)`.
pub type BareAllocate = unsafe extern "C" fn(usize) -> *mut c_void;
/// A free: `void (void *)`.
pub type BareFree = unsafe extern "C" fn(*mut c_void);
/// A release of free memory: `void (void)`.
pub type EmptyCache = unsafe extern "C" fn();

macro_rules! functions {
    ($($place:literal)*) => {
        static MALLOCS: [AllocateFunction; 64] = [$(malloc_of::<$place>),*];
        static BARE: [BareAllocate; 64] = [$(bare_of::<$place>),*];
    };
}

functions!(
     0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
);

/// Returns functions that allocate from a pool, or from each device's default pool, and free. Calls for the same pool
/// return the same functions; a pool's functions serve another pool only after the pool was dropped.
///
/// # Errors
/// `ErrorKind::Unavailable` if 64 live pools already have functions; `ErrorKind::InvalidValue` if the pool was dropped
/// or closed; `ErrorKind::Forked` in a forked child.
pub fn feed(pool: Option<&PoolToken>) -> Result<(AllocateFunction, FreeFunction)> {
    process::refuse_forked()?;
    Ok((
        pool.map_or(Ok(malloc_default as AllocateFunction), |token| place_of(token).map(|place| MALLOCS[place]))?,
        free,
    ))
}

/// The same in the barest form: the functions serve the pool's device, or the calling thread's current one. The third
/// releases free memory of every device, and waits for the GPU work that may still use it.
///
/// # Errors
/// As [`feed`].
pub fn bare_feed(pool: Option<&PoolToken>) -> Result<(BareAllocate, BareFree, EmptyCache)> {
    process::refuse_forked()?;
    let allocate = pool.map_or(Ok(bare_default as BareAllocate), |token| place_of(token).map(|place| BARE[place]))?;
    Ok((allocate, bare_free, bare_empty_cache))
}

/// Returns the number of a pool's functions, which it keeps while it lives.
fn place_of(token: &PoolToken) -> Result<usize> {
    let pool = token.pool();
    // Refuses a pool that is gone or closed.
    token.hold()?;
    let mut fed = write(&FED);
    let own = fed.iter().position(|other| Arc::ptr_eq(other, pool));
    let place = own.or_else(|| fed.iter().position(|other| other.use_count() == 0)).unwrap_or(fed.len());
    if place >= MALLOCS.len() {
        return Err(Error::unavailable(format!(
            "{} pools feed other allocators already; drop one that is not needed any more",
            MALLOCS.len()
        )));
    }
    match fed.get_mut(place) {
        Some(other) => *other = Arc::clone(pool),
        None => fed.push(Arc::clone(pool)),
    }
    Ok(place)
}

fn pool_at(place: usize) -> Result<Arc<Pool>> {
    read(&FED).get(place).cloned().ok_or_else(|| Error::invalid_value("no pool has this function"))
}

/// A stream for each device on which nothing ever runs: what is allocated on it waits for no stream.
static STREAMS: Mutex<Vec<Stream>> = Mutex::new(Vec::new());

fn idle_stream(device: Device) -> Result<Stream> {
    let find = || lock(&STREAMS).iter().find(|stream| stream.device() == device).cloned();
    if let Some(stream) = find() {
        return Ok(stream);
    }
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    let made = Stream::new(device)?;
    lock(&STREAMS).push(made.clone());
    // If two threads made one, both use the first.
    Ok(find().unwrap_or(made))
}

/// Allocates memory that no work uses, whatever stream will.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the pool is another device's than the stream, or closed; what an allocation returns.
pub(crate) fn allocate_to_feed(pool: &Arc<Pool>, bytes: u64, stream: &Stream) -> Result<Allocation> {
    let device = stream.device();
    if pool.memory.location != device || pool.is_closed() {
        return Err(Error::invalid_value(format!("pool {} has no memory for {device}", pool.id)));
    }
    // Pages of other streams are not queried while that could spoil the caller's capture.
    let is_captured = stream.is_captured()?;
    let idle = idle_stream(device)?;
    // The caller may hold a lock that a callback, which may be Python's, would wait for.
    let _entered = EnteredRoute::without_use(Arc::clone(pool), RouteKind::Feed { is_captured })?;
    without_callbacks(|| route::allocate(bytes, &idle))
}

/// Frees a block that any stream may have used, unless the pointer is null: it is reused once all work so far on the device
/// is done.
///
/// # Errors
/// `ErrorKind::InvalidValue` if no live block starts there; `ErrorKind::Forked`.
pub(crate) fn free_to_feed(pointer: *mut c_void) -> Result<()> {
    if pointer.is_null() { Ok(()) } else { free_after_all_work(find(pointer.addr() as u64, None)?) }
}

/// The default pool of an existing device.
pub(crate) fn default_pool(device: Device) -> Result<Arc<Pool>> {
    device_caches(device)?.default_pool().map(Arc::clone)
}

unsafe extern "C" fn malloc_of<const PLACE: usize>(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let allocate = |bytes, stream: &Stream| allocate_to_feed(&pool_at(PLACE)?, bytes, stream);
    // SAFETY: the other allocator names a stream that is alive.
    unsafe { malloc_from(size, device, stream, allocate) }
}

unsafe extern "C" fn malloc_default(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let allocate =
        |bytes, stream: &Stream| allocate_to_feed(&default_pool(runtime::existing(stream.device())?)?, bytes, stream);
    // SAFETY: the other allocator names a stream that is alive.
    unsafe { malloc_from(size, device, stream, allocate) }
}

unsafe extern "C" fn free(pointer: *mut c_void, _size: isize, _device: c_int, _stream: *mut c_void) {
    guard((), || free_to_feed(pointer));
}

unsafe extern "C" fn bare_of<const PLACE: usize>(size: usize) -> *mut c_void {
    bare(size, || pool_at(PLACE))
}

unsafe extern "C" fn bare_default(size: usize) -> *mut c_void {
    bare(size, || default_pool(runtime::get()?.current_device()?))
}

fn bare(size: usize, pool: impl FnOnce() -> Result<Arc<Pool>>) -> *mut c_void {
    let size = size as u64;
    let allocate = || {
        let pool = pool()?;
        let device =
            pool.memory.location.device().ok_or_else(|| Error::internal("a feed of host memory".to_owned()))?;
        allocate_to_feed(&pool, size, &Stream::legacy(device)?)
    };
    guard(ptr::null_mut(), || address_of(size, allocate))
}

unsafe extern "C" fn bare_free(pointer: *mut c_void) {
    guard((), || free_to_feed(pointer));
}

unsafe extern "C" fn bare_empty_cache() {
    guard((), || {
        let _stack = hold_stack(Purpose::Free);
        limits::empty_cache_of(None, Patience::Wait).map(drop)
    });
}

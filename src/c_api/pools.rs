//! Pools, for C: creation, settings, trimming, sleep, checkpoints, callbacks for segments, release, scopes, and requests that
//! name a pool.
//!
//! A pool's handle is a number in the form of a pointer, so that one that was released is recognised: a slot's place in a
//! table and the number of handles that the slot has had. The pool's number and device, which each request needs, are read
//! without a lock. Scopes are numbers too, so that one that was left is recognised.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use super::header::{self, Callback, SizedStruct, c_struct};
use super::recording::{Event, Observer};
use crate::error::{Error, OWN_ALLOCATOR, Result};
use crate::memory::SegmentGuard;
use crate::memory::cache::GivenKey;
use crate::memory::checkpoint::PoolCheckpoint;
use crate::memory::device::{SegmentSource, Source};
use crate::memory::peer::join;
use crate::memory::plug::call::{address_of, answer, answer_or_none, count, device_of, null, pointer, run, stream_on};
use crate::memory::pool::{Pool, PoolId, Rules, UseOf, next_ticket};
use crate::memory::route::{self, EnteredRoute, Followers, GivenPool, RouteKind, leave_by_ticket};
use crate::memory::serve::{self, Allocation, Patience, PoolUse, on_segment};
use crate::memory::sleep::{self, Backup};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::runtime::Stream;
use crate::sync::{Table, ThisThread, lock, take_last};

pub(super) unsafe extern "C" fn pool_create(
    device: c_int,
    options: *const PoolOptions,
    pool: *mut *mut PoolHandle,
) -> c_int {
    // First, so that the source is released if anything fails.
    // SAFETY: the caller passes options that begin with their size, whose name and source are null or alive.
    let options = unsafe { read_options(options) };
    let create = || {
        let device = device_of(device)?;
        let options = options?;
        let is_offered = options.rules.sleeps_for_others;
        let in_use = serve::make_pool(device, PoolId::next(options.first == UseOf::Requests), options)?;
        if is_offered {
            join()?;
        }
        make(in_use)
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(pool, "pool", ptr::null_mut(), create) }
}

pub(super) unsafe extern "C" fn pool_by_id(device: c_int, id: *const PoolId, pool: *mut *mut PoolHandle) -> c_int {
    let take = || {
        let device = device_of(device)?;
        // SAFETY: the caller passes an id, or null.
        let id = *unsafe { id.as_ref() }.ok_or_else(|| null("id"))?;
        let pool = serve::pool_of_id(device, id)?.ok_or_else(|| {
            Error::invalid_value(format!(
                "pool {id} on {device} is yet to be made: its id was handed out, and nothing has been allocated to it"
            ))
        })?;
        make(PoolUse::new(&pool, pool.made_for)?)
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(pool, "pool", ptr::null_mut(), take) }
}

pub(super) unsafe extern "C" fn pool_release(pool: *mut PoolHandle) -> c_int {
    // Under no lock: the last use of a pool releases its memory to the driver.
    run(|| end(pool).map(drop))
}

/// Returns the pool of a handle.
///
/// # Errors
/// `ErrorKind::InvalidValue` if it is null, or was released; `ErrorKind::Forked`.
pub(super) fn pool_of(pool: *const PoolHandle) -> Result<Arc<Pool>> {
    process::refuse_forked()?;
    held(pool).map(|held| Arc::clone(&held.pool))
}

/// Returns another use of the pool of a handle.
///
/// # Errors
/// As [`pool_of`]; `ErrorKind::InvalidValue` if the pool is closed.
pub(super) fn use_of(pool: *const PoolHandle) -> Result<PoolUse> {
    process::refuse_forked()?;
    let pool = &held(pool)?.pool;
    PoolUse::new(pool, pool.made_for)
}

pub(super) unsafe extern "C" fn pool_id(pool: *const PoolHandle, id: *mut PoolId) -> c_int {
    // SAFETY: the caller passes a place for an id, or null.
    unsafe { answer(id, "id", || Ok(pool_of(pool)?.id)) }
}

pub(super) unsafe extern "C" fn pool_set_use_on_oom(pool: *mut PoolHandle, use_on_oom: c_int) -> c_int {
    run(|| pool_of(pool).map(|pool| pool.set_use_on_oom(use_on_oom != 0)))
}

pub(super) unsafe extern "C" fn pool_set_no_split(pool: *mut PoolHandle) -> c_int {
    run(|| pool_of(pool)?.set_no_split())
}

pub(super) unsafe extern "C" fn pool_trim(pool: *mut PoolHandle, bytes: *mut u64) -> c_int {
    let trim = || {
        let pool = pool_of(pool)?;
        let _stack = hold_stack(Purpose::Free);
        process::refuse_forked()?;
        let released = serve::trim(&pool, ThisThread::get(), Patience::Wait)?;
        Ok(released + pool.memory.end_retired_by_all()?)
    };
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, trim) }
}

pub(super) unsafe extern "C" fn ticket() -> u64 {
    next_ticket()
}

pub(super) unsafe extern "C" fn pool_allocate(
    pool: *mut PoolHandle,
    ticket: u64,
    bytes: u64,
    stream: *mut c_void,
    place: *mut *mut c_void,
) -> c_int {
    let take = || {
        let (number, device, is_for_graphs) = slot(pool)?.pool();
        address_of(bytes, || {
            // SAFETY: the caller names a stream of the pool's device, which is alive.
            let stream = unsafe { stream_on(device, stream) }?;
            // What a captured stream gets becomes a part of its graph.
            let is_captured = is_for_graphs || stream.is_captured()?;
            let key = GivenKey { pool: number, ticket, is_captured };
            route::allocate_as_last(bytes, &stream, key).unwrap_or_else(|| allocate(pool, key, bytes, &stream))
        })
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "pointer", ptr::null_mut(), take) }
}

/// Allocates from a pool that did not serve the thread last.
#[cold]
fn allocate(pool: *const PoolHandle, key: GivenKey, bytes: u64, stream: &Stream) -> Result<Allocation> {
    process::refuse_forked()?;
    let held = held(pool)?;
    let GivenKey { ticket, is_captured, .. } = key;
    route::allocate_given(bytes, stream, &GivenPool { pool: &held.pool, ticket, is_captured, uses: &held.uses })
}

/// How many handles there can be at once: as many as the lower bits of one can number.
const HANDLES_MAX: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 0x10;

/// `gpupool_pool`: a use of a pool.
#[derive(Debug)]
pub struct PoolHandle {
    _private: (),
}

/// The uses that a handle owns.
#[derive(Debug)]
pub(super) struct HeldPool {
    pool: Arc<Pool>,
    /// One of the pool, and those of pools that its graphs use.
    uses: Mutex<Vec<PoolUse>>,
}

/// An element of the table.
#[derive(Debug, Default)]
pub(super) struct PoolHandleSlot {
    /// The slot's present handle; 0 for none.
    handle: AtomicUsize,
    number: AtomicU32,
    device: AtomicI32,
    is_for_graphs: AtomicBool,
    state: Mutex<SlotState>,
}

/// What is changed under a slot's lock.
#[derive(Debug, Default)]
struct SlotState {
    held: Option<Arc<HeldPool>>,
    /// How many handles the slot has had.
    handles: usize,
}

impl PoolHandleSlot {
    /// Returns the pool's number, that of its device, and whether it is for graphs.
    #[inline]
    pub(super) fn pool(&self) -> (u32, c_int, bool) {
        let (number, device) = (self.number.load(Ordering::Relaxed), self.device.load(Ordering::Relaxed));
        (number, device, self.is_for_graphs.load(Ordering::Relaxed))
    }
}

/// The places in the table that are free.
#[derive(Debug)]
struct FreePlaces {
    /// The first that was never used.
    next: usize,
    returned: Vec<usize>,
}

static SLOTS: LazyLock<Table<PoolHandleSlot, 6>> = LazyLock::new(|| Table::new(HANDLES_MAX));
static FREE: Mutex<FreePlaces> = Mutex::new(FreePlaces { next: 0, returned: Vec::new() });

fn place_of(handle: usize) -> usize {
    handle & (HANDLES_MAX - 1)
}

#[cold]
fn refuse(handle: *const PoolHandle) -> Error {
    Error::invalid_value(if handle.is_null() {
        "pool is a null pointer; give what pool_create returned".to_owned()
    } else {
        format!(
            "{handle:p} is not a pool: it was released, or pool_create did not return it; release each pool once, last"
        )
    })
}

/// Returns the place of a handle.
///
/// # Errors
/// `ErrorKind::InvalidValue` if it is null, or was released.
#[inline]
pub(super) fn slot(handle: *const PoolHandle) -> Result<&'static PoolHandleSlot> {
    let slot = SLOTS.get(place_of(handle.addr()));
    // Acquire: the rest is seen as it was when the handle was made.
    let is_known = |slot: &&PoolHandleSlot| !handle.is_null() && slot.handle.load(Ordering::Acquire) == handle.addr();
    slot.filter(is_known).ok_or_else(|| refuse(handle))
}

/// Returns the uses that a handle owns.
///
/// # Errors
/// As [`slot`].
pub(super) fn held(handle: *const PoolHandle) -> Result<Arc<HeldPool>> {
    let slot = slot(handle)?;
    let state = lock(&slot.state);
    let held = state.held.as_ref().filter(|_| slot.handle.load(Ordering::Relaxed) == handle.addr());
    held.cloned().ok_or_else(|| refuse(handle))
}

/// Returns a handle for a use.
///
/// # Errors
/// `ErrorKind::Unavailable` if there are too many.
pub(super) fn make(in_use: PoolUse) -> Result<*mut PoolHandle> {
    let place = {
        let mut free = lock(&FREE);
        let place = free.returned.pop().unwrap_or(free.next);
        free.next = free.next.max(place + 1);
        place
    };
    let Some(slot) = SLOTS.get_or_make(place) else {
        return Err(Error::unavailable(format!(
            "a process can have {HANDLES_MAX} uses of pools that C took, and there are as many; release some"
        )));
    };
    let mut state = lock(&slot.state);
    state.handles += 1;
    let pool = in_use.pool();
    slot.number.store(pool.number, Ordering::Relaxed);
    slot.device.store(pool.memory.location.number() as c_int, Ordering::Relaxed);
    slot.is_for_graphs.store(pool.is_for_graphs(), Ordering::Relaxed);
    state.held = Some(Arc::new(HeldPool { pool: Arc::clone(pool), uses: Mutex::new(vec![in_use]) }));
    let handle = state.handles << PLACE_BITS | place;
    slot.handle.store(handle, Ordering::Release);
    Ok(ptr::without_provenance_mut(handle))
}

/// Ends a handle, and returns the uses that it owned, to be dropped.
///
/// # Errors
/// As [`slot`].
pub(super) fn end(handle: *const PoolHandle) -> Result<Arc<HeldPool>> {
    let slot = slot(handle)?;
    let held = {
        let mut state = lock(&slot.state);
        let is_same = slot.handle.compare_exchange(handle.addr(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        state.held.take_if(|_| is_same)
    };
    let held = held.ok_or_else(|| refuse(handle))?;
    lock(&FREE).returned.push(place_of(handle.addr()));
    Ok(held)
}

c_struct! {
    /// `gpupool_source`.
    pub struct PoolSource as "gpupool_source" {
        /// The first argument of the functions.
        pub context: *mut c_void,
        /// Returns memory, or null.
        pub allocate: Option<unsafe extern "C" fn(*mut c_void, u64, c_int, *mut c_void) -> *mut c_void>,
        /// Frees it.
        pub free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u64, c_int, *mut c_void)>,
        /// Called once, when the pool has ended and all its memory was freed.
        pub release: Option<unsafe extern "C" fn(*mut c_void)>,
    }
}

c_struct! {
    /// `gpupool_pool_options`.
    pub struct PoolOptions as "gpupool_pool_options" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// Whether its memory belongs to graphs.
        pub for_graphs: c_int,
        /// Whether other pools may use its free memory when memory runs out.
        pub use_on_oom: c_int,
        /// Whether each segment serves one block at a time.
        pub no_split: c_int,
        /// Its name, or null.
        pub name: *const c_char,
        /// Its source, or null.
        pub source: *const PoolSource,
        /// Whether it may be put to sleep for another process that has no memory.
        pub sleeps_for_others: c_int,
        /// Whether its next request, scope, copy or commit wakes it then.
        pub wakes_on_use: c_int,
    }
}

// SAFETY: it has the layout of C, begins with its size, and all of its bytes may be zero.
unsafe impl SizedStruct for PoolOptions {}

/// Returns what a new pool is like.
///
/// # Safety
/// The options are null, or begin with their size; their name is null or a string, and their source null or one whose
/// functions may be called from any thread until it is released.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the options are null or have no size, or the source lacks a function.
pub(super) unsafe fn read_options(options: *const PoolOptions) -> Result<serve::PoolSettings> {
    // SAFETY: the caller promises that they begin with their size, or are null.
    let options = unsafe { header::read(options) }?;
    let name = (!options.name.is_null()).then(|| {
        // SAFETY: the caller promises that it is a string.
        unsafe { CStr::from_ptr(options.name) }.to_string_lossy().into_owned()
    });
    // SAFETY: the caller promises that it is a source, or null.
    let source = unsafe { options.source.as_ref() };
    // SAFETY: the caller's promise.
    let source = source.map(|source| unsafe { CSource::new(source) }).transpose()?;
    let made_for = if options.for_graphs != 0 { UseOf::Graphs } else { UseOf::Requests };
    let rules = Rules {
        use_on_oom: options.use_on_oom != 0,
        no_split: options.no_split != 0,
        has_own_source: source.is_some(),
        made_for,
        sleeps_for_others: options.sleeps_for_others != 0,
        wakes_on_use: options.wakes_on_use != 0,
    };
    let source = source.map(|source| Source::Segments(Arc::new(source) as Arc<dyn SegmentSource>));
    Ok(serve::PoolSettings { rules, source, limit: None, reserve: 0, name, first: made_for })
}

/// `gpupool_source`, with what it must have. It is released when it is dropped.
#[derive(Debug)]
pub(super) struct CSource {
    allocate: unsafe extern "C" fn(*mut c_void, u64, c_int, *mut c_void) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, u64, c_int, *mut c_void),
    context: SourceContext,
}

/// The context of a source, which ends with its release.
#[derive(Debug)]
struct SourceContext {
    context: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: `new` requires that the functions may be called from any thread.
unsafe impl Send for CSource {}
// SAFETY: `new` requires it of any number of threads at a time.
unsafe impl Sync for CSource {}

impl CSource {
    /// Makes the source of these functions.
    ///
    /// # Safety
    /// They do what the header says, from any thread, until `release` was called.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if `allocate` or `free` is null; then it has been released.
    pub(super) unsafe fn new(source: &PoolSource) -> Result<Self> {
        let context = SourceContext { context: source.context, release: source.release };
        Ok(Self {
            allocate: source.allocate.ok_or_else(|| null("allocate of the gpupool_source"))?,
            free: source.free.ok_or_else(|| null("free of the gpupool_source"))?,
            context,
        })
    }
}

// SAFETY: `new` requires that the functions do what the header says of them.
unsafe impl SegmentSource for CSource {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        // SAFETY: `new` requires that the function may be called so until the source is released.
        let address =
            unsafe { (self.allocate)(self.context.context, bytes, stream.device().number(), stream.raw().as_ptr()) };
        if address.is_null() {
            return Err(Error::no_memory(OWN_ALLOCATOR, "allocate returned a null pointer"));
        }
        Ok(address.addr() as u64)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        let (device, stream) = (stream.device().number(), stream.raw().as_ptr());
        // SAFETY: `new` requires that the function may be called until the release, with what `allocate` returned.
        unsafe { (self.free)(self.context.context, pointer(address), bytes, device, stream) };
        Ok(())
    }
}

impl Drop for SourceContext {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: nothing has the source any more, and all its memory was freed.
            unsafe { release(self.context) };
        }
    }
}

/// `gpupool_checkpoint`.
#[derive(Debug)]
pub struct Checkpoint(PoolCheckpoint);

/// Called for a block that was live before.
pub type FreedFunction = unsafe extern "C" fn(*mut c_void, *mut c_void);
/// Called for a block that is live afterwards.
pub type AllocatedFunction = unsafe extern "C" fn(*mut c_void, *mut c_void, u64);

pub(super) unsafe extern "C" fn pool_checkpoint(pool: *mut PoolHandle, place: *mut *mut Checkpoint) -> c_int {
    let take = || Ok(Box::into_raw(Box::new(Checkpoint(PoolCheckpoint::take(&*pool_of(pool)?)?))));
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "checkpoint", ptr::null_mut(), take) }
}

pub(super) unsafe extern "C" fn pool_restore(
    pool: *mut PoolHandle,
    checkpoint: *const Checkpoint,
    context: *mut c_void,
    freed: Option<FreedFunction>,
    allocated: Option<AllocatedFunction>,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a checkpoint that was not released, or null.
        let checkpoint = unsafe { checkpoint.as_ref() }.ok_or_else(|| null("checkpoint"))?;
        let restored = checkpoint.0.restore(&pool_of(pool)?)?;
        // With no lock held: they may do what they like.
        if let Some(freed) = freed {
            // SAFETY: the caller promises that the function may be called so.
            restored.freed.into_iter().for_each(|address| unsafe { freed(context, pointer(address)) });
        }
        if let Some(allocated) = allocated {
            for (address, requested) in restored.allocated {
                // SAFETY: the caller promises that the function may be called so.
                unsafe { allocated(context, pointer(address), requested) };
            }
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn checkpoint_release(checkpoint: *mut Checkpoint) {
    if !checkpoint.is_null() {
        // SAFETY: `pool_checkpoint` made it by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(checkpoint) });
    }
}

pub(super) unsafe extern "C" fn pool_enter(pool: *const PoolHandle, scope: *mut u64) -> c_int {
    let enter = || {
        let in_use = PoolUse::new(&pool_of(pool)?, UseOf::Requests)?;
        EnteredRoute::with_use(in_use, RouteKind::Scope, Followers::Thread)
    };
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { answer_or_none(scope, "scope", 0, || enter().map(EnteredRoute::stay)) }
}

pub(super) unsafe extern "C" fn scope_leave(scope: u64) -> c_int {
    run(|| {
        // Under no borrow of the routes: the last use of a pool releases its memory to the driver.
        if leave_by_ticket(scope) {
            return Ok(());
        }
        Err(Error::invalid_value(format!(
            "{scope} is not a scope of this thread: leave each scope once, on the thread that entered it"
        )))
    })
}

/// The pool, the callback that is called for its segments, and the guard that keeps it registered.
type PoolCallback = (Weak<Pool>, Callback<Observer>, SegmentGuard);

static REGISTERED: Mutex<Vec<PoolCallback>> = Mutex::new(Vec::new());

pub(super) unsafe extern "C" fn pool_on_segment(
    pool: *mut PoolHandle,
    function: Option<Observer>,
    context: *mut c_void,
) -> c_int {
    run(|| {
        let pool = pool_of(pool)?;
        let callback = Callback::new(function, context)?;
        let guard = on_segment(&pool, Box::new(move |event| callback.call(&Event::from(event))))?;
        let added = (Arc::downgrade(&pool), callback, guard);
        let gone: Vec<_> = {
            let mut registered = lock(&REGISTERED);
            registered.push(added);
            registered.extract_if(.., |(pool, ..)| pool.strong_count() == 0).collect()
        };
        // Outside the lock.
        drop(gone);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn pool_remove_segment_callback(
    pool: *mut PoolHandle,
    function: Option<Observer>,
    context: *mut c_void,
) -> c_int {
    run(|| {
        let pool = pool_of(pool)?;
        let meant = Callback::new(function, context)?;
        // The guard is dropped outside the lock.
        let removed = take_last(&mut lock(&REGISTERED), |(of, callback, _)| {
            *callback == meant && of.as_ptr() == Arc::as_ptr(&pool)
        });
        removed.map(drop).ok_or_else(|| {
            Error::invalid_value(format!(
                "no such callback is registered for pool {}; give the function and the context that were added",
                pool.label()
            ))
        })
    })
}

/// `GPUPOOL_BACKUP_NONE` and `GPUPOOL_BACKUP_HOST`.
const BACKUP_NONE: c_int = 0;
const BACKUP_HOST: c_int = 1;

fn backup_of(number: c_int) -> Result<Backup> {
    match number {
        BACKUP_NONE => Ok(Backup::None),
        BACKUP_HOST => Ok(Backup::Host),
        _ => Err(Error::invalid_value(format!(
            "{number} is not a backup: give GPUPOOL_BACKUP_HOST, or GPUPOOL_BACKUP_NONE to discard the content"
        ))),
    }
}

pub(super) unsafe extern "C" fn pool_sleep(pool: *mut PoolHandle, backup: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, || sleep::sleep_pool(&pool_of(pool)?, backup_of(backup)?)) }
}

pub(super) unsafe extern "C" fn pool_wake(pool: *mut PoolHandle, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, || sleep::wake_pool(&pool_of(pool)?)) }
}

pub(super) unsafe extern "C" fn pool_is_asleep(pool: *const PoolHandle, is_asleep: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place for an int, or null.
    unsafe { answer(is_asleep, "is_asleep", || Ok(pool_of(pool)?.sleep.is_asleep().into())) }
}

pub(super) unsafe extern "C" fn sleep_device(device: c_int, backup: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, || crate::sleep(device_of(device)?, backup_of(backup)?)) }
}

pub(super) unsafe extern "C" fn wake_device(device: c_int, bytes: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, || sleep::wake(device_of(device)?)) }
}

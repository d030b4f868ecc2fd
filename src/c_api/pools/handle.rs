//! Handles of pools: numbers in the form of pointers, so that a handle that was released is recognised.
//!
//! A handle consists of a slot's place in a table and the number of handles that the slot has had. The pool's number and
//! device, which each request needs, are read without a lock.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use crate::error::{Error, Result};
use crate::memory::route::PoolUse;
use crate::sync::{Table, lock};

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
    pub(super) in_use: PoolUse,
    /// The uses of pools that are used by the graphs of this one.
    pub(super) further: Mutex<Vec<PoolUse>>,
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
    slot.is_for_graphs.store(pool.is_for_graphs, Ordering::Relaxed);
    state.held = Some(Arc::new(HeldPool { in_use, further: Mutex::default() }));
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

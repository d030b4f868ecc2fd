//! When memory ran out: who gives some from above this module, the user's callbacks, and the error that says what holds the
//! memory.

use std::any::type_name;
use std::cell::Cell;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

use super::extents::is_no_memory;
use crate::error::{AskedNeighbours, Bytes, Error, ErrorKind, MemoryHolder, MemoryUse, OutOfMemory, Result, Wanted};
use crate::ids::{Device, MemoryLocation};
use crate::memory::cache::{ALL, DeviceCaches, MOST_DEVICES, is_recorded, note_oom};
use crate::memory::device::call_out;
use crate::memory::pool::Pool;
use crate::observe::delivery::deliver;
use crate::process;
use crate::runtime::{self, MemoryInfo};
use crate::sync::{CallbackKind, ThisThread, lock, take_last};

/// A callback for when memory has run out: it frees what it can, and returns whether it freed anything. Its error ends the
/// request.
pub(crate) type OomCallback = Arc<dyn Fn(Device, u64) -> Result<bool> + Send + Sync>;

struct Registered {
    number: u64,
    name: String,
    callback: OomCallback,
}

static CALLBACKS: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

/// A callback that stays registered until this is dropped.
#[must_use = "the callback is removed when this is dropped"]
#[derive(Debug)]
pub struct OomGuard {
    number: u64,
}

impl OomGuard {
    /// Keeps the callback registered as long as the process lives.
    pub fn keep(self) {
        mem::forget(self);
    }
}

impl Drop for OomGuard {
    fn drop(&mut self) {
        // A forked child calls no callback, and the lock may be held for ever there.
        if process::is_forked() {
            return;
        }
        // Dropped outside the lock: it may hold anything.
        let removed = take_last(&mut lock(&CALLBACKS), |registered| registered.number == self.number);
        drop(removed);
    }
}

/// Registers a callback for requests that find no memory. It is called with the device and the requested bytes, without
/// any lock held, on the thread of the request; it may free memory of gpupool's and of others. If the callback itself
/// allocates and runs out of memory, no callback is called. In a forked child, where every request fails, it registers
/// nothing.
///
/// Other threads wait for a call that commits pages of a range, or puts a pool to sleep or wakes it. So in a callback of such
/// a call, of whatever kind, what would have to wait for another thread's call is refused, with `ErrorKind::InvalidValue`:
/// that one may be waiting for this one.
pub fn on_oom<F: Fn(Device, u64) -> bool + Send + Sync + 'static>(callback: F) -> OomGuard {
    on_oom_as(type_name::<F>().to_owned(), Arc::new(move |device, bytes| Ok(callback(device, bytes))))
}

/// [`on_oom`] for a callback that has a name of its own.
pub(crate) fn on_oom_as(name: String, callback: OomCallback) -> OomGuard {
    if process::is_forked() {
        return OomGuard { number: u64::MAX };
    }
    let mut callbacks = lock(&CALLBACKS);
    let number = callbacks.iter().map(|registered| registered.number + 1).max().unwrap_or(0);
    callbacks.push(Registered { number, name, callback });
    OomGuard { number }
}

/// Returns the names of the callbacks that are registered, in the order in which they are called.
///
/// # Errors
/// `ErrorKind::Forked`.
pub fn oom_callbacks() -> Result<Vec<String>> {
    process::refuse_forked()?;
    Ok(lock(&CALLBACKS).iter().map(|registered| registered.name.clone()).collect())
}

thread_local! {
    /// Whether this thread is in a callback, or may not call one.
    static IS_CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Calls the user's callbacks in turn, and tries again after each that has freed something. None inside a callback, so
/// that one that allocates does not call itself, nor in [`without_callbacks`], nor for pinned memory.
///
/// # Errors
/// That of a callback, after which no other is called; those of trying again.
pub(super) fn after_callbacks<R>(
    pool: &Pool,
    stream: usize,
    bytes: u64,
    mut try_again: impl FnMut() -> Result<Option<R>>,
) -> Result<Option<R>> {
    note(pool, stream, bytes);
    let Some(device) = pool.memory.location.device() else { return Ok(None) };
    if IS_CALLING.try_with(Cell::get) != Ok(false) {
        return Ok(None);
    }
    // Their lock is not held while they are called.
    let callbacks: Vec<_> = lock(&CALLBACKS).iter().map(|registered| Arc::clone(&registered.callback)).collect();
    for callback in callbacks {
        let has_freed = call_out(CallbackKind::Oom, || without_callbacks(|| callback(device, bytes)))?;
        if has_freed && let Some(found) = try_again()? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Runs what must not call callbacks if it finds no memory.
pub(in crate::memory) fn without_callbacks<R>(run: impl FnOnce() -> R) -> R {
    struct Calling {
        before: bool,
    }
    impl Drop for Calling {
        fn drop(&mut self) {
            let _ = IS_CALLING.try_with(|is_calling| is_calling.set(self.before));
        }
    }
    // Restored also after a panic.
    let _calling = Calling { before: IS_CALLING.try_with(|is_calling| is_calling.replace(true)).unwrap_or(true) };
    run()
}

/// Records that memory ran out, if memory is recorded, before callbacks are called, which may take a snapshot.
pub(super) fn note(pool: &Pool, stream: usize, bytes: u64) {
    if is_recorded() {
        let location = pool.memory.location;
        note_oom(location, stream, pool.id, bytes, runtime::memory_info(location).unwrap_or_default().free);
        deliver();
    }
}

/// Returns the error of a claim to more memory than there is, which says what holds the memory.
#[cold]
pub(in crate::memory) fn no_room_for_claim(device: Device, bytes: u64, refused: Error) -> Error {
    let info = runtime::memory_info(device).unwrap_or_default();
    explained(device.into(), Wanted::Claim(bytes), info, refused)
}

fn explained(location: MemoryLocation, wanted: Wanted, info: MemoryInfo, refused: Error) -> Error {
    let refused = match refused.into_kind() {
        ErrorKind::Library(refused) => refused,
        other => return other.into(),
    };
    let MemoryInfo { free, total } = info;
    let (users, holders, neighbours) = (users(location), holders(location), asked_neighbours(location));
    let out = OutOfMemory { refused, location, wanted, free, total, users, holders, neighbours };
    ErrorKind::OutOfMemory(out.into()).into()
}

/// Counts a failed request, and returns the error that says what holds the memory, also where a callback interrupted it;
/// another refusal is returned as it is.
#[cold]
pub(in crate::memory) fn no_memory_left(pool: &Pool, bytes: u64, refused: Error) -> Error {
    let refused = match refused.into_kind() {
        ErrorKind::Interrupted { cause, refused: Some(refused) } => {
            let refused = Some(no_memory_left(pool, bytes, refused));
            return ErrorKind::Interrupted { cause, refused }.into();
        }
        other => Error::from(other),
    };
    if !is_no_memory(&refused) {
        return refused;
    }
    let location = pool.memory.location;
    pool.memory.failures.fetch_add(1, Ordering::Relaxed);
    let info = runtime::memory_info(location).unwrap_or_default();
    let wanted = Wanted::Memory { bytes, pool: pool.label(), limit: pool.budget().limit() };
    explained(location, wanted, info, refused)
}

/// What gives memory when it has run out. No lock is held during any of these calls.
pub(crate) trait Helper: Sync {
    /// Gives back memory of a device for a request of so many bytes. Returns how many bytes have gone to the driver, as far as
    /// is known; none if nothing has gone, nor may go late.
    fn give(&self, device: Device, bytes: u64) -> Option<u64>;

    /// Returns what else of the process holds memory of a device.
    fn users(&self, _device: Device) -> Vec<MemoryUse> {
        Vec::new()
    }

    /// Returns what others' code in the process holds of a device.
    fn holders(&self, _device: Device) -> Vec<MemoryHolder> {
        Vec::new()
    }

    /// Called once this process has memory on a device.
    fn settle_on(&self, _device: Device) {}

    /// Returns what neighbours hold of the device, and how asking them went.
    fn asked(&self, _device: Device) -> Option<AskedNeighbours> {
        None
    }

    /// Wakes a pool that sleeps for others.
    fn wake(&self, _pool: &Arc<Pool>) -> Result<()> {
        Ok(())
    }
}

/// The helpers, in the order in which they are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Help {
    IdleHandles,
    Neighbours,
    /// They give nothing, and are known to hold some.
    Others,
}

static HELPERS: [OnceLock<&'static dyn Helper>; 3] = [const { OnceLock::new() }; 3];

impl Help {
    /// Sets who gives this, for the life of the process.
    pub(crate) fn is_from(self, helper: &'static dyn Helper) {
        let _ = HELPERS[self as usize].set(helper);
    }

    fn with<R>(self, location: MemoryLocation, call: impl FnOnce(&dyn Helper, Device) -> R) -> Option<R> {
        let helper = HELPERS[self as usize].get()?;
        location.device().map(|device| call(*helper, device))
    }

    /// Returns whether there is who gives this.
    pub(in crate::memory) fn is_there(self) -> bool {
        HELPERS[self as usize].get().is_some()
    }

    /// Gives back memory of a device, as [`Helper::give`].
    pub(crate) fn give(self, device: Device, bytes: u64) -> Option<u64> {
        self.with(device.into(), |helper, device| helper.give(device, bytes)).flatten()
    }

    /// Gives back memory for a pool's request. None also where that would not help: for a pool at its limit, or on a device
    /// at the process's own.
    pub(super) fn give_to(self, pool: &Pool, bytes: u64) -> Option<u64> {
        let helps = [pool.budget(), &pool.memory.budget].into_iter().all(|budget| budget.has_room_for(bytes));
        pool.memory.location.device().filter(|_| helps).and_then(|device| self.give(device, bytes))
    }
}

/// Notes that this process has memory there.
pub(super) fn settle_in(location: MemoryLocation) {
    Help::Neighbours.with(location, |neighbours, device| neighbours.settle_on(device));
}

pub(super) fn asked_neighbours(location: MemoryLocation) -> Option<AskedNeighbours> {
    Help::Neighbours.with(location, |neighbours, device| neighbours.asked(device)).flatten()
}

/// Wakes a pool that sleeps for another process, if it wakes on use. Waits first for one that is just falling asleep so.
///
/// # Errors
/// Those of waking it; `ErrorKind::InvalidValue` in a callback that may not wait.
pub(in crate::memory) fn wake_if_taken(pool: &Arc<Pool>) -> Result<()> {
    pool.sleep.wait_for_change(ThisThread::get())?;
    if !(pool.sleep.offer.is_taken() && pool.sleep.offer.wakes_on_use && pool.sleep.is_asleep()) {
        return Ok(());
    }
    Help::Neighbours.with(pool.memory.location, |neighbours, _| neighbours.wake(pool)).unwrap_or(Ok(()))
}

/// Returns what each pool has of the memory there, and each library's handles.
pub(crate) fn users(location: MemoryLocation) -> Vec<MemoryUse> {
    let describe = |pool: Arc<Pool>| {
        let counts = DeviceCaches::counts_of(&pool, ThisThread::get());
        let name =
            if pool.is_default() { "default memory pool".to_owned() } else { format!("memory pool {}", pool.label()) };
        let in_ranges = DeviceCaches::ranges_of(&pool).map_or(0, |cache| cache.lock(ThisThread::get()).live());
        let name = if in_ranges > 0 { format!("{name} ({} of it in ranges)", Bytes(in_ranges)) } else { name };
        let live = counts.now[ALL];
        let (bytes, live_bytes) = (pool.budget().reserved(), Some(live.bytes));
        MemoryUse { pool: name, count: live.blocks as usize, bytes, live_bytes }
    };
    let pools = DeviceCaches::known(location).map(|caches| caches.pools.all()).unwrap_or_default();
    let used = pools.into_iter().map(describe).filter(|used| used.bytes > 0);
    let handles = Help::IdleHandles.with(location, |pools, device| pools.users(device));
    used.chain(handles.unwrap_or_default()).collect()
}

/// Returns what others' code in the process holds of the memory there, beyond what is counted as of handles; nothing is
/// known of it unless the process is watched.
pub(crate) fn holders(location: MemoryLocation) -> Vec<MemoryHolder> {
    let mut found = Help::Others.with(location, |others, device| others.holders(device)).unwrap_or_default();
    if found.is_empty() {
        return found;
    }
    let handles = Help::IdleHandles.with(location, |pools, device| pools.users(device)).unwrap_or_default();
    for holder in &mut found {
        let of_handles =
            handles.iter().filter(|used| used.pool.eq_ignore_ascii_case(&holder.name)).map(|used| used.bytes);
        holder.bytes = holder.bytes.saturating_sub(of_handles.sum());
    }
    found
}

/// Returns how much others' code in the process holds of a device; none unless it is watched.
pub(in crate::memory) fn held_by_others(device: Device) -> Option<u64> {
    Help::Others.with(device.into(), |_, _| ())?;
    Some(holders(device.into()).iter().map(|holder| holder.bytes).sum())
}

/// Returns what others' code in the process holds of each device. No driver is called.
pub(crate) fn all_holders() -> Vec<(Device, MemoryHolder)> {
    let devices = 0..MOST_DEVICES as u32;
    devices
        .map(Device::from_ordinal)
        .flat_map(|device| holders(device.into()).into_iter().map(move |holder| (device, holder)))
        .collect()
}

//! What a request does when no free block fits, and at last when memory runs out.
//!
//! Each step is followed by a new search. Only from the second step on, when the driver or a limit has said no, does
//! anything wait for the GPU.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use log::info;

use crate::error::{Error, ErrorKind, OutOfMemory, Result, Wanted};
use crate::ids::Device;
use crate::memory::cache::event as trace;
use crate::memory::cache::heap::BLOCK_BYTES_MAX;
use crate::memory::cache::thread_cache::{Service, ThreadCache, normalized};
use crate::memory::pool::state::Source;
use crate::memory::serve::allocate::Allocation;
use crate::memory::serve::grow::{Effort, grow, is_no_memory};
use crate::memory::serve::settle as order;
use crate::memory::serve::trim as release;
use crate::memory_users;
use crate::observe::{Activity, target::MEMORY};
use crate::runtime::{self, MemoryInfo};
use crate::sync::lock;

/// Asked when memory has run out: frees what it can of its own, and answers whether it freed anything.
pub type OomCallback = Arc<dyn Fn(Device, u64) -> bool + Send + Sync>;

static CALLBACKS: Mutex<Vec<(u64, OomCallback)>> = Mutex::new(Vec::new());

/// A callback that stays registered until this is dropped.
#[must_use = "the callback is removed when this is dropped"]
#[derive(Debug)]
pub struct OomGuard(u64);

impl Drop for OomGuard {
    fn drop(&mut self) {
        let removed = {
            let mut callbacks = lock_callbacks();
            let place = callbacks.iter().position(|(number, _)| *number == self.0);
            place.map(|place| callbacks.remove(place))
        };
        // Dropped outside the lock: it may hold anything.
        drop(removed);
    }
}

fn lock_callbacks() -> std::sync::MutexGuard<'static, Vec<(u64, OomCallback)>> {
    lock(&CALLBACKS)
}

/// Registers a callback for when a request finds no memory. It is called with the device and the bytes asked for, without
/// any lock held, on the thread that asks; it may free memory of gpupool's and of others. If it allocates and finds none, no
/// callback is asked.
pub fn on_oom(callback: impl Fn(Device, u64) -> bool + Send + Sync + 'static) -> OomGuard {
    let mut callbacks = lock_callbacks();
    let number = callbacks.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
    callbacks.push((number, Arc::new(callback)));
    OomGuard(number)
}

thread_local! {
    /// Whether this thread is in a callback, or may not call one.
    static IS_CALLING: Cell<bool> = const { Cell::new(false) };
}

/// The callbacks to ask, not while their lock is held; none inside a callback, so that one that allocates does not ask
/// itself, nor in [`without_callbacks`].
fn callbacks() -> Vec<OomCallback> {
    if IS_CALLING.try_with(Cell::get) != Ok(false) {
        return Vec::new();
    }
    lock_callbacks().iter().map(|(_, callback)| Arc::clone(callback)).collect()
}

/// Runs what must not ask callbacks if it finds no memory.
pub(in crate::memory) fn without_callbacks<R>(run: impl FnOnce() -> R) -> R {
    struct Calling(bool);
    impl Drop for Calling {
        fn drop(&mut self) {
            let _ = IS_CALLING.try_with(|is_calling| is_calling.set(self.0));
        }
    }
    // Set back also where it panics.
    let _calling = Calling(IS_CALLING.try_with(|is_calling| is_calling.replace(true)).unwrap_or(true));
    run()
}

/// Whether the callback freed anything.
fn call(callback: &OomCallback, device: Device, bytes: u64) -> bool {
    without_callbacks(|| callback(device, bytes))
}

/// Serves a request that found no free block in its cache.
///
/// # Errors
/// `ErrorKind::OutOfMemory` once nothing is left to try; any other refusal of the driver.
pub(in crate::memory) fn allocate(cache: &'static ThreadCache, thread: u64, bytes: u64) -> Result<Allocation> {
    let Some(service) = cache.service() else { return Err(Error::invalid_value("the pool of this scope is gone")) };
    let found = serve(cache, &service, thread, bytes).inspect_err(|error| info!(target: MEMORY, "{error}"))?;
    // Where live memory grows beyond what there was, so that the pool knows its peak.
    cache.tell_live(&service.pool, thread);
    Ok(found)
}

/// A free block of the cache.
fn search(cache: &'static ThreadCache, thread: u64, bytes: u64) -> Option<Allocation> {
    let offset = cache.allocate(thread, bytes)?;
    Some(Allocation { cache, offset })
}

fn serve(cache: &'static ThreadCache, service: &Service, thread: u64, bytes: u64) -> Result<Allocation> {
    if bytes > cache.device.total().min(BLOCK_BYTES_MAX) {
        note(cache, service, bytes);
        return Err(out_of_memory(service, bytes, Error::no_memory("gpupool", "no device has that many bytes")));
    }

    order::settle(cache, thread, false)?;
    if let Some(found) = search(cache, thread, bytes) {
        return Ok(found);
    }
    for effort in [Effort::Ready, Effort::Exact] {
        if let Ok(found) = attempt(cache, service, thread, bytes, effort)? {
            return Ok(found);
        }
    }
    let (id, device) = (service.pool.id, cache.device.device);
    let activity = Activity::begin_of(bytes, format_args!("free memory for a request"));
    info!(target: MEMORY, "pool {id} on {device}: no memory for {bytes} bytes, waiting for streams and trimming");
    let found = search_harder(cache, service, thread, bytes);
    if found.is_ok() {
        info!(target: MEMORY, "pool {id} on {device}: found {bytes} bytes after {}", activity.took());
    }
    found
}

/// Waits for the GPU and asks whoever may have memory to spare.
fn search_harder(cache: &'static ThreadCache, service: &Service, thread: u64, bytes: u64) -> Result<Allocation> {
    for effort in [Effort::Pool, Effort::Device] {
        // Blocks that wait for streams, then pages that do. What another pool is refused here is not this request's end.
        let _ = wait_for_streams(service, thread, effort);
        if let Some(found) = search(cache, thread, bytes) {
            return Ok(found);
        }
        if let Ok(found) = attempt(cache, service, thread, bytes, effort)? {
            return Ok(found);
        }
    }
    if let Some(found) = search_use_on_oom(service, thread, bytes) {
        return Ok(found);
    }
    // What cannot be moved into this pool may be given back to the driver, which can then give it here.
    let _ = release::trim_device(cache.device, thread, true);
    let mut refused = match attempt(cache, service, thread, bytes, Effort::Device)? {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    note(cache, service, bytes);
    for callback in callbacks() {
        if !call(&callback, cache.device.device, bytes) {
            continue;
        }
        let _ = release::trim_device(cache.device, thread, true);
        if let Some(found) = search(cache, thread, bytes) {
            return Ok(found);
        }
        match attempt(cache, service, thread, bytes, Effort::Device)? {
            Ok(found) => return Ok(found),
            Err(error) => refused = error,
        }
    }
    Err(out_of_memory(service, bytes, refused))
}

/// How often a request grows its cache before it gives up: each time but the last, another thread took pages meanwhile.
const ATTEMPTS: usize = 100;

/// Grows; the inner error is the one for a lack of memory.
fn attempt(
    cache: &'static ThreadCache,
    service: &Service,
    thread: u64,
    bytes: u64,
    effort: Effort,
) -> Result<Result<Allocation>> {
    for _ in 0..ATTEMPTS {
        match grow(cache, service, thread, bytes, effort) {
            Ok(Some(offset)) => return Ok(Ok(Allocation { cache, offset })),
            Ok(None) => {}
            // Whatever a pool's own allocator answers is taken for a lack of memory.
            Err(error) if is_no_memory(&error) || !matches!(service.pool.rules.source, Source::Pages) => {
                return Ok(Err(error));
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::invalid_value("a thread holds more blocks than gpupool can number; free some, or allocate larger ones"))
}

fn wait_for_streams(service: &Service, thread: u64, effort: Effort) -> Result<()> {
    let pools = if effort == Effort::Device { service.pool.device.pools() } else { vec![Arc::clone(&service.pool)] };
    let mut outcome = Ok(());
    for pool in pools {
        for cache in pool.caches() {
            outcome = outcome.and(order::settle(cache, thread, true));
        }
    }
    outcome.and(service.pool.device.end_retired(true).map(drop))
}

/// A free block of a pool that stands in when the default pool has no more memory.
fn search_use_on_oom(service: &Service, thread: u64, bytes: u64) -> Option<Allocation> {
    if !service.pool.is_default() {
        return None;
    }
    let stand_ins = service.pool.device.pools().into_iter().filter(|pool| pool.rules.use_on_oom && !pool.is_closed());
    stand_ins.flat_map(|pool| pool.caches()).find_map(|cache| {
        let other = cache.service()?;
        let is_same = normalized(other.stream.raw()) == normalized(service.stream.raw())
            && other.stream_of == service.stream_of
            && !other.is_captured;
        if !is_same {
            return None;
        }
        search(cache, thread, bytes)
    })
}

/// What the driver says of a device's memory; nothing where it does not.
fn memory_info(device: Device) -> MemoryInfo {
    runtime::memory_info(device).unwrap_or(MemoryInfo { free: 0, total: 0 })
}

/// Writes down that memory ran out, where somebody records; before callbacks are asked, which may take a snapshot.
fn note(cache: &ThreadCache, service: &Service, bytes: u64) {
    if trace::is_on() {
        trace::note_oom(cache, service.pool.id, bytes, memory_info(cache.device.device).free);
    }
}

/// The error that says who holds the memory.
#[cold]
fn out_of_memory(service: &Service, bytes: u64, refused: Error) -> Error {
    if !is_no_memory(&refused) {
        return refused;
    }
    let device = service.pool.device;
    let MemoryInfo { free, total } = memory_info(device.device);
    let refused = match refused.into_kind() {
        ErrorKind::Library(refused) => refused,
        other => return other.into(),
    };
    let wanted = Wanted::Memory { bytes, pool: service.pool.id.to_string(), limit: service.pool.budget.limit() };
    let (device, users) = (device.device, memory_users::all(device.device));
    ErrorKind::OutOfMemory(OutOfMemory { refused, device, wanted, free, total, users }).into()
}

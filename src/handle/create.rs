//! Creating and destroying handles: the two slow operations, outside every lock. Both run with the device's primary
//! context current and the thread's capture mode relaxed, so that no capture, here or in another thread, is spoilt;
//! both leave the thread as they found it.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use log::info;

use super::device_pool::DevicePool;
use super::events::HandleAction;
use super::pool;
use super::pooled_handle::PooledHandle;
use crate::error::{Bytes, Error, ErrorKind, LibraryError, OutOfMemory, Result, StatusKind, Wanted};
use crate::library::named;
use crate::memory;
use crate::observe::{Activity, Took, target::HANDLE};
use crate::runtime::{self, BoundDevice, MemoryInfo, RelaxedCapture, Runtime, WholeDevice};
use crate::sync::{CallbackKind, InHand, in_callback};

/// The creations that are under way, and from [`BEGUN`] on how many have begun: one's memory is measured if it runs
/// alone.
static CREATIONS: AtomicU64 = AtomicU64::new(0);
const BEGUN: u64 = 1 << 32;

struct CreationUnderWay {
    /// What there was before it began.
    before: u64,
}

impl CreationUnderWay {
    fn begin() -> Self {
        Self { before: CREATIONS.fetch_add(BEGUN + 1, Ordering::Relaxed) }
    }

    /// Returns whether there was no other since it began.
    fn is_alone(&self) -> bool {
        self.before as u32 == 0 && CREATIONS.load(Ordering::Relaxed) == self.before.wrapping_add(BEGUN + 1)
    }
}

impl Drop for CreationUnderWay {
    fn drop(&mut self) {
        CREATIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Room for a handle being made, which others get if that fails, also by a panic of a user's library.
struct Room<'a>(&'a DevicePool);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.count_failure();
        self.0.queue.leave_room();
    }
}

impl DevicePool {
    /// Creates a handle in room made for it. If memory runs out, idle handles and gpupool's free memory are given back
    /// first.
    pub(super) fn create(&'static self, runtime: &'static dyn Runtime) -> Result<Arc<PooledHandle>> {
        let room = Room(self);
        let created = self.call_create(runtime).or_else(|error| {
            if !matches!(error.kind(), ErrorKind::Library(refused) if self.is_for_want_of_memory(refused)) {
                return Err(error);
            }
            let _activity = Activity::begin(format_args!("free memory for {} handle", self.name()));
            info!(target: HANDLE, "giving back what is not in use for a handle, as there was no memory for it: {error}");
            pool::release_idle(self.device);
            memory::make_room_for(self.device, self.library.handle_bytes());
            self.call_create(runtime).map_err(|error| self.explained(error))
        });
        match &created {
            Ok(_) => mem::forget(room),
            Err(error) => {
                drop(room);
                info!(target: HANDLE, "no handle could be made: {error}");
            }
        }
        created
    }

    fn call_create(&'static self, runtime: &'static dyn Runtime) -> Result<Arc<PooledHandle>> {
        let device = self.device;
        let _bound = BoundDevice::of(runtime, device)?;
        let _relaxed = RelaxedCapture::new(runtime).map_err(|e| e.on(device))?;
        let _activity = Activity::begin(format_args!("create {} handle", self.name()));
        let under_way = CreationUnderWay::begin();
        // Only statistics need it, so a driver that cannot report it does not stop the creation.
        let before = runtime.memory_info().ok();
        let start = Instant::now();
        let handle = self.library.create(device).map_err(|e| e.on(device))?;
        let time = start.elapsed();
        let taken =
            before.zip(runtime.memory_info().ok()).map(|(before, after)| before.free.saturating_sub(after.free));
        // Other creations would be in the difference.
        let bytes = taken.filter(|_| under_way.is_alone());
        self.note(HandleAction::Create, &handle);
        let (pooled, number) = self.add(handle, time, bytes);
        let taken = bytes.map(|bytes| format!(", {} of the device", Bytes(bytes))).unwrap_or_default();
        let (library, took) = (named(self.library), Took(Some(time)));
        info!(target: HANDLE, "{library}: handle {number} created on {device} in {took}{taken}");
        Ok(pooled)
    }

    /// Returns whether a creation was probably refused for lack of memory: the library reports so, or "not initialized"
    /// while less is free than a handle takes.
    fn is_for_want_of_memory(&self, refused: &LibraryError) -> bool {
        let needed = self.library.handle_bytes();
        match refused.kind {
            StatusKind::OutOfMemory => true,
            StatusKind::NotInitialized => runtime::memory_info(self.device).is_ok_and(|memory| memory.free < needed),
            StatusKind::NotSupported | StatusKind::Other => false,
        }
    }

    /// Turns a refusal for lack of memory into an error with the bytes needed and the holders of the memory.
    fn explained(&self, error: Error) -> Error {
        let refused = match error.into_kind() {
            ErrorKind::Library(refused) if self.is_for_want_of_memory(&refused) => refused,
            other => return other.into(),
        };
        let MemoryInfo { free, total } = runtime::memory_info(self.device).unwrap_or_default();
        let (location, wanted) = (self.device.into(), Wanted::Handle(self.library.handle_bytes()));
        let (users, holders) = (memory::users(location), memory::holders(location));
        let out = OutOfMemory { users, holders, ..OutOfMemory::new(refused, location, wanted, free, total) };
        ErrorKind::OutOfMemory(out.into()).into()
    }

    /// Destroys the idle and discarded handles, with their workspaces and those of graphs that are gone, and returns
    /// how many.
    pub(super) fn trim(&self, runtime: &'static dyn Runtime) -> Result<usize> {
        let destroyed = self.destroy_unused(runtime);
        let released = self.library.release_workspaces(self.device).inspect_err(|_| self.count_failure());
        destroyed.and_then(|count| released.map(|()| count))
    }

    /// Destroys the idle and discarded handles, unless a known capture would be spoilt, and returns how many, or the
    /// first refusal.
    fn destroy_unused(&self, runtime: &'static dyn Runtime) -> Result<usize> {
        if !self.has_unused() {
            return Ok(0);
        }
        let device = self.device;
        // No announced capture begins meanwhile: it waits, and a program's own library is called.
        let whole = if self.library.synchronizes_on_destroy() {
            let Some(whole) = WholeDevice::begin(runtime, device)? else { return Ok(0) };
            Some((whole, InHand::begin()))
        } else {
            None
        };
        // Before any handle leaves the pool, so that a refusal loses none.
        let bound = BoundDevice::of(runtime, device)?;
        let relaxed = RelaxedCapture::new(runtime).map_err(|e| e.on(device))?;
        let handles = self.remove_unused();
        let (count, name) = (handles.len(), self.name());
        handles.iter().for_each(|handle| self.note(HandleAction::Destroy, handle));
        let activity = Activity::begin(format_args!("trim {name} handles"));
        let mut destroyed = Ok(());
        for handle in handles {
            let refused = in_callback(CallbackKind::Library, || self.library.destroy(handle));
            destroyed = destroyed.and(refused.map_err(|error| error.on(device)));
        }
        // A logger may begin a capture.
        drop((relaxed, bound, whole));
        if destroyed.is_err() {
            self.count_failure();
        }
        // A pool that wakes has memory under way meanwhile.
        memory::call_out(CallbackKind::Logger, || {
            info!(target: HANDLE, "{name}: {count} idle handles destroyed on {device} in {}", activity.took());
        });
        destroyed.map(|()| count)
    }
}

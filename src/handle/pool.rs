//! A pool: all handles of one library in the process, on each device. No lock is held while a handle is created,
//! destroyed, or made ready.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use log::{info, warn};

use super::create;
use super::device_pool::{DevicePool, PooledHandle};
use super::events::{self, HandleAction};
use super::pools;
use super::stats::HandleStats;
use crate::error::{Bytes, Error, OneLine, Result};
use crate::ids::Device;
use crate::library::in_use::{count_destroyed, count_made};
use crate::library::{Library, Named};
use crate::memory::{self, LibraryMemory, PoolToken};
use crate::observe::{Activity, Took, target::HANDLE};
use crate::process;
use crate::runtime::{self, Runtime, Stream};
use crate::sync::CallbackKind;

/// How many pools are gpupool's own. Their ids are the numbers below this one.
pub(super) const BUILT_IN: usize = 16;

/// How many of them, by lowest ids, have a place in a window's array: one for each device. If the library keeps scratch
/// memory in its handles that is not enough, since a thread has a handle for each stream.
pub(super) const NEAR: usize = 8;

pub(crate) struct LibraryPool {
    id: u8,
    pub(super) library: &'static dyn Library,
    is_closed: AtomicBool,
    /// Whether the user has set for any device where handles take memory from.
    has_memory: AtomicBool,
    limit: AtomicUsize,
    /// By ordinal, made when the runtime is known.
    devices: OnceLock<Box<[DevicePool]>>,
}

const NO_LIMIT: usize = usize::MAX;

/// A handle during a call of a user's library, which may panic: then it goes back. gpupool's own do not.
struct InUse<'a> {
    on_device: &'a DevicePool,
    pooled: Option<Arc<PooledHandle>>,
}

impl<'a> InUse<'a> {
    fn during<R>(on_device: &'a DevicePool, pooled: Arc<PooledHandle>, call: impl FnOnce(Arc<PooledHandle>) -> R) -> R {
        let mut in_use = Self { on_device, pooled: Some(Arc::clone(&pooled)) };
        let result = call(pooled);
        in_use.pooled = None;
        result
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.pooled.take().into_iter().for_each(|pooled| self.on_device.put_back(pooled));
    }
}

/// Room for a handle being made, which others get if that fails.
struct Room<'a>(Option<&'a DevicePool>);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(on_device) = self.0 {
            on_device.count_failure();
            on_device.leave_room();
        }
    }
}

impl LibraryPool {
    pub(super) const fn new(id: u8, library: &'static dyn Library) -> Self {
        Self {
            id,
            library,
            is_closed: AtomicBool::new(false),
            has_memory: AtomicBool::new(false),
            limit: AtomicUsize::new(NO_LIMIT),
            devices: OnceLock::new(),
        }
    }

    #[inline]
    pub(super) fn id(&self) -> usize {
        usize::from(self.id)
    }

    /// Returns whether this is a pool of gpupool's own, which is never closed.
    pub(super) fn is_built_in(&self) -> bool {
        self.id() < BUILT_IN
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Closes the pool: it serves no more requests.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Returns the runtime, if handles can be requested.
    pub(super) fn require_usable(&self) -> Result<&'static dyn Runtime> {
        let runtime = match self.library.runtime() {
            Some(kind) => runtime::require(kind)?,
            None => runtime::get()?,
        };
        if self.is_closed() {
            let name = OneLine(self.library.name());
            return Err(Error::invalid_value(format!("the {name} pool is closed; make another HandlePool")));
        }
        Ok(runtime)
    }

    /// Makes the pool's parts for the runtime's devices, if there are none. `begin` runs once, before the first handle.
    #[inline]
    pub(super) fn make_devices(&self, runtime: &dyn Runtime, begin: impl FnOnce()) {
        self.devices.get_or_init(|| {
            begin();
            let pools: Box<[DevicePool]> = (0..runtime.device_count()).map(|_| DevicePool::default()).collect();
            pools.iter().for_each(|pool| pool.set_limit(self.limit()));
            pools
        });
    }

    /// Returns the pool's parts by ordinal; none before the first request.
    #[inline]
    pub(super) fn devices(&self) -> &[DevicePool] {
        self.devices.get().map(AsRef::as_ref).unwrap_or_default()
    }

    pub(super) fn on(&self, device: Device) -> Result<&DevicePool> {
        match self.devices().get(device.ordinal()) {
            Some(on_device) => Ok(on_device),
            None => Err(self.not_on(device)),
        }
    }

    #[cold]
    fn not_on(&self, device: Device) -> Error {
        let unmade = || runtime::no_such_device(device.ordinal() as i64, self.devices().len());
        runtime::existing(device).map_or_else(|error| error, |_| unmade())
    }

    pub(super) fn limit(&self) -> Option<usize> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit != NO_LIMIT)
    }

    pub(super) fn set_limit(&self, limit: Option<usize>) {
        self.limit.store(limit.unwrap_or(NO_LIMIT), Ordering::Relaxed);
        self.devices().iter().for_each(|pool| pool.set_limit(limit));
    }

    pub(super) fn stats(&self, device: Device) -> Result<HandleStats> {
        Ok(self.on(device)?.stats(self.library.workspace_bytes(device)))
    }

    pub(super) fn total_stats(&self) -> Result<HandleStats> {
        let devices = 0..self.devices().len() as u32;
        devices.map(|ordinal| self.stats(Device::from_ordinal(ordinal))).sum()
    }

    /// Counts a failed request.
    #[cold]
    pub(super) fn refused(&self, device: Device, error: Error) -> Error {
        if let Ok(pool) = self.on(device) {
            pool.count_failure();
        }
        error.on(device)
    }

    /// Resets what the former owner of a handle may have changed, and sets the stream. On a refusal the handle is where it was:
    /// idle, or held. Returns none if it has no use for the request, since something of its former owner's is in use: then
    /// there is room for another, which the caller uses or leaves.
    #[inline(always)]
    pub(super) fn make_ready(
        &self,
        on_device: &DevicePool,
        pooled: Arc<PooledHandle>,
        stream: &Stream,
    ) -> Result<Option<Arc<PooledHandle>>> {
        if self.is_built_in() {
            self.reset(on_device, pooled, stream)
        } else {
            InUse::during(on_device, pooled, |pooled| self.reset(on_device, pooled, stream))
        }
    }

    #[inline(always)]
    fn reset(
        &self,
        on_device: &DevicePool,
        pooled: Arc<PooledHandle>,
        stream: &Stream,
    ) -> Result<Option<Arc<PooledHandle>>> {
        match self.library.reset(&pooled.handle).and_then(|()| self.give(&pooled, stream.device())) {
            Ok(()) => self.set_stream(on_device, pooled, stream).map(Some),
            Err(error) => self.give_up(on_device, pooled, stream, error),
        }
    }

    /// Sets a new handle's memory and stream. On a refusal the handle is idle.
    pub(super) fn set_up(
        &self,
        on_device: &DevicePool,
        pooled: Arc<PooledHandle>,
        stream: &Stream,
    ) -> Result<Arc<PooledHandle>> {
        InUse::during(on_device, pooled, |pooled| match self.give(&pooled, stream.device()) {
            Ok(()) => self.set_stream(on_device, pooled, stream),
            Err(error) => Err(self.put_back(on_device, pooled, stream, error)),
        })
    }

    #[inline(always)]
    fn give(&self, pooled: &PooledHandle, device: Device) -> Result<()> {
        if self.has_memory() { self.give_memory(pooled, device) } else { Ok(()) }
    }

    #[inline(always)]
    fn set_stream(
        &self,
        on_device: &DevicePool,
        pooled: Arc<PooledHandle>,
        stream: &Stream,
    ) -> Result<Arc<PooledHandle>> {
        match self.library.set_stream(&pooled.handle, stream) {
            Ok(()) => Ok(pooled),
            Err(error) => Err(self.put_back(on_device, pooled, stream, error)),
        }
    }

    /// Ends a refused hand-over: no request gets the handle again if the reason is what its former owner has in use, who may
    /// hold it still and goes on with it.
    #[cold]
    fn give_up(
        &self,
        on_device: &DevicePool,
        pooled: Arc<PooledHandle>,
        stream: &Stream,
        error: Error,
    ) -> Result<Option<Arc<PooledHandle>>> {
        let is_held = pooled.holder().is_some();
        if !self.library.cannot_be_reset(&pooled.handle) || (is_held && !on_device.make_room()) {
            return Err(self.put_back(on_device, pooled, stream, error));
        }
        if is_held {
            return Ok(None);
        }
        let (name, error) = (OneLine(self.library.name()), error.on(stream.device()));
        warn!(target: HANDLE, "{name}: a handle is given up, as something of its former owner's is in use: {error}");
        events::note(self.library, stream.device(), HandleAction::Discard, &pooled.handle);
        on_device.replace(pooled);
        Ok(None)
    }

    #[cold]
    fn put_back(&self, on_device: &DevicePool, pooled: Arc<PooledHandle>, stream: &Stream, error: Error) -> Error {
        on_device.put_back(pooled);
        self.refused(stream.device(), error)
    }

    /// Returns whether [`LibraryPool::give_memory`] may have something to do.
    #[inline]
    pub(super) fn has_memory(&self) -> bool {
        self.has_memory.load(Ordering::Relaxed)
    }

    /// Sets where handles on the device take device memory from: this `MemPool`, or the driver. Handles that take it
    /// from gpupool already need no further call.
    pub(super) fn set_memory(&self, device: Device, pool: Option<&PoolToken>) -> Result<()> {
        let on_device = self.on(device)?;
        if pool.is_none() && on_device.memory.get().is_none() {
            return Ok(());
        }
        if !self.library.takes_memory()? {
            let name = OneLine(self.library.name());
            return Err(Error::invalid_value(format!("{name} cannot allocate its device memory from a MemPool")));
        }
        on_device.memory.get_or_init(|| LibraryMemory::new(device)).set(pool)?;
        self.has_memory.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the `MemPool` that handles on the device take device memory from; none for plain memory of the driver.
    pub(super) fn memory(&self, device: Device) -> Result<Option<PoolToken>> {
        Ok(self.on(device)?.memory.get().and_then(|memory| memory.pool()))
    }

    /// Sets again where a handle takes device memory from, as its owner may have set another source.
    ///
    /// A handle that ever took memory from gpupool keeps doing so, since it must return what it has: without a
    /// `MemPool` it then gets the driver's memory through gpupool.
    #[cold]
    pub(super) fn give_memory(&self, pooled: &PooledHandle, device: Device) -> Result<()> {
        let Some(memory) = self.on(device)?.memory.get() else { return Ok(()) };
        if memory.has_pool() || pooled.takes_our_memory() {
            self.library.set_memory(&pooled.handle, &memory.handler())?;
            pooled.note_our_memory();
        }
        Ok(())
    }

    #[inline]
    pub(super) fn end_lease(&self, device: Device, pooled: Arc<PooledHandle>) {
        if let Ok(pool) = self.on(device) {
            pool.put_own(pooled);
        }
    }

    /// Takes back a handle that no request may get again.
    pub(super) fn retire(&self, device: Device, pooled: Arc<PooledHandle>) {
        if !process::is_forked()
            && let Ok(pool) = self.on(device)
        {
            events::note(self.library, device, HandleAction::Discard, &pooled.handle);
            pool.retire(pooled);
        }
    }

    /// Takes a handle back. Called as a thread ends: no call of a library or driver, and nothing that can fail.
    pub(super) fn give_back(&self, device: Device, pooled: Arc<PooledHandle>) {
        if !process::is_forked()
            && let Ok(pool) = self.on(device)
        {
            events::note(self.library, device, HandleAction::GiveBack, &pooled.handle);
            pool.put_idle([pooled]);
        }
    }

    /// Creates a handle in room made for it, and holds it. If memory runs out, idle handles and gpupool's free memory
    /// are given back first.
    pub(super) fn create(
        &self,
        runtime: &'static dyn Runtime,
        on_device: &DevicePool,
        device: Device,
    ) -> Result<Arc<PooledHandle>> {
        // A user's library may panic.
        let mut room = Room(Some(on_device));
        let created = create::create(runtime, self.library, device).or_else(|error| {
            if !create::is_for_want_of_memory(self.library, device, &error) {
                return Err(error);
            }
            let _activity = Activity::begin(format_args!("free memory for {} handle", OneLine(self.library.name())));
            info!(target: HANDLE, "giving back what is not in use for a handle, as there was no memory for it: {error}");
            pools::release_idle(device);
            memory::make_room_for(device, self.library.handle_bytes());
            create::create(runtime, self.library, device).map_err(|error| create::explain(self.library, device, error))
        });
        let created = match created {
            Ok(created) => created,
            Err(error) => {
                drop(room);
                info!(target: HANDLE, "no handle could be made: {error}");
                return Err(error);
            }
        };
        room.0 = None;
        events::note(self.library, device, HandleAction::Create, &created.handle);
        let known_bytes = self.library.handle_bytes();
        let (pooled, number) = on_device.add(created.handle, created.time, created.bytes, known_bytes);
        count_made(self.library, device, pooled.bytes);
        let (library, took) = (Named(self.library), Took(Some(created.time)));
        match created.bytes {
            Some(bytes) => {
                let taken = Bytes(bytes);
                info!(target: HANDLE, "{library}: handle {number} created on {device} in {took}, {taken} of the device")
            }
            None => info!(target: HANDLE, "{library}: handle {number} created on {device} in {took}"),
        }
        Ok(pooled)
    }

    /// Destroys the idle and discarded handles of a device, and returns how many.
    pub(super) fn trim(&self, runtime: &'static dyn Runtime, device: Device) -> Result<usize> {
        let Ok(pool) = self.on(device) else { return Ok(0) };
        let released = self.library.release_workspaces(device).inspect_err(|_| pool.count_failure());
        if !pool.has_unused() {
            return released.map(|()| 0);
        }
        let Some(destroying) = create::Destroying::begin(runtime, self.library, device)? else {
            return released.map(|()| 0);
        };
        // Before any handle leaves the pool, so that a refusal loses none.
        let prepared = create::Prepared::new(runtime, device)?;
        let (handles, bytes) = pool.remove_unused();
        let count = handles.len();
        count_destroyed(self.library, device, count, bytes);
        handles.iter().for_each(|handle| events::note(self.library, device, HandleAction::Destroy, handle));
        let name = OneLine(self.library.name());
        let activity = Activity::begin(format_args!("trim {name} handles"));
        let destroyed = prepared.destroy(self.library, handles).inspect_err(|_| pool.count_failure());
        // A logger may begin a capture.
        drop(destroying);
        // A pool that wakes has memory under way meanwhile.
        memory::call_out(CallbackKind::Logger, || {
            info!(target: HANDLE, "{name}: {count} idle handles destroyed on {device} in {}", activity.took());
        });
        released.and(destroyed).map(|()| count)
    }
}

//! What all users of a pool share: its handles on each device, and how a request is served from them.
//!
//! No lock is held while a handle is created, destroyed, or made ready.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Duration;

use log::info;

use super::device_pool::DevicePool;
use super::exchange::Turn;
use super::holder::Holder;
use super::record::Record;
use super::stats::HandleStats;
use super::trace::{self, HandleAction};
use super::{built_in, create, hand_over, lease};
use crate::error::{Bytes, Error, ErrorKind, MemoryUse, PoolExhausted, Result};
use crate::ids::Device;
use crate::library::{Library, Named};
use crate::memory::{LibraryMemory, PoolToken};
use crate::memory_users::{self, MemoryUser};
use crate::observe::{Activity, Took, target::HANDLE};
use crate::process;
use crate::runtime::{self, Runtime, Stream};
use crate::sync::lock;

/// What all users of a pool share.
pub(super) struct Shared {
    pub(super) id: u8,
    pub(super) library: &'static dyn Library,
    pub(super) is_closed: AtomicBool,
    /// Whether it was ever said for a device where handles take memory from.
    has_memory: AtomicBool,
    /// The most handles for each device; `usize::MAX` for no limit.
    pub(super) limit: AtomicUsize,
    /// By ordinal, made when the runtime is known.
    pub(super) devices: OnceLock<Box<[DevicePool]>>,
}

/// How many handles lie idle, whose last streams were not ours, before one is made to wait for the whole device.
const SPARE: usize = 4;

pub(super) static USER_POOLS: Mutex<Vec<&'static Shared>> = Mutex::new(Vec::new());

/// Every pool of the process.
pub(super) fn all_pools() -> Vec<&'static Shared> {
    let user = lock(&USER_POOLS);
    built_in::ALL.iter().copied().chain(user.iter().copied()).collect()
}

impl Shared {
    pub(super) const fn new(id: u8, library: &'static dyn Library) -> Self {
        Self {
            id,
            library,
            is_closed: AtomicBool::new(false),
            has_memory: AtomicBool::new(false),
            limit: AtomicUsize::new(usize::MAX),
            devices: OnceLock::new(),
        }
    }

    #[inline]
    pub(super) fn id(&self) -> usize {
        usize::from(self.id)
    }

    /// The runtime, if handles can be asked for.
    pub(super) fn require_usable(&self) -> Result<&'static dyn Runtime> {
        let runtime = match self.library.runtime() {
            Some(kind) => runtime::require(kind)?,
            None => runtime::get()?,
        };
        if self.is_closed.load(Ordering::Relaxed) {
            let name = self.library.name();
            return Err(Error::invalid_value(format!("the {name} pool is closed; make another HandlePool")));
        }
        self.make_devices(runtime);
        Ok(runtime)
    }

    pub(super) fn make_devices(&self, runtime: &dyn Runtime) {
        self.devices.get_or_init(|| {
            let pools: Box<[DevicePool]> = (0..runtime.device_count()).map(|_| DevicePool::default()).collect();
            let limit = self.limit.load(Ordering::Relaxed);
            pools.iter().for_each(|pool| pool.set_limit(Some(limit).filter(|&limit| limit != usize::MAX)));
            pools
        });
    }

    pub(super) fn on(&self, device: Device) -> Result<&DevicePool> {
        let devices = self.devices.get().map(AsRef::as_ref).unwrap_or_default();
        devices.get(device.ordinal()).ok_or_else(|| runtime::no_such_device(device.ordinal() as i64, devices.len()))
    }

    /// The pool's counts on a device.
    pub(super) fn stats(&self, device: Device) -> Result<HandleStats> {
        Ok(self.on(device)?.stats(self.library.workspace_bytes(device)))
    }

    /// Counts a failed request.
    #[cold]
    pub(super) fn refused(&self, device: Device, error: Error) -> Error {
        if let Ok(pool) = self.on(device) {
            pool.count_failure();
        }
        error.on(device)
    }

    /// Sets back what the former owner of an idle handle may have changed, and sets the stream. If that is refused the handle
    /// lies idle again.
    #[inline]
    fn make_ready(&self, pool: &DevicePool, record: Arc<Record>, stream: &Stream) -> Result<Arc<Record>> {
        let make_ready = || {
            self.library.reset(&record.handle)?;
            if self.has_memory() {
                self.give_memory(&record, stream.device())?;
            }
            self.library.set_stream(&record.handle, stream)
        };
        match make_ready() {
            Ok(()) => Ok(record),
            Err(error) => {
                pool.put_idle([record]);
                Err(self.refused(stream.device(), error))
            }
        }
    }

    /// The handle that a thread gave back last, if it last ran on this stream and nobody waits for one.
    #[inline]
    pub(super) fn take_near(&self, stream: &Stream) -> Option<Result<Arc<Record>>> {
        let state = process::state();
        if state.is_forked() || self.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        let pool = self.devices.get()?.get(stream.device().ordinal())?;
        let record = pool.take_near(lease::near(), stream.raw())?;
        Some(self.make_ready(pool, record, stream).inspect(|record| {
            record.hold(Holder::lease());
            record.count_hit();
            pool.begin_use(record);
            if state.is_recorded() {
                trace::note(self, stream.device(), HandleAction::Take, record);
            }
        }))
    }

    /// An idle handle with the stream set, if there is one that needs neither a wait nor another in its place.
    pub(super) fn take_idle(&self, stream: &Stream) -> Option<Result<Arc<Record>>> {
        if process::is_forked() || self.is_closed.load(Ordering::Relaxed) || self.library.keeps_scratch() {
            return None;
        }
        let pool = self.devices.get()?.get(stream.device().ordinal())?;
        let record = pool.take_idle(stream.raw())?;
        Some(self.make_ready(pool, record, stream).inspect(|record| {
            pool.count_hand_over();
            record.note_stream(stream.raw());
            pool.begin_use(record);
        }))
    }

    /// Whether [`Shared::give_memory`] may have something to do.
    #[inline]
    pub(super) fn has_memory(&self) -> bool {
        self.has_memory.load(Ordering::Relaxed)
    }

    /// Says where handles on the device take device memory from: this pool, or plain memory of the driver. Handles that were
    /// told before need not be told again.
    pub(super) fn set_memory(&self, device: Device, pool: Option<&PoolToken>) -> Result<()> {
        let on_device = self.on(device)?;
        if pool.is_none() && on_device.memory.get().is_none() {
            return Ok(());
        }
        if !self.library.takes_memory()? {
            let name = self.library.name();
            return Err(Error::invalid_value(format!("{name} cannot be told where to take device memory from")));
        }
        on_device.memory.get_or_init(|| LibraryMemory::new(device)).set(pool)?;
        self.has_memory.store(true, Ordering::Release);
        Ok(())
    }

    /// Tells a handle where to take device memory from, after anybody but gpupool may have told it otherwise.
    ///
    /// One that was told once is told for ever, as what it has of ours must come back to us: without a pool it then gets
    /// plain memory.
    #[cold]
    pub(super) fn give_memory(&self, record: &Record, device: Device) -> Result<()> {
        let Some(memory) = self.on(device)?.memory.get() else { return Ok(()) };
        if memory.has_pool() || record.has_memory() {
            self.library.set_memory(&record.handle, &memory.handler())?;
            record.note_memory();
        }
        Ok(())
    }

    /// Takes back what a lease held.
    #[inline]
    pub(super) fn end_lease(&self, device: Device, record: Arc<Record>) {
        if let Ok(pool) = self.on(device) {
            pool.put_near(lease::near(), record);
        }
    }

    /// Takes back what nobody may have again.
    pub(super) fn retire(&self, device: Device, record: Arc<Record>) {
        if !process::is_forked()
            && let Ok(pool) = self.on(device)
        {
            trace::note(self, device, HandleAction::Discard, &record);
            pool.retire(record);
        }
    }

    /// A handle with the stream set: an idle one, best one that last ran on the stream, else a new one.
    pub(super) fn take(
        &self,
        runtime: &'static dyn Runtime,
        pool: &DevicePool,
        stream: &Stream,
        timeout: Duration,
    ) -> Result<Arc<Record>> {
        if let Some(idle) = self.take_idle(stream) {
            return idle;
        }
        let device = stream.device();
        let record = match pool.take(self.library.name(), stream, timeout) {
            Some(Turn::Handle(record)) => self.hand_over(runtime, pool, record, stream)?,
            Some(Turn::Room) => self.create(runtime, pool, device)?,
            None => return Err(self.exhausted(pool, device, timeout)),
        };
        let given = self.give_memory(&record, device);
        if let Err(error) = given.and_then(|()| self.library.set_stream(&record.handle, stream)) {
            pool.put_idle([record]);
            return Err(self.refused(device, error));
        }
        record.note_stream(stream.raw());
        pool.begin_use(&record);
        Ok(record)
    }

    /// Makes an idle handle ready for the stream. Where that might harm a capture a new one is made instead, as long as few
    /// lie idle.
    pub(super) fn hand_over(
        &self,
        runtime: &'static dyn Runtime,
        pool: &DevicePool,
        record: Arc<Record>,
        stream: &Stream,
    ) -> Result<Arc<Record>> {
        let device = stream.device();
        let has_spare = pool.idle_count() < SPARE;
        let make_ready = |at_all_costs| hand_over::make_ready(runtime, self.library, &record, stream, at_all_costs);
        let ready = match make_ready(false) {
            Ok(false) if !has_spare || pool.is_full() => make_ready(true),
            other => other,
        };
        match ready {
            Ok(true) => {
                pool.count_hand_over();
                Ok(record)
            }
            Ok(false) => {
                pool.put_idle([record]);
                if pool.make_room() {
                    self.create(runtime, pool, device)
                } else {
                    Err(self.exhausted(pool, device, Duration::ZERO))
                }
            }
            Err(error) => {
                pool.put_idle([record]);
                Err(self.refused(device, error))
            }
        }
    }

    #[cold]
    pub(super) fn exhausted(&self, pool: &DevicePool, device: Device, waited: Duration) -> Error {
        pool.count_failure();
        let library = self.library.name().to_owned();
        let limit = pool.limit().unwrap_or(usize::MAX);
        ErrorKind::PoolExhausted(PoolExhausted {
            library,
            device,
            limit,
            waited,
            holders: pool.holders().iter().map(ToString::to_string).collect(),
        })
        .into()
    }

    /// Takes a handle back. Called as a thread ends: no call of a library or driver, and nothing that can fail.
    pub(super) fn give_back(&self, device: Device, record: Arc<Record>) {
        if !process::is_forked()
            && let Ok(pool) = self.on(device)
        {
            trace::note(self, device, HandleAction::GiveBack, &record);
            pool.put_idle([record]);
        }
    }

    /// Creates a handle in room that was made for it, and books it as held. If memory runs out, idle handles and free memory of
    /// gpupool's own are given back first.
    pub(super) fn create(
        &self,
        runtime: &'static dyn Runtime,
        pool: &DevicePool,
        device: Device,
    ) -> Result<Arc<Record>> {
        static TELLS: Once = Once::new();
        TELLS.call_once(|| memory_users::add(MemoryUser { used, release }));
        let created = create::create(runtime, self.library, device).or_else(|error| {
            if !create::is_for_want_of_memory(self.library, device, &error) {
                return Err(error);
            }
            let _activity = Activity::begin(format_args!("free memory for {} handle", self.library.name()));
            info!(target: HANDLE, "giving back what nobody uses for a handle, as there was no memory for it: {error}");
            memory_users::release(device);
            create::create(runtime, self.library, device).map_err(|error| create::explain(self.library, device, error))
        });
        let created = match created {
            Ok(created) => created,
            Err(error) => {
                pool.count_failure();
                pool.leave_room();
                info!(target: HANDLE, "no handle could be made: {error}");
                return Err(error);
            }
        };
        trace::note_handle(self, device, HandleAction::Create, &created.handle);
        let known_bytes = self.library.handle_bytes();
        let (record, number) = pool.add(created.handle, created.time, created.bytes, known_bytes);
        let (library, took) = (Named(self.library), Took(Some(created.time)));
        match created.bytes {
            Some(bytes) => {
                let taken = Bytes(bytes);
                info!(target: HANDLE, "{library}: handle {number} created on {device} in {took}, {taken} of the device")
            }
            None => info!(target: HANDLE, "{library}: handle {number} created on {device} in {took}"),
        }
        Ok(record)
    }

    /// Destroys the idle and discarded handles of a device.
    pub(super) fn trim(&self, runtime: &'static dyn Runtime, device: Device) -> Result<usize> {
        let Ok(pool) = self.on(device) else { return Ok(0) };
        let released = self.library.release_workspaces(device).inspect_err(|_| pool.count_failure());
        if !pool.has_unused() || create::would_spoil_a_capture(runtime, self.library, device)? {
            return released.map(|()| 0);
        }
        // Before any handle leaves the pool, so that a refusal loses none.
        let prepared = create::Prepared::new(runtime, device)?;
        let handles = pool.remove_unused();
        let count = handles.len();
        handles.iter().for_each(|handle| trace::note_handle(self, device, HandleAction::Destroy, handle));
        let name = self.library.name();
        let activity = Activity::begin(format_args!("trim {name} handles"));
        let destroyed = prepared.destroy(self.library, handles).inspect_err(|_| pool.count_failure());
        info!(target: HANDLE, "{name}: {count} idle handles destroyed on {device} in {}", activity.took());
        released.and(destroyed).map(|()| count)
    }
}

/// Destroys every pool's idle handles on a device.
fn release(device: Device) {
    let Ok(runtime) = runtime::get() else { return };
    for pool in all_pools() {
        // A pool that cannot be trimmed leaves the rest to help.
        let _ = pool.trim(runtime, device);
    }
}

/// What the handles of every pool have of a device's memory.
fn used(device: Device) -> Vec<MemoryUse> {
    let used = all_pools().into_iter().filter_map(|pool| {
        let stats = pool.stats(device).ok()?;
        let handles = stats.idle + stats.held + stats.leased + stats.retired;
        let bytes = stats.device_bytes + stats.workspace_bytes;
        let name = pool.library.name().to_owned();
        (bytes > 0 || handles > 0).then_some(MemoryUse { pool: name, count: handles as usize, bytes })
    });
    used.collect()
}

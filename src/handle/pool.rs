//! The pool: all handles of one library in the process.
//!
//! The hit path takes no lock and calls only the library's own stream function. The miss path locks one device's list
//! for as long as it takes to pop from it; creating and destroying happen outside of every lock.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use super::device_pool::DevicePool;
use super::record::Record;
use super::stats::HandleStats;
use super::window;
use super::{built_in, create};
use crate::error::{Error, Result};
use crate::library::Library;
use crate::lifecycle;
use crate::runtime::{self, Runtime};
use crate::stream::Device;
use crate::{Stream, library};

/// A pool of one library's handles. A cheap reference: copies speak of the same pool, which lives as long as the
/// process.
#[derive(Clone, Copy)]
pub struct HandlePool(&'static Shared);

/// A handle that the calling thread holds until it ends, with its stream set.
///
/// It cannot leave the thread. Until the thread ends, asking again for the same device gives the same handle.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    address: NonNull<c_void>,
    this_thread: PhantomData<*mut ()>,
}

impl Handle {
    /// The handle as the library's C API takes it: a `cudnnHandle_t`, `cublasHandle_t`, ...
    #[inline]
    pub const fn as_ptr(self) -> *mut c_void {
        self.address.as_ptr()
    }
}

/// What all users of a pool share.
pub(super) struct Shared {
    id: u8,
    library: &'static dyn Library,
    is_closed: AtomicBool,
    /// By ordinal, made when the runtime is known.
    devices: OnceLock<Box<[DevicePool]>>,
}

/// How many pools a process can have: as many as a byte tells apart. Pools are never dropped.
const MAX_POOLS: usize = 1 << u8::BITS;

static NEXT_ID: AtomicUsize = AtomicUsize::new(built_in::COUNT);
static USER_POOLS: Mutex<Vec<&'static Shared>> = Mutex::new(Vec::new());

/// Every pool of the process.
fn all_pools() -> Vec<&'static Shared> {
    let user = USER_POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    built_in::ALL.iter().copied().chain(user.iter().copied()).collect()
}

impl fmt::Debug for HandlePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlePool").field("library", &self.name()).field("id", &self.0.id).finish_non_exhaustive()
    }
}

impl HandlePool {
    pub(super) const fn built_in(shared: &'static Shared) -> Self {
        Self(shared)
    }

    /// A pool for a library that gpupool does not know. Make it once: pools live as long as the process.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the process has made 256 pools.
    pub fn new(library: impl Library + 'static) -> Result<Self> {
        let id = NEXT_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| (id < MAX_POOLS).then_some(id + 1));
        let Some(id) = id.ok().and_then(|id| u8::try_from(id).ok()) else {
            return Err(Error::invalid_value(format!(
                "a process can have {MAX_POOLS} handle pools, and they are never dropped; make each once, not in a loop"
            )));
        };
        let shared: &'static Shared = Box::leak(Box::new(Shared::new(id, Box::leak(Box::new(library)))));
        USER_POOLS.lock().unwrap_or_else(PoisonError::into_inner).push(shared);
        Ok(Self(shared))
    }

    /// The library's name.
    pub fn name(&self) -> &'static str {
        self.0.library.name()
    }

    /// The library's version, if it tells one.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if it cannot be loaded.
    pub fn version(&self) -> Result<Option<library::Version>> {
        self.0.library.version()
    }

    /// The file that the library was loaded from, if it was loaded from one.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if it cannot be loaded.
    pub fn path(&self) -> Result<Option<std::path::PathBuf>> {
        self.0.library.path()
    }

    /// Whether handles can be asked for: the library can be loaded and its runtime is the one in use.
    pub fn is_available(&self) -> bool {
        self.0.require_usable().is_ok() && self.path().is_ok()
    }

    /// The calling thread's handle on the stream's device, with the stream set.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound`, `ErrorKind::RuntimeUnavailable`, `ErrorKind::Library` or `ErrorKind::OutOfMemory`
    /// if a handle cannot be had; `ErrorKind::InvalidValue` for a device that does not exist or a closed pool;
    /// `ErrorKind::Forked`.
    #[inline]
    pub fn handle(&self, stream: &Stream) -> Result<Handle> {
        match self.held(stream) {
            Some(held) => held,
            None => self.obtain(stream),
        }
    }

    /// The hit path: this thread's handle, if it holds one on the stream's device. All that is rare is left to
    /// [`HandlePool::obtain`].
    #[inline]
    pub(crate) fn held(&self, stream: &Stream) -> Option<Result<Handle>> {
        if lifecycle::is_forked() || self.0.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        let set = window::with_held(self.0, stream.device(), |record| {
            self.0.library.set_stream(&record.handle, stream).map(|()| {
                record.note_stream(stream.raw());
                record.count_hit();
                Handle { address: record.handle.as_non_null(), this_thread: PhantomData }
            })
        })?;
        Some(set.map_err(|error| self.0.refused(stream.device(), error)))
    }

    /// The miss path: an idle handle, best one that last ran on this stream, else a new one.
    #[cold]
    pub(crate) fn obtain(&self, stream: &Stream) -> Result<Handle> {
        let runtime = self.0.require_usable()?;
        let device = stream.device();
        let pool = self.0.on(device)?;
        let record = match pool.take_idle(stream.raw()) {
            Some(record) => record,
            None => self.0.create(runtime, pool, device)?,
        };
        if let Err(error) = self.0.library.set_stream(&record.handle, stream) {
            self.0.give_back(device, record);
            return Err(self.0.refused(device, error));
        }
        record.note_stream(stream.raw());
        let address = record.handle.as_non_null();
        if let Err((error, record)) = window::hold(self.0, device, record) {
            self.0.give_back(device, record);
            return Err(error);
        }
        Ok(Handle { address, this_thread: PhantomData })
    }

    /// Creates as many handles as are missing for `count` to be idle on the device, and answers how many that were.
    ///
    /// # Errors
    /// As [`HandlePool::handle`]; the handles made before the failure stay.
    pub fn warm(&self, count: usize, device: Device) -> Result<usize> {
        let runtime = self.0.require_usable()?;
        let pool = self.0.on(device)?;
        let missing = count.saturating_sub(pool.idle_count());
        // Kept aside until all are made: where memory is short, each creation destroys what is idle.
        let mut created = Vec::new();
        let mut result = Ok(missing);
        for _ in 0..missing {
            match self.0.create(runtime, pool, device) {
                Ok(record) => created.push(record),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        pool.put_idle(created);
        result
    }

    /// [`HandlePool::warm`] on a thread of its own. A failure also counts in the statistics.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the system starts no thread.
    pub fn warm_in_background(self, count: usize, device: Device) -> Result<JoinHandle<Result<usize>>> {
        let thread = thread::Builder::new().name(format!("gpupool-warm-{}", self.name()));
        thread.spawn(move || self.warm(count, device)).map_err(|e| {
            Error::invalid_value(format!("no thread could be started to warm the {} pool: {e}", self.name()))
        })
    }

    /// Destroys the idle handles of one device, or of all, and answers how many.
    ///
    /// Some libraries wait for the whole device when a handle is destroyed, which spoils every capture on it: cuBLAS,
    /// cuBLASLt, cuSOLVER and cuDSS do, and MIOpen is taken to. Of those, none is destroyed while a capture is known of:
    /// one on a [`Stream`] made by gpupool, on the calling thread's current stream, or on any blocking stream. The driver
    /// does not tell of others, so do not trim while another library captures on a non-blocking stream of its own.
    ///
    /// # Errors
    /// The first refusal of the library or driver; the other idle handles are destroyed all the same.
    pub fn trim(&self, device: Option<Device>) -> Result<usize> {
        let runtime = runtime::get()?;
        self.0.make_devices(runtime);
        let devices = match device {
            Some(device) => self.0.on(device).map(|_| vec![device])?,
            None => (0..runtime.device_count()).map(Device::from_ordinal).collect(),
        };
        let mut destroyed = 0;
        let mut first_error = None;
        for device in devices {
            match self.0.trim(runtime, device) {
                Ok(count) => destroyed += count,
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(destroyed), Err)
    }

    /// Ends the pool: it gives out no more handles, and its idle ones and the calling thread's own are destroyed. Those
    /// of other threads come back as they end, for [`HandlePool::trim`] to destroy.
    ///
    /// # Errors
    /// As [`HandlePool::trim`]; `ErrorKind::InvalidValue` for a pool of gpupool's own, which others share.
    pub fn close(&self) -> Result<usize> {
        if usize::from(self.0.id) < built_in::COUNT {
            return Err(Error::invalid_value(format!(
                "the {} pool is shared by the whole process and cannot be closed; trim() frees its idle handles",
                self.name()
            )));
        }
        let runtime = runtime::get()?;
        self.0.is_closed.store(true, Ordering::Relaxed);
        for device in (0..runtime.device_count()).map(Device::from_ordinal) {
            if let Some(record) = window::release(self.0, device) {
                self.0.give_back(device, record);
            }
        }
        self.trim(None)
    }

    /// The pool's counts, on one device or summed over all.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for a device that does not exist.
    pub fn stats(&self, device: Option<Device>) -> Result<HandleStats> {
        if let Some(device) = device {
            self.0.make_devices(runtime::get()?);
            return Ok(self.0.on(device)?.stats());
        }
        let mut sum = HandleStats::default();
        self.0.devices.get().into_iter().flatten().for_each(|pool| sum += pool.stats());
        Ok(sum)
    }
}

impl Shared {
    pub(super) const fn new(id: u8, library: &'static dyn Library) -> Self {
        Self { id, library, is_closed: AtomicBool::new(false), devices: OnceLock::new() }
    }

    #[inline]
    pub(super) fn id(&self) -> usize {
        usize::from(self.id)
    }

    /// The runtime, if handles can be asked for.
    fn require_usable(&self) -> Result<&'static dyn Runtime> {
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

    fn make_devices(&self, runtime: &dyn Runtime) {
        self.devices.get_or_init(|| (0..runtime.device_count()).map(|_| DevicePool::default()).collect());
    }

    fn on(&self, device: Device) -> Result<&DevicePool> {
        let devices = self.devices.get().map(AsRef::as_ref).unwrap_or_default();
        devices.get(device.ordinal()).ok_or_else(|| runtime::no_such_device(device.ordinal() as i64, devices.len()))
    }

    /// Counts a failed request.
    #[cold]
    fn refused(&self, device: Device, error: Error) -> Error {
        if let Ok(pool) = self.on(device) {
            pool.count_failure();
        }
        error.on(device)
    }

    /// Takes a handle back. Called as a thread ends: no call of a library or driver, and nothing that can fail.
    pub(super) fn give_back(&self, device: Device, record: Arc<Record>) {
        if !lifecycle::is_forked()
            && let Ok(pool) = self.on(device)
        {
            pool.put_idle([record]);
        }
    }

    /// Creates a handle and books it as held. If memory runs out, every pool's idle handles are destroyed first.
    fn create(&self, runtime: &'static dyn Runtime, pool: &DevicePool, device: Device) -> Result<Arc<Record>> {
        static TELLS: Once = Once::new();
        TELLS.call_once(|| crate::holders::add(holders));
        let created = create::create(runtime, self.library, device).or_else(|error| {
            if !create::is_for_want_of_memory(runtime, self.library, device, &error) {
                return Err(error);
            }
            for other in all_pools() {
                // A pool that cannot be trimmed leaves the rest to help.
                let _ = other.trim(runtime, device);
            }
            create::create(runtime, self.library, device)
                .map_err(|error| create::explain(runtime, self.library, device, error))
        });
        let created = match created {
            Ok(created) => created,
            Err(error) => {
                pool.count_failure();
                return Err(error);
            }
        };
        Ok(pool.add(created.handle, created.time, created.bytes, self.library.handle_bytes()))
    }

    /// Destroys the idle handles of a device.
    fn trim(&self, runtime: &'static dyn Runtime, device: Device) -> Result<usize> {
        let Ok(pool) = self.on(device) else { return Ok(0) };
        if pool.idle_count() == 0 || create::would_spoil_a_capture(runtime, self.library, device)? {
            return Ok(0);
        }
        // Before any handle leaves the pool, so that a refusal loses none.
        let prepared = create::Prepared::new(runtime, device)?;
        let handles = pool.remove_idle();
        let count = handles.len();
        prepared.destroy(self.library, handles).map(|()| count).inspect_err(|_| pool.count_failure())
    }
}

/// What every pool's handles hold on a device: name, handles, bytes.
fn holders(device: Device) -> Vec<(String, usize, u64)> {
    let held = all_pools().into_iter().filter_map(|pool| {
        let stats = pool.on(device).ok()?.stats();
        let handles = stats.idle + stats.held;
        (handles > 0).then(|| (pool.library.name().to_owned(), handles as usize, stats.device_bytes))
    });
    held.collect()
}

//! The pool: all handles of one library in the process.
//!
//! The hit path takes no lock and calls only the library's own stream function, and for cuBLAS the driver's that says whether
//! the stream is captured. The miss path locks one device's list
//! for as long as it takes to pop from it; creating and destroying happen outside of every lock.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::built_in;
use super::device_pool::DevicePool;
use super::holder::Holder;
use super::lease::Lease;
use super::record::Record;
use super::shared::{Shared, USER_POOLS, all_pools};
use super::stats::HandleStats;
use super::trace::{self, HandleAction};
use super::window;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::library::{self, Library};
use crate::memory::PoolToken;
use crate::observe::nvtx;
use crate::process;
use crate::runtime::{self, Stream};
use crate::sync::lock;

/// A pool of one library's handles. A cheap reference: copies speak of the same pool, which lives as long as the
/// process.
///
/// ```
/// use gpupool::{Cublas, HostHandles, Pooled, Stream};
///
/// let device = gpupool::device(0)?;
/// let stream = Stream::new(device)?;
/// // The simulated library, where there is no cuBLAS.
/// let pool = if Cublas::pool().is_available() { Cublas::pool() } else { HostHandles::pool() };
///
/// pool.warm(2, device)?; // make them ahead of need
/// let handle = pool.handle(&stream)?; // this thread's until it ends
/// let lease = pool.lease(&stream)?; // this scope's
/// assert_ne!(handle.as_ptr(), lease.as_ptr());
///
/// let stats = pool.stats(Some(device))?;
/// println!("{} created, {} held, {} leased", stats.created, stats.held, stats.leased); // 2, 1, 1
/// # Ok::<(), gpupool::Error>(())
/// ```
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

/// How many pools a process can have: as many as a byte tells apart. Pools are never dropped.
const MAX_POOLS: usize = 1 << u8::BITS;

/// How long a request waits for a handle of a pool with a limit, unless it says so itself. Not for ever: threads that hold
/// handles may be waiting for those that ask for one.
const WAIT: Duration = Duration::from_secs(30);

static NEXT_ID: AtomicUsize = AtomicUsize::new(built_in::COUNT);

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
        lock(&USER_POOLS).push(shared);
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

    /// How that file was found: a wheel, the toolkit, ...
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if it cannot be loaded.
    pub fn origin(&self) -> Result<Option<library::Origin>> {
        self.0.library.origin()
    }

    /// Whether the library has been loaded, as it is when first needed. To ask loads nothing.
    pub fn is_loaded(&self) -> bool {
        self.0.library.is_loaded()
    }

    /// Whether handles can be asked for: the library can be loaded and its runtime is the one in use.
    pub fn is_available(&self) -> bool {
        self.0.require_usable().is_ok() && self.path().is_ok()
    }

    /// The calling thread's handle on the stream's device, with the stream set. Ask for it inside a capture, not before: what
    /// a graph needs of it, such as cuBLAS's workspace, is then the graph's own.
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
        if process::is_forked() || self.0.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        let set = window::with_held(self.0, stream.device(), |record| {
            if self.0.has_memory() && !record.has_memory() {
                self.0.give_memory(record, stream.device())?;
            }
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
        let record = self.0.take(runtime, pool, stream, WAIT)?;
        self.hold(device, record)
    }

    /// [`HandlePool::obtain`] where that takes no longer than a hit: of an idle handle that is ready.
    #[cfg(feature = "python")]
    #[cold]
    pub(crate) fn obtain_idle(&self, stream: &Stream) -> Option<Result<Handle>> {
        let record = self.0.take_idle(stream)?;
        Some(record.and_then(|record| self.hold(stream.device(), record)))
    }

    fn hold(&self, device: Device, record: Arc<Record>) -> Result<Handle> {
        let address = record.handle.as_non_null();
        trace::note(self.0, device, HandleAction::Take, &record);
        if let Err((error, record)) = window::hold(self.0, device, record) {
            self.0.give_back(device, record);
            return Err(error);
        }
        Ok(Handle { address, this_thread: PhantomData })
    }

    /// A handle for a scope: nobody else's until the lease is dropped. With a [limit](HandlePool::set_limit) it waits up to
    /// 30 s for one.
    ///
    /// # Errors
    /// As [`HandlePool::handle`]; `ErrorKind::PoolExhausted` if all that there may be are in use for so long.
    #[inline]
    pub fn lease(&self, stream: &Stream) -> Result<Lease> {
        self.lease_near(stream).unwrap_or_else(|| self.lease_slowly(stream, None))
    }

    /// [`HandlePool::lease`] that waits at most so long.
    ///
    /// # Errors
    /// As [`HandlePool::lease`].
    #[inline]
    pub fn lease_within(&self, stream: &Stream, timeout: Duration) -> Result<Lease> {
        self.lease_near(stream).unwrap_or_else(|| self.lease_slowly(stream, Some(timeout)))
    }

    /// A lease of the handle that this thread gave back last, if that is at hand.
    #[inline]
    pub(crate) fn lease_near(&self, stream: &Stream) -> Option<Result<Lease>> {
        let record = self.0.take_near(stream)?;
        Some(record.map(|record| Lease::new(self.0, stream.device(), record)))
    }

    /// [`HandlePool::lease_slowly`] where that takes no longer than [`HandlePool::lease_near`].
    #[cfg(feature = "python")]
    #[cold]
    pub(crate) fn lease_idle(&self, stream: &Stream) -> Option<Result<Lease>> {
        let record = self.0.take_idle(stream)?;
        Some(record.map(|record| {
            record.hold(Holder::lease());
            trace::note(self.0, stream.device(), HandleAction::Take, &record);
            Lease::new(self.0, stream.device(), record)
        }))
    }

    #[cold]
    pub(crate) fn lease_slowly(&self, stream: &Stream, timeout: Option<Duration>) -> Result<Lease> {
        let runtime = self.0.require_usable()?;
        let device = stream.device();
        let record = self.0.take(runtime, self.0.on(device)?, stream, timeout.unwrap_or(WAIT))?;
        record.hold(Holder::lease());
        trace::note(self.0, device, HandleAction::Take, &record);
        Ok(Lease::new(self.0, device, record))
    }

    /// The most handles that there may be on each device, if there is a limit.
    pub fn limit(&self) -> Option<usize> {
        Some(self.0.limit.load(Ordering::Relaxed)).filter(|&limit| limit != usize::MAX)
    }

    /// Sets or removes the most handles that there may be on each device. Requests beyond it wait for a handle to be given
    /// back: by a lease that ends, or a thread that ends. Handles beyond a new limit stay.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for 0.
    pub fn set_limit(&self, limit: Option<usize>) -> Result<()> {
        if limit == Some(0) {
            return Err(Error::invalid_value(
                "a pool of at most 0 handles could serve nobody; give 1 or more, or none",
            ));
        }
        process::refuse_forked()?;
        self.0.limit.store(limit.unwrap_or(usize::MAX), Ordering::Relaxed);
        self.0.devices.get().into_iter().flatten().for_each(|pool| pool.set_limit(limit));
        Ok(())
    }

    /// Lets the handles on the pool's device take what device memory they need from a [`MemPool`](crate::MemPool)
    /// (`mem_pool.token()`), or with none plain memory of the driver again. cuDSS's handles can.
    ///
    /// Handles take it from the next time on that they are asked for: then everything they allocate, also for objects made
    /// before. It can be changed at any time: memory goes back to where it came from, in the order of the handle's stream, so
    /// cuDSS's objects are to be destroyed while that stream lives. The `MemPool` is kept until another is set. What the
    /// owner of a handle sets of this kind himself stays until the handle has a new owner.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the library cannot be told, or the `MemPool` was dropped or is another device's; else as
    /// [`HandlePool::handle`].
    pub fn set_mem_pool(&self, device: Device, pool: Option<&PoolToken>) -> Result<()> {
        self.0.require_usable()?;
        self.0.set_memory(device, pool)
    }

    /// Creates as many handles as are missing for `count` to be idle on the device, or as a limit allows, and answers how
    /// many that were.
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
            if !pool.make_room() {
                result = Ok(created.len());
                break;
            }
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
        let name = format!("gpupool-warm-{}", self.name());
        let thread = thread::Builder::new().name(name.clone());
        let warm = move || {
            // Of the name above the system keeps 15 bytes.
            nvtx::name_thread(&name);
            self.warm(count, device)
        };
        thread.spawn(warm).map_err(|e| {
            Error::invalid_value(format!("no thread could be started to warm the {} pool: {e}", self.name()))
        })
    }

    /// Destroys the idle handles of one device, or of all, with their workspaces, and answers how many. What graphs that are
    /// gone had as workspaces is freed too.
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
    /// `ErrorKind::InvalidValue` for a device that does not exist; `ErrorKind::Forked` in a forked child.
    pub fn stats(&self, device: Option<Device>) -> Result<HandleStats> {
        process::refuse_forked()?;
        if let Some(device) = device {
            self.0.make_devices(runtime::get()?);
            return self.0.stats(device);
        }
        let devices = self.0.devices.get().map_or(0, |pools| pools.len() as u32);
        let each = (0..devices).map(|ordinal| self.0.stats(Device::from_ordinal(ordinal)));
        each.sum()
    }

    /// Starts the peaks of the pool's counts anew on one device or on all, from what is in use and what there is now.
    ///
    /// # Errors
    /// As [`HandlePool::stats`].
    pub fn reset_peak_stats(&self, device: Option<Device>) -> Result<()> {
        process::refuse_forked()?;
        match device {
            Some(device) => {
                self.0.make_devices(runtime::get()?);
                self.0.on(device)?.reset_peaks();
            }
            None => self.0.devices.get().into_iter().flatten().for_each(DevicePool::reset_peaks),
        }
        Ok(())
    }
}

/// The devices on which handles were created. It asks no driver.
pub(crate) fn devices_in_use() -> Vec<Device> {
    let mut in_use = Vec::new();
    for devices in all_pools().into_iter().filter_map(|pool| pool.devices.get()) {
        let with_handles = (0..).zip(devices).filter(|(_, pool)| pool.has_created());
        in_use.extend(with_handles.map(|(ordinal, _)| Device::from_ordinal(ordinal)));
    }
    in_use
}

/// Starts the peaks of every pool's counts on a device anew.
pub(crate) fn reset_peak_stats(device: Device) {
    all_pools().iter().filter_map(|pool| pool.on(device).ok()).for_each(DevicePool::reset_peaks);
}

/// The counts of every pool that has been used, by name, on one device or summed over all. Pools of one name are one line.
///
/// # Errors
/// As [`HandlePool::stats`].
pub fn handle_stats(device: Option<Device>) -> Result<Vec<(String, HandleStats)>> {
    process::refuse_forked()?;
    let mut all: Vec<(String, HandleStats)> = Vec::new();
    for pool in all_pools() {
        if pool.devices.get().is_none() {
            continue;
        }
        let stats = HandlePool(pool).stats(device)?;
        match all.iter_mut().find(|(name, _)| name == pool.library.name()) {
            Some((_, sum)) => *sum += stats,
            None => all.push((pool.library.name().to_owned(), stats)),
        }
    }
    Ok(all)
}

//! `HandlePool`: all handles of one library in the process, on each device. The hit path takes no lock and calls only
//! the library's own stream function, and for cuBLAS the driver, to learn whether the stream is captured. The miss path
//! locks one device's list to pop from it; no lock is held while a handle is created, destroyed, or made ready.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::device_pool::DevicePool;
use super::events::HandleAction;
use super::handle_queue::HoldKind;
use super::lease::Lease;
use super::pooled_handle::PooledHandle;
use super::request;
use super::stats::HandleStats;
use super::window::{self, Handle};
use crate::error::{Error, MemoryUse, OneLine, Result};
use crate::ids::Device;
use crate::library::{self, Library};
use crate::memory::{Help, Helper, PoolToken};
use crate::observe::nvtx;
use crate::process;
use crate::runtime::{self, Runtime, Stream};
use crate::sync::{Interruption, lock};

/// How many pools are gpupool's own. Their ids are the numbers below this one.
pub(super) const BUILT_IN: usize = 16;

/// How many pools a process can have: as many as a byte can number. Pools are never dropped.
const MAX_POOLS: usize = 1 << u8::BITS;

const NO_LIMIT: usize = usize::MAX;

/// What the copies of a [`HandlePool`] refer to.
pub(super) struct PoolState {
    id: u8,
    library: &'static dyn Library,
    is_closed: AtomicBool,
    limit: AtomicUsize,
    /// By ordinal, made when the runtime is known.
    devices: OnceLock<Box<[DevicePool]>>,
}

impl PoolState {
    pub(super) const fn new(id: u8, library: &'static dyn Library) -> Self {
        let (is_closed, limit) = (AtomicBool::new(false), AtomicUsize::new(NO_LIMIT));
        Self { id, library, is_closed, limit, devices: OnceLock::new() }
    }
}

/// A pool of one library's handles. Copies are cheap references to the same pool, which lives as long as the process.
///
/// ```
/// use gpupool::{Cublas, Simulated, Pooled, Stream};
///
/// let device = gpupool::device(0)?;
/// let stream = Stream::new(device)?;
/// // The simulated library, where there is no cuBLAS.
/// let pool = if Cublas::pool().is_available() { Cublas::pool() } else { Simulated::pool() };
///
/// pool.warm(2, device)?; // create them in advance
/// let handle = pool.handle(&stream)?; // this thread's until it ends
/// let lease = pool.lease(&stream)?; // this scope's
/// assert_ne!(handle.as_ptr(), lease.as_ptr());
///
/// let stats = pool.stats(Some(device))?;
/// println!("{} created, {} held, {} leased", stats.created, stats.held, stats.leased); // 2, 1, 1
/// # Ok::<(), gpupool::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct HandlePool(&'static PoolState);

static NEXT_ID: AtomicUsize = AtomicUsize::new(BUILT_IN);

impl fmt::Debug for HandlePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlePool").field("library", &self.name()).field("id", &self.0.id).finish_non_exhaustive()
    }
}

impl HandlePool {
    pub(super) const fn built_in(pool: &'static PoolState) -> Self {
        Self(pool)
    }

    /// Creates a pool for a library that gpupool does not know. Create it once: pools live as long as the process.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if the process has created 256 pools; `ErrorKind::Forked` in a forked child.
    pub fn new(library: impl Library + 'static) -> Result<Self> {
        process::refuse_forked()?;
        let id = NEXT_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| (id < MAX_POOLS).then_some(id + 1));
        let Some(id) = id.ok().and_then(|id| u8::try_from(id).ok()) else {
            return Err(Error::unavailable(format!(
                "a process can have {MAX_POOLS} handle pools, and they are never dropped; make each once, not in a loop"
            )));
        };
        Ok(Self(Box::leak(Box::new(PoolState::new(id, Box::leak(Box::new(library)))))))
    }

    /// Returns the runtime, with the pool ready to make handles.
    fn require_usable(self) -> Result<&'static dyn Runtime> {
        let runtime = match self.0.library.runtime() {
            Some(kind) => runtime::require(kind)?,
            None => runtime::get()?,
        };
        if self.is_closed() {
            let name = OneLine(self.name());
            return Err(Error::invalid_value(format!("the {name} pool is closed; make another HandlePool")));
        }
        self.make_devices(runtime);
        Ok(runtime)
    }

    /// Makes the pool's parts for the runtime's devices, if it has none.
    fn make_devices(self, runtime: &dyn Runtime) {
        self.0.devices.get_or_init(|| {
            add(self);
            let (library, limit) = (self.0.library, self.0.limit.load(Ordering::Relaxed));
            let devices = (0..runtime.device_count()).map(Device::from_ordinal);
            devices.map(|device| DevicePool::new(library, device, limit)).collect()
        });
    }

    /// Returns the pool's parts by ordinal; none before the first request.
    #[inline]
    fn devices(self) -> &'static [DevicePool] {
        self.0.devices.get().map(AsRef::as_ref).unwrap_or_default()
    }

    fn on(self, device: Device) -> Result<&'static DevicePool> {
        let no_such_device = || {
            let unmade = || runtime::no_such_device(device.ordinal() as i64, self.devices().len());
            runtime::existing(device).map_or_else(|error| error, |_| unmade())
        };
        self.devices().get(device.ordinal()).ok_or_else(no_such_device)
    }

    /// Returns the parts for one device, or for all.
    fn one_or_all(self, device: Option<Device>) -> Result<&'static [DevicePool]> {
        match device {
            Some(device) => {
                self.make_devices(runtime::get()?);
                self.on(device).map(std::slice::from_ref)
            }
            None => Ok(self.devices()),
        }
    }

    /// Returns the library's name.
    pub fn name(&self) -> &'static str {
        self.0.library.name()
    }

    /// Returns the library's version, if it reports one.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if the library cannot be loaded; `ErrorKind::Forked` in a forked child.
    pub fn version(&self) -> Result<Option<library::Version>> {
        process::refuse_forked()?;
        self.0.library.version()
    }

    /// Returns the file that the library was loaded from, if it was loaded from one.
    ///
    /// # Errors
    /// As [`HandlePool::version`].
    pub fn path(&self) -> Result<Option<std::path::PathBuf>> {
        process::refuse_forked()?;
        self.0.library.path()
    }

    /// Returns how the library's file was found: a wheel, the toolkit, ...
    ///
    /// # Errors
    /// As [`HandlePool::version`].
    pub fn origin(&self) -> Result<Option<library::Origin>> {
        process::refuse_forked()?;
        self.0.library.origin()
    }

    /// Returns whether the library has been loaded; it is loaded when first needed. This call does not load it.
    pub fn is_loaded(&self) -> bool {
        self.0.library.is_loaded()
    }

    /// Returns whether [`HandlePool::close`] was called.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Relaxed)
    }

    /// Returns whether handles can be requested: the library can be loaded and its runtime is the one in use.
    pub fn is_available(&self) -> bool {
        self.require_usable().is_ok() && self.path().is_ok()
    }

    /// Returns the calling thread's handle on the stream's device, with the stream set. Call it inside a capture, not
    /// before: memory that a graph needs for the handle, such as cuBLAS's workspace, then belongs to the graph.
    ///
    /// If a library [keeps scratch memory](Library::keeps_scratch) in its handles, as cuStateVec, cuTensorNet
    /// and ROCm's except MIOpen do, a thread has a handle for each of up to eight streams; a further stream gets the
    /// handle that was assigned to its stream the longest time ago, and waits for the work of that stream.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound`, `ErrorKind::RuntimeUnavailable`, `ErrorKind::Library` or `ErrorKind::OutOfMemory`
    /// if there is no handle; `ErrorKind::InvalidValue` for a device that does not exist or a closed pool;
    /// `ErrorKind::Forked`.
    #[inline]
    pub fn handle(&self, stream: &Stream) -> Result<Handle> {
        self.held(stream).unwrap_or_else(|| self.handle_with(stream, Interruption::default()))
    }

    /// As [`HandlePool::handle`], if that takes no longer than a hit.
    #[cfg(feature = "python")]
    #[inline]
    pub(crate) fn handle_at_once(&self, stream: &Stream) -> Option<Result<Handle>> {
        let at_once =
            || self.serve_at_once(stream, HoldKind::Window).map(|served| served.map(|pooled| Handle::of(&pooled)));
        self.held(stream).or_else(at_once)
    }

    /// As [`HandlePool::handle`], for a request that missed.
    #[cold]
    pub(crate) fn handle_with(&self, stream: &Stream, interruption: Interruption<'_>) -> Result<Handle> {
        self.serve(stream, HoldKind::Window, None, interruption).map(|pooled| Handle::of(&pooled))
    }

    /// Returns the pool's part on a device; none in rare cases, which are left to the miss path.
    #[inline]
    fn usable_on(self, device: Device) -> Option<&'static DevicePool> {
        if process::is_forked() || self.is_closed() { None } else { self.devices().get(device.ordinal()) }
    }

    /// Returns this thread's handle, if it holds one for the stream.
    #[inline]
    fn held(self, stream: &Stream) -> Option<Result<Handle>> {
        let on = self.usable_on(stream.device())?;
        let held = window::held(on, stream)?;
        let pooled: &PooledHandle = &held.0;
        let set = on.give_missing_memory(&pooled.handle).and_then(|()| on.library.set_stream(&pooled.handle, stream));
        Some(match set {
            Ok(()) => {
                pooled.note_stream(stream.raw());
                pooled.count_hit();
                Ok(Handle::of(pooled))
            }
            Err(error) => {
                on.count_failure();
                Err(error.on(on.device))
            }
        })
    }

    /// Leases the handle that this thread gave back last, if it last ran on this stream and no request waits.
    #[inline]
    fn given_back(self, stream: &Stream) -> Option<Result<Lease>> {
        self.take_given_back(stream).map(|taken| taken.map(Lease::of))
    }

    /// Not inlined and not a lease yet, so that a register holds the result and the caller makes the lease in place.
    #[inline(never)]
    fn take_given_back(self, stream: &Stream) -> Option<Result<Arc<PooledHandle>>> {
        let on = self.usable_on(stream.device())?;
        match request::make_ready(window::take_given_back(on, stream)?, stream) {
            Ok(Some(pooled)) => {
                pooled.state.hold(HoldKind::Lease);
                pooled.count_hit();
                on.begin_use(&pooled);
                on.note(HandleAction::Take, &pooled.handle);
                Some(Ok(pooled))
            }
            Ok(None) => {
                on.queue.leave_room();
                None
            }
            Err(error) => Some(Err(error.on(on.device))),
        }
    }

    /// Serves a request that missed, if that takes no longer than a hit.
    #[cfg(feature = "python")]
    fn serve_at_once(self, stream: &Stream, hold: HoldKind) -> Option<Result<Arc<PooledHandle>>> {
        let served = self.usable_on(stream.device())?.serve_at_once(stream, hold)?;
        Some(served.map_err(|error| error.on(stream.device())))
    }

    /// Serves a request that missed, for a caller that may wait.
    #[cold]
    fn serve(
        self,
        stream: &Stream,
        hold: HoldKind,
        timeout: Option<Duration>,
        interruption: Interruption<'_>,
    ) -> Result<Arc<PooledHandle>> {
        let runtime = self.require_usable()?;
        let on = self.on(stream.device())?;
        on.serve(runtime, stream, hold, timeout, interruption).map_err(|error| error.on(on.device))
    }

    /// Returns a handle that only its holder uses until the lease is dropped. With a [limit](HandlePool::set_limit) the
    /// call waits up to 30 s for a handle.
    ///
    /// # Errors
    /// As [`HandlePool::handle`]; `ErrorKind::PoolExhausted` if the maximum number of handles is in use for that long.
    #[inline]
    pub fn lease(&self, stream: &Stream) -> Result<Lease> {
        self.given_back(stream).unwrap_or_else(|| self.lease_with(stream, None, Interruption::default()))
    }

    /// As [`HandlePool::lease`], but waits at most this long.
    ///
    /// # Errors
    /// As [`HandlePool::lease`]; `ErrorKind::InvalidValue` in a callback, if the call would have to wait and the
    /// timeout never ends.
    #[inline]
    pub fn lease_within(&self, stream: &Stream, timeout: Duration) -> Result<Lease> {
        self.given_back(stream).unwrap_or_else(|| self.lease_with(stream, Some(timeout), Interruption::default()))
    }

    /// As [`HandlePool::lease`], if that takes no longer than a hit.
    #[cfg(feature = "python")]
    #[inline]
    pub(crate) fn lease_at_once(&self, stream: &Stream) -> Option<Result<Lease>> {
        let at_once = || self.serve_at_once(stream, HoldKind::Lease).map(|served| served.map(Lease::of));
        self.given_back(stream).or_else(at_once)
    }

    /// As [`HandlePool::lease`], for a request that missed.
    #[cold]
    pub(crate) fn lease_with(
        &self,
        stream: &Stream,
        timeout: Option<Duration>,
        interruption: Interruption<'_>,
    ) -> Result<Lease> {
        self.serve(stream, HoldKind::Lease, timeout, interruption).map(Lease::of)
    }

    /// Returns the maximum number of handles on each device, if there is a limit.
    pub fn limit(&self) -> Option<usize> {
        Some(self.0.limit.load(Ordering::Relaxed)).filter(|&limit| limit != NO_LIMIT)
    }

    /// Sets or removes the maximum number of handles on each device. Requests beyond it wait until a lease or a thread
    /// ends. Handles beyond a new limit are kept.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for 0.
    pub fn set_limit(&self, limit: Option<usize>) -> Result<()> {
        if limit == Some(0) {
            return Err(Error::invalid_value(
                "a pool of at most 0 handles could serve no request; give 1 or more, or none",
            ));
        }
        process::refuse_forked()?;
        let limit = limit.unwrap_or(NO_LIMIT);
        self.0.limit.store(limit, Ordering::Relaxed);
        self.devices().iter().for_each(|on| on.queue.set_limit(limit));
        Ok(())
    }

    /// Lets the handles on the device allocate their device memory from a [`MemPool`](crate::MemPool)
    /// (`mem_pool.token()`), or with none from the driver again. cuDSS, cuStateVec and cuTensorNet support this.
    ///
    /// The change takes effect at the next request for a handle: then everything that the handle allocates comes from
    /// the `MemPool`, also for existing objects. The `MemPool` can be changed at any time: memory is freed to where it
    /// came from, in the order of the handle's stream, so destroy cuDSS's objects while that stream exists. The
    /// `MemPool` is kept until another is set. A memory handler that the owner of a handle sets itself stays until the
    /// handle has a new owner.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the library does not support this, or the `MemPool` was dropped or is another
    /// device's; otherwise as [`HandlePool::handle`].
    pub fn set_mem_pool(&self, device: Device, pool: Option<&PoolToken>) -> Result<()> {
        self.require_usable()?;
        self.on(device)?.set_memory(pool)
    }

    /// Returns the `MemPool` that [`set_mem_pool`](HandlePool::set_mem_pool) has set for the device; none without one.
    ///
    /// # Errors
    /// As [`HandlePool::handle`].
    pub fn mem_pool(&self, device: Device) -> Result<Option<PoolToken>> {
        self.require_usable()?;
        Ok(self.on(device)?.memory())
    }

    /// Creates handles until `count` are idle on the device, or as many as a limit allows, and returns how many were
    /// created.
    ///
    /// # Errors
    /// As [`HandlePool::handle`]; the handles created before the failure are kept.
    pub fn warm(&self, count: usize, device: Device) -> Result<usize> {
        let runtime = self.require_usable()?;
        let on = self.on(device)?;
        let missing = count.saturating_sub(on.queue.idle_count());
        // Kept aside until all are made: if memory is short, each creation destroys idle ones.
        let mut created = Vec::new();
        let mut refused = Ok(());
        while refused.is_ok() && created.len() < missing && on.queue.make_room() {
            refused = on.create(runtime).map(|pooled| created.push(pooled));
        }
        let count = created.len();
        created.into_iter().for_each(|pooled| on.put_idle(&pooled));
        refused.map(|()| count)
    }

    /// As [`HandlePool::warm`], on a separate thread. The statistics count a failure.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if there is no such device; `ErrorKind::Unavailable` if the system cannot start a
    /// thread.
    pub fn warm_in_background(self, count: usize, device: Device) -> Result<JoinHandle<Result<usize>>> {
        let device = runtime::existing(device)?;
        let name = format!("gpupool-warm-{}", self.name());
        let thread = thread::Builder::new().name(name.clone());
        let warm = move || {
            // The system keeps 15 bytes of the name above.
            nvtx::name_thread(&name);
            self.warm(count, device)
        };
        thread.spawn(warm).map_err(|e| {
            Error::unavailable(format!("no thread could be started to warm the {} pool: {e}", OneLine(self.name())))
        })
    }

    /// Destroys the idle handles of one device, or of all, with their workspaces, and returns how many. Workspaces of
    /// graphs that no longer exist are freed too.
    ///
    /// Some libraries wait for the whole device when a handle is destroyed, which invalidates every capture on it:
    /// cuBLAS, cuBLASLt, cuSOLVER and cuDSS do, and ROCm's libraries, cuStateVec, cuTensorNet, cuTENSOR and cuSPARSELt
    /// are assumed to. Their handles are not destroyed while gpupool knows of a capture: one on a [`Stream`] of
    /// gpupool, on the calling thread's current stream, or on any blocking stream. The driver does not report others,
    /// so do not trim while another library captures on its own non-blocking stream.
    ///
    /// # Errors
    /// The first error of the library or driver; the other idle handles are destroyed nevertheless.
    pub fn trim(&self, device: Option<Device>) -> Result<usize> {
        let runtime = runtime::get()?;
        self.make_devices(runtime);
        let mut destroyed = Ok(0);
        for on in self.one_or_all(device)? {
            let trimmed = on.trim(runtime);
            destroyed = destroyed.and_then(|sum| trimmed.map(|count| sum + count));
        }
        destroyed
    }

    /// Closes the pool: it returns no more handles, and its idle ones and the calling thread's own are destroyed. Other
    /// threads' handles return when the threads end; then [`HandlePool::trim`] destroys them.
    ///
    /// # Errors
    /// As [`HandlePool::trim`]; `ErrorKind::InvalidValue` for one of gpupool's own pools, which are shared.
    pub fn close(&self) -> Result<usize> {
        if usize::from(self.0.id) < BUILT_IN {
            return Err(Error::invalid_value(format!(
                "the {} pool is shared by the whole process and cannot be closed; trim() frees its idle handles",
                OneLine(self.name())
            )));
        }
        self.0.is_closed.store(true, Ordering::Relaxed);
        self.devices().iter().for_each(window::release);
        self.trim(None)
    }

    /// Returns the pool's counts, on one device or summed over all.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for a device that does not exist; `ErrorKind::Forked` in a forked child.
    pub fn stats(&self, device: Option<Device>) -> Result<HandleStats> {
        process::refuse_forked()?;
        Ok(self.one_or_all(device)?.iter().map(DevicePool::stats).sum())
    }

    /// Resets the peaks of the pool's counts to the current values, on one device or on all.
    ///
    /// # Errors
    /// As [`HandlePool::stats`].
    pub fn reset_peak_stats(&self, device: Option<Device>) -> Result<()> {
        process::refuse_forked()?;
        self.one_or_all(device)?.iter().for_each(DevicePool::reset_peaks);
        Ok(())
    }
}

/// The pools that have been used, in the order of their ids.
static POOLS: Mutex<Vec<HandlePool>> = Mutex::new(Vec::new());

/// Adds a pool, before its first handle is made.
fn add(pool: HandlePool) {
    Help::IdleHandles.is_from(&AllPools);
    let mut pools = lock(&POOLS);
    let place = pools.partition_point(|other| other.0.id < pool.0.id);
    pools.insert(place, pool);
}

#[derive(Debug)]
struct AllPools;

impl Helper for AllPools {
    /// Destroys the idle handles of a device, however much is wanted, except those of libraries that are the program's
    /// own code. They may have used many more bytes than is known.
    fn give(&self, device: Device, _: u64) -> Option<u64> {
        let used = || self.users(device).iter().map(|used| used.bytes).sum::<u64>();
        let before = used();
        let count = release_where(device, |on| !on.library.is_of_program());
        let bytes = before.saturating_sub(used());
        // Workspaces may go without a handle, too.
        (count > 0 || bytes > 0).then_some(bytes)
    }

    fn users(&self, device: Device) -> Vec<MemoryUse> {
        let all = handle_stats(Some(device)).unwrap_or_default();
        let used = all.into_iter().map(|(name, stats)| stats.memory_use(&name));
        used.filter(|used| used.bytes > 0 || used.count > 0).collect()
    }
}

/// Returns every pool on a device, as a copy, so that no lock is held while a pool is used.
fn all_on(device: Device) -> Vec<&'static DevicePool> {
    lock(&POOLS).iter().filter_map(|pool| pool.devices().get(device.ordinal())).collect()
}

/// Returns the devices on which handles were created, without a call of the driver.
pub(crate) fn devices_in_use() -> Vec<Device> {
    let pools = lock(&POOLS).clone();
    let every = pools.into_iter().flat_map(HandlePool::devices);
    every.filter(|on| on.has_created()).map(|on| on.device).collect()
}

/// Resets the peaks of every pool's counts on a device.
pub(crate) fn reset_peak_stats(device: Device) {
    all_on(device).into_iter().for_each(DevicePool::reset_peaks);
}

/// Returns the counts of every pool that has been used, by name, on one device or summed over all. Pools with the same
/// name are summed.
///
/// # Errors
/// As [`HandlePool::stats`].
pub fn handle_stats(device: Option<Device>) -> Result<Vec<(String, HandleStats)>> {
    process::refuse_forked()?;
    let device = device.map(runtime::existing).transpose()?;
    let mut sums: Vec<(String, HandleStats)> = Vec::new();
    let pools = lock(&POOLS).clone();
    for pool in pools {
        let stats = pool.stats(device)?;
        match sums.iter_mut().find(|(name, _)| name == pool.name()) {
            Some((_, sum)) => *sum += stats,
            None => sums.push((pool.name().to_owned(), stats)),
        }
    }
    Ok(sums)
}

pub(crate) fn release_idle(device: Device) {
    release_where(device, |_| true);
}

/// Destroys the idle handles of these pools, and returns how many.
fn release_where(device: Device, is_meant: impl Fn(&DevicePool) -> bool) -> usize {
    let Ok(runtime) = runtime::get() else { return 0 };
    let meant = all_on(device).into_iter().filter(|on| is_meant(on));
    // A failure to trim one pool does not stop the rest; the trim may have destroyed some handles.
    meant.map(|on| on.trim(runtime).unwrap_or(1)).sum()
}

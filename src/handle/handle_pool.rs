//! `HandlePool`: a pool as its users see it. The hit path takes no lock and calls only the library's own stream
//! function, and for cuBLAS the driver, to learn whether the stream is captured. The miss path locks one device's list
//! to pop from it; creating and destroying happen outside every lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::device_pool::{DevicePool, PooledHandle};
use super::lease::Lease;
use super::pool::{BUILT_IN, LibraryPool};
use super::pools;
use super::request::{self, Claim, HandleAttempt};
use super::stats::HandleStats;
use super::window::{self, Handle};
use crate::error::{Error, OneLine, Result};
use crate::ids::Device;
use crate::library::{self, Library};
use crate::memory::PoolToken;
use crate::observe::nvtx;
use crate::process;
use crate::runtime::{self, Runtime, Stream};
use crate::sync::Interruption;

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
pub struct HandlePool(&'static LibraryPool);

/// How many pools a process can have: as many as a byte can number. Pools are never dropped.
const MAX_POOLS: usize = 1 << u8::BITS;

static NEXT_ID: AtomicUsize = AtomicUsize::new(BUILT_IN);

impl fmt::Debug for HandlePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlePool").field("library", &self.name()).field("id", &self.0.id()).finish_non_exhaustive()
    }
}

impl HandlePool {
    pub(super) const fn built_in(pool: &'static LibraryPool) -> Self {
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
        Ok(Self(Box::leak(Box::new(LibraryPool::new(id, Box::leak(Box::new(library)))))))
    }

    /// Returns the runtime, with the pool ready to make handles.
    fn require_usable(&self) -> Result<&'static dyn Runtime> {
        let runtime = self.0.require_usable()?;
        self.make_devices(runtime);
        Ok(runtime)
    }

    fn make_devices(&self, runtime: &dyn Runtime) {
        self.0.make_devices(runtime, || pools::add(self.0));
    }

    /// Returns the library's name.
    pub fn name(&self) -> &'static str {
        self.0.library.name()
    }

    /// Returns the library's version, if it reports one.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if it cannot be loaded; `ErrorKind::Forked` in a forked child.
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

    /// Returns how that file was found: a wheel, the toolkit, ...
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
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Returns whether handles can be requested: the library can be loaded and its runtime is the one in use.
    pub fn is_available(&self) -> bool {
        self.require_usable().is_ok() && self.path().is_ok()
    }

    /// Returns the calling thread's handle on the stream's device, with the stream set. Call it inside a capture, not
    /// before: memory that a graph needs for the handle, such as cuBLAS's workspace, then belongs to the graph.
    ///
    /// If a library [keeps scratch memory](Library::keeps_scratch) in its handles, as ROCm's, cuStateVec and cuTensorNet do, a
    /// thread has a handle for each of up to eight streams; a further stream gets the handle that was assigned to its stream
    /// the longest time ago, and waits for the work of that stream.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound`, `ErrorKind::RuntimeUnavailable`, `ErrorKind::Library` or `ErrorKind::OutOfMemory`
    /// if there is no handle; `ErrorKind::InvalidValue` for a device that does not exist or a closed pool;
    /// `ErrorKind::Forked`.
    #[inline]
    pub fn handle(&self, stream: &Stream) -> Result<Handle> {
        match self.held(stream) {
            Some(held) => held,
            None => self.serve(stream, None),
        }
    }

    /// As [`HandlePool::handle`], as far as possible without waiting.
    #[cfg(feature = "python")]
    #[inline]
    pub(crate) fn try_handle<'s>(&self, stream: &'s Stream) -> Result<HandleAttempt<'s, Handle>> {
        match self.held(stream) {
            Some(held) => held.map(HandleAttempt::Ready),
            None => self.begin(stream),
        }
    }

    /// Begins the miss path of a request.
    #[cold]
    fn begin<'s, T: Claim>(&self, stream: &'s Stream) -> Result<HandleAttempt<'s, T>> {
        request::begin(self.0, self.require_usable()?, stream)
    }

    /// Serves a request that missed, for a caller that may wait.
    #[cold]
    fn serve<T: Claim>(&self, stream: &Stream, timeout: Option<Duration>) -> Result<T> {
        match self.begin(stream)? {
            HandleAttempt::Ready(ready) => Ok(ready),
            HandleAttempt::Unfinished(unfinished) => unfinished.finish(timeout, Interruption::default()),
        }
    }

    /// Returns this thread's handle, if it holds one for the stream. All rare cases are left to the miss path.
    #[inline]
    fn held(&self, stream: &Stream) -> Option<Result<Handle>> {
        if process::is_forked() || self.0.is_closed() {
            return None;
        }
        let set = window::with_held(self.0, stream, |pooled| {
            if self.0.has_memory() && !pooled.takes_our_memory() {
                self.0.give_memory(pooled, stream.device())?;
            }
            self.0.library.set_stream(&pooled.handle, stream).map(|()| {
                pooled.note_stream(stream.raw());
                pooled.count_hit();
                Handle::of(pooled)
            })
        })?;
        Some(set.map_err(|error| self.0.refused(stream.device(), error)))
    }

    /// Returns a handle for a scope, which only its holder uses until the lease is dropped. With a
    /// [limit](HandlePool::set_limit) it waits up to 30 s for one.
    ///
    /// # Errors
    /// As [`HandlePool::handle`]; `ErrorKind::PoolExhausted` if the maximum number of handles is in use for that long.
    #[inline]
    pub fn lease(&self, stream: &Stream) -> Result<Lease> {
        self.lease_for(stream, None)
    }

    /// As [`HandlePool::lease`], but waits at most so long.
    ///
    /// # Errors
    /// As [`HandlePool::lease`]; `ErrorKind::InvalidValue` in a callback, if it would have to wait and the time never ends.
    #[inline]
    pub fn lease_within(&self, stream: &Stream, timeout: Duration) -> Result<Lease> {
        self.lease_for(stream, Some(timeout))
    }

    #[inline]
    fn lease_for(&self, stream: &Stream, timeout: Option<Duration>) -> Result<Lease> {
        match Lease::take_own(self.0, stream) {
            Some(own) => own.map(|pooled| Lease::new(self.0, stream.device(), pooled)),
            None => self.serve(stream, timeout),
        }
    }

    /// Returns the lease again that this handle was taken out of.
    #[inline]
    pub(crate) const fn lease_of(&self, device: Device, pooled: Arc<PooledHandle>) -> Lease {
        Lease::new(self.0, device, pooled)
    }

    /// [`HandlePool::lease`] as far as it can be served without a wait.
    #[cfg(feature = "python")]
    #[inline]
    pub(crate) fn try_lease<'s>(&self, stream: &'s Stream) -> Result<HandleAttempt<'s, Lease>> {
        match Lease::take_own(self.0, stream) {
            Some(own) => own.map(|pooled| HandleAttempt::Ready(Lease::new(self.0, stream.device(), pooled))),
            None => self.begin(stream),
        }
    }

    /// Returns the maximum number of handles on each device, if there is a limit.
    pub fn limit(&self) -> Option<usize> {
        self.0.limit()
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
        self.0.set_limit(limit);
        Ok(())
    }

    /// Lets the handles on the pool's device allocate their device memory from a [`MemPool`](crate::MemPool)
    /// (`mem_pool.token()`), or with none from the driver again. cuDSS, cuStateVec and cuTensorNet
    /// support this.
    ///
    /// It takes effect at the next request for a handle: then everything that the handle allocates comes from there, also for
    /// existing objects. It can be changed at any time: memory is freed to where it came from, in the order of the handle's
    /// stream, so destroy cuDSS's objects while that stream exists. The `MemPool` is kept until another is set. A memory
    /// handler that the owner of a handle sets itself stays until the handle has a new owner.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the library does not support this, or the `MemPool` was dropped or is another
    /// device's; otherwise as [`HandlePool::handle`].
    pub fn set_mem_pool(&self, device: Device, pool: Option<&PoolToken>) -> Result<()> {
        self.require_usable()?;
        self.0.set_memory(device, pool)
    }

    /// Returns the `MemPool` that [`set_mem_pool`](HandlePool::set_mem_pool) has set for the device; none without one.
    ///
    /// # Errors
    /// As [`HandlePool::handle`].
    pub fn mem_pool(&self, device: Device) -> Result<Option<PoolToken>> {
        self.require_usable()?;
        self.0.memory(device)
    }

    /// Creates handles until `count` are idle on the device, or as many as a limit allows, and returns how many were
    /// created.
    ///
    /// # Errors
    /// As [`HandlePool::handle`]; the handles created before the failure are kept.
    pub fn warm(&self, count: usize, device: Device) -> Result<usize> {
        let runtime = self.require_usable()?;
        let pool = self.0.on(device)?;
        let missing = count.saturating_sub(pool.idle_count());
        // Kept aside until all are made: if memory is short, each creation destroys idle ones.
        let mut created = Vec::new();
        let mut result = Ok(missing);
        for _ in 0..missing {
            if !pool.make_room() {
                result = Ok(created.len());
                break;
            }
            match self.0.create(runtime, pool, device) {
                Ok(pooled) => created.push(pooled),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        pool.put_idle(created);
        result
    }

    /// As [`HandlePool::warm`], on a separate thread. The statistics count a failure.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if there is no such device; `ErrorKind::Unavailable` if the system cannot start a thread.
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
    /// Some libraries wait for the whole device when a handle is destroyed, which invalidates every capture on it: cuBLAS,
    /// cuBLASLt, cuSOLVER and cuDSS do, and ROCm's libraries, cuStateVec, cuTensorNet, cuTENSOR and cuSPARSELt are assumed to.
    /// Their handles are not destroyed while gpupool knows of a capture: one on a [`Stream`] of gpupool, on the calling
    /// thread's current stream, or on any blocking stream. The driver does not report others, so do not trim while another
    /// library captures on its own non-blocking stream.
    ///
    /// # Errors
    /// The first error of the library or driver; the other idle handles are destroyed nevertheless.
    pub fn trim(&self, device: Option<Device>) -> Result<usize> {
        let runtime = runtime::get()?;
        self.make_devices(runtime);
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

    /// Closes the pool: it returns no more handles, and its idle ones and the calling thread's own are destroyed. Other
    /// threads' handles return when the threads end; then [`HandlePool::trim`] destroys them.
    ///
    /// # Errors
    /// As [`HandlePool::trim`]; `ErrorKind::InvalidValue` for one of gpupool's own pools, which are shared.
    pub fn close(&self) -> Result<usize> {
        if self.0.is_built_in() {
            return Err(Error::invalid_value(format!(
                "the {} pool is shared by the whole process and cannot be closed; trim() frees its idle handles",
                OneLine(self.name())
            )));
        }
        let runtime = runtime::get()?;
        self.0.close();
        for device in (0..runtime.device_count()).map(Device::from_ordinal) {
            for pooled in window::release(self.0, device) {
                self.0.give_back(device, pooled);
            }
        }
        self.trim(None)
    }

    /// Returns the pool's counts, on one device or summed over all.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for a device that does not exist; `ErrorKind::Forked` in a forked child.
    pub fn stats(&self, device: Option<Device>) -> Result<HandleStats> {
        process::refuse_forked()?;
        if let Some(device) = device {
            self.make_devices(runtime::get()?);
            return self.0.stats(device);
        }
        self.0.total_stats()
    }

    /// Resets the peaks of the pool's counts to the current values, on one device or on all.
    ///
    /// # Errors
    /// As [`HandlePool::stats`].
    pub fn reset_peak_stats(&self, device: Option<Device>) -> Result<()> {
        process::refuse_forked()?;
        match device {
            Some(device) => {
                self.make_devices(runtime::get()?);
                self.0.on(device)?.reset_peaks();
            }
            None => self.0.devices().iter().for_each(DevicePool::reset_peaks),
        }
        Ok(())
    }
}

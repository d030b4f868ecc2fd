//! Private pools of device memory.

use std::sync::{Arc, Mutex};

use super::device::{DriverSegments, SegmentSource, Source};
use super::device_buffer::{DeviceBuffer, empty};
use super::peer::join;
use super::pool::SegmentGuard;
use super::pool::{Pool, PoolId, Rules, SegmentEvent, UseOf};
use super::range::{MemoryRange, reserve_range};
use super::report::{self, PoolStats, SegmentView};
use super::route::{CaptureScope, Followers, PoolScope, PoolToken};
use super::serve::{self, Patience, PoolSettings, PoolUse};
use super::sleep::{Backup, sleep_pool, wake_pool};
use crate::error::Result;
use crate::ids::Device;
use crate::process;
use crate::runtime::{self, Stream};
use crate::sync::ThisThread;
#[cfg(feature = "python")]
use crate::sync::lock;

/// A private pool of one device's memory.
///
/// Memory that a thread allocates in a scope of the pool ([`MemPool::enter`]) comes from the pool's own memory and
/// returns there when it is freed, so it is not mixed with other memory, and serves nothing else. When the pool is
/// dropped, live blocks stay valid; its free memory is released to the driver at once, the rest when it is freed.
///
/// ```
/// let device = gpupool::device(0)?;
/// let stream = gpupool::Stream::new(device)?;
/// let pool = gpupool::MemPool::builder().device(device).limit(1 << 30).build()?;
/// let buffer = {
///     let _scope = pool.enter()?;
///     gpupool::empty(1 << 20, &stream)?
/// };
/// assert_eq!(buffer.pool_id(), pool.id());
/// # Ok::<(), gpupool::Error>(())
/// ```
#[derive(Debug)]
pub struct MemPool {
    pool: Arc<Pool>,
    /// None once Python has ended the pool.
    #[cfg_attr(not(feature = "python"), expect(dead_code, reason = "it ends with the pool"))]
    owner: Mutex<Option<PoolUse>>,
    device: Device,
    allocator: Option<Arc<dyn SegmentSource>>,
}

/// The settings of a [`MemPool`] to create.
#[derive(Clone, Debug, Default)]
#[must_use = "call build()"]
pub struct MemPoolBuilder {
    device: Option<Device>,
    rules: Rules,
    allocator: Option<Arc<dyn SegmentSource>>,
    segments: bool,
    limit: Option<u64>,
    reserve: u64,
    is_for_graphs: bool,
}

impl MemPoolBuilder {
    /// Sets the device; by default the calling thread's current one.
    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// Sets where the memory comes from, instead of gpupool's own pages.
    pub fn allocator(mut self, source: Arc<dyn SegmentSource>) -> Self {
        self.allocator = Some(source);
        self
    }

    /// Sets whether the pool's id is `(0, n)`, as those of pools made by users, or `(n, 0)`, as those of pools made for
    /// graph capture; the former by default.
    pub fn user_created(mut self, user_created: bool) -> Self {
        self.is_for_graphs = !user_created;
        self
    }

    /// Sets whether requests of other pools may use this pool's free memory when the device has no more. They get free
    /// pages, or else blocks of this pool, which count in it: while one is live, [`MemPool::sleep`] is refused.
    pub fn use_on_oom(mut self, use_on_oom: bool) -> Self {
        self.rules.use_on_oom = use_on_oom;
        self
    }

    /// Sets whether the pool is put to sleep, with a backup, when another process of the user needs the device's memory and
    /// gpupool's neighbours have nothing else to give. This process becomes a neighbour; see
    /// [`set_neighbour`](crate::set_neighbour). The pool is not put to sleep while a thread has a scope of it, or a
    /// stream of it is captured: hold a scope for as long as you submit work with the pool's blocks, and wake the pool
    /// first. It stays asleep until [`MemPool::wake`], unless it [`wakes_on_use`](MemPoolBuilder::wakes_on_use).
    pub fn sleeps_for_others(mut self, sleeps_for_others: bool) -> Self {
        self.rules.sleeps_for_others = sleeps_for_others;
        self
    }

    /// Sets whether the next use wakes a pool that sleeps for another process: a request to it, a scope of it, a copy
    /// or fill of one of its buffers, or a commit of pages of its ranges. That use takes as long as waking, and fails
    /// as waking does.
    pub fn wakes_on_use(mut self, wakes_on_use: bool) -> Self {
        self.rules.wakes_on_use = wakes_on_use;
        self
    }

    /// Sets whether each block has its own segment, which is never split, as needed to register it with NCCL or a
    /// network card. A segment is one extent of physical memory, at one address, until [`MemPool::trim`] or the pool's
    /// end: nothing else releases it, moves it or puts it to sleep. A freed segment serves later requests of at most
    /// its size, as a whole.
    pub fn no_split(mut self, no_split: bool) -> Self {
        self.rules.no_split = no_split;
        self
    }

    /// Sets whether the memory comes from the driver's plain allocations (`cuMemAlloc`), which legacy IPC can share,
    /// and which never move. Releasing them waits for the device.
    pub fn segments(mut self, segments: bool) -> Self {
        self.segments = segments;
        self
    }

    /// Sets the maximum number of bytes that the pool may reserve.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Sets how many bytes of physical memory the pool keeps from its creation to its end, in whole pages of 2 MiB, at
    /// contiguous addresses. [`MemPool::trim`], [`empty_cache`](super::empty_cache) and other pools that run out of
    /// memory do not release them. The pool's requests are served from them first, without a driver call.
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve = bytes;
        self
    }

    /// Creates the pool. Apart from its reserve it uses no memory before its first allocation.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if there is no such device, if the reserve is above the limit, if a pool with its own
    /// source or with `no_split` has a reserve, or if a pool that does not sleep for others is to wake on use;
    /// `ErrorKind::Unavailable` if a pool with its own source or with `no_split` is to sleep for others;
    /// `ErrorKind::OutOfMemory` if there is not enough memory for the reserve, even after other pools released what
    /// they can and callbacks were called; otherwise as [`device`](crate::device).
    pub fn build(self) -> Result<MemPool> {
        let device = match self.device {
            Some(device) => runtime::existing(device)?,
            None => runtime::get()?.current_device()?,
        };
        let driver_segments = || Source::Segments(Arc::new(DriverSegments));
        let source = self.allocator.clone().map(Source::Segments).or_else(|| self.segments.then(driver_segments));
        let rules = Rules { has_own_source: source.is_some(), ..self.rules };
        let id = PoolId::next(!self.is_for_graphs);
        let options =
            PoolSettings { rules, source, limit: self.limit, reserve: self.reserve, ..PoolSettings::default() };
        let owner = serve::make_pool(device, id, options)?;
        if rules.sleeps_for_others {
            join()?;
        }
        let pool = Arc::clone(owner.pool());
        Ok(MemPool { pool, owner: Mutex::new(Some(owner)), device, allocator: self.allocator })
    }
}

impl MemPool {
    /// Returns a builder with the default settings.
    pub fn builder() -> MemPoolBuilder {
        MemPoolBuilder::default()
    }

    fn hold(&self) -> Result<PoolUse> {
        PoolUse::new(&self.pool, UseOf::Requests)
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns the id of the pool, unique in the process: `(0, n)`, or `(n, 0)` for a pool made for graph capture.
    pub fn id(&self) -> PoolId {
        self.pool().id
    }

    /// Returns the device whose memory the pool allocates.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the allocator that the pool's memory comes from, if it was created with one.
    pub fn allocator(&self) -> Option<&Arc<dyn SegmentSource>> {
        self.allocator.as_ref()
    }

    /// Returns how many users the pool has: 1 for this object, and 1 for each open scope, each capture that was not
    /// reset, each memory range and each library that allocates from it.
    pub fn use_count(&self) -> u32 {
        self.pool().use_count()
    }

    /// Returns whether other pools may use the pool's free memory when the device has no more memory.
    pub fn use_on_oom(&self) -> bool {
        self.pool().use_on_oom()
    }

    /// Returns whether the pool may be put to sleep for another process.
    pub fn sleeps_for_others(&self) -> bool {
        self.pool().sleep.offer.is_made
    }

    /// Returns whether the pool's next use wakes it when it sleeps for another process.
    pub fn wakes_on_use(&self) -> bool {
        self.pool().sleep.offer.wakes_on_use
    }

    /// Returns whether each block has its own segment.
    pub fn no_split(&self) -> bool {
        self.pool().no_split()
    }

    /// Returns the maximum number of bytes that the pool may reserve, if there is a limit.
    pub fn limit(&self) -> Option<u64> {
        self.pool().budget().limit()
    }

    /// Returns how many bytes of physical memory the pool keeps from its creation to its end.
    pub fn reserve(&self) -> u64 {
        self.pool().supply.reserve().map_or(0, |reserve| reserve.run.bytes())
    }

    /// Sets or removes the limit. Memory reserved beyond it is kept until it is freed and trimmed.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.pool().budget().set_limit(limit);
    }

    /// Routes the calling thread's allocations on this device to the pool, until the scope is dropped. Scopes nest, and
    /// any number of threads may be in the same pool at the same time.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` while the thread ends, or if the pool is closed.
    pub fn enter(&self) -> Result<PoolScope> {
        PoolScope::new(self.hold()?, Followers::Thread)
    }

    /// As [`MemPool::enter`], and also for every other thread while it has no scope of its own on this device, until
    /// the scope is dropped: for threads that cannot enter one, such as those that a library starts. Requests of all
    /// threads take slightly longer meanwhile. If there are several such scopes, the one entered last applies.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` while the thread ends, or if the pool is closed.
    pub fn enter_all_threads(&self) -> Result<PoolScope> {
        PoolScope::new(self.hold()?, Followers::AllThreads)
    }

    /// Allocates from the pool, whatever scope the calling thread is in; otherwise as [`empty`](crate::empty).
    ///
    /// # Errors
    /// As [`empty`](crate::empty); `ErrorKind::InvalidValue` if the stream is of another device, or the pool is closed.
    pub fn empty(&self, nbytes: u64, stream: &Stream) -> Result<DeviceBuffer> {
        let stream = stream.view().on(Some(self.device()))?;
        let _scope = self.enter()?;
        empty(nbytes, &stream)
    }

    /// Ends the owner's use, as dropping the pool does; scopes may still use the pool.
    #[cfg(feature = "python")]
    pub(crate) fn end(&self) {
        if !process::is_forked() {
            // Dropped outside the lock: with the last use of a pool its memory goes back to the driver.
            let owner = lock(&self.owner).take();
            drop(owner);
        }
    }

    /// Returns whether the owner's use has not ended; false in a forked child.
    #[cfg(feature = "python")]
    pub(crate) fn is_owned(&self) -> bool {
        !process::is_forked() && lock(&self.owner).is_some()
    }

    /// Returns whether the pool has no use and no memory left; then it never has any again.
    #[cfg(feature = "python")]
    pub(crate) fn is_gone(&self) -> bool {
        self.pool().use_count() == 0 && self.pool().budget().reserved() == 0
    }

    /// Returns whether [`MemPool::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.pool().is_closed()
    }

    /// Returns a token with which another thread can enter the pool: threads do not inherit the scopes of the thread
    /// that started them. A worker thread can keep the scope until it ends.
    pub fn token(&self) -> PoolToken {
        PoolToken::new(self.pool(), self.device)
    }

    /// As [`MemPool::enter`], for allocations that become parts of a graph: while the stream is captured, and until the
    /// memory is reset, the same memory is used for nothing else.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the stream is of another device.
    pub fn capture(&self, stream: &Stream) -> Result<CaptureScope> {
        CaptureScope::new(&self.token(), stream)
    }

    /// Reserves addresses for memory that is committed and decommitted page by page: see [`MemoryRange`]. `page_bytes`
    /// is a multiple of 2 MiB, and `nbytes` a multiple of `page_bytes`. This takes no memory. Before it fails, free
    /// memory at the addresses of freed ranges goes back to the driver, once the work that uses it is done.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for other sizes, or if the pool is closed; `ErrorKind::Unavailable` if the pool has its own
    /// allocator, plain segments or `no_split`, or the device has no virtual memory; `ErrorKind::OutOfMemory` if too
    /// few addresses are left.
    pub fn reserve_range(&self, nbytes: u64, page_bytes: u64) -> Result<MemoryRange> {
        reserve_range(self.hold()?, nbytes, page_bytes)
    }

    /// Returns the statistics of the pool.
    ///
    /// # Errors
    /// `ErrorKind::Forked` in a forked child.
    pub fn stats(&self) -> Result<PoolStats> {
        process::refuse_forked()?;
        Ok(PoolStats::of(self.pool()))
    }

    /// Resets the pool's peaks to the current values.
    ///
    /// # Errors
    /// `ErrorKind::Forked` in a forked child.
    pub fn reset_peak_stats(&self) -> Result<()> {
        process::refuse_forked()?;
        report::reset_pool_peaks(self.pool());
        Ok(())
    }

    /// Releases free memory to the driver, or to the pool's allocator, and returns the number of bytes released. Pages
    /// that the GPU may still be using are released later, so this does not wait. The pool keeps its reserve, which
    /// becomes contiguous again as far as it is free.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses.
    pub fn trim(&self) -> Result<u64> {
        process::refuse_forked()?;
        serve::trim(self.pool(), ThisThread::get(), Patience::Report)
    }

    /// Closes the pool: new requests fail from now on, also in open scopes, and no scope or capture can be entered any
    /// more. Free memory is released at once, and its size in bytes is returned; live blocks stay valid, and are
    /// released when they are freed. A second call does nothing.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses to release memory: the pool is closed nevertheless.
    pub fn close(&self) -> Result<u64> {
        serve::close_pool(self.pool())
    }

    /// Puts the pool to sleep: its device memory is released to the driver while its addresses stay reserved, and the
    /// content of live blocks is copied to pinned memory of the host, or discarded. Returns the number of bytes
    /// released; 0 if the pool is asleep already. The call first waits for all work on the device. Until
    /// [`MemPool::wake`], requests to the pool fail with `ErrorKind::Asleep`, and its blocks may be freed, but the
    /// caller must not submit work that accesses them: on a GPU that is an illegal memory access.
    ///
    /// Pinned memory that is reserved already, as by [`warm_pinned`](super::warm_pinned), makes the first sleep much
    /// faster.
    ///
    /// ```
    /// use gpupool::{Backup, MemPool};
    ///
    /// let device = gpupool::device(0)?;
    /// let stream = gpupool::Stream::new(device)?;
    /// let pool = MemPool::builder().device(device).build()?;
    /// let weights = {
    ///     let _scope = pool.enter()?;
    ///     gpupool::empty(64 << 20, &stream)?
    /// };
    /// let address = weights.ptr();
    /// pool.sleep(Backup::Host)?; // another program, or another pool, has the device memory now
    /// pool.wake()?;
    /// assert_eq!(weights.ptr(), address); // and holds what it held
    /// # Ok::<(), gpupool::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if its memory cannot sleep: if the pool has its own allocator, plain segments or
    /// `no_split`, or the device has no virtual memory; also while other processes have attached blocks of the pool, or
    /// other pools use some, see [`MemPoolBuilder::use_on_oom`]; `ErrorKind::InvalidValue` while a stream of the device is
    /// captured; `ErrorKind::OutOfMemory` if there is not enough pinned memory; any other refusal of the driver. After
    /// an error the pool is awake with all its memory, unless the driver also refuses to map the released part again:
    /// then it is asleep with its backup complete. `ErrorKind::InvalidValue` also in a callback that may not wait for another
    /// thread's sleep or wake of the pool (see [`on_oom`](crate::on_oom)).
    pub fn sleep(&self, backup: Backup) -> Result<u64> {
        sleep_pool(self.pool(), backup)
    }

    /// Wakes the pool: allocates device memory again at the same addresses, and copies the backup there. Returns the
    /// number of bytes allocated; 0 if the pool is awake already. When this returns, the memory may be used on any
    /// stream, and graphs that were captured before may be replayed.
    ///
    /// # Errors
    /// `ErrorKind::OutOfMemory` if there is not enough memory, even after other pools released what they can and
    /// callbacks were called; the error says what holds it. Any other refusal of the driver. After an error the pool is
    /// still asleep, with its backup complete. `ErrorKind::InvalidValue` in a callback as for [`MemPool::sleep`].
    pub fn wake(&self) -> Result<u64> {
        wake_pool(self.pool())
    }

    /// Returns whether the pool is asleep, or just falling asleep or waking.
    pub fn is_asleep(&self) -> bool {
        self.pool().sleep.is_asleep()
    }

    /// Calls the callback for each segment of the pool, until the guard is dropped: at once for existing segments, then
    /// for each new one before it is first used, and for each before it is released. This is for libraries that must
    /// register memory by its address, such as NCCL, UCX and NVSHMEM.
    ///
    /// The callback runs with no lock held, on the thread whose request adds the segment or whose call releases it, and
    /// may allocate and free. A segment is released by [`MemPool::trim`] or with the pool; in a pool with plain
    /// segments or its own allocator also before a request of the pool would fail. With a callback, the release waits
    /// for the work of the segment's streams, so the callback can end a registration. Dropping the pool, or a block of
    /// a closed pool, waits for nothing: a segment in use by the GPU is released when memory is next given back.
    /// Removing the callback does not call it for existing segments, and a call in progress on another thread
    /// continues. A panic of the callback is logged.
    ///
    /// ```
    /// use gpupool::{MemPool, SegmentEventKind};
    ///
    /// let device = gpupool::device(0)?;
    /// let stream = gpupool::Stream::new(device)?;
    /// let pool = MemPool::builder().device(device).no_split(true).build()?;
    /// let guard = pool.on_segment(|event| match event.kind {
    ///     SegmentEventKind::Added => println!("register {} bytes at {:#x}", event.nbytes, event.address),
    ///     _ => println!("deregister {:#x}", event.address),
    /// })?;
    /// let buffer = pool.empty(64 << 20, &stream)?; // one segment: the callback is called
    /// drop(buffer); // and stays
    /// pool.trim()?; // until here
    /// # drop(guard);
    /// # Ok::<(), gpupool::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool has neither `no_split` nor plain segments nor its own allocator, since its
    /// memory then moves, or if it is closed; `ErrorKind::Forked`.
    pub fn on_segment(&self, callback: impl Fn(&SegmentEvent) + Send + Sync + 'static) -> Result<SegmentGuard> {
        serve::on_segment(self.pool(), Box::new(callback))
    }

    /// Returns the pool's memory, block by block.
    ///
    /// # Errors
    /// `ErrorKind::Forked` in a forked child.
    pub fn snapshot(&self) -> Result<Vec<SegmentView>> {
        process::refuse_forked()?;
        Ok(report::segments_of_pool(self.pool()))
    }
}

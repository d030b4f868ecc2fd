//! Private pools of device memory.

use std::sync::Arc;

use super::device::{DriverSegments, Reserve, SegmentSource, Source};
use super::device_buffer::{DeviceBuffer, empty};
use super::pool::{CaptureScope, Pool, PoolId, PoolScope, PoolToken, PoolUse, Rules, SegmentEvent};
use super::report::{self, PoolStats, SegmentView};
use super::serve::{self, Patience, PoolOptions, SegmentGuard, device_caches};
use super::sleep::{Backup, sleep_pool, wake_pool};
use crate::error::Result;
use crate::ids::Device;
use crate::process;
use crate::runtime::{self, Stream};
use crate::sync::ThisThread;

/// A private pool of one device's memory.
///
/// What a thread allocates in a scope of the pool ([`MemPool::enter`]) comes from the pool's own memory and goes back
/// there, so that it neither mixes with other memory nor is used for anything else. When the pool is dropped, blocks
/// that are still alive stay valid; everything else goes back to the driver at once, and the rest as it is freed.
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
    in_use: PoolUse,
    allocator: Option<Arc<dyn SegmentSource>>,
}

/// What a [`MemPool`] will be like.
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

    /// Where the memory comes from, instead of gpupool's own pages.
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

    /// Sets whether requests of other pools may take what this one has free when the device has no more memory.
    pub fn use_on_oom(mut self, use_on_oom: bool) -> Self {
        self.rules.use_on_oom = use_on_oom;
        self
    }

    /// Sets whether each block has a segment of its own, never cut, as needed to register it with NCCL or a network card.
    /// A segment is one extent of physical memory, at one address, until [`MemPool::trim`] or the pool's end: nothing else
    /// gives it back, moves it or puts it to sleep. What is freed serves later requests of at most its size, whole.
    pub fn no_split(mut self, no_split: bool) -> Self {
        self.rules.no_split = no_split;
        self
    }

    /// Sets whether the memory comes from the driver's plain allocations (`cuMemAlloc`), which legacy IPC can share,
    /// and which never move. Giving them back waits for the device.
    pub fn segments(mut self, segments: bool) -> Self {
        self.segments = segments;
        self
    }

    /// Sets the most bytes that the pool may reserve.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Sets how many bytes of physical memory the pool has from its birth to its end, in whole pages of 2 MiB, at
    /// addresses in one piece: [`MemPool::trim`], [`empty_cache`](super::empty_cache) and other pools' lack of memory
    /// leave them to it. Its requests are served from them first, without a driver call.
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve = bytes;
        self
    }

    /// Makes the pool. But for what it reserves it takes no memory before it is used.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if there is no such device, or for a reserve above the limit or of a pool with a source
    /// of its own or `no_split`; `ErrorKind::OutOfMemory` if there is not enough for the reserve, also after other pools
    /// gave back what they may and callbacks were asked; as [`device`](crate::device).
    pub fn build(self) -> Result<MemPool> {
        let device = match self.device {
            Some(device) => runtime::device(device.ordinal() as i64)?,
            None => runtime::get()?.current_device()?,
        };
        let driver_segments = || Source::Segments(Arc::new(DriverSegments));
        let source = self.allocator.clone().map(Source::Segments).or_else(|| self.segments.then(driver_segments));
        let rules = Rules { has_own_source: source.is_some(), ..self.rules };
        let id = PoolId::next(!self.is_for_graphs);
        let options = PoolOptions { rules, source, limit: self.limit, reserve: self.reserve, name: None };
        let pool = serve::make_pool(device, id, options)?;
        Ok(MemPool { in_use: PoolUse::first(pool, false), allocator: self.allocator })
    }
}

impl MemPool {
    /// Returns a pool to be set up.
    pub fn builder() -> MemPoolBuilder {
        MemPoolBuilder::default()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.in_use.pool()
    }

    /// Returns what identifies the pool in the process: `(0, n)`, or `(n, 0)` for a pool made for graph capture.
    pub fn id(&self) -> PoolId {
        self.pool().id
    }

    /// Returns the device whose memory it is.
    pub fn device(&self) -> Device {
        self.pool().memory.device
    }

    /// Returns where the pool's memory comes from, if the pool was made with an allocator of its own.
    pub fn allocator(&self) -> Option<&Arc<dyn SegmentSource>> {
        self.allocator.as_ref()
    }

    /// Returns how many hold the pool: 1 for this object, and 1 for each scope that was entered, each capture that was
    /// not reset and each library that takes memory from it.
    pub fn use_count(&self) -> u32 {
        self.pool().use_count()
    }

    /// Returns whether it stands in when another pool finds no more memory.
    pub fn use_on_oom(&self) -> bool {
        self.pool().use_on_oom()
    }

    /// Returns whether each block has a segment of its own.
    pub fn no_split(&self) -> bool {
        self.pool().no_split()
    }

    /// Returns the most bytes that the pool may reserve, if there is a limit.
    pub fn limit(&self) -> Option<u64> {
        self.pool().budget().limit()
    }

    /// Returns the bytes of physical memory that the pool has from its birth to its end.
    pub fn reserve(&self) -> u64 {
        self.pool().supply.reserve().map_or(0, Reserve::bytes)
    }

    /// Sets or removes the limit. What is reserved beyond it stays until it is freed and trimmed.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.pool().budget().set_limit(limit);
    }

    /// Routes what the calling thread allocates on this device into the pool, until the scope is dropped. Scopes nest,
    /// and any number of threads may be in the same pool at once.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` while the thread ends, or if the pool is closed.
    pub fn enter(&self) -> Result<PoolScope> {
        PoolScope::new(self.pool())
    }

    /// As [`MemPool::enter`], and also for every other thread as long as it has no scope of its own on this device, until
    /// the scope is dropped: for threads that cannot enter one, such as those that a library starts. Requests of all
    /// threads take a little longer meanwhile. Of several such scopes the one entered last counts.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` while the thread ends, or if the pool is closed.
    pub fn enter_all_threads(&self) -> Result<PoolScope> {
        PoolScope::of_all_threads(self.pool())
    }

    /// Allocates from the pool, whatever scope the calling thread is in; else as [`empty`](crate::empty).
    ///
    /// # Errors
    /// As [`empty`](crate::empty); `ErrorKind::InvalidValue` if the stream is of another device, or the pool is closed.
    pub fn empty(&self, nbytes: u64, stream: &Stream) -> Result<DeviceBuffer> {
        let stream = stream.view().on(Some(self.device()))?;
        let _scope = self.enter()?;
        empty(nbytes, &stream)
    }

    /// Returns whether [`MemPool::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.pool().is_closed()
    }

    /// Returns what lets another thread enter the pool: threads do not take over the scopes of the thread that started
    /// them. A worker thread can keep the scope for as long as it lives.
    pub fn token(&self) -> PoolToken {
        PoolToken::new(self.pool())
    }

    /// As [`MemPool::enter`], for allocations that become parts of a graph: while the stream is captured, and until the
    /// memory is reset, nothing else is given the same memory.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the stream is of another device.
    pub fn capture(&self, stream: &Stream) -> Result<CaptureScope> {
        CaptureScope::new(self.pool(), stream)
    }

    /// Returns what the pool holds and has done.
    ///
    /// # Errors
    /// `ErrorKind::Forked` in a forked child.
    pub fn stats(&self) -> Result<PoolStats> {
        process::refuse_forked()?;
        Ok(PoolStats::of(self.pool()))
    }

    /// Starts the pool's peaks anew, from what it holds now.
    ///
    /// # Errors
    /// `ErrorKind::Forked` in a forked child.
    pub fn reset_peak_stats(&self) -> Result<()> {
        process::refuse_forked()?;
        report::reset_pool_peaks(self.pool());
        Ok(())
    }

    /// Gives free memory back to the driver, or to the pool's allocator, and returns the bytes that went. Pages that
    /// the GPU may still be using go later, so this does not wait. What the pool reserved stays, in one piece again as far
    /// as it is free.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses.
    pub fn trim(&self) -> Result<u64> {
        process::refuse_forked()?;
        let caches = device_caches(self.device())?;
        serve::trim(caches, self.pool(), ThisThread::get(), Patience::Ask)
    }

    /// Ends the pool for new requests: they are refused from now on, also in scopes that are open, and no scope or
    /// capture is entered any more. What is free goes at once, and its bytes are returned; blocks that are alive stay
    /// valid, and go as they are freed. A second call does nothing more.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses to take memory back: the pool is closed all the same.
    pub fn close(&self) -> Result<u64> {
        serve::close_pool(self.pool())
    }

    /// Puts the pool to sleep: its device memory goes back to the driver while its addresses stay, and what is live is copied
    /// to pinned memory of the host, or given up. Returns the bytes that went; 0 if it is asleep already. Waits for all work
    /// on the device first. Until [`MemPool::wake`] requests of the pool are refused with `ErrorKind::Asleep`, its blocks may be
    /// freed, and work that touches them is the caller's fault: on a GPU it ends in an illegal access.
    ///
    /// Pinned memory that is there already, as by [`warm_pinned`](super::warm_pinned), makes the first sleep much quicker.
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
    /// let address = weights.address();
    /// pool.sleep(Backup::Host)?; // another program, or another pool, has the device memory now
    /// pool.wake()?;
    /// assert_eq!(weights.address(), address); // and holds what it held
    /// # Ok::<(), gpupool::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if its memory cannot sleep: that of an allocator or segments of its own, with `no_split`, or on
    /// a device without virtual memory; `ErrorKind::InvalidValue` while a stream of the device is captured;
    /// `ErrorKind::OutOfMemory` if there is not enough pinned memory; any other refusal of the driver. The pool is then awake
    /// with all that it had, unless the driver also refuses to take back what went: then it is asleep with its backup complete.
    pub fn sleep(&self, backup: Backup) -> Result<u64> {
        sleep_pool(self.pool(), backup)
    }

    /// Wakes the pool: takes device memory again at the same addresses, and copies back what was copied. Returns the bytes
    /// that were taken; 0 if it is awake already. When this returns, the memory may be used on any stream, and graphs that
    /// were captured before may be replayed.
    ///
    /// # Errors
    /// `ErrorKind::OutOfMemory` if there is not enough, with who holds it, also after other pools gave back what they may and
    /// callbacks were asked; any other refusal of the driver. The pool is then as asleep as before, its backup whole.
    pub fn wake(&self) -> Result<u64> {
        wake_pool(self.pool())
    }

    /// Returns whether the pool is asleep, or just falling asleep or waking.
    pub fn is_asleep(&self) -> bool {
        self.pool().sleep.is_asleep()
    }

    /// Calls the callback for each segment of the pool: at once for those that are there, then for each before anything uses
    /// it, and before it goes, until the guard is dropped. For who must register memory by its address, as NCCL, UCX and
    /// NVSHMEM do.
    ///
    /// It is called with no lock held, on the thread whose request brings the segment or whose call gives it back, and may
    /// allocate and free. A segment goes by [`MemPool::trim`] or with the pool, of a pool with segments or an allocator of
    /// its own also before a request of its own would fail; with a callback that waits for the work that the segment's
    /// streams have, so that a registration can end there. When the callback is removed it is told nothing more: not of the
    /// segments that are there, and a call under way on another thread goes on. A panic of the callback is told to the log.
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
    /// let buffer = pool.empty(64 << 20, &stream)?; // one segment, which is told of
    /// drop(buffer); // and stays
    /// pool.trim()?; // until here
    /// # drop(guard);
    /// # Ok::<(), gpupool::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool has neither `no_split` nor segments or an allocator of its own, for its memory
    /// moves then, or if it is closed; `ErrorKind::Forked`.
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

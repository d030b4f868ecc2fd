//! Private pools of device memory.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::cache::thread as local;
use crate::memory::device::device_memory::DeviceMemory;
use crate::memory::device::segment_source::{DriverSegments, SegmentSource};
use crate::memory::pool::capture::CaptureScope;
use crate::memory::pool::id::PoolId;
use crate::memory::pool::scope::{PoolScope, PoolToken};
use crate::memory::pool::state::{Pool, Rules, Source};
use crate::memory::pool::uses::PoolUse;
use crate::memory::report::snapshot::{self, SegmentView};
use crate::memory::report::stats::{self, PoolStats};
use crate::memory::serve::trim as release;
use crate::process;
use crate::runtime::{self, Stream};
use crate::sync::lock;

/// A private pool of one device's memory.
///
/// What a thread allocates in a scope of the pool ([`MemPool::enter`]) comes from the pool's own memory and goes back
/// there, so that it neither mixes with other memory nor is used for anything else. When the pool is dropped, blocks that
/// are still alive stay valid; everything else goes back to the driver at once, and the rest as it is freed.
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
}

/// What a [`MemPool`] will be like.
#[derive(Clone, Debug, Default)]
#[must_use = "call build()"]
pub struct MemPoolBuilder {
    device: Option<Device>,
    rules: Rules,
    segments: bool,
    limit: Option<u64>,
}

static NUMBERS: AtomicU32 = AtomicU32::new(1);

/// A pool without an owner yet, known to its device.
pub(super) fn make(device: Device, id: PoolId, rules: Rules, limit: Option<u64>) -> Result<Arc<Pool>> {
    let memory = DeviceMemory::of(device)?;
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let pool = Arc::new(Pool::new(id, number, memory, rules, limit));
    memory.add_pool(&pool);
    Ok(pool)
}

impl MemPoolBuilder {
    /// The device; by default the calling thread's current one.
    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// Where the memory comes from, instead of gpupool's own pages.
    pub fn allocator(mut self, source: Arc<dyn SegmentSource>) -> Self {
        self.rules.source = Source::Segments(source);
        self
    }

    /// Whether requests for the default pool may take free blocks of this one when the device has no more memory.
    pub fn use_on_oom(mut self, use_on_oom: bool) -> Self {
        self.rules.use_on_oom = use_on_oom;
        self
    }

    /// Whether each block has a segment of its own, never cut, as needed to register it with a network card.
    pub fn no_split(mut self, no_split: bool) -> Self {
        self.rules.no_split = no_split;
        self
    }

    /// Whether the memory comes from the driver's plain allocations (`cuMemAlloc`), which legacy IPC can share, and which
    /// never move. Giving them back waits for the device.
    pub fn segments(mut self, segments: bool) -> Self {
        self.segments = segments;
        self
    }

    /// The most bytes that the pool may reserve.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Makes the pool. It takes no memory before it is used.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if there is no such device; as [`device`](crate::device).
    pub fn build(mut self) -> Result<MemPool> {
        let device = match self.device {
            Some(device) => runtime::device(device.ordinal() as i64)?,
            None => runtime::get()?.current_device()?,
        };
        let is_default = matches!(self.rules.source, Source::Pages);
        if is_default && self.segments {
            self.rules.source = Source::Segments(Arc::new(DriverSegments));
        } else if is_default {
            self.rules.source = DeviceMemory::of(device)?.default_source();
        }
        Ok(MemPool { in_use: PoolUse::first(make(device, PoolId::user(), self.rules, self.limit)?, false) })
    }
}

impl MemPool {
    /// A pool to be set up.
    pub fn builder() -> MemPoolBuilder {
        MemPoolBuilder::default()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.in_use.pool()
    }

    /// What identifies the pool in the process: `(0, n)`.
    pub fn id(&self) -> PoolId {
        self.pool().id
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.pool().device.device
    }

    /// How many hold the pool: 1 for this object, and 1 for each scope that was entered, each capture that was not reset and
    /// each library that takes memory from it.
    pub fn use_count(&self) -> u32 {
        self.pool().use_count()
    }

    /// Whether it stands in when the default pool has no more memory.
    pub fn use_on_oom(&self) -> bool {
        self.pool().rules.use_on_oom
    }

    /// Whether each block has a segment of its own.
    pub fn no_split(&self) -> bool {
        self.pool().rules.no_split
    }

    /// The most bytes that the pool may reserve, if there is a limit.
    pub fn limit(&self) -> Option<u64> {
        self.pool().budget.limit()
    }

    /// Sets or removes the limit. What is reserved beyond it stays until it is freed and trimmed.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.pool().budget.set_limit(limit);
    }

    /// Routes what the calling thread allocates on this device into the pool, until the scope is dropped. Scopes nest, and
    /// any number of threads may be in the same pool at once.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` while the thread ends.
    pub fn enter(&self) -> Result<PoolScope> {
        PoolScope::new(self.pool())
    }

    /// What lets another thread enter the pool: threads do not take over the scopes of the thread that started them.
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

    /// What the pool holds and has done.
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
        stats::reset_peaks(self.pool());
        Ok(())
    }

    /// Gives free memory back to the driver, or to the pool's allocator, and answers the bytes that went. Pages that the
    /// GPU may still be using go later, so this does not wait.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses.
    pub fn trim(&self) -> Result<u64> {
        process::refuse_forked()?;
        release::trim(self.pool(), local::thread(), false)
    }

    /// The pool's memory, block by block.
    ///
    /// # Errors
    /// `ErrorKind::Forked` in a forked child.
    pub fn snapshot(&self) -> Result<Vec<SegmentView>> {
        process::refuse_forked()?;
        Ok(snapshot::of_pool(self.pool()))
    }
}

/// Routes what the calling thread allocates on the device into the pool with this id, which is made if there is none yet
/// (see [`graph_pool_handle`](super::graph_pool_handle)). Adds one to the pool's use count, which
/// [`release_pool`] takes back. As PyTorch's `beginAllocateToPool`, but for the calling thread alone, and it nests.
///
/// # Errors
/// `ErrorKind::InvalidValue` for the id of no pool, or an unknown device.
pub fn begin_allocate_to_pool(device: Device, id: PoolId) -> Result<()> {
    let device = runtime::device(device.ordinal() as i64)?;
    if !id.is_known() {
        return Err(Error::invalid_value(format!(
            "{id} is no pool's id; take one from graph_pool_handle() or a MemPool"
        )));
    }
    let memory = DeviceMemory::of(device)?;
    // Two threads that begin at once get one pool.
    static BEGINNING: Mutex<()> = Mutex::new(());
    let beginning = lock(&BEGINNING);
    let is_captured = id.is_of_graph();
    let mut known = memory.pools().into_iter().filter(|pool| pool.id == id);
    let in_use = match known.find_map(|pool| PoolUse::new(&pool, is_captured).ok()) {
        Some(in_use) => in_use,
        None => {
            let rules = Rules { source: memory.default_source(), ..Rules::default() };
            PoolUse::first(make(device, id, rules, None)?, is_captured)
        }
    };
    drop(beginning);
    local::enter_by_id(Arc::clone(in_use.pool()), is_captured)?;
    in_use.into_id();
    Ok(())
}

/// Ends what [`begin_allocate_to_pool`] began, on the same thread.
///
/// # Errors
/// `ErrorKind::InvalidValue` if this thread does not allocate to that pool.
pub fn end_allocate_to_pool(device: Device, id: PoolId) -> Result<()> {
    if local::leave_id(device, id) {
        return Ok(());
    }
    Err(Error::invalid_value(format!(
        "this thread does not allocate to pool {id} on {device}: begin and end on the same thread, and once each"
    )))
}

/// Takes back one use of the pool with this id that [`begin_allocate_to_pool`] added. With the last use the memory goes.
///
/// # Errors
/// `ErrorKind::InvalidValue` if none is left that [`begin_allocate_to_pool`] added.
pub fn release_pool(device: Device, id: PoolId) -> Result<()> {
    let known = DeviceMemory::of(device)?.pools().into_iter().find(|pool| pool.id == id && !pool.is_closed());
    let in_use = known.and_then(|pool| PoolUse::from_id(pool, id.is_of_graph()));
    in_use.map(drop).ok_or_else(|| {
        Error::invalid_value(format!(
            "pool {id} on {device} has no use to release: call release_pool once for each begin_allocate_to_pool"
        ))
    })
}

/// The uses of the pool with this id; none if there is no such pool.
pub fn pool_use_count(device: Device, id: PoolId) -> Result<Option<u32>> {
    let known = DeviceMemory::of(device)?.pools().into_iter().find(|pool| pool.id == id && !pool.is_closed());
    Ok(known.map(|pool| pool.use_count()))
}

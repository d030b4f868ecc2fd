//! A memory range, as users have it.

use std::sync::{Arc, Mutex, Weak};

use super::commit::commit;
use super::decommit::{Ends, decommit, free};
use super::discard::DiscardGuard;
use super::held_range::HeldRange;
use super::page_set::RangePages;
use super::pins::{pin, unpin};
use super::prepare::prepare;
use super::refusal::{refuse_pool, refuse_sizes};
use crate::error::{Error, GPUPOOL, Result};
use crate::ids::Device;
use crate::memory::device::{DeviceMemory, Run};
use crate::memory::pool::PoolId;
use crate::memory::serve::{Patience, PoolUse, free_places, no_memory_left};
use crate::memory::tuning::PAGE;
use crate::process;
use crate::runtime::Stream;
use crate::sync::lock;

/// How pages are committed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CommitOptions {
    /// If set, the pages may be taken when memory is short, those with the lowest number first, unless they are pinned; see
    /// [`MemoryRange::pin`].
    pub priority: Option<i32>,
    /// Sets each byte of what was not committed before, in stream order. Without it the content is undefined.
    pub fill: Option<u8>,
}

/// Addresses of a device that stay, whose pages of physical memory come and go: for a cache, a table or an array that is
/// large but only partly needed at any time, and that graphs and kernels hold pointers into.
///
/// A page is not readable before it is committed: on a GPU access to it is an illegal memory access. A decommitted page
/// serves the pool's next requests once the streams that used it are done, so nothing waits for the GPU. Dropped, the
/// range frees all of it in stream order. Until then it is a use of its pool.
///
/// ```
/// use gpupool::{CommitOptions, MemPool, Stream};
///
/// let device = gpupool::device(0)?;
/// let stream = Stream::new(device)?;
/// let pool = MemPool::builder().device(device).build()?;
/// let page = 2 << 20;
/// let cache = pool.reserve_range(1024 * page, page)?; // 2 GiB of addresses, no memory
/// cache.commit(0..4 * page, &stream, CommitOptions::default())?;
/// cache.commit(&[7, 9], &stream, CommitOptions { fill: Some(0), ..Default::default() })?;
/// assert_eq!(cache.committed_bytes()?, 6 * page);
/// cache.decommit(&[1, 9], Some(&stream))?; // in stream order: nothing waits here
/// # Ok::<(), gpupool::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryRange {
    held: Arc<HeldRange>,
    /// None once it was freed.
    in_use: Mutex<Option<PoolUse>>,
}

/// Reserves addresses for a range of a pool.
///
/// # Errors
/// As [`MemPool::reserve_range`](crate::MemPool::reserve_range).
pub(crate) fn reserve_range(in_use: PoolUse, nbytes: u64, page_bytes: u64) -> Result<MemoryRange> {
    let pool = in_use.pool();
    refuse_pool(pool)?;
    refuse_sizes(nbytes, page_bytes)?;
    let memory = pool.memory;
    let Some(run) = u32::try_from(nbytes / PAGE).ok().and_then(|pages| hold(memory, pages)) else {
        let why = format!(
            "{nbytes} bytes of addresses are not left in a row of the {} bytes reserved for {}: free ranges or blocks there, \
             or reserve less",
            memory.range.bytes, memory.location
        );
        return Err(no_memory_left(pool, nbytes, Error::no_memory(GPUPOOL, why)));
    };
    // From now on it cuts its memory, so that it can have no segments for one block each.
    if !pool.begin_cutting() {
        lock(&memory.space).let_go(run);
        return refuse_pool(pool).and(Err(Error::internal("a pool that does not cut its memory has a range")));
    }
    let held = Arc::new(HeldRange::new(pool, run, (page_bytes / PAGE) as u32));
    if let Some(caches) = held.caches() {
        let weak: Weak<HeldRange> = Arc::downgrade(&held);
        caches.discardable.add(weak);
    }
    Ok(MemoryRange { held, in_use: Mutex::new(Some(in_use)) })
}

/// Takes so many pages of addresses in a row; none if there are not so many, also without what is free at the addresses of
/// freed ranges, first as far as no work uses it.
fn hold(memory: &'static DeviceMemory, pages: u32) -> Option<Run> {
    let held = || lock(&memory.space).hold(pages);
    let after = |patience| {
        free_places(memory, patience);
        held()
    };
    held().or_else(|| after(Patience::Ask)).or_else(|| after(Patience::Wait))
}

impl MemoryRange {
    /// Returns the address of its first byte on the device.
    pub fn address(&self) -> u64 {
        self.held.memory().address(self.held.run.start())
    }

    /// Returns its addresses in bytes, committed or not.
    pub fn nbytes(&self) -> u64 {
        self.held.run.bytes()
    }

    /// Returns the bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.held.page_bytes()
    }

    /// Returns the device whose memory it has.
    ///
    /// # Errors
    /// Never for a range that a pool of a device has made.
    pub fn device(&self) -> Result<Device> {
        self.held.memory().device()
    }

    /// Returns the pool that its memory comes from.
    pub fn pool_id(&self) -> PoolId {
        self.held.pool.id
    }

    /// Returns the bytes of its committed pages.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` once it was freed; `ErrorKind::Forked`.
    pub fn committed_bytes(&self) -> Result<u64> {
        Ok(u64::from(self.held.open_table()?.committed) * self.page_bytes())
    }

    /// Returns the bytes of its committed pages that may be taken now, since they have a priority and no pins.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` once it was freed; `ErrorKind::Forked`.
    pub fn discardable_bytes(&self) -> Result<u64> {
        let table = self.held.open_table()?;
        Ok(table.pages.iter().filter(|page| page.is_discardable()).count() as u64 * self.page_bytes())
    }

    /// Commits pages: bytes of the range, or page numbers in one call. Later work of the stream may use them. A page that
    /// is committed keeps its content, and gets the priority that is given. First the page's own former memory is
    /// taken back if it is there still, then free pages of the pool are moved there, then new ones are created; what is
    /// short comes from others, as for any request. On failure nothing is committed.
    ///
    /// # Errors
    /// `ErrorKind::OutOfMemory` if there is not enough; `ErrorKind::InvalidValue` for bytes that are no whole pages, a page that
    /// the range does not have, a closed pool, a freed range, while a stream of the pool is captured, in a callback that
    /// may not wait for another thread's commit or decommit of these pages (see [`on_oom`](crate::on_oom)), or while a call
    /// that has their former memory in hand is in a callback; `ErrorKind::Asleep` while the pool is asleep;
    /// `ErrorKind::Library` if the driver refuses.
    pub fn commit<'a>(&self, pages: impl Into<RangePages<'a>>, stream: &Stream, options: CommitOptions) -> Result<()> {
        self.held.tell_untold();
        let outcome = commit(&self.held, &self.sorted(pages.into())?, stream, options);
        // Also of a page that was taken beside this call, which has committed it anew, for its caller to find as it was.
        self.held.tell_untold();
        outcome
    }

    /// Decommits pages, once the work so far on this stream, on those that they were committed for and on those that they
    /// were pinned for is done; nothing waits here. Pages that are not committed stay so.
    ///
    /// # Errors
    /// As [`MemoryRange::commit`], and `ErrorKind::InvalidValue` if a page is pinned.
    pub fn decommit<'a>(&self, pages: impl Into<RangePages<'a>>, stream: Option<&Stream>) -> Result<()> {
        self.held.tell_untold();
        decommit(&self.held, &self.sorted(pages.into())?, stream)
    }

    fn sorted(&self, pages: RangePages<'_>) -> Result<Vec<u32>> {
        pages.sorted(self.held.count(), self.held.page_bytes())
    }

    /// Pins those of the pages that are committed, for work of the stream: none of them is taken for want of memory before
    /// [`MemoryRange::unpin`]. Returns a bit for each page, in the order given and the lowest bit of a byte first: whether
    /// it is committed. What was taken is committed again by the caller, and then pinned.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for a page that the range does not have, a freed range, a stream of a device that is no peer,
    /// or in a callback as for [`MemoryRange::commit`]; `ErrorKind::Forked`.
    pub fn pin<'a>(&self, pages: impl Into<RangePages<'a>>, stream: Option<&Stream>) -> Result<Vec<u8>> {
        self.held.tell_untold();
        pin(&self.held, &pages.into(), stream)
    }

    /// Ends one pin of each page. It may be taken again, once the work so far on the stream is done.
    ///
    /// # Errors
    /// As [`MemoryRange::pin`], and `ErrorKind::InvalidValue` if a page has no pin: then none is changed.
    pub fn unpin<'a>(&self, pages: impl Into<RangePages<'a>>, stream: Option<&Stream>) -> Result<()> {
        self.held.tell_untold();
        unpin(&self.held, &pages.into(), stream)
    }

    /// Keeps so many pages of physical memory ready from now on, made by a thread of gpupool's own: a commit then only maps
    /// them. They count as reserved, and go back with [`MemPool::trim`](crate::MemPool::trim) and when memory is short.
    /// 0 ends it.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if the system has no thread to give; `ErrorKind::InvalidValue` for more pages than the range
    /// has, or a freed range; `ErrorKind::Forked`.
    pub fn prepare(&self, pages: u32) -> Result<()> {
        self.held.tell_untold();
        prepare(&self.held, pages)
    }

    /// Calls the callback with the numbers of the pages that were taken for want of memory, until the guard is dropped. It
    /// is called without any lock held, on the thread of the request that lacked memory. Pages that another process was
    /// given are told by the range's next call, of whatever kind and thread, and before a commit that finds one taken
    /// returns: no thread of gpupool's own calls back.
    pub fn on_discard(&self, callback: impl Fn(&[u32]) + Send + Sync + 'static) -> DiscardGuard {
        DiscardGuard::register(&self.held, Box::new(callback))
    }

    /// As [`MemoryRange::free`], removes the callbacks, and waits until no other thread calls one.
    ///
    /// # Errors
    /// As [`MemoryRange::free`]; `ErrorKind::InvalidValue` in a callback that may not wait.
    pub(crate) fn release(&self, stream: Option<&Stream>) -> Result<()> {
        self.end(stream, Ends::RangeAndCallbacks)?;
        self.held.listeners.end()
    }

    /// The same for the end of an object, which nothing can refuse: pages are freed with their pins, and in a callback that
    /// may not wait those of other threads go on.
    pub(crate) fn give_up(self) {
        let held = Arc::clone(&self.held);
        drop(self);
        let _ = held.listeners.end();
    }

    /// Frees all of it, in the order of the streams that used it and of this one. A second call does nothing.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` while a page is pinned, or in a callback as for [`MemoryRange::commit`]; `ErrorKind::Forked`.
    pub fn free(&self, stream: Option<&Stream>) -> Result<()> {
        self.end(stream, Ends::Range)
    }

    fn end(&self, stream: Option<&Stream>, what: Ends) -> Result<()> {
        free(&self.held, stream, what)?;
        // Dropped without the lock: it may be the pool's last use.
        let ended = lock(&self.in_use).take();
        drop(ended);
        Ok(())
    }
}

impl Drop for MemoryRange {
    fn drop(&mut self) {
        // In a forked child the locks may be held for ever.
        if !process::is_forked() {
            let _ = free(&self.held, None, Ends::Dropped);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::MemPool;
    use crate::memory::range::page_table::{PagePhase, RangeLife};

    #[test]
    fn a_call_that_freed_pages_succeeds_though_one_of_them_is_not_where_it_was() -> Result<()> {
        let device = crate::device(0)?;
        let (stream, pool) = (Stream::new(device)?, MemPool::builder().device(device).build()?);
        let range = pool.reserve_range(4 * PAGE, PAGE)?;
        range.commit(&[1, 3], &stream, CommitOptions::default())?;
        for lost in [0, 2] {
            let mut table = lock(&range.held.table);
            table.pages[lost].phase = PagePhase::Committed;
            table.committed += 1;
        }
        range.decommit(&[0, 1], None)?;
        assert_eq!(range.committed_bytes()?, 2 * PAGE);
        range.free(None)?;
        pool.trim()?;
        assert_eq!(pool.stats()?.reserved_bytes, 0);
        Ok(())
    }

    #[test]
    fn of_two_calls_that_find_a_dropped_range_theirs_to_free_one_does() -> Result<()> {
        let device = crate::device(0)?;
        let pool = MemPool::builder().device(device).build()?;
        let range = pool.reserve_range(4 * PAGE, PAGE)?;
        let freeing = range.held.begin(&[], |table, _| {
            table.life = RangeLife::Freed;
            Ok(Vec::new())
        })?;
        assert!(range.held.begin_end(&[], |_, _| Ok(vec![0]))?.is_none());
        assert_eq!(lock(&range.held.table).life, RangeLife::Freed);
        drop(freeing);
        lock(&range.held.memory().space).let_go(range.held.run);
        Ok(())
    }
}

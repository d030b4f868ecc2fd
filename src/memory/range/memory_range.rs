//! A memory range, as users have it, and how they name its pages.

use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use super::commit::Ends;
use super::discard::DiscardGuard;
use super::held_range::HeldRange;
use super::page_table::{NamedStream, PageState};
use super::prepare::make_missing;
use crate::error::{Error, GPUPOOL, Result};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{DeviceMemory, Run};
use crate::memory::pool::{Pool, PoolId, closed};
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
    if let Some(caches) = DeviceCaches::known(memory.location) {
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
    pub fn ptr(&self) -> u64 {
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
        Ok(table.pages.iter().filter_map(PageState::discardable).count() as u64 * self.page_bytes())
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
        let outcome = self.told().commit(&self.sorted(pages.into())?, stream, options);
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
        self.told().decommit(&self.sorted(pages.into())?, stream)
    }

    /// Returns the range, once it has told of pages that were taken.
    fn told(&self) -> &HeldRange {
        self.held.tell_untold();
        &self.held
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
        let (held, pages) = (self.told(), pages.into());
        let named = named(held, stream)?;
        let listed = pages.listed(held.count(), held.page_bytes())?;
        let mut table = held.settled_table(listed.clone())?;
        let user = table.bit_of(named);
        Ok(table.pin(listed, user))
    }

    /// Ends one pin of each page. It may be taken again, once the work so far on the stream is done.
    ///
    /// # Errors
    /// As [`MemoryRange::pin`], and `ErrorKind::InvalidValue` if a page has no pin: then none is changed.
    pub fn unpin<'a>(&self, pages: impl Into<RangePages<'a>>, stream: Option<&Stream>) -> Result<()> {
        let (held, pages) = (self.told(), pages.into());
        let named = named(held, stream)?;
        let listed = pages.listed(held.count(), held.page_bytes())?;
        let mut table = held.open_table()?;
        let user = table.bit_of(named);
        table.unpin(listed, user)
    }

    /// Keeps so many pages of physical memory ready from now on, made by a thread of gpupool's own: a commit then only maps
    /// them. They count as reserved, and go back with [`MemPool::trim`](crate::MemPool::trim) and when memory is short.
    /// 0 ends it.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if the system has no thread to give; `ErrorKind::InvalidValue` for more pages than the range
    /// has, or a freed range; `ErrorKind::Forked`.
    pub fn prepare(&self, pages: u32) -> Result<()> {
        let held = self.told();
        if pages > held.count() {
            let count = held.count();
            return Err(Error::invalid_value(format!(
                "{pages} pages cannot be kept ready for a range of {count}: prepare {count} at most"
            )));
        }
        // The table is locked, so that a range that is freed keeps nothing.
        let before = held.keep_ready(&mut *held.open_table()?, pages);
        let asked = if pages == 0 { Ok(()) } else { make_missing(&held.pool, held.each) };
        if asked.is_err() {
            held.keep_ready(&mut *held.open_table()?, before);
        }
        asked
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
        let _ = self.held.listeners.end();
    }

    /// Frees all of it, in the order of the streams that used it and of this one. A second call does nothing.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` while a page is pinned, or in a callback as for [`MemoryRange::commit`]; `ErrorKind::Forked`.
    pub fn free(&self, stream: Option<&Stream>) -> Result<()> {
        self.end(stream, Ends::Range)
    }

    fn end(&self, stream: Option<&Stream>, what: Ends) -> Result<()> {
        self.held.free(stream, what)?;
        // Dropped without the lock: it may be the pool's last use.
        let ended = lock(&self.in_use).take();
        drop(ended);
        Ok(())
    }
}

impl Drop for MemoryRange {
    fn drop(&mut self) {
        // A thread that is just taking pages of it frees it then, and tells nobody. In a forked child the lock may be held for
        // ever.
        if !process::is_forked() {
            self.held.listeners.remove_all();
        }
    }
}

/// Pages of a range: bytes of it, or numbers of pages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RangePages<'a> {
    /// Bytes from the range's start, both multiples of its page size.
    Bytes(Range<u64>),
    /// Numbers of pages, in any order; one that is named twice counts once.
    Numbers(&'a [u32]),
}

impl From<Range<u64>> for RangePages<'_> {
    fn from(bytes: Range<u64>) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a [u32]> for RangePages<'a> {
    fn from(numbers: &'a [u32]) -> Self {
        Self::Numbers(numbers)
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for RangePages<'a> {
    fn from(numbers: &'a [u32; N]) -> Self {
        Self::Numbers(numbers)
    }
}

impl<'a> From<&'a Vec<u32>> for RangePages<'a> {
    fn from(numbers: &'a Vec<u32>) -> Self {
        Self::Numbers(numbers)
    }
}

impl RangePages<'_> {
    /// Returns the numbers of the pages in order, each once.
    fn sorted(&self, count: u32, page_bytes: u64) -> Result<Vec<u32>> {
        let mut sorted: Vec<_> = self.listed(count, page_bytes)?.collect();
        if !sorted.is_sorted_by(|one, next| one < next) {
            sorted.sort_unstable();
            sorted.dedup();
        }
        Ok(sorted)
    }

    /// Returns each page in the order given, as often as it is named.
    fn listed(&self, count: u32, page_bytes: u64) -> Result<impl Iterator<Item = u32> + Clone> {
        let (row, numbers): (_, &[u32]) = match self {
            Self::Bytes(bytes) => {
                check_bytes(bytes, count, page_bytes)?;
                ((bytes.start / page_bytes) as u32..(bytes.end / page_bytes) as u32, &[])
            }
            Self::Numbers(numbers) => {
                // Without an early end, several are compared at once.
                if !numbers.iter().fold(true, |are_there, page| are_there & (*page < count)) {
                    let page = numbers.iter().max().unwrap_or(&count);
                    return Err(Error::invalid_value(format!(
                        "the range has {count} pages and no page {page}: give numbers below {count}"
                    )));
                }
                (0..0, numbers)
            }
        };
        Ok(row.chain(numbers.iter().copied()))
    }
}

fn check_bytes(bytes: &Range<u64>, count: u32, page_bytes: u64) -> Result<()> {
    let Range { start, end } = *bytes;
    let nbytes = u64::from(count) * page_bytes;
    if start.is_multiple_of(page_bytes) && end.is_multiple_of(page_bytes) && start <= end && end <= nbytes {
        return Ok(());
    }
    Err(Error::invalid_value(format!(
        "bytes {start} to {end} are not whole pages of the range: give multiples of its page size, {page_bytes} bytes, of which \
         it has {count}, {nbytes} bytes together"
    )))
}

/// Refuses pools that can have no ranges.
fn refuse_pool(pool: &Pool) -> Result<()> {
    process::refuse_forked()?;
    if pool.is_closed() {
        return Err(closed(pool));
    }
    let Some(reason) = why_fixed(pool, "have ranges") else { return Ok(()) };
    let (label, device) = (pool.label(), pool.memory.location);
    Err(Error::unavailable(format!("pool {label} on {device} has no memory ranges: {reason}")))
}

/// Returns why a pool's memory does not come and go page by page, if so, for a pool that is to do what needs that.
pub(crate) fn why_fixed(pool: &Pool, purpose: &str) -> Option<String> {
    if pool.has_fixed_segments() {
        Some(format!(
            "its segments stay where they are, for they may be registered elsewhere or came from its own allocator. Leave out \
             allocator, segments and no_split for a pool that is to {purpose}"
        ))
    } else if !pool.source().is_pages() || pool.source().has_segments() {
        Some("that needs virtual memory management, which the device or its driver does not have".to_owned())
    } else {
        None
    }
}

/// Refuses sizes that are no whole pages.
fn refuse_sizes(nbytes: u64, page_bytes: u64) -> Result<()> {
    if page_bytes == 0 || !page_bytes.is_multiple_of(PAGE) {
        return Err(Error::invalid_value(format!(
            "a page of {page_bytes} bytes is no multiple of {PAGE} bytes, which physical memory is mapped by: give one"
        )));
    }
    if nbytes == 0 || !nbytes.is_multiple_of(page_bytes) {
        return Err(Error::invalid_value(format!(
            "a range of {nbytes} bytes has no whole pages of {page_bytes} bytes: give a multiple of that"
        )));
    }
    Ok(())
}

/// Returns the stream that a call names, which must be one that can use the range.
fn named<'a>(range: &HeldRange, stream: Option<&'a Stream>) -> Result<Option<NamedStream<'a>>> {
    range.refuse_stream(stream)?;
    stream.map(NamedStream::of).transpose()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::MemPool;

    #[test]
    fn a_call_that_freed_pages_succeeds_though_one_of_them_is_not_where_it_was() -> Result<()> {
        let device = crate::device(0)?;
        let (stream, pool) = (Stream::new(device)?, MemPool::builder().device(device).build()?);
        let range = pool.reserve_range(4 * PAGE, PAGE)?;
        range.commit(&[1, 3], &stream, CommitOptions::default())?;
        for lost in [0, 2] {
            lock(&range.held.table).put(lost, PageState::committed(0, None));
        }
        range.decommit(&[0, 1], None)?;
        assert_eq!(range.committed_bytes()?, 2 * PAGE);
        range.free(None)?;
        pool.trim()?;
        assert_eq!(pool.stats()?.reserved_bytes, 0);
        Ok(())
    }
}

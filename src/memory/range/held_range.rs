//! What a memory range is: a run of a device's addresses, held for a pool, and the state of its pages.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::{fmt, mem};

use super::decommit::{Ends, free};
use super::discard::DiscardListeners;
use super::page_set::RangePages;
use super::page_table::{PagePhase, PageTable, RangeLife};
use crate::error::{Error, Result};
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{DeviceMemory, Run};
use crate::memory::pool::Pool;
use crate::memory::tuning::PAGE;
use crate::process;
use crate::sync::{AtomicU32, InHand, MayWait, ThisThread, ThreadNumber, lock, wait};

/// A range's addresses and pages.
pub(super) struct HeldRange {
    pub(super) pool: Arc<Pool>,
    /// Its addresses, as pages of 2 MiB of the device's address range.
    pub(super) run: Run,
    /// Such pages in one of the range.
    pub(super) each: u32,
    pub(super) table: Mutex<PageTable>,
    /// Notified when pages are busy no more.
    settled: Condvar,
    /// Threads with busy pages.
    busy: Mutex<Vec<ThreadNumber>>,
    /// Extents to be kept ready for commits.
    pub(super) kept_ready: AtomicU32,
    pub(super) listeners: DiscardListeners,
}

/// Without its pages, which are many.
impl fmt::Debug for HeldRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldRange").field("run", &self.run).field("each", &self.each).finish_non_exhaustive()
    }
}

impl HeldRange {
    pub(super) fn new(pool: &Arc<Pool>, run: Run, each: u32) -> Self {
        Self {
            pool: Arc::clone(pool),
            run,
            each,
            table: Mutex::new(PageTable::new(run.pages / each)),
            settled: Condvar::new(),
            busy: Mutex::default(),
            kept_ready: AtomicU32::new(0),
            listeners: DiscardListeners::default(),
        }
    }

    /// Returns the table once none of these pages is busy, if the range was not freed. Pages that this thread commits or
    /// decommits, in a callback of that call, are busy still.
    ///
    /// # Errors
    /// As [`HeldRange::open_table`]; `ErrorKind::InvalidValue` in a callback that may not wait.
    pub(super) fn settled_table(&self, pages: &RangePages<'_>) -> Result<MutexGuard<'_, PageTable>> {
        let (thread, may_wait) = (ThisThread::get().number(), until_settled());
        let mut table = self.open_table()?;
        loop {
            let busy = lock(&self.busy);
            if busy.is_empty() || busy.contains(&thread) {
                return Ok(table);
            }
            drop(busy);
            let is_busy = |page| table.pages[page as usize].phase == PagePhase::Busy;
            if !pages.listed(self.count(), self.page_bytes())?.any(is_busy) {
                return Ok(table);
            }
            table = wait(&self.settled, &self.table, table, may_wait)?;
            if table.is_freed() {
                return Err(freed());
            }
        }
    }

    pub(super) fn memory(&self) -> &'static DeviceMemory {
        self.pool.memory
    }

    pub(super) const fn count(&self) -> u32 {
        self.run.pages / self.each
    }

    pub(super) const fn page_bytes(&self) -> u64 {
        self.each as u64 * PAGE
    }

    /// Returns where a page is in the device's memory.
    pub(super) const fn offset(&self, page: u32) -> u64 {
        self.run.start() + page as u64 * self.page_bytes()
    }

    /// Returns the page at an offset in the device's memory.
    pub(super) const fn page_at(&self, offset: u64) -> u32 {
        ((offset - self.run.start()) / self.page_bytes()) as u32
    }

    /// Returns pages in a row, of the device's pages.
    pub(super) const fn run_of(&self, first: u32, count: u32) -> Run {
        Run { first: self.run.first + first * self.each, pages: count * self.each }
    }

    /// Makes those pages busy that `select` selects, once none of `pages` is busy. The table is locked meanwhile.
    ///
    /// # Errors
    /// What `select` returns, for which nothing is changed; `ErrorKind::InvalidValue` if the range was freed, or this
    /// thread has busy pages, as in a callback of its own commit, or may not wait in another callback.
    pub(super) fn begin(
        &self,
        pages: &[u32],
        select: impl FnOnce(&mut PageTable, &[u32]) -> Result<Vec<u32>>,
    ) -> Result<BusyPages<'_>> {
        let (thread, may_wait) = (ThisThread::get().number(), until_settled());
        let mut table = lock(&self.table);
        while pages.iter().any(|&page| table.pages[page as usize].phase == PagePhase::Busy) {
            if lock(&self.busy).contains(&thread) {
                return Err(Error::invalid_value(
                    "pages of the range are just being committed or decommitted by this thread, which called a callback \
                     meanwhile: leave them to that call",
                ));
            }
            table = wait(&self.settled, &self.table, table, may_wait)?;
        }
        self.take(table, pages, select)
    }

    /// As [`HeldRange::begin`], for the end of a range that nobody has any more. None if another call has busy pages, which
    /// frees the range then, or has freed it: the end of an object never waits.
    pub(super) fn begin_end(
        &self,
        pages: &[u32],
        select: impl FnOnce(&mut PageTable, &[u32]) -> Result<Vec<u32>>,
    ) -> Result<Option<BusyPages<'_>>> {
        let mut table = lock(&self.table);
        if table.is_freed() {
            // By another call that found itself the last.
            return Ok(None);
        }
        if lock(&self.busy).is_empty() {
            return self.take(table, pages, select).map(Some);
        }
        table.life = RangeLife::Dropped;
        Ok(None)
    }

    fn take(
        &self,
        mut table: MutexGuard<'_, PageTable>,
        pages: &[u32],
        select: impl FnOnce(&mut PageTable, &[u32]) -> Result<Vec<u32>>,
    ) -> Result<BusyPages<'_>> {
        if table.is_freed() {
            return Err(freed());
        }
        let chosen = select(&mut table, pages)?;
        for &page in &chosen {
            table.pages[page as usize].phase = PagePhase::Busy;
        }
        let thread = ThisThread::get().number();
        lock(&self.busy).push(thread);
        drop(table);
        Ok(BusyPages { range: self, pages: chosen, thread, _in_hand: InHand::begin() })
    }

    /// Returns the table, if the range was not freed.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if it was; `ErrorKind::Forked`.
    pub(super) fn open_table(&self) -> Result<MutexGuard<'_, PageTable>> {
        process::refuse_forked()?;
        let table = lock(&self.table);
        if table.is_freed() { Err(freed()) } else { Ok(table) }
    }

    pub(super) fn caches(&self) -> Option<&'static DeviceCaches> {
        DeviceCaches::known(self.memory().location)
    }
}

fn until_settled() -> MayWait {
    MayWait::until("another thread has committed or decommitted these pages of the range")
}

#[cold]
fn freed() -> Error {
    Error::invalid_value("the memory range was freed: its addresses may be others' by now")
}

/// Pages that a call commits or decommits. Those that it has not ended when this is dropped are empty then.
pub(super) struct BusyPages<'a> {
    range: &'a HeldRange,
    /// None once the call has ended: they may be busy for another one by then.
    pub(super) pages: Vec<u32>,
    thread: ThreadNumber,
    /// Other threads wait for them, and the call may call back meanwhile.
    _in_hand: InHand,
}

impl BusyPages<'_> {
    /// Ends the call, with what `first` notes: each of the pages is in this phase, and as `change` notes.
    pub(super) fn end(
        mut self,
        phase: PagePhase,
        first: impl FnOnce(&mut PageTable),
        mut change: impl FnMut(&mut PageTable, u32),
    ) {
        let mut table = lock(&self.range.table);
        first(&mut table);
        for page in mem::take(&mut self.pages) {
            table.pages[page as usize].phase = phase;
            change(&mut table, page);
        }
    }
}

impl Drop for BusyPages<'_> {
    fn drop(&mut self) {
        let mut table = lock(&self.range.table);
        for &page in &self.pages {
            table.pages[page as usize].phase = PagePhase::Empty;
        }
        drop(table);
        let mut busy = lock(&self.range.busy);
        if let Some(place) = busy.iter().position(|thread| *thread == self.thread) {
            busy.swap_remove(place);
        }
        let is_last = busy.is_empty();
        drop(busy);
        self.range.settled.notify_all();
        if is_last && lock(&self.range.table).life == RangeLife::Dropped {
            // What the driver refuses to take back is tried again whenever memory is given back.
            let _ = free(self.range, None, Ends::Dropped);
        }
    }
}

/// Calls `f` with each row of numbers that follow one another: the first, and how many.
pub(super) fn rows(sorted: &[u32]) -> impl Iterator<Item = (u32, u32)> {
    sorted.chunk_by(|one, next| one + 1 == *next).map(|row| (row[0], row.len() as u32))
}

//! What a memory range is: a run of a device's addresses, held for a pool, and the state of its pages; and what it refuses.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::{fmt, mem};

use super::commit::Ends;
use super::discard::DiscardListeners;
use super::page_table::{PagePhase, PageState, PageTable};
use crate::error::{Error, Result};
use crate::ids::CaptureStatus;
use crate::memory::cache::{DeviceCaches, ServingCache};
use crate::memory::device::{DeviceMemory, Run};
use crate::memory::pool::{self, Pool};
use crate::memory::tuning::PAGE;
use crate::process;
use crate::runtime::{self, Stream};
use crate::sync::{InHand, MayWait, ThisThread, lock, wait};

/// A range's addresses and pages. It frees itself when nobody has it any more.
pub(super) struct HeldRange {
    pub(super) pool: Arc<Pool>,
    /// Its addresses, as pages of 2 MiB of the device's address range.
    pub(super) run: Run,
    /// Such pages in one of the range.
    pub(super) each: u32,
    pub(super) table: Mutex<PageTable>,
    /// Notified when pages are busy no more.
    settled: Condvar,
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
            listeners: DiscardListeners::default(),
        }
    }

    pub(super) fn memory(&self) -> &'static DeviceMemory {
        self.pool.memory
    }

    /// Returns the cache that has its committed pages, if the pool has one by now.
    pub(super) fn cache(&self) -> Option<Arc<ServingCache>> {
        DeviceCaches::ranges_of(&self.pool)
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

    /// Returns the page at an offset in the device's memory, if it is one of the range.
    pub(super) fn page_at(&self, offset: u64) -> Option<u32> {
        let is_here = (self.run.start()..self.run.end()).contains(&offset);
        is_here.then(|| ((offset - self.run.start()) / self.page_bytes()) as u32)
    }

    /// Returns the table, if the range was not freed.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if it was; `ErrorKind::Forked`.
    pub(super) fn open_table(&self) -> Result<MutexGuard<'_, PageTable>> {
        process::refuse_forked()?;
        Self::refuse_freed(lock(&self.table))
    }

    fn refuse_freed(table: MutexGuard<'_, PageTable>) -> Result<MutexGuard<'_, PageTable>> {
        if table.is_freed() {
            return Err(Error::invalid_value("the memory range was freed: its addresses may be others' by now"));
        }
        Ok(table)
    }

    /// Returns the table once none of these pages is busy. Those of a call of this thread, which is in a callback, are busy
    /// still.
    ///
    /// # Errors
    /// As [`HeldRange::open_table`]; `ErrorKind::InvalidValue` in a callback that may not wait.
    pub(super) fn settled_table(&self, pages: impl Iterator<Item = u32> + Clone) -> Result<MutexGuard<'_, PageTable>> {
        let may_wait = MayWait::until("another thread has committed or decommitted these pages of the range");
        let thread = ThisThread::get().number();
        let mut table = self.open_table()?;
        // Most often no page is busy.
        while !table.busy.is_empty()
            && !table.busy.contains(&thread)
            && pages.clone().any(|page| table.phase(page) == PagePhase::Busy)
        {
            table = Self::refuse_freed(wait(&self.settled, &self.table, table, may_wait)?)?;
        }
        Ok(table)
    }

    /// As [`HeldRange::settled_table`], for a call that changes the pages.
    ///
    /// # Errors
    /// As [`HeldRange::settled_table`]; `ErrorKind::InvalidValue` if another call has some of the pages, and this thread is
    /// in a callback of one.
    pub(super) fn table_to_change(&self, pages: &[u32]) -> Result<MutexGuard<'_, PageTable>> {
        let table = self.settled_table(pages.iter().copied())?;
        if pages.iter().any(|&page| table.phase(page) == PagePhase::Busy) {
            return Err(Error::invalid_value(
                "pages of the range are just being committed or decommitted by this thread, which called a callback \
                 meanwhile: leave them to that call",
            ));
        }
        Ok(table)
    }

    /// Makes pages busy, none of which is.
    pub(super) fn take<'a>(&'a self, mut table: MutexGuard<'a, PageTable>, pages: &[u32]) -> BusyPages<'a> {
        let busy = PageState { users: 0, phase: PagePhase::Busy };
        let pages = pages.iter().map(|&page| (page, table.put(page, busy))).collect();
        table.busy.push(ThisThread::get().number());
        BusyPages { range: self, pages, _in_hand: InHand::begin() }
    }

    /// Notes how many extents are to be kept ready. Returns how many were.
    pub(super) fn keep_ready(&self, table: &mut PageTable, extents: u32) -> u32 {
        let before = mem::replace(&mut table.kept_ready, extents);
        self.pool.supply.ready.want(self.each, before, extents);
        before
    }

    /// Refuses to change pages: in a forked child, of a pool that is asleep, and while a stream of the pool is captured,
    /// whose graph would use what goes.
    pub(super) fn refuse_change(&self, on: Option<&Stream>) -> Result<()> {
        process::refuse_forked()?;
        let pool = &self.pool;
        if pool.sleep.is_asleep() {
            return Err(pool::asleep(pool));
        }
        self.refuse_stream(on)?;
        let mut streams = DeviceCaches::usable_streams_of(pool, ThisThread::get());
        streams.extend(lock(&self.table).lasting_streams());
        for stream in on.into_iter().chain(&streams) {
            if stream.capture_status()? != CaptureStatus::None {
                return Err(Error::invalid_value(format!(
                    "a stream of pool {} on {} is captured, and pages of its ranges come and go for good meanwhile, not when \
                     the graph runs: commit and decommit before the capture or after it",
                    pool.label(),
                    pool.memory.location
                )));
            }
        }
        Ok(())
    }

    /// Refuses a stream whose device cannot use the range.
    pub(super) fn refuse_stream(&self, stream: Option<&Stream>) -> Result<()> {
        let memory = self.memory();
        let is_usable =
            |stream: &&Stream| memory.location == stream.device() || memory.range.peers.has(stream.device());
        let Some(stream) = stream.filter(|stream| !is_usable(stream)) else { return Ok(()) };
        runtime::existing(stream.device())?;
        Err(Error::invalid_value(format!(
            "the range is memory of {}, which a stream of {} cannot use: give a stream of {}, or call enable_peer_access first",
            memory.location,
            stream.device(),
            memory.location
        )))
    }
}

impl Drop for HeldRange {
    fn drop(&mut self) {
        // In a forked child the locks may be held for ever.
        if process::is_forked() {
            return;
        }
        for state in &mut lock(&self.table).pages {
            if let PagePhase::Committed { pins, .. } = &mut state.phase {
                *pins = 0;
            }
        }
        // What the driver refuses to take back is tried again whenever memory is given back.
        let _ = self.free(None, Ends::Range);
    }
}

/// Pages that a call has, each with its state once this is dropped: at first what it was.
pub(super) struct BusyPages<'a> {
    pub(super) range: &'a HeldRange,
    pub(super) pages: Vec<(u32, PageState)>,
    /// Other threads wait for them, and the call may call back meanwhile.
    _in_hand: InHand,
}

impl BusyPages<'_> {
    /// Returns where one of them is in the list.
    pub(super) fn place(&self, page: u32) -> Option<usize> {
        self.pages.binary_search_by_key(&page, |(page, _)| *page).ok()
    }
}

impl Drop for BusyPages<'_> {
    fn drop(&mut self) {
        let thread = ThisThread::get().number();
        let mut table = lock(&self.range.table);
        for &(page, state) in &self.pages {
            table.put(page, state);
        }
        if let Some(place) = table.busy.iter().position(|busy| *busy == thread) {
            table.busy.swap_remove(place);
        }
        drop(table);
        self.range.settled.notify_all();
    }
}

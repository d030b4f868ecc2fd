//! Committing: what is there still is taken back where it is; for the rest memory is mapped. Decommitting: pages are freed,
//! once the streams that used them are done; and the end of a range.

use std::mem;
use std::sync::Arc;

use log::Level;

use super::held_range::{BusyPages, HeldRange};
use super::memory_range::CommitOptions;
use super::page_table::{NamedStream, PagePhase, PageState, RangeLife, is_behind};
use super::prepare::make_missing;
use crate::error::{Error, Result};
use crate::memory::cache::{ServingCache, StreamCache, Waiting};
use crate::memory::device::{Run, Until, log_out};
use crate::memory::pool::{self, Pool};
use crate::memory::route::PoolStay;
use crate::memory::serve::{Patience, commit_run, decommit_blocks, ranges_cache, settle};
use crate::memory::tuning::A_FEW;
use crate::observe::delivery::Delivery;
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::runtime::{self, BoundDevice, Stream};
use crate::sync::{ThisThread, lock};

/// What ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ends {
    Pages,
    /// All pages, and with them the range.
    Range,
    /// The same with the range's callbacks; refused where a running one would have to be waited for, and may not.
    RangeAndCallbacks,
}

impl HeldRange {
    /// Commits pages, given in order, for use in the order of a stream.
    pub(super) fn commit(&self, pages: &[u32], stream: &Stream, options: CommitOptions) -> Result<()> {
        let _delivery = Delivery::at_end();
        let _stack = hold_stack(Purpose::Allocation);
        process::refuse_forked()?;
        if self.pool.is_closed() {
            return Err(pool::closed(&self.pool));
        }
        let _stay = PoolStay::begin(&self.pool)?;
        self.refuse_change(Some(stream))?;
        let named = NamedStream::of(stream)?;
        let mut table = self.table_to_change(pages)?;
        let user = table.bit_of(Some(named));
        let (mut there, mut empty) = (Vec::new(), Vec::new());
        for &page in pages {
            let state = &mut table.pages[page as usize];
            match &mut state.phase {
                PagePhase::Committed { named, .. } => {
                    *named += 1;
                    state.users |= user;
                    there.push(page);
                }
                _ => empty.push(page),
            }
        }
        let mut busy = self.take(table, &empty);
        let outcome = if empty.is_empty() { Ok(()) } else { Commit::of(&mut busy, named, user, options) };
        self.end_naming(&there, outcome.is_ok().then_some(options));
        drop(busy);
        outcome?;
        if !empty.is_empty() && self.pool.supply.ready.lacks(self.each) {
            // The thread is there; where it has ended, pages are made by the commits themselves.
            let _ = make_missing(&self.pool, self.each);
        }
        Ok(())
    }

    /// Ends that a commit names pages that were committed before, which then have its priority if it succeeded.
    fn end_naming(&self, pages: &[u32], succeeded: Option<CommitOptions>) {
        let mut table = lock(&self.table);
        for &page in pages {
            // Another thread may have decommitted it meanwhile, and committed it again.
            if let PagePhase::Committed { named, priority, .. } = &mut table.pages[page as usize].phase {
                *named = named.saturating_sub(1);
                *priority = succeeded.map_or(*priority, |options| options.priority);
            }
        }
    }

    /// Decommits pages, given in order. A page that is not committed stays so.
    pub(super) fn decommit(&self, pages: &[u32], stream: Option<&Stream>) -> Result<()> {
        self.refuse_change(stream)?;
        self.end(pages, stream, Ends::Pages)
    }

    /// Ends a range: its pages are freed, and its addresses are others', each once nothing is mapped there.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if a page is pinned, or in a callback that may not wait; `ErrorKind::Forked`.
    pub(super) fn free(&self, stream: Option<&Stream>, what: Ends) -> Result<()> {
        process::refuse_forked()?;
        if lock(&self.table).is_freed() {
            return Ok(());
        }
        self.refuse_stream(stream)?;
        let all: Vec<_> = (0..self.count()).collect();
        match self.end(&all, stream, what) {
            // Another thread has freed it meanwhile.
            Err(_) if lock(&self.table).is_freed() => return Ok(()),
            outcome => outcome?,
        }
        if let Some(cache) = self.cache() {
            // At once where no work uses it; what the driver does not answer is asked again.
            let _ = settle(&cache, ThisThread::get(), Patience::Ask);
        }
        self.keep_ready(&mut lock(&self.table), 0);
        lock(&self.memory().space).let_go(self.run);
        Ok(())
    }

    /// Frees committed pages. A refusal, as of pinned pages, changes nothing.
    fn end(&self, pages: &[u32], stream: Option<&Stream>, what: Ends) -> Result<()> {
        let _stack = hold_stack(Purpose::Free);
        let named = stream.map(NamedStream::of).transpose()?;
        let mut table = self.table_to_change(pages)?;
        let is_committed = |page: &u32| table.phase(*page).is_committed();
        let chosen: Vec<_> = pages.iter().copied().filter(is_committed).collect();
        let is_pinned = |page: &&u32| matches!(table.phase(**page), PagePhase::Committed { pins: 1.., .. });
        if let Some(pinned) = chosen.iter().find(is_pinned) {
            return Err(Error::invalid_value(format!("page {pinned} of the range is pinned: unpin it first")));
        }
        if what == Ends::RangeAndCallbacks {
            self.listeners.refuse_to_wait()?;
        }
        if what != Ends::Pages {
            table.life = RangeLife::Freed;
        }
        let user = table.bit_of(named);
        let mut busy = self.take(table, &chosen);
        for (_, state) in &mut busy.pages {
            *state = PageState::empty(state.users | user);
        }
        self.leave(busy.pages.iter().map(|&(page, state)| (page, state.users)), named);
        Ok(())
    }

    /// Frees busy pages, each once the users that are given with it are done.
    fn leave(&self, pages: impl Iterator<Item = (u32, u64)>, named: Option<NamedStream<'_>>) {
        if let Some(cache) = self.cache() {
            self.waits(pages, named).into_iter().for_each(|waiting| leave_after(&cache, waiting));
        }
    }

    /// Returns what pages wait for, each given with its users: those with the same together.
    pub(super) fn waits(
        &self,
        pages: impl Iterator<Item = (u32, u64)>,
        named: Option<NamedStream<'_>>,
    ) -> Vec<Waiting> {
        let mut groups: Vec<(u64, u64, Vec<u64>)> = Vec::new();
        for (page, users) in pages {
            let offset = self.offset(page);
            match groups.iter_mut().find(|(known, ..)| *known == users) {
                Some((.., beside)) => beside.push(offset),
                None => groups.push((users, offset, Vec::new())),
            }
        }
        let events = &self.memory().events;
        let of_group = |(bits, first, beside)| {
            let users = lock(&self.table).users(bits, named);
            let mut waiting = match users {
                Some(users) => Waiting::for_users(first, &users, events, Some(ThisThread::get())),
                None => {
                    let devices = self.memory().location.device();
                    let all_work = Until::all_work(events, devices.as_slice());
                    Waiting::new(first, all_work.unwrap_or_else(|_| Until::recorded_later(devices)))
                }
            };
            waiting.beside = beside;
            waiting
        };
        groups.into_iter().map(of_group).collect()
    }
}

/// Frees busy pages once what they wait for is done. The call has freed the others if the cache does not have one, so it
/// succeeds.
pub(super) fn leave_after(cache: &StreamCache, waiting: Waiting) {
    if decommit_blocks(cache, waiting, ThisThread::get()).is_err() {
        log_out(Level::Warn, format_args!("a committed page of a range is not where it was, a fault of gpupool's own"));
    }
}

/// A commit of busy pages under way. Each that has memory by now is committed in the call's own states, with the users that
/// the memory has.
struct Commit<'a, 'b> {
    range: &'a HeldRange,
    of: Arc<ServingCache>,
    busy: &'b mut BusyPages<'a>,
    named: NamedStream<'b>,
    /// The bit of the stream.
    user: u64,
    options: CommitOptions,
}

impl<'a, 'b> Commit<'a, 'b> {
    /// Commits all pages, and fills them; on failure none.
    fn of(busy: &'b mut BusyPages<'a>, named: NamedStream<'b>, user: u64, options: CommitOptions) -> Result<()> {
        let range = busy.range;
        let mut commit = Self { range, of: ranges_cache(&range.pool)?, busy, named, user, options };
        let outcome = commit.all().and_then(|()| options.fill.map_or(Ok(()), |byte| commit.fill(byte)));
        match outcome {
            // Its stream comes after those that used the memory before.
            Ok(()) => commit.busy.pages.iter_mut().for_each(|(_, state)| state.users = user),
            Err(_) => commit.undo(),
        }
        outcome
    }

    fn all(&mut self) -> Result<()> {
        let pool = &self.range.pool;
        let memory = pool.memory;
        for attempt in 0..A_FEW {
            // After the cache was found: a pool that falls asleep from now on, or is closed, finds it, too.
            if !pool.is_in_service() {
                return Err(pool::out_of_service(pool));
            }
            self.take_back()?;
            let missing = self.missing();
            if missing.is_empty() {
                return Ok(());
            }
            if attempt == 0 {
                // So that what is free by now serves.
                settle(self.of.cache, ThisThread::get(), Patience::Ask)?;
            } else {
                // What is there is just leaving, moved by another thread; then nothing uses it.
                let _ = memory.under_way.wait();
                memory.end_retired(if attempt > 1 { Patience::Wait } else { Patience::Ask })?;
            }
            for row in missing.chunk_by(|one, next| one + 1 == *next) {
                if !self.map(row)? && row.len() > 1 {
                    // Some of the row may be empty.
                    row.chunks(1).try_for_each(|page| self.map(page).map(drop))?;
                }
            }
            if self.missing().is_empty() {
                return Ok(());
            }
        }
        Err(if memory.under_way.has_called_out() {
            in_hand(pool)
        } else {
            Error::internal("memory stays mapped at pages of a range that nobody has")
        })
    }

    /// Returns the pages that have no memory yet.
    fn missing(&self) -> Vec<u32> {
        let is_missing = |(_, state): &&(u32, PageState)| !state.phase.is_committed();
        self.busy.pages.iter().filter(is_missing).map(|(page, _)| *page).collect()
    }

    fn note_committed(&mut self, pages: impl Iterator<Item = u32>, users: impl Fn(u64) -> u64) {
        for page in pages {
            if let Some(place) = self.busy.place(page) {
                let state = &mut self.busy.pages[place].1;
                *state = PageState::committed(users(state.users), self.options.priority);
            }
        }
    }

    /// Maps memory at a row of pages. Returns false if something is mapped there still.
    fn map(&mut self, row: &[u32]) -> Result<bool> {
        let (run, each) = (self.range.run, self.range.each);
        let run = Run { first: run.first + row[0] * each, pages: row.len() as u32 * each };
        let is_mapped = commit_run(&self.of, run, each)?;
        if is_mapped {
            self.note_committed(row.iter().copied(), |_| 0);
        }
        Ok(is_mapped)
    }

    /// Takes back those pages whose memory is there still: at once what is free, and in stream order what waits for streams.
    fn take_back(&mut self) -> Result<()> {
        let (range, cache, missing) = (self.range, self.of.cache, self.missing());
        let _moving = cache.memory.under_way.begin();
        let is_wanted = |offset: &u64| range.page_at(*offset).is_some_and(|page| missing.binary_search(&page).is_ok());
        let has_wanted = |entry: &mut Waiting| entry.offsets().any(|offset| is_wanted(&offset));
        let mut freed: Vec<_> = if cache.waiting.is_empty() {
            Vec::new()
        } else {
            cache.waiting.change(|waiting| waiting.extract_if(.., has_wanted).collect())
        };
        let in_order = freed.iter_mut().try_for_each(|entry| self.order(entry, is_wanted));
        let heap = in_order.and_then(|()| self.of.lock_awake().ok_or_else(|| pool::out_of_service(&range.pool)));
        let found = heap.map(|mut heap| {
            let bytes = range.page_bytes();
            let waiting = freed.iter().flat_map(Waiting::offsets).filter(is_wanted);
            let mut found = cache.resume_each(&mut heap, waiting, bytes);
            let places: Vec<_> = missing.iter().map(|&page| range.offset(page)).collect();
            found.extend(cache.allocate_each(&mut heap, &places, bytes));
            drop(heap);
            freed = mem::take(&mut freed).into_iter().filter_map(|entry| self.rest(entry, is_wanted)).collect();
            found
        });
        cache.waiting.change(|waiting| waiting.append(&mut freed));
        let (found, user) = (found?, self.user);
        self.note_committed(found.into_iter().filter_map(|offset| range.page_at(offset)), |users| users | user);
        Ok(())
    }

    /// Orders the stream behind what the wanted pages of a freed block wait for; waits here for what the driver could not
    /// record.
    fn order(&self, entry: &mut Waiting, is_wanted: impl Fn(&u64) -> bool) -> Result<()> {
        let pages = entry.offsets().filter(is_wanted).filter_map(|offset| self.range.page_at(offset));
        let mut users = pages.filter_map(|page| self.busy.place(page)).map(|place| self.busy.pages[place].1.users);
        // Later work of the stream comes after its own.
        if users.all(|users| is_behind(self.user, users)) {
            return Ok(());
        }
        drop(users);
        if let Until::Events(events) = &entry.until {
            return events.iter().try_for_each(|event| self.named.stream.wait(event));
        }
        if entry.is_done(&self.of.memory.events, Patience::Wait)? {
            Ok(())
        } else {
            Err(under_capture(&self.range.pool))
        }
    }

    /// Returns what still waits of a freed block without the wanted pages, if anything does.
    fn rest(&self, mut entry: Waiting, is_wanted: impl Fn(&u64) -> bool) -> Option<Waiting> {
        let left: Vec<_> = entry.offsets().filter(|offset| !is_wanted(offset)).collect();
        let Some((&offset, beside)) = left.split_first() else {
            entry.until.recycle(&self.of.memory.events);
            return None;
        };
        (entry.offset, entry.beside) = (offset, beside.to_vec());
        Some(entry)
    }

    /// Fills all pages.
    fn fill(&mut self, byte: u8) -> Result<()> {
        let (range, stream, user) = (self.range, self.named.stream, self.user);
        self.busy.pages.iter_mut().for_each(|(_, state)| state.users |= user);
        let pool = &range.pool;
        // Until the work is submitted the pool does not fall asleep, and then it waits for the work.
        let _inside = pool.sleep.door.enter().ok_or_else(|| pool::asleep(pool))?;
        let runtime = runtime::get()?;
        let _bound = BoundDevice::of(runtime, stream.device())?;
        let _used = stream.begin_use()?;
        for row in self.busy.pages.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
            let (address, bytes) =
                (range.memory().address(range.offset(row[0].0)), row.len() as u64 * range.page_bytes());
            // SAFETY: the pages were just committed for this call, and stay until the stream's work is done, as their
            // decommit waits for it.
            unsafe { runtime.fill(address, byte, bytes, stream.raw()) }.map_err(|e| e.on(stream.device()))?;
        }
        Ok(())
    }

    /// Frees what was committed so far, once the streams that it waits for are done.
    fn undo(&mut self) {
        let mut committed = Vec::new();
        for (page, state) in &mut self.busy.pages {
            if state.phase.is_committed() {
                committed.push((*page, state.users));
            }
            *state = PageState::empty(state.users);
        }
        if committed.is_empty() {
            return;
        }
        self.range.leave(committed.into_iter(), Some(self.named));
        // What the driver does not answer is asked again.
        let _ = settle(self.of.cache, ThisThread::get(), Patience::Ask);
    }
}

#[cold]
fn in_hand(pool: &Pool) -> Error {
    Error::invalid_value(format!(
        "the former memory of pages of the range is in the hands of a call that is in a callback just now: commit them once \
         that callback has returned (pool {})",
        pool.label()
    ))
}

#[cold]
fn under_capture(pool: &Pool) -> Error {
    Error::invalid_value(format!(
        "pages of the range are still in use by a stream that is captured: commit them once that capture has ended (pool {})",
        pool.label()
    ))
}

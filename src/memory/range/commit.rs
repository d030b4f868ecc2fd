//! Committing: what is there still is taken back where it is; for the rest memory is mapped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::decommit::{by_users, depart};
use super::held_range::{HeldRange, rows};
use super::memory_range::CommitOptions;
use super::page_table::{PagePhase, PageState, is_behind};
use super::prepare::refill;
use super::refusal::refuse_change;
use crate::error::{Error, Result};
use crate::memory::cache::{ServingCache, To, Waiting};
use crate::memory::device::Until;
use crate::memory::pool::{self, Pool};
use crate::memory::route::PoolStay;
use crate::memory::serve::{Patience, commit_run, ranges_cache, settle};
use crate::memory::tuning::A_FEW;
use crate::observe::delivery::{Delivery, deliver};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::runtime::{self, BoundDevice, Stream, StreamIdentity};
use crate::sync::ThisThread;

/// Commits pages, given in order, for use in the order of a stream.
pub(super) fn commit(range: &Arc<HeldRange>, pages: &[u32], stream: &Stream, options: CommitOptions) -> Result<()> {
    let _delivery = Delivery::at_end();
    let _stack = hold_stack(Purpose::Allocation);
    process::refuse_forked()?;
    if range.pool.is_closed() {
        return Err(pool::closed(&range.pool));
    }
    let _stay = PoolStay::begin(&range.pool)?;
    refuse_change(range, Some(stream))?;
    let named = StreamIdentity::of(stream)?;
    let mut users = Vec::new();
    let (mut bit, mut there) = (0, Vec::new());
    let busy = range.begin(pages, |table, pages| {
        bit = table.bit_of(named, stream);
        for &page in pages {
            let state = &mut table.pages[page as usize];
            if state.phase == PagePhase::Committed {
                // It is not taken for this very call.
                state.named += 1;
                state.users |= bit;
                there.push(page);
            }
        }
        let empty = |page: &u32| table.pages[*page as usize].phase == PagePhase::Empty;
        let wanted: Vec<_> = pages.iter().copied().filter(empty).collect();
        users = wanted.iter().map(|&page| table.pages[page as usize].users).collect();
        Ok(wanted)
    })?;
    let outcome =
        if busy.pages.is_empty() { Ok(()) } else { commit_empty(range, &busy.pages, &users, (stream, bit), options) };
    let priority = options.priority;
    let is_done = outcome.is_ok();
    busy.end(
        if is_done { PagePhase::Committed } else { PagePhase::Empty },
        |table| {
            for page in there {
                let state = &mut table.pages[page as usize];
                // Another thread may have decommitted it meanwhile.
                state.named = state.named.saturating_sub(1);
                if is_done {
                    state.priority = priority;
                }
            }
        },
        |table, page| {
            let state = &mut table.pages[page as usize];
            if is_done {
                *state = PageState { users: bit, phase: PagePhase::Committed, priority, ..PageState::default() };
                table.committed += 1;
            } else {
                // It may be being filled.
                state.users |= bit;
            }
        },
    );
    outcome?;
    if range.kept_ready.load(Ordering::Relaxed) > 0 {
        refill(range);
    }
    Ok(())
}

/// Commits busy pages; on failure none.
fn commit_empty(
    range: &HeldRange,
    pages: &[u32],
    users: &[u64],
    (stream, bit): (&Stream, u64),
    options: CommitOptions,
) -> Result<()> {
    let mut commit = Commit { range, of: ranges_cache(&range.pool)?, stream, bit, committed: Vec::new() };
    let outcome = commit.all(pages, users).and_then(|()| commit.fill(pages, options.fill));
    if outcome.is_err() {
        // What this call committed is free again, once the streams that it waits for are done.
        commit.undo(pages, users);
    }
    outcome
}

/// A commit under way.
struct Commit<'a> {
    range: &'a HeldRange,
    of: Arc<ServingCache>,
    stream: &'a Stream,
    bit: u64,
    /// The pages that have memory by now, and whether work may use it: it was taken back, or is being filled.
    committed: Vec<(u32, bool)>,
}

impl Commit<'_> {
    /// Commits pages, of which each was used by the streams that its bits stand for.
    fn all(&mut self, pages: &[u32], users: &[u64]) -> Result<()> {
        let memory = self.range.memory();
        let mut left = pages.to_vec();
        for attempt in 0..A_FEW {
            // After the cache was found: a pool that falls asleep from now on, or is closed, finds it, too.
            if self.range.pool.is_closed() || self.range.pool.sleep.is_asleep() {
                return Err(out_of_service(&self.range.pool));
            }
            self.take_back(&mut left, |page| users[pages.partition_point(|&other| other < page)])?;
            if left.is_empty() {
                return Ok(());
            }
            if attempt == 0 {
                // So that what is free by now serves.
                settle(self.of.cache, ThisThread::get(), Patience::Ask)?;
            } else {
                // What is there is just leaving, moved by another thread; then nothing uses it.
                let _ = memory.under_way.wait();
                memory.end_retired(attempt > 1)?;
            }
            let mut still_mapped = Vec::new();
            for (first, count) in rows(&left) {
                let run = self.range.run_of(first, count);
                if commit_run(&self.of, run, self.range.each)? {
                    self.committed.extend((first..first + count).map(|page| (page, false)));
                    continue;
                }
                for page in first..first + count {
                    // Some of the row may be empty.
                    if count > 1 && commit_run(&self.of, self.range.run_of(page, 1), self.range.each)? {
                        self.committed.push((page, false));
                    } else {
                        still_mapped.push(page);
                    }
                }
            }
            left = still_mapped;
            if left.is_empty() {
                return Ok(());
            }
        }
        Err(if memory.under_way.has_called_out() {
            in_hand(&self.range.pool)
        } else {
            Error::internal("memory stays mapped at pages of a range that nobody has")
        })
    }

    /// Takes back those pages whose memory is there still, and removes them from the list: at once what is free, and in
    /// stream order what waits for streams.
    fn take_back(&mut self, left: &mut Vec<u32>, users: impl Fn(u32) -> u64) -> Result<()> {
        let (range, cache) = (self.range, self.of.cache);
        let _moving = cache.memory.under_way.begin();
        let is_wanted = |offset: u64| {
            let is_in_range = (range.run.start()..range.run.end()).contains(&offset);
            is_in_range && left.binary_search(&range.page_at(offset)).is_ok()
        };
        let has_wanted = |entry: &mut Waiting| entry.offsets().any(is_wanted);
        let freed: Vec<_> = if cache.waiting.is_empty() {
            Vec::new()
        } else {
            cache.waiting.change(|waiting| waiting.extract_if(.., has_wanted).collect())
        };
        let (mut others, resumed, outcome) = self.order(freed, is_wanted, users);
        // Before an observer is called, which may commit the others.
        cache.waiting.change(|waiting| waiting.append(&mut others));
        if process::state().is_observed() {
            resumed.iter().for_each(|&offset| cache.note_completed(offset, To::Observer));
            deliver();
        }
        let bytes = range.page_bytes();
        let found = self.of.lock_awake().map(|mut heap| {
            let mut found = cache.resume_each(&mut heap, resumed.iter().copied(), bytes);
            let places: Vec<_> = left.iter().map(|&page| range.offset(page)).collect();
            found.extend(cache.allocate_each(&mut heap, &places, bytes));
            found
        });
        if found.is_none() {
            let later = || Until::recorded_later(cache.memory.location.device());
            let again = resumed.iter().map(|&offset| Waiting::new(offset, later()));
            cache.waiting.change(|waiting| waiting.extend(again));
        }
        let Some(found) = found else { return Err(out_of_service(&range.pool)) };
        let mut taken: Vec<_> = found.into_iter().map(|offset| range.page_at(offset)).collect();
        taken.sort_unstable();
        left.retain(|page| taken.binary_search(page).is_err());
        self.committed.extend(taken.into_iter().map(|page| (page, true)));
        outcome
    }

    /// Orders the stream behind what the wanted pages among freed blocks wait for. Returns the blocks that still wait, and
    /// the wanted ones that do not.
    fn order(
        &self,
        freed: Vec<Waiting>,
        is_wanted: impl Fn(u64) -> bool,
        users: impl Fn(u32) -> u64,
    ) -> (Vec<Waiting>, Vec<u64>, Result<()>) {
        let range = self.range;
        let (mut others, mut resumed, mut outcome) = (Vec::new(), Vec::new(), Ok(()));
        for mut entry in freed {
            let (back, rest): (Vec<_>, Vec<_>) = entry.offsets().partition(|&offset| is_wanted(offset));
            if outcome.is_err() {
                others.push(entry);
                continue;
            }
            // Later work of the stream comes after its own.
            let is_in_order = back.iter().all(|&offset| is_behind(self.bit, users(range.page_at(offset))));
            let ordered = if is_in_order { Ok(()) } else { self.wait_for(&mut entry) };
            if ordered.is_err() {
                outcome = ordered;
                others.push(entry);
                continue;
            }
            resumed.extend(back);
            match rest.split_first() {
                None => entry.until.recycle(&self.of.memory.events),
                Some((&offset, beside)) => {
                    (entry.offset, entry.beside) = (offset, beside.to_vec());
                    others.push(entry);
                }
            }
        }
        (others, resumed, outcome)
    }

    /// Makes the stream wait for what a freed block waits for; waits here for what the driver could not record.
    fn wait_for(&self, entry: &mut Waiting) -> Result<()> {
        if let Until::Events(events) = &entry.until {
            return events.iter().try_for_each(|event| self.stream.wait(event));
        }
        if entry.is_done(&self.of.memory.events, true)? { Ok(()) } else { Err(under_capture(&self.range.pool)) }
    }

    fn fill(&mut self, pages: &[u32], byte: Option<u8>) -> Result<()> {
        let Some(byte) = byte else { return Ok(()) };
        self.committed.iter_mut().for_each(|(_, is_used)| *is_used = true);
        let range = self.range;
        let pool = &range.pool;
        // Until the work is submitted the pool does not fall asleep, and then it waits for the work.
        let _inside = pool.sleep.door.enter().ok_or_else(|| pool::asleep(pool))?;
        let runtime = runtime::get()?;
        let _bound = BoundDevice::of(runtime, self.stream.device())?;
        let _used = self.stream.begin_use()?;
        for (first, count) in rows(pages) {
            let (address, bytes) = (range.memory().address(range.offset(first)), u64::from(count) * range.page_bytes());
            // SAFETY: the pages were just committed for this call, and stay until the stream's work is done, as their
            // decommit waits for it.
            unsafe { runtime.fill(address, byte, bytes, self.stream.raw()) }.map_err(|e| e.on(self.stream.device()))?;
        }
        Ok(())
    }

    /// Frees what was committed so far.
    fn undo(&mut self, pages: &[u32], users: &[u64]) {
        let committed = std::mem::take(&mut self.committed);
        if committed.is_empty() {
            return;
        }
        let used = |page: u32| users[pages.partition_point(|&other| other < page)] | self.bit;
        let used = |&(page, is_used): &(u32, bool)| (page, if is_used { used(page) } else { 0 });
        let named = StreamIdentity::of(self.stream).ok().map(|named| (named, self.stream));
        let groups = by_users(self.range, committed.iter().map(used));
        depart(self.range, groups, named);
        // What the driver does not answer is asked again.
        let _ = settle(self.of.cache, ThisThread::get(), Patience::Ask);
    }
}

fn out_of_service(pool: &Pool) -> Error {
    if pool.is_closed() { pool::closed(pool) } else { pool::asleep(pool) }
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

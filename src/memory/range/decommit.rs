//! Decommitting: pages are freed, once the streams that used them are done; and the end of a range.

use log::Level;

use super::held_range::HeldRange;
use super::page_table::{PagePhase, PageTable, RangeLife};
use super::prepare::keep;
use super::refusal::{refuse_change, refuse_stream};
use crate::error::{Error, Result};
use crate::memory::cache::{DeviceCaches, StreamCache, Waiting};
use crate::memory::device::{Until, log_out};
use crate::memory::serve::{Patience, decommit_blocks, settle};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::runtime::{Stream, StreamIdentity};
use crate::sync::{ThisThread, lock};

/// Pages by the streams that used them.
pub(super) type ByUsers = Vec<(u64, Vec<u64>)>;

/// Decommits pages, given in order. A page that is not committed stays so.
pub(super) fn decommit(range: &HeldRange, pages: &[u32], stream: Option<&Stream>) -> Result<()> {
    refuse_change(range, stream)?;
    end(range, pages, stream, Ends::Pages).map(drop)
}

/// What ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ends {
    Pages,
    /// All pages, and with them the range.
    Range,
    /// The same with the range's callbacks; refused where a running one would have to be waited for, and may not.
    RangeAndCallbacks,
    /// The same of a range that nobody has any more, with its pins.
    Dropped,
}

/// Frees committed pages; false if that is left to another call. A refusal, as of pinned pages, changes nothing.
fn end(range: &HeldRange, pages: &[u32], stream: Option<&Stream>, what: Ends) -> Result<bool> {
    let _stack = hold_stack(Purpose::Free);
    let named = stream.map(StreamIdentity::of).transpose()?.zip(stream);
    let mut users = Vec::new();
    let select = |table: &mut PageTable, pages: &[u32]| {
        let is_committed = |page: &u32| table.pages[*page as usize].phase == PagePhase::Committed;
        let chosen: Vec<_> = pages.iter().copied().filter(is_committed).collect();
        if what != Ends::Dropped
            && let Some(pinned) = chosen.iter().find(|page| table.pages[**page as usize].pins > 0)
        {
            return Err(refuse_pinned(*pinned));
        }
        if what == Ends::RangeAndCallbacks {
            range.listeners.refuse_to_wait()?;
        }
        let bit = named.map_or(0, |(name, stream)| table.bit_of(name, stream));
        for &page in &chosen {
            let state = &mut table.pages[page as usize];
            state.users |= bit;
            users.push((page, state.users));
            if state.pins > 0 {
                state.pins = 0;
                table.pinned -= 1;
            }
        }
        table.committed -= chosen.len() as u32;
        if what != Ends::Pages {
            table.life = RangeLife::Freed;
        }
        Ok(chosen)
    };
    let busy = match what {
        Ends::Pages | Ends::Range | Ends::RangeAndCallbacks => range.begin(pages, select)?,
        Ends::Dropped => match range.begin_end(pages, select)? {
            Some(busy) => busy,
            None => return Ok(false),
        },
    };
    depart(range, by_users(range, users.into_iter()), named);
    drop(busy);
    Ok(true)
}

/// Groups pages by the streams that used them.
pub(super) fn by_users(range: &HeldRange, users: impl Iterator<Item = (u32, u64)>) -> ByUsers {
    let mut groups = ByUsers::new();
    for (page, bits) in users {
        let offset = range.offset(page);
        match groups.iter_mut().find(|(known, _)| *known == bits) {
            Some((_, offsets)) => offsets.push(offset),
            None => groups.push((bits, vec![offset])),
        }
    }
    groups
}

/// Frees busy pages, each once its users are done.
pub(super) fn depart(range: &HeldRange, groups: ByUsers, named: Option<(StreamIdentity, &Stream)>) {
    if let Some(cache) = DeviceCaches::ranges_of(&range.pool) {
        depart_after(&cache, waits(range, &cache, groups, named));
    }
}

/// Returns what the pages of each group wait for.
pub(super) fn waits(
    range: &HeldRange,
    cache: &StreamCache,
    groups: ByUsers,
    named: Option<(StreamIdentity, &Stream)>,
) -> Vec<Waiting> {
    let of_group = |(bits, offsets): (u64, Vec<u64>)| {
        let (&first, beside) = offsets.split_first()?;
        let users = lock(&range.table).users(bits, named);
        let mut waiting = match users {
            Some(users) => Waiting::for_users(first, &users, &cache.memory.events, Some(ThisThread::get())),
            None => Waiting::new(first, all_work(cache)),
        };
        waiting.beside = beside.to_vec();
        Some(waiting)
    };
    groups.into_iter().filter_map(of_group).collect()
}

/// Frees busy pages, each once what it waits for is done. The call has freed the others if the cache does not have one, so it
/// succeeds.
pub(super) fn depart_after(cache: &StreamCache, waits: Vec<Waiting>) {
    for waiting in waits {
        if decommit_blocks(cache, waiting, ThisThread::get()).is_err() {
            log_out(
                Level::Warn,
                format_args!("a committed page of a range is not where it was, a fault of gpupool's own"),
            );
        }
    }
}

fn all_work(cache: &StreamCache) -> Until {
    let devices = cache.memory.location.device();
    let later = || Until::recorded_later(devices);
    Until::all_work(&cache.memory.events, devices.as_slice()).unwrap_or_else(|_| later())
}

/// Ends a range: its pages are freed, and its addresses are others', each once nothing is mapped there.
///
/// # Errors
/// `ErrorKind::InvalidValue` if a page is pinned, or in a callback that may not wait, unless the range was dropped;
/// `ErrorKind::Forked`.
pub(super) fn free(range: &HeldRange, stream: Option<&Stream>, what: Ends) -> Result<()> {
    process::refuse_forked()?;
    if lock(&range.table).is_freed() {
        return Ok(());
    }
    stream.map_or(Ok(()), |stream| refuse_stream(range, stream))?;
    let all: Vec<_> = (0..range.count()).collect();
    match end(range, &all, stream, what) {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        // Another thread has freed it meanwhile.
        Err(_) if lock(&range.table).is_freed() => return Ok(()),
        Err(refused) => return Err(refused),
    }
    if let Some(cache) = DeviceCaches::ranges_of(&range.pool) {
        // At once where no work uses it; what the driver does not answer is asked again.
        let _ = settle(&cache, ThisThread::get(), Patience::Ask);
    }
    keep(range, 0);
    lock(&range.memory().space).let_go(range.run);
    Ok(())
}

#[cold]
fn refuse_pinned(page: u32) -> Error {
    Error::invalid_value(format!("page {page} of the range is pinned: unpin it first"))
}

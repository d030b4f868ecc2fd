//! Pins: a pinned page is not taken when memory is short.

use std::mem;

use super::held_range::HeldRange;
use super::page_set::RangePages;
use super::page_table::{PagePhase, PageState};
use super::refusal::refuse_stream;
use crate::error::{Error, Result};
use crate::runtime::{Stream, StreamIdentity};

/// Pins those pages that are committed, and returns a bit for each page in the order given, the lowest of the first byte
/// first: whether it is.
pub(super) fn pin(range: &HeldRange, pages: &RangePages<'_>, stream: Option<&Stream>) -> Result<Vec<u8>> {
    let named = name(range, stream)?;
    let mut table = range.settled_table(pages)?;
    let bit = named.map_or(0, |(name, stream)| table.bit_of(name, stream));
    let count = pages.len(range.page_bytes());
    let listed = pages.listed(range.count(), range.page_bytes())?;
    let mut bits = Vec::with_capacity(count.div_ceil(8));
    table.pinned += pin_listed(&mut table.pages, listed, bit, &mut bits);
    Ok(bits)
}

/// Pins pages, notes for each whether it is there, and returns how many had no pins.
// Inlined, what it counts is kept on the stack, for a fifth more instructions.
#[inline(never)]
fn pin_listed(states: &mut [PageState], listed: impl Iterator<Item = u32>, user: u64, bits: &mut Vec<u8>) -> u32 {
    let (mut place, mut byte, mut pinned) = (0_u32, 0, 0);
    listed.for_each(|page| {
        let state = &mut states[page as usize];
        let is_there = state.phase == PagePhase::Committed;
        if is_there {
            pinned += u32::from(state.pins == 0);
            state.pins += 1;
            state.users |= user;
        }
        byte |= u8::from(is_there) << place;
        place = (place + 1) % 8;
        if place == 0 {
            bits.push(mem::take(&mut byte));
        }
    });
    if place > 0 {
        bits.push(byte);
    }
    pinned
}

/// Ends one pin of each page: it may be taken once the work so far on the stream is done, too.
///
/// # Errors
/// `ErrorKind::InvalidValue` if a page is not pinned; then none is changed.
pub(super) fn unpin(range: &HeldRange, pages: &RangePages<'_>, stream: Option<&Stream>) -> Result<()> {
    let named = name(range, stream)?;
    let mut table = range.open_table()?;
    let bit = named.map_or(0, |(name, stream)| table.bit_of(name, stream));
    let (mut done, mut unpinned) = (0, 0);
    let states = &mut table.pages;
    let listed = || pages.listed(range.count(), range.page_bytes());
    let refused = listed()?.find(|page| {
        let state = &mut states[*page as usize];
        if state.pins == 0 {
            return true;
        }
        state.pins -= 1;
        state.users |= bit;
        unpinned += u32::from(state.pins == 0);
        done += 1;
        false
    });
    if let Some(page) = refused {
        // As they were, but for the stream, which may count as a user.
        listed()?.take(done).for_each(|page| states[page as usize].pins += 1);
        return Err(Error::invalid_value(format!(
            "page {page} of the range is not pinned: unpin what pin() found there"
        )));
    }
    table.pinned -= unpinned;
    Ok(())
}

fn name<'a>(range: &HeldRange, stream: Option<&'a Stream>) -> Result<Option<(StreamIdentity, &'a Stream)>> {
    stream.map_or(Ok(()), |stream| refuse_stream(range, stream))?;
    Ok(stream.map(StreamIdentity::of).transpose()?.zip(stream))
}

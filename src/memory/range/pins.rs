//! Pins: a pinned page is not taken when memory is short.

use super::held_range::HeldRange;
use super::page_set::RangePages;
use super::page_table::{NamedStream, PagePhase};
use super::refusal::refuse_stream;
use crate::error::{Error, Result};
use crate::runtime::Stream;

/// Pins those pages that are committed, and returns a bit for each page in the order given, the lowest of the first byte
/// first: whether it is.
pub(super) fn pin(range: &HeldRange, pages: &RangePages<'_>, stream: Option<&Stream>) -> Result<Vec<u8>> {
    let named = name(range, stream)?;
    let mut table = range.settled_table(pages)?;
    let bit = named.map_or(0, |(name, stream)| table.bit_of(name, stream));
    let mut bits = Vec::with_capacity((pages.len(range.page_bytes()).min(range.count() as usize)).div_ceil(8));
    let mut byte = 0;
    let (mut place, mut pinned) = (0, 0);
    let states = &mut table.pages;
    pages.each(range.count(), range.page_bytes(), |page| {
        let state = &mut states[page as usize];
        let is_there = state.phase == PagePhase::Committed;
        pinned += u32::from(is_there && state.pins == 0);
        state.pins += u32::from(is_there);
        state.users |= if is_there { bit } else { 0 };
        byte |= u8::from(is_there) << place;
        place = (place + 1) % 8;
        if place == 0 {
            bits.push(std::mem::take(&mut byte));
        }
    })?;
    if place > 0 {
        bits.push(byte);
    }
    table.pinned += pinned;
    Ok(bits)
}

/// Ends one pin of each page: it may be taken once the work so far on the stream is done, too.
///
/// # Errors
/// `ErrorKind::InvalidValue` if a page is not pinned; then none is changed.
pub(super) fn unpin(range: &HeldRange, pages: &RangePages<'_>, stream: Option<&Stream>) -> Result<()> {
    let named = name(range, stream)?;
    let mut table = range.open_table()?;
    let bit = named.map_or(0, |(name, stream)| table.bit_of(name, stream));
    let (mut done, mut unpinned, mut refused) = (0, 0, None);
    let states = &mut table.pages;
    pages.each(range.count(), range.page_bytes(), |page| {
        let state = &mut states[page as usize];
        if refused.is_some() || state.pins == 0 {
            refused = refused.or(Some(page));
            return;
        }
        state.pins -= 1;
        state.users |= bit;
        unpinned += u32::from(state.pins == 0);
        done += 1;
    })?;
    if let Some(page) = refused {
        // As they were, but for the stream, which may count as a user.
        let mut left = done;
        pages.each(range.count(), range.page_bytes(), |page| {
            if left > 0 {
                states[page as usize].pins += 1;
                left -= 1;
            }
        })?;
        return Err(Error::invalid_value(format!(
            "page {page} of the range is not pinned: unpin what pin() found there"
        )));
    }
    table.pinned -= unpinned;
    Ok(())
}

fn name<'a>(range: &HeldRange, stream: Option<&'a Stream>) -> Result<Option<(NamedStream, &'a Stream)>> {
    stream.map_or(Ok(()), |stream| refuse_stream(range, stream))?;
    Ok(stream.map(NamedStream::of).transpose()?.zip(stream))
}

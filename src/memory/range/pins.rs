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
    let mut table = range.open_table()?;
    let bit = named.map_or(0, |(name, stream)| table.bit_of(name, stream));
    let (mut bits, mut count, mut pinned) = (Vec::new(), 0_usize, 0);
    let states = &mut table.pages;
    pages.each(range.count(), range.page_bytes(), |page| {
        let state = &mut states[page as usize];
        let is_there = state.phase == PagePhase::Committed;
        if is_there {
            pinned += u32::from(state.pins == 0);
            state.pins += 1;
            state.users |= bit;
        }
        if count.is_multiple_of(8) {
            bits.push(0);
        }
        if let Some(last) = bits.last_mut() {
            *last |= u8::from(is_there) << (count % 8);
        }
        count += 1;
    })?;
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
    let (mut done, mut refused) = (Vec::new(), None);
    let mut unpinned = 0;
    let states = &mut table.pages;
    pages.each(range.count(), range.page_bytes(), |page| {
        let state = &mut states[page as usize];
        if refused.is_some() {
            return;
        }
        if state.pins == 0 {
            refused = Some(page);
            return;
        }
        state.pins -= 1;
        unpinned += u32::from(state.pins == 0);
        done.push(page);
    })?;
    if let Some(page) = refused {
        done.iter().for_each(|&page| states[page as usize].pins += 1);
        return Err(Error::invalid_value(format!(
            "page {page} of the range is not pinned: unpin what pin() found there"
        )));
    }
    done.iter().for_each(|&page| states[page as usize].users |= bit);
    table.pinned -= unpinned;
    Ok(())
}

fn name<'a>(range: &HeldRange, stream: Option<&'a Stream>) -> Result<Option<(NamedStream, &'a Stream)>> {
    stream.map_or(Ok(()), |stream| refuse_stream(range, stream))?;
    Ok(stream.map(NamedStream::of).transpose()?.zip(stream))
}

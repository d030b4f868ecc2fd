//! Which pages of a range a call is for.

use std::ops::Range;

use crate::error::{Error, Result};

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
    pub(super) fn sorted(&self, count: u32, page_bytes: u64) -> Result<Vec<u32>> {
        match self {
            Self::Bytes(_) => Ok(self.listed(count, page_bytes)?.collect()),
            Self::Numbers(numbers) => {
                let mut sorted = numbers.to_vec();
                if !sorted.is_sorted_by(|one, next| one < next) {
                    sorted.sort_unstable();
                    sorted.dedup();
                }
                match sorted.last() {
                    Some(&last) if last >= count => Err(beyond(last, count)),
                    _ => Ok(sorted),
                }
            }
        }
    }

    /// Returns how many pages are named, if they are pages of the range.
    pub(super) fn len(&self, page_bytes: u64) -> usize {
        match self {
            Self::Bytes(bytes) => (bytes.end.saturating_sub(bytes.start) / page_bytes) as usize,
            Self::Numbers(numbers) => numbers.len(),
        }
    }

    /// Returns each page in the order given, as often as it is named.
    pub(super) fn listed(&self, count: u32, page_bytes: u64) -> Result<impl Iterator<Item = u32>> {
        let (row, numbers): (_, &[u32]) = match self {
            Self::Bytes(bytes) => {
                check_bytes(bytes, count, page_bytes)?;
                ((bytes.start / page_bytes) as u32..(bytes.end / page_bytes) as u32, &[])
            }
            Self::Numbers(numbers) => {
                // Without an early end, several are compared at once.
                if !numbers.iter().fold(true, |are_there, page| are_there & (*page < count)) {
                    return Err(beyond(numbers.iter().copied().max().unwrap_or(count), count));
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

#[cold]
fn beyond(page: u32, count: u32) -> Error {
    Error::invalid_value(format!("the range has {count} pages and no page {page}: give numbers below {count}"))
}

//! The backup: pinned memory of the host that holds what is live while the device's memory is away.

use std::ops::Range;

use super::parts::Part;
use super::pieces::Pieces;
use crate::error::{Error, Result};
use crate::memory::device::DeviceMemory;
use crate::memory::host::PinnedBuffer;
use crate::memory::pool::{BackedUp, BackupPiece, Record};
use crate::memory::tuning::COPY_LEAST;
use crate::runtime::{self, Stream};

/// What happens to the content of a pool that falls asleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Backup {
    /// It is copied to pinned memory of the host, and back when the pool wakes.
    #[default]
    Host,
    /// It is discarded: the content of the blocks is arbitrary when the pool wakes.
    None,
}

impl BackupPiece for PinnedBuffer {
    fn address(&self) -> u64 {
        Self::address(self)
    }

    fn bytes(&self) -> u64 {
        self.nbytes()
    }
}

/// Returns what is to be copied of each part, of live ranges in order.
pub(super) fn to_copy(parts: &[Part], live: &[Range<u64>]) -> Vec<Vec<Range<u64>>> {
    let mut next = 0;
    let mut of_part = |part: &Part| {
        let (start, end) = (part.start(), part.end());
        let mut ranges: Vec<Range<u64>> = Vec::new();
        while let Some(range) = live.get(next).filter(|range| range.start < end) {
            let (from, to) = (range.start.max(start), range.end.min(end));
            match ranges.last_mut() {
                Some(last) if from <= last.end + COPY_LEAST => last.end = to.max(last.end),
                _ if from < to => ranges.push(from..to),
                _ => {}
            }
            if range.end > end {
                break;
            }
            next += 1;
        }
        ranges
    };
    parts.iter().map(&mut of_part).collect()
}

/// A backup being made: copies under way from the device to pieces of pinned memory.
#[derive(Debug)]
pub(super) struct Copying {
    /// Its own, so that the copies wait for nothing else.
    pub(super) stream: Stream,
    pieces: Pieces,
    /// The bytes used of the last piece.
    used: u64,
}

impl Copying {
    /// Begins a backup of so many bytes.
    pub(super) fn begin(memory: &DeviceMemory, bytes: u64) -> Result<Self> {
        let node = runtime::nearest_host_node(memory.device)?.host_node().unwrap_or(0);
        Ok(Self { stream: Stream::new(memory.device)?, pieces: Pieces::begin(node, bytes), used: 0 })
    }

    /// Begins to copy ranges of the device's memory, and notes where they will be.
    pub(super) fn copy(&mut self, memory: &DeviceMemory, ranges: &[Range<u64>], record: &mut Record) -> Result<()> {
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let (piece, room) = self.piece(record)?;
                let bytes = room.min(range.end - at);
                let Some(Some(to)) = record.pieces.get(piece) else {
                    return Err(Error::internal("a backup has no room for what it was made for"));
                };
                // SAFETY: the device's range is mapped until its part is given back, which waits for the copy, and so is the
                // piece, of which this range was given out once.
                unsafe { self.stream.copy_to_host(to.address() + self.used, memory.address(at), bytes) }?;
                record.backed_up.push(BackedUp { start: at, bytes, piece, at: self.used });
                self.used += bytes;
                at += bytes;
            }
        }
        Ok(())
    }

    /// Returns the piece that is filled next, and the bytes of room in it.
    fn piece(&mut self, record: &mut Record) -> Result<(usize, u64)> {
        if let Some(Some(last)) = record.pieces.last()
            && self.used < last.bytes()
        {
            return Ok((record.pieces.len() - 1, last.bytes() - self.used));
        }
        let piece = self.pieces.next()?;
        let bytes = piece.nbytes();
        record.pieces.push(Some(Box::new(piece)));
        self.used = 0;
        Ok((record.pieces.len() - 1, bytes))
    }
}

/// Begins to copy back what is backed up of a range of the device's memory.
///
/// # Safety
/// The range is mapped until the stream is done, and nothing else uses it.
pub(super) unsafe fn copy_back(
    memory: &DeviceMemory,
    record: &Record,
    range: &Range<u64>,
    stream: &Stream,
) -> Result<()> {
    let first = record.backed_up.partition_point(|part| part.end() <= range.start);
    for part in record.backed_up[first..].iter().take_while(|part| part.start < range.end) {
        let (start, end) = (part.start.max(range.start), part.end().min(range.end));
        let Some(Some(piece)) = record.pieces.get(part.piece) else {
            return Err(Error::internal("a part of a backup is gone"));
        };
        let from = piece.address() + part.at + (start - part.start);
        // SAFETY: the piece lives as long as the record, which outlives the copy, and the caller vouches for the device's.
        unsafe { stream.copy_to_device(memory.address(start), from, end - start) }?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::device::Mapping;
    use crate::memory::tuning::PAGE;
    use crate::runtime::Extent;

    fn part(first: u32, pages: u32) -> Part {
        Part { extents: vec![Mapping { first, pages, extent: Extent::from_number(1) }] }
    }

    #[test]
    fn what_is_live_is_copied_part_by_part_and_what_is_close_together() {
        let parts = [part(0, 2), part(2, 1), part(10, 1)];
        let start = 10 * PAGE;
        let live = [512..1024, 4096..8192, PAGE..3 * PAGE - 512, start..start + 512, start + (1 << 20)..start + PAGE];
        let found: Vec<_> = (0..)
            .zip(to_copy(&parts, &live))
            .flat_map(|(part, ranges)| ranges.into_iter().map(move |r| (part, r)))
            .collect();
        let expected = [
            (0, 512..8192),
            (0, PAGE..2 * PAGE),
            (1, 2 * PAGE..3 * PAGE - 512),
            (2, start..start + 512),
            (2, start + (1 << 20)..start + PAGE),
        ];
        assert_eq!(found, expected);
    }
}

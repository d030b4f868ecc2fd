//! The backup: pinned memory with what is live while the device's memory is away.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::error::{Error, Result};
use crate::memory::device::{DeviceMemory, Run};
use crate::memory::pinned::pinned_for_gpupool;
use crate::memory::pool::{BackedUp, BackupPiece, KeptExtents, Record};
use crate::memory::tuning::{BACKUP_MOST, COPY_LEAST, SIDE_BY_SIDE};
use crate::observe::nvtx;
use crate::runtime::{self, Stream};
use crate::sync::{AtomicU64, Ordering};

/// The name of the threads that make pieces; the system keeps 15 bytes.
const THREAD: &str = "gpupool-backup";

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

/// Returns which live ranges to copy for each part, in order.
pub(super) fn to_copy(parts: &[KeptExtents], live: &[Range<u64>]) -> Vec<Vec<Range<u64>>> {
    let mut next = 0;
    let of_part = |part: &KeptExtents| {
        let (start, end) = (part.run().start(), part.run().end());
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
    parts.iter().map(of_part).collect()
}

/// A backup in progress: copies from the device to pieces of pinned memory.
#[derive(Debug)]
pub(super) struct Copying {
    /// Its own, so that the copies wait for nothing else.
    pub(super) stream: Stream,
    pieces: BackupPieces,
    /// The piece being filled, and the bytes used of it.
    piece: Option<(Arc<BackupPiece>, u64)>,
}

impl Copying {
    pub(super) fn begin(memory: &DeviceMemory, bytes: u64) -> Result<Self> {
        let node = runtime::nearest_host_node(memory.device()?)?.number();
        Ok(Self { stream: Stream::new(memory.device()?)?, pieces: BackupPieces::begin(node, bytes), piece: None })
    }

    /// Begins to copy ranges of the device's memory, and notes where they will be.
    pub(super) fn copy(&mut self, memory: &DeviceMemory, ranges: &[Range<u64>], record: &mut Record) -> Result<()> {
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let (piece, at) = match self.piece.take() {
                    Some((piece, used)) if used < piece.bytes => (piece, used),
                    _ => (Arc::new(self.pieces.next()?), 0),
                };
                let bytes = (piece.bytes - at).min(range.end - start);
                // SAFETY: the device's range is mapped until its part is given back, which waits for the copy, and so
                // is the piece, of which this range was handed out once.
                unsafe { self.stream.copy_to_host(piece.address + at, memory.address(start), bytes) }?;
                self.piece = Some((Arc::clone(&piece), at + bytes));
                record.backed_up.push(BackedUp { range: start..start + bytes, piece, at });
                start += bytes;
            }
        }
        Ok(())
    }
}

/// Pieces of pinned memory, of so many bytes together, on one NUMA node of the host. Two threads make them while others are
/// filled, so that one touches pages while the driver registers the other's.
#[derive(Debug)]
struct BackupPieces {
    node: u32,
    /// The bytes that no piece was requested for yet.
    left: Arc<AtomicU64>,
    /// What the threads have made; none if the first piece is the last.
    made: Option<Receiver<Result<BackupPiece>>>,
}

impl BackupPieces {
    fn begin(node: u32, bytes: u64) -> Self {
        let left = Arc::new(AtomicU64::new(bytes));
        let (sender, receiver) = channel();
        let makers = if bytes > BACKUP_MOST { SIDE_BY_SIDE } else { 0 };
        let started = (0..makers).filter(|_| start(node, &left, &sender)).count() > 0;
        Self { node, left, made: started.then_some(receiver) }
    }

    /// Returns the next piece, once it is made.
    fn next(&self) -> Result<BackupPiece> {
        let gone = || Error::internal("a backup has no room for what it was made for");
        match &self.made {
            // The threads that make them wait for no other.
            Some(made) => made.recv().map_err(|_| gone())?,
            None => make(self.node, &self.left).ok_or_else(gone)?,
        }
    }
}

/// Makes one more piece; none if all are made.
fn make(node: u32, left: &AtomicU64) -> Option<Result<BackupPiece>> {
    let take = |left: u64| (left > 0).then(|| left - left.min(BACKUP_MOST));
    let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
    let buffer = pinned_for_gpupool(before.min(BACKUP_MOST), node);
    Some(buffer.map(|buffer| BackupPiece { address: buffer.ptr(), bytes: buffer.nbytes(), _memory: Box::new(buffer) }))
}

/// Starts a thread that makes pieces until there are enough, one fails, or no thread waits for more; false if the system
/// starts none.
fn start(node: u32, left: &Arc<AtomicU64>, made: &Sender<Result<BackupPiece>>) -> bool {
    let (left, made) = (Arc::clone(left), made.clone());
    let work = move || {
        nvtx::name_thread(THREAD);
        while let Some(piece) = make(node, &left) {
            let has_failed = piece.is_err();
            if made.send(piece).is_err() || has_failed {
                break;
            }
        }
    };
    thread::Builder::new().name(THREAD.to_owned()).spawn(work).is_ok()
}

/// Begins to copy the backup of pages back.
///
/// # Safety
/// They are mapped until the stream is done, and nothing else uses it.
pub(super) unsafe fn copy_back(memory: &DeviceMemory, record: &Record, run: Run, stream: &Stream) -> Result<()> {
    let first = record.backed_up.partition_point(|part| part.range.end <= run.start());
    for part in record.backed_up[first..].iter().take_while(|part| part.range.start < run.end()) {
        let (start, end) = (part.range.start.max(run.start()), part.range.end.min(run.end()));
        let from = part.piece.address + part.at + (start - part.range.start);
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

    fn part(first: u32, pages: u32) -> KeptExtents {
        let extents = vec![Mapping { run: Run { first, pages }, extent: Extent::from_number(1) }];
        KeptExtents { extents, is_mapped: true, is_open: true }
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

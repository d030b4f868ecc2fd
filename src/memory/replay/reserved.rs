//! The bytes that an allocator has of the device over the events of a log, in few numbers.

use super::watch::{Progress, watched};
use super::{CHUNK, Place, ReplayAllocator, ReplayEvent, Slots, step};
use crate::error::Result;
use crate::runtime::{self, BoundDevice};

/// Keeps the least and the most of each bucket of events.
struct Extremes {
    width: usize,
    found: Vec<(usize, u64)>,
    /// The least and the most of the bucket under way, and where they were.
    bucket: Option<[(usize, u64); 2]>,
}

impl Extremes {
    fn add(&mut self, event: usize, bytes: u64) {
        if event.is_multiple_of(self.width) {
            self.close();
        }
        let this = (event, bytes);
        let [least, most] = self.bucket.unwrap_or([this, this]);
        let least = if bytes < least.1 { this } else { least };
        let most = if bytes > most.1 { this } else { most };
        self.bucket = Some([least, most]);
    }

    fn close(&mut self) {
        let Some(mut bucket) = self.bucket.take() else { return };
        bucket.sort_unstable();
        for (event, bytes) in bucket {
            if self.found.last().is_none_or(|last| last.1 != bytes) {
                self.found.push((event, bytes));
            }
        }
    }
}

/// Replays a log once, on one thread and the calling thread's current device, and answers the bytes that the allocator had
/// reserved: (event, bytes after it), by event, at each change. Where they change often, the least and the most of each
/// of `buckets` equal parts of the log. Nothing is timed. Memory cached before is given back. The watcher is as that of
/// [`replay`](super::replay).
///
/// # Errors
/// As [`replay`](super::replay).
pub fn replay_reserved(
    events: &[ReplayEvent],
    allocator: ReplayAllocator,
    buckets: usize,
    watch: &mut dyn FnMut(f64) -> bool,
) -> Result<Option<Vec<(usize, u64)>>> {
    let place = Place::new(events, allocator)?;
    let progress = Progress::new(events.len());
    let width = events.len().div_ceil(buckets.max(1)).max(1);
    watched(&progress, watch, || {
        let Place { server, streams, slots } = &place;
        let _bound = BoundDevice::new(runtime::get()?, server.device)?;
        server.clear()?;
        let mut blocks: Slots = vec![None; *slots];
        let mut extremes = Extremes { width, found: Vec::new(), bucket: None };
        let mut outcome = Ok(());
        'events: for (number, chunk) in events.chunks(CHUNK).enumerate() {
            for (place, event) in chunk.iter().enumerate() {
                outcome = step(server, event, streams, &mut blocks).and_then(|()| server.reserved()).map(|bytes| {
                    extremes.add(number * CHUNK + place, bytes);
                });
                if outcome.is_err() {
                    break 'events;
                }
            }
            if !progress.advance(chunk.len()) {
                break;
            }
        }
        extremes.close();
        outcome.and(server.free_all(&mut blocks, streams)).map(|()| extremes.found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(width: usize, bytes: &[u64]) -> Vec<(usize, u64)> {
        let mut extremes = Extremes { width, found: Vec::new(), bucket: None };
        bytes.iter().enumerate().for_each(|(event, bytes)| extremes.add(event, *bytes));
        extremes.close();
        extremes.found
    }

    #[test]
    fn a_bucket_keeps_its_least_and_most_in_order() {
        assert_eq!(found(4, &[5, 9, 1, 5, 6, 6, 6, 6]), [(1, 9), (2, 1), (4, 6)]);
        assert_eq!(found(4, &[5, 1, 9, 5, 9]), [(1, 1), (2, 9)]);
    }

    #[test]
    fn every_change_is_kept_where_buckets_are_small() {
        assert_eq!(found(1, &[1, 1, 3, 2, 2]), [(0, 1), (2, 3), (3, 2)]);
        assert_eq!(found(1, &[]), []);
    }
}

//! The bytes that an allocator has reserved on the device over the events of a log, in few numbers; and the progress of a
//! replay, and its early end on demand.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::{CHUNK, ReplayEvent, ReplayPlace, ReplaySettings, empty_slots};
use crate::error::{Error, Result};
use crate::runtime::{self, BoundDevice};

/// The changes of a number over the events, at most about so many of them.
struct Changes {
    most: usize,
    found: Vec<(usize, u64)>,
}

impl Changes {
    fn new(most: usize) -> Self {
        Self { most: most.max(12), found: Vec::new() }
    }

    fn add(&mut self, event: usize, bytes: u64) {
        if self.found.last().is_some_and(|last| last.1 == bytes) {
            return;
        }
        if self.found.len() >= self.most {
            self.thin();
        }
        self.found.push((event, bytes));
    }

    /// Keeps the least, the most and the last of each of equal parts of the events, about half of what may be kept.
    fn thin(&mut self) {
        let parts = self.most / 6;
        let width = self.found.last().map_or(1, |last| last.0 / parts + 1);
        let mut kept = Vec::new();
        for part in self.found.chunk_by(|one, next| one.0 / width == next.0 / width) {
            let least = part.iter().min_by_key(|change| change.1);
            let most = part.iter().max_by_key(|change| change.1);
            let mut of_part: Vec<_> = least.into_iter().chain(most).chain(part.last()).copied().collect();
            of_part.sort_unstable();
            of_part.dedup();
            kept.extend(of_part);
        }
        self.found = kept;
    }
}

/// Replays a log once, on one thread and the calling thread's current device, and returns the bytes that the allocator
/// had reserved: (event, bytes after it), by event, at each change. The number of points is limited: if there are more
/// changes, the minimum, the maximum and the last value of each of equal parts of the log. Nothing is timed. Memory
/// cached before is released. The watcher is as that of [`replay`](super::replay).
///
/// # Errors
/// As [`replay`](super::replay).
pub fn replay_reserved(
    events: &[ReplayEvent],
    settings: ReplaySettings,
    most: usize,
    watch: &mut dyn FnMut(f64) -> bool,
) -> Result<Option<Vec<(usize, u64)>>> {
    let place = ReplayPlace::new(events, settings)?;
    let progress = Progress::new(events.len());
    watched(&progress, watch, || {
        let _bound = BoundDevice::of(runtime::get()?, place.server.device)?;
        place.server.clear()?;
        look(&place, events, most, &progress)
    })
}

/// Goes over a log once and returns what was reserved, as [`replay_reserved`] does. The current device is the place's.
pub(super) fn look(
    place: &ReplayPlace,
    events: &[ReplayEvent],
    most: usize,
    progress: &Progress,
) -> Result<Vec<(usize, u64)>> {
    let mut blocks = empty_slots(place.slots)?;
    let mut changes = Changes::new(most);
    let mut outcome = Ok(());
    'events: for (number, chunk) in events.chunks(CHUNK).enumerate() {
        for (within, event) in chunk.iter().enumerate() {
            outcome = place.step(event, &mut blocks).and_then(|()| place.server.reserved()).map(|bytes| {
                changes.add(number * CHUNK + within, bytes);
            });
            if outcome.is_err() {
                break 'events;
            }
        }
        if !progress.advance(chunk.len()) {
            break;
        }
    }
    outcome.and(place.end_pass(&mut blocks)).map(|()| changes.found)
}

/// How often a watcher is asked.
const TICK: Duration = Duration::from_millis(100);

/// How far a replay is.
pub(super) struct Progress {
    done: AtomicUsize,
    total: usize,
    is_stopped: AtomicBool,
}

impl Progress {
    pub(super) fn new(total: usize) -> Self {
        Self { done: AtomicUsize::new(0), total, is_stopped: AtomicBool::new(false) }
    }

    /// Counts events; false if the replay is to end.
    pub(super) fn advance(&self, events: usize) -> bool {
        self.done.fetch_add(events, Ordering::Relaxed);
        !self.is_stopped()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn part(&self) -> f64 {
        self.done.load(Ordering::Relaxed) as f64 / self.total.max(1) as f64
    }
}

/// Does the work on a thread of its own while the calling one asks the watcher, and returns none if that stopped it.
pub(super) fn watched<T: Send>(
    progress: &Progress,
    watch: &mut dyn FnMut(f64) -> bool,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<Option<T>> {
    let outcome = thread::scope(|scope| {
        let (working, ended) = mpsc::channel::<()>();
        let working = move || {
            // Dropped when the work ends, however it does.
            let _working = working;
            work()
        };
        let worker = thread::Builder::new()
            .spawn_scoped(scope, working)
            .map_err(|e| Error::unavailable(format!("no thread could be started for a replay: {e}")))?;
        while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            if !progress.is_stopped() && !watch(progress.part()) {
                progress.is_stopped.store(true, Ordering::Relaxed);
            }
        }
        worker.join().map_err(|_| Error::internal("the replay's thread panicked"))?
    });
    let result = outcome?;
    Ok((!progress.is_stopped()).then_some(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(most: usize, bytes: impl IntoIterator<Item = u64>) -> Vec<(usize, u64)> {
        let mut changes = Changes::new(most);
        bytes.into_iter().enumerate().for_each(|(event, bytes)| changes.add(event, bytes));
        changes.found
    }

    #[test]
    fn every_change_is_kept_while_they_are_few() {
        assert_eq!(changes(12, [1, 1, 3, 2, 2]), [(0, 1), (2, 3), (3, 2)]);
        assert_eq!(changes(12, []), []);
    }

    #[test]
    #[cfg_attr(miri, ignore = "100,000 changes, and nothing unsafe")]
    fn of_many_changes_the_extremes_are_kept_and_what_holds() {
        // A saw with one tooth that stands out, one gap, and a level at the end.
        let saw = (0..100_000).map(|event| match event {
            60_001 => 900,
            70_001 => 1,
            90_000.. => 50,
            _ => 100 + event % 2,
        });
        let found = changes(600, saw);
        assert!(found.len() <= 600 && found.len() >= 300, "{}", found.len());
        assert!(found.is_sorted_by(|one, next| one.0 < next.0));
        for kept in [(60_001, 900), (70_001, 1), (90_000, 50)] {
            assert!(found.contains(&kept), "{kept:?}");
        }
    }
}

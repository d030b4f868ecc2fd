//! A pool's handles on one device: the lists, the counts, and the lock around them.
//!
//! Each method locks for a few list operations and returns; none calls a library or a driver.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::record::Record;
use super::stats::HandleStats;
use crate::library::RawHandle;
use crate::stream::RawStream;

#[derive(Default)]
pub(super) struct DevicePool(Mutex<Handles>);

#[derive(Default)]
struct Handles {
    /// Every live handle, held or idle.
    all: Vec<Arc<Record>>,
    idle: Vec<Arc<Record>>,
    created: u64,
    destroyed: u64,
    misses: u64,
    hand_overs: u64,
    failures: u64,
    create_time: Duration,
    /// Hits of handles that were destroyed.
    past_hits: u64,
    /// What a handle took when one was last created with nothing else going on.
    measured_bytes: Option<u64>,
}

impl DevicePool {
    fn lock(&self) -> MutexGuard<'_, Handles> {
        // A panic cannot leave the lists half changed: nothing under this lock can panic but for want of memory.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle handle for a request: one that last ran on the stream, else the one that came back last.
    pub(super) fn take_idle(&self, stream: RawStream) -> Option<Arc<Record>> {
        let mut handles = self.lock();
        handles.misses += 1;
        let last = handles.idle.len().checked_sub(1)?;
        let index = handles.idle.iter().rposition(|record| record.last_ran_on(stream)).unwrap_or(last);
        handles.hand_overs += 1;
        Some(handles.idle.remove(index))
    }

    /// Takes handles back that nobody holds any more.
    pub(super) fn put_idle(&self, records: impl IntoIterator<Item = Arc<Record>>) {
        self.lock().idle.extend(records);
    }

    pub(super) fn idle_count(&self) -> usize {
        self.lock().idle.len()
    }

    /// Books a new handle as held. Its memory is what was measured, else what was last measured, else what is known.
    pub(super) fn add(
        &self,
        handle: RawHandle,
        time: Duration,
        measured_bytes: Option<u64>,
        known_bytes: u64,
    ) -> Arc<Record> {
        let mut handles = self.lock();
        handles.created += 1;
        handles.create_time += time;
        handles.measured_bytes = measured_bytes.or(handles.measured_bytes);
        let record = Arc::new(Record::new(handle, handles.measured_bytes.unwrap_or(known_bytes)));
        handles.all.push(Arc::clone(&record));
        record
    }

    /// Takes every idle handle out for good, to be destroyed.
    pub(super) fn remove_idle(&self) -> Vec<RawHandle> {
        let mut handles = self.lock();
        let idle = std::mem::take(&mut handles.idle);
        handles.all.retain(|record| !idle.iter().any(|gone| Arc::ptr_eq(gone, record)));
        handles.destroyed += idle.len() as u64;
        handles.past_hits += idle.iter().map(|record| record.hits()).sum::<u64>();
        // Each is in no list any more, so this is its only owner.
        idle.into_iter().filter_map(Arc::into_inner).map(|record| record.handle).collect()
    }

    pub(super) fn count_failure(&self) {
        self.lock().failures += 1;
    }

    pub(super) fn stats(&self) -> HandleStats {
        let handles = self.lock();
        HandleStats {
            created: handles.created,
            destroyed: handles.destroyed,
            idle: handles.idle.len() as u64,
            held: (handles.all.len() - handles.idle.len()) as u64,
            hits: handles.past_hits + handles.all.iter().map(|record| record.hits()).sum::<u64>(),
            misses: handles.misses,
            hand_overs: handles.hand_overs,
            failures: handles.failures,
            create_time: handles.create_time,
            device_bytes: handles.all.iter().map(|record| record.bytes).sum(),
        }
    }
}

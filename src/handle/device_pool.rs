//! A pool's handles on one device: who may have which, and the books on all of them.
//!
//! Each method locks for a few list operations and returns, but for a request that waits its turn; none calls a library or
//! a driver.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use log::info;

use super::exchange::{Exchange, Turn};
use super::holder::{Hold, Holder};
use super::record::Record;
use super::stats::HandleStats;
use crate::ids::RawStream;
use crate::library::RawHandle;
use crate::memory::LibraryMemory;
use crate::observe::{Activity, target::HANDLE};
use crate::runtime::Stream;
use crate::sync::lock;

#[derive(Default)]
pub(super) struct DevicePool {
    exchange: Exchange<Record>,
    books: Mutex<Books>,
    /// How often the peaks were begun anew. Read by every lease, so alone in its cache lines.
    round: Round,
    /// Where the handles take device memory from, once that was said.
    pub(super) memory: OnceLock<&'static LibraryMemory>,
}

#[repr(align(128))]
struct Round(AtomicU64);

impl Default for Round {
    fn default() -> Self {
        Self(AtomicU64::new(1))
    }
}

#[derive(Default)]
struct Books {
    /// Every live handle, held or idle.
    all: Vec<Arc<Record>>,
    /// Handles that nobody may have any more, to be destroyed.
    retired: Vec<Arc<Record>>,
    created: u64,
    destroyed: u64,
    misses: u64,
    hand_overs: u64,
    waits: u64,
    failures: u64,
    create_time: Duration,
    /// Hits of handles that were destroyed.
    past_hits: u64,
    /// What a handle took when one was last created with nothing else going on.
    measured_bytes: Option<u64>,
    /// What all handles that there are took, and the most that it was.
    device_bytes: u64,
    peak_device_bytes: u64,
    /// Handles counted as in use in this round. Those among them that are gone have left a place for others.
    peak_in_use: u64,
    vacated: u64,
}

impl Books {
    /// Counts a handle as in use, if this round has not done so.
    fn count_in_use(&mut self, record: &Record, round: u64) {
        if record.is_counted(round) {
            return;
        }
        record.note_counted(round);
        // It comes in the place of one that is gone.
        match self.vacated.checked_sub(1) {
            Some(left) => self.vacated = left,
            None => self.peak_in_use += 1,
        }
    }

    /// Notes that a handle is used no more.
    fn vacate(&mut self, record: &Record, round: u64) {
        self.vacated += u64::from(record.is_counted(round));
    }
}

impl DevicePool {
    fn books(&self) -> MutexGuard<'_, Books> {
        // A panic cannot leave the lists half changed: nothing under this lock can panic but for want of memory.
        lock(&self.books)
    }

    /// The idle handle of a thread's own slot, if it last ran on this stream.
    #[inline]
    pub(super) fn take_near(&self, near: usize, stream: RawStream) -> Option<Arc<Record>> {
        let record = self.exchange.take_near(near)?;
        if record.last_ran_on(stream) {
            return Some(record);
        }
        self.exchange.put_near(near, record);
        None
    }

    /// Notes that a handle is in use from now on.
    #[inline]
    pub(super) fn begin_use(&self, record: &Record) {
        if !record.is_counted(self.round()) {
            self.begin_first_use(record);
        }
    }

    /// [`DevicePool::begin_use`] of a handle that was not in use since the peaks were begun anew.
    #[cold]
    fn begin_first_use(&self, record: &Record) {
        let mut books = self.books();
        books.count_in_use(record, self.round());
    }

    #[inline]
    fn round(&self) -> u64 {
        self.round.0.load(Ordering::Relaxed)
    }

    /// Starts the peaks anew, from what is in use and what there is now.
    pub(super) fn reset_peaks(&self) {
        let mut books = self.books();
        let round = self.round.0.fetch_add(1, Ordering::Relaxed) + 1;
        (books.peak_in_use, books.vacated) = (0, 0);
        books.peak_device_bytes = books.device_bytes;
        for record in books.all.clone().iter().filter(|record| record.holder().is_some()) {
            books.count_in_use(record, round);
        }
    }

    /// Takes a handle back that a lease held.
    #[inline]
    pub(super) fn put_near(&self, near: usize, record: Arc<Record>) {
        record.hold(Holder::NONE);
        self.exchange.put_near(near, record);
    }

    /// An idle handle, best one that last ran on the stream, or room for a new one; none if there was neither in time.
    /// `name` is the library's.
    pub(super) fn take(&self, name: &str, stream: &Stream, timeout: Duration) -> Option<Turn<Record>> {
        self.books().misses += 1;
        let mut waiting = None;
        let begin_to_wait = || {
            self.books().waits += 1;
            waiting = Some(Activity::begin(format_args!("wait for {name} handle")));
            let now = Instant::now();
            now.checked_add(timeout).unwrap_or_else(|| now + FOREVER)
        };
        let turn = self.exchange.take(|record| record.last_ran_on(stream.raw()), begin_to_wait);
        if let Some(waiting) = waiting {
            let in_vain = if turn.is_none() { " in vain" } else { "" };
            let (took, device) = (waiting.took(), stream.device());
            info!(target: HANDLE, "{name}: waited {took}{in_vain} for a handle on {device}, all of its limit in use");
        }
        turn
    }

    /// An idle handle, best one that last ran on the stream, if there is one and nobody waits.
    pub(super) fn take_idle(&self, stream: RawStream) -> Option<Arc<Record>> {
        let record = self.exchange.take_idle(|record| record.last_ran_on(stream))?;
        self.books().misses += 1;
        Some(record)
    }

    /// Room for a handle that is made ahead of need.
    pub(super) fn make_room(&self) -> bool {
        self.exchange.make_room()
    }

    /// Whether the limit allows no further handle.
    pub(super) fn is_full(&self) -> bool {
        self.exchange.is_full()
    }

    /// Gives up room that no handle filled.
    pub(super) fn leave_room(&self) {
        self.exchange.leave_room(1);
    }

    pub(super) fn limit(&self) -> Option<usize> {
        self.exchange.limit()
    }

    pub(super) fn set_limit(&self, limit: Option<usize>) {
        self.exchange.set_limit(limit);
    }

    pub(super) fn count_hand_over(&self) {
        self.books().hand_overs += 1;
    }

    /// Takes handles back that nobody holds any more.
    pub(super) fn put_idle(&self, records: impl IntoIterator<Item = Arc<Record>>) {
        for record in records {
            record.hold(Holder::NONE);
            self.exchange.put(record);
        }
    }

    /// Takes a handle back that nobody may have again.
    pub(super) fn retire(&self, record: Arc<Record>) {
        record.hold(Holder::NONE);
        {
            let mut books = self.books();
            books.vacate(&record, self.round());
            books.all.retain(|other| !Arc::ptr_eq(other, &record));
            books.retired.push(record);
        }
        self.exchange.leave_room(1);
    }

    pub(super) fn idle_count(&self) -> usize {
        self.exchange.idle_count()
    }

    /// Whether there is anything for [`DevicePool::remove_unused`].
    pub(super) fn has_unused(&self) -> bool {
        !self.books().retired.is_empty() || self.exchange.idle_count() > 0
    }

    /// Books a new handle as held, and numbers it. Its memory is what was measured, else what was last measured, else
    /// what is known.
    pub(super) fn add(
        &self,
        handle: RawHandle,
        time: Duration,
        measured_bytes: Option<u64>,
        known_bytes: u64,
    ) -> (Arc<Record>, u64) {
        let mut books = self.books();
        books.created += 1;
        books.create_time += time;
        books.measured_bytes = measured_bytes.or(books.measured_bytes);
        let record = Arc::new(Record::new(handle, books.measured_bytes.unwrap_or(known_bytes)));
        books.device_bytes += record.bytes;
        books.peak_device_bytes = books.peak_device_bytes.max(books.device_bytes);
        books.all.push(Arc::clone(&record));
        (record, books.created)
    }

    /// Takes every idle and every retired handle out for good, to be destroyed.
    pub(super) fn remove_unused(&self) -> Vec<RawHandle> {
        let idle = self.exchange.remove_idle();
        let mut books = self.books();
        books.all.retain(|record| !idle.iter().any(|gone| Arc::ptr_eq(gone, record)));
        // Those that are retired have left their places before.
        idle.iter().for_each(|record| books.vacate(record, self.round()));
        let unused: Vec<_> = idle.into_iter().chain(std::mem::take(&mut books.retired)).collect();
        books.destroyed += unused.len() as u64;
        books.past_hits += unused.iter().map(|record| record.hits()).sum::<u64>();
        books.device_bytes -= unused.iter().map(|record| record.bytes).sum::<u64>();
        // Each is in no list any more, so this is its only owner.
        unused.into_iter().filter_map(Arc::into_inner).map(|record| record.handle).collect()
    }

    pub(super) fn count_failure(&self) {
        self.books().failures += 1;
    }

    /// Whether any handle was ever created.
    pub(super) fn has_created(&self) -> bool {
        self.books().created > 0
    }

    /// Who holds the handles that are held.
    pub(super) fn holders(&self) -> Vec<Holder> {
        let holders: Vec<_> = self.books().all.iter().filter_map(|record| record.holder()).collect();
        holders.into_iter().map(Holder::named).collect()
    }

    /// The counts, with what the library's workspaces on the device take.
    pub(super) fn stats(&self, workspace_bytes: u64) -> HandleStats {
        let idle = self.exchange.idle_count() as u64;
        let books = self.books();
        let holders = books.all.iter().filter_map(|record| record.holder());
        let leased = holders.filter(|holder| holder.hold == Hold::Lease).count() as u64;
        let every = || books.all.iter().chain(&books.retired);
        HandleStats {
            created: books.created,
            destroyed: books.destroyed,
            retired: books.retired.len() as u64,
            idle,
            // Also those being made ready for a request.
            held: (books.all.len() as u64).saturating_sub(idle + leased),
            leased,
            peak_in_use: books.peak_in_use,
            hits: books.past_hits + every().map(|record| record.hits()).sum::<u64>(),
            misses: books.misses,
            hand_overs: books.hand_overs,
            waits: books.waits,
            failures: books.failures,
            create_time: books.create_time,
            device_bytes: books.device_bytes,
            peak_device_bytes: books.peak_device_bytes,
            workspace_bytes,
        }
    }
}

/// Longer than any program runs, for deadlines beyond what a clock can tell.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

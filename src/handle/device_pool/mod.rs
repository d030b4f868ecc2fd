//! A pool's handles on one device: the queue of idle ones, and the table of all. Each method locks for a few list operations,
//! except that a request may wait its turn; none calls a library or a driver.

mod holder;
mod idle_queue;
mod pooled_handle;

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use log::info;

use super::stats::HandleStats;
use crate::ids::RawStream;
use crate::library::RawHandle;
use crate::memory::LibraryMemory;
use crate::observe::{Activity, target::HANDLE};
use crate::runtime::Stream;
use crate::sync::{FOREVER, Interrupted, Interruption, ThisThread, lock};
use holder::HoldKind;
use idle_queue::IdleQueue;

pub(super) use holder::Holder;
pub(super) use idle_queue::Turn;
pub(crate) use pooled_handle::PooledHandle;

pub(super) type PlaceInLine = idle_queue::QueuePlace<PooledHandle>;

#[derive(Default)]
pub(super) struct DevicePool {
    idle: IdleQueue<PooledHandle>,
    table: Mutex<HandleTable>,
    round: Round,
    /// Where the handles take device memory from, once the user has set it.
    pub(super) memory: OnceLock<&'static LibraryMemory>,
}

/// The round of peaks: how often they were reset. Every lease reads it, so it is alone in its cache lines.
#[repr(align(128))]
struct Round {
    number: AtomicU64,
}

impl Default for Round {
    fn default() -> Self {
        Self { number: AtomicU64::new(1) }
    }
}

#[derive(Default)]
struct HandleTable {
    all: Vec<Arc<PooledHandle>>,
    /// Handles that no request may get any more, to be destroyed.
    retired: Vec<Arc<PooledHandle>>,
    created: u64,
    destroyed: u64,
    misses: u64,
    hand_overs: u64,
    waits: u64,
    failures: u64,
    create_time: Duration,
    /// Hits of handles that were destroyed.
    past_hits: u64,
    /// What a handle took when one was last created alone.
    measured_bytes: Option<u64>,
    /// What all existing handles took, and its peak.
    device_bytes: u64,
    peak_device_bytes: u64,
    /// Handles counted as in use in this round, and how many of them have been destroyed or retired since.
    peak_in_use: u64,
    vacated: u64,
}

impl HandleTable {
    /// Counts a handle as in use, if this round has not done so.
    fn count_in_use(&mut self, pooled: &PooledHandle, round: u64) {
        if pooled.is_counted(round) {
            return;
        }
        pooled.note_counted(round);
        // It replaces one that was destroyed or retired.
        match self.vacated.checked_sub(1) {
            Some(left) => self.vacated = left,
            None => self.peak_in_use += 1,
        }
    }

    fn vacate(&mut self, pooled: &PooledHandle, round: u64) {
        self.vacated += u64::from(pooled.is_counted(round));
    }
}

impl DevicePool {
    fn table(&self) -> MutexGuard<'_, HandleTable> {
        // A panic cannot leave the lists half changed: under this lock only an allocation can fail.
        lock(&self.table)
    }

    /// Returns the idle handle of the calling thread's own slot, if it last ran on this stream.
    #[inline]
    pub(super) fn take_own(&self, stream: &Stream) -> Option<Arc<PooledHandle>> {
        let thread = ThisThread::get().number();
        let pooled = self.idle.take_own(thread)?;
        if pooled.is_ready_for(stream) {
            return Some(pooled);
        }
        self.idle.put_own(thread, pooled);
        None
    }

    #[inline]
    pub(super) fn begin_use(&self, pooled: &PooledHandle) {
        if !pooled.is_counted(self.round()) {
            self.begin_first_use(pooled);
        }
    }

    /// As [`DevicePool::begin_use`], for a handle that was not in use since the peaks were reset.
    #[cold]
    fn begin_first_use(&self, pooled: &PooledHandle) {
        let mut table = self.table();
        table.count_in_use(pooled, self.round());
    }

    #[inline]
    fn round(&self) -> u64 {
        self.round.number.load(Ordering::Relaxed)
    }

    /// Resets the peaks to what is in use and what exists now.
    pub(super) fn reset_peaks(&self) {
        let mut table = self.table();
        let round = self.round.number.fetch_add(1, Ordering::Relaxed) + 1;
        (table.peak_in_use, table.vacated) = (0, 0);
        table.peak_device_bytes = table.device_bytes;
        for pooled in table.all.clone().iter().filter(|pooled| pooled.holder().is_some()) {
            table.count_in_use(pooled, round);
        }
    }

    #[inline]
    pub(super) fn put_own(&self, pooled: Arc<PooledHandle>) {
        pooled.hold(Holder::NONE);
        self.idle.put_own(ThisThread::get().number(), pooled);
    }

    /// Returns an idle handle, preferably one that last ran on the stream, or room for a new one. Counts a miss.
    ///
    /// # Errors
    /// A place in the queue if as many as the limit are in use; [`DevicePool::wait`] or [`DevicePool::give_up`] ends
    /// it.
    pub(super) fn take(&self, stream: RawStream) -> Result<Turn<PooledHandle>, PlaceInLine> {
        self.table().misses += 1;
        self.idle.take(|pooled| pooled.last_ran_on(stream))
    }

    /// Lets a handle serve its holder's next request, and stay held until then. Counts a miss.
    pub(super) fn take_held(&self, pooled: Arc<PooledHandle>) -> Turn<PooledHandle> {
        self.table().misses += 1;
        Turn::Handle(pooled)
    }

    /// Takes a handle back that its request does not use, unless it has a holder still.
    pub(super) fn put_back(&self, pooled: Arc<PooledHandle>) {
        if pooled.holder().is_none() {
            self.idle.put(pooled);
        }
    }

    /// Waits in the queue, and returns what the request was given; none after the timeout. `name` is the library's.
    pub(super) fn wait(
        &self,
        place: PlaceInLine,
        name: &impl Display,
        stream: &Stream,
        timeout: Duration,
        interruption: Interruption<'_>,
    ) -> Result<Option<Turn<PooledHandle>>, Interrupted> {
        self.table().waits += 1;
        let waiting = Activity::begin(format_args!("wait for {name} handle"));
        let now = Instant::now();
        let deadline = now.checked_add(timeout).unwrap_or_else(|| now + FOREVER);
        let turn = self.idle.wait(place, deadline, interruption);
        let in_vain = if matches!(turn, Ok(Some(_))) { "" } else { " in vain" };
        let (took, device) = (waiting.took(), stream.device());
        info!(target: HANDLE, "{name}: waited {took}{in_vain} for a handle on {device}, all of its limit in use");
        turn
    }

    pub(super) fn give_up(&self, turn: Result<Turn<PooledHandle>, PlaceInLine>) {
        match turn {
            Ok(Turn::Handle(pooled)) => self.put_back(pooled),
            turn => self.idle.give_up(turn),
        }
    }

    /// Makes room for a handle that no request waits for, and returns whether there was any.
    pub(super) fn make_room(&self) -> bool {
        self.idle.make_room()
    }

    /// Returns whether the limit allows no further handle.
    pub(super) fn is_full(&self) -> bool {
        self.idle.is_full()
    }

    pub(super) fn leave_room(&self) {
        self.idle.leave_room();
    }

    pub(super) fn limit(&self) -> Option<usize> {
        self.idle.limit()
    }

    pub(super) fn set_limit(&self, limit: Option<usize>) {
        self.idle.set_limit(limit);
    }

    pub(super) fn count_hand_over(&self) {
        self.table().hand_overs += 1;
    }

    /// Takes handles back that have no holder any more.
    pub(super) fn put_idle(&self, handles: impl IntoIterator<Item = Arc<PooledHandle>>) {
        for pooled in handles {
            pooled.hold(Holder::NONE);
            self.idle.put(pooled);
        }
    }

    /// Takes a handle back that no request may get again.
    pub(super) fn retire(&self, pooled: Arc<PooledHandle>) {
        self.replace(pooled);
        self.idle.leave_room();
    }

    /// Takes a handle back that no request may get again, and leaves its room to the caller.
    pub(super) fn replace(&self, pooled: Arc<PooledHandle>) {
        pooled.hold(Holder::NONE);
        let mut table = self.table();
        table.vacate(&pooled, self.round());
        table.all.retain(|other| !Arc::ptr_eq(other, &pooled));
        table.retired.push(pooled);
    }

    pub(super) fn idle_count(&self) -> usize {
        self.idle.idle_count()
    }

    pub(super) fn has_unused(&self) -> bool {
        !self.table().retired.is_empty() || self.idle.idle_count() > 0
    }

    /// Adds a new handle, numbered and held. Its memory is as measured, else as last measured, else as known.
    pub(super) fn add(
        &self,
        handle: RawHandle,
        time: Duration,
        measured_bytes: Option<u64>,
        known_bytes: u64,
    ) -> (Arc<PooledHandle>, u64) {
        let mut table = self.table();
        table.created += 1;
        table.create_time += time;
        table.measured_bytes = measured_bytes.or(table.measured_bytes);
        let pooled = Arc::new(PooledHandle::new(handle, table.measured_bytes.unwrap_or(known_bytes)));
        table.device_bytes += pooled.bytes;
        table.peak_device_bytes = table.peak_device_bytes.max(table.device_bytes);
        table.all.push(Arc::clone(&pooled));
        (pooled, table.created)
    }

    /// Removes every idle and retired handle, to be destroyed. Returns them, and their bytes. One that a request has in hand as
    /// it puts it back stays, as retired.
    pub(super) fn remove_unused(&self) -> (Vec<RawHandle>, u64) {
        let idle = self.idle.remove_idle();
        let mut table = self.table();
        table.all.retain(|pooled| !idle.iter().any(|gone| Arc::ptr_eq(gone, pooled)));
        // Retired ones have left their places before.
        idle.iter().for_each(|pooled| table.vacate(pooled, self.round()));
        let (mut handles, mut bytes) = (Vec::new(), 0);
        for pooled in idle.into_iter().chain(std::mem::take(&mut table.retired)) {
            match Arc::try_unwrap(pooled) {
                Ok(unused) => {
                    table.destroyed += 1;
                    table.past_hits += unused.hits();
                    bytes += unused.bytes;
                    handles.push(unused.handle);
                }
                Err(in_hand) => table.retired.push(in_hand),
            }
        }
        table.device_bytes -= bytes;
        (handles, bytes)
    }

    pub(super) fn count_failure(&self) {
        self.table().failures += 1;
    }

    pub(super) fn has_created(&self) -> bool {
        self.table().created > 0
    }

    /// Returns the holders of all handles that are held.
    pub(super) fn holders(&self) -> Vec<Holder> {
        let holders: Vec<_> = self.table().all.iter().filter_map(|pooled| pooled.holder()).collect();
        holders.into_iter().map(Holder::named).collect()
    }

    /// Returns the counts, with the library's workspaces on the device.
    pub(super) fn stats(&self, workspace_bytes: u64) -> HandleStats {
        let idle = self.idle.idle_count() as u64;
        let table = self.table();
        let holders = table.all.iter().filter_map(|pooled| pooled.holder());
        let leased = holders.filter(|holder| holder.hold == HoldKind::Lease).count() as u64;
        let every = || table.all.iter().chain(&table.retired);
        HandleStats {
            created: table.created,
            destroyed: table.destroyed,
            retired: table.retired.len() as u64,
            idle,
            // Also those being made ready for a request.
            held: (table.all.len() as u64).saturating_sub(idle + leased),
            leased,
            peak_in_use: table.peak_in_use,
            hits: table.past_hits + every().map(|pooled| pooled.hits()).sum::<u64>(),
            misses: table.misses,
            hand_overs: table.hand_overs,
            waits: table.waits,
            failures: table.failures,
            create_time: table.create_time,
            device_bytes: table.device_bytes,
            peak_device_bytes: table.peak_device_bytes,
            workspace_bytes,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Arc, DevicePool, Duration};
    use crate::error::Result;
    use crate::library::Library;
    use crate::library::simulated::SimulatedLibrary;

    #[test]
    fn a_handle_that_its_request_has_in_hand_is_destroyed_by_a_later_call() -> Result<()> {
        let device = crate::device(0)?;
        for give_back in [DevicePool::retire, DevicePool::put_back] {
            let pool = DevicePool::default();
            assert!(pool.make_room());
            let (pooled, _) = pool.add(SimulatedLibrary.create(device)?, Duration::ZERO, None, 100);
            let in_hand = Arc::clone(&pooled);
            give_back(&pool, pooled);
            assert_eq!(pool.remove_unused().1, 0);
            drop(in_hand);
            let (handles, bytes) = pool.remove_unused();
            assert_eq!((handles.len(), bytes), (1, 100));
            handles.into_iter().try_for_each(|handle| SimulatedLibrary.destroy(handle))?;
            let stats = pool.stats(0);
            assert_eq!((stats.created, stats.destroyed, stats.retired, stats.device_bytes), (1, 1, 0, 0));
        }
        Ok(())
    }
}

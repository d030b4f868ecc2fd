//! A pool on one device: the handles that exist, which of them are idle, who waits for one, and the counts. What locks
//! does so for a few list operations, and calls no library and no driver meanwhile.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use super::events::{self, HandleAction};
use super::handle_queue::{HandleQueue, HoldKind, Holder};
use super::pooled_handle::PooledHandle;
use super::stats::HandleStats;
use crate::error::{Error, OneLine, Result};
use crate::ids::Device;
use crate::library::{Library, RawHandle};
use crate::memory::{LibraryMemory, PoolToken};
use crate::process;
use crate::sync::lock;

pub(super) struct DevicePool {
    pub(super) library: &'static dyn Library,
    pub(super) device: Device,
    /// Where a thread's window has its handles of this pool.
    pub(super) number: usize,
    /// Whether two streams must not share a handle, so that a thread has one for each.
    pub(super) has_handle_for_each_stream: bool,
    pub(super) queue: HandleQueue<PooledHandle>,
    table: Mutex<HandleTable>,
    round: Round,
    /// Where the handles take device memory from, once the user has set it.
    memory: OnceLock<&'static LibraryMemory>,
}

/// The round of peaks: how often they were reset. Every lease reads it, so it is alone in its cache lines.
#[repr(align(128))]
struct Round {
    number: AtomicU64,
}

#[derive(Default)]
struct HandleTable {
    /// Handles that no request may get any more, to be destroyed.
    discarded: Vec<Arc<PooledHandle>>,
    /// Those that only grow, and the peaks; of hits, those of handles that were destroyed.
    counts: HandleStats,
    /// What a handle took when one was last created alone.
    measured_bytes: Option<u64>,
    /// How many handles that were counted as in use in this round have been destroyed or discarded since.
    vacated: u64,
}

impl HandleTable {
    /// Counts a handle as in use, if this round has not done so.
    fn count_in_use(&mut self, pooled: &PooledHandle, round: u64) {
        if pooled.is_counted(round) {
            return;
        }
        pooled.note_counted(round);
        // It replaces one that was destroyed or discarded.
        match self.vacated.checked_sub(1) {
            Some(left) => self.vacated = left,
            None => self.counts.peak_in_use += 1,
        }
    }

    fn vacate(&mut self, pooled: &PooledHandle, round: u64) {
        self.vacated += u64::from(pooled.is_counted(round));
    }
}

/// The number of the next pool on a device.
static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(0);

impl DevicePool {
    pub(super) fn new(library: &'static dyn Library, device: Device, limit: usize) -> Self {
        Self {
            library,
            device,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            has_handle_for_each_stream: library.keeps_scratch(),
            queue: HandleQueue::new(limit),
            table: Mutex::default(),
            round: Round { number: AtomicU64::new(1) },
            memory: OnceLock::new(),
        }
    }

    /// Returns the library's name, as logs and errors write it.
    pub(super) fn name(&self) -> OneLine<'static> {
        OneLine(self.library.name())
    }

    fn table(&self) -> MutexGuard<'_, HandleTable> {
        // A panic cannot leave the lists half changed: under this lock only an allocation can fail.
        lock(&self.table)
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut HandleStats)) {
        change(&mut self.table().counts);
    }

    #[cold]
    pub(super) fn count_failure(&self) {
        self.count(|counts| counts.failures += 1);
    }

    pub(super) fn note(&self, action: HandleAction, handle: &RawHandle) {
        events::note(self.library, self.device, action, handle);
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
        (table.counts.peak_in_use, table.vacated) = (0, 0);
        table.counts.peak_device_bytes = table.counts.device_bytes;
        self.queue.with_all(|all| {
            let held = all.iter().filter(|pooled| pooled.state.holder().is_some());
            held.for_each(|pooled| table.count_in_use(pooled, round));
        });
    }

    /// Takes a handle back whose holder is done with it. Called as a thread ends: no call of a library or driver, and
    /// nothing that can fail.
    pub(super) fn give_back(&self, pooled: &PooledHandle) {
        if !process::is_forked() {
            self.note(HandleAction::GiveBack, &pooled.handle);
            self.put_idle(pooled);
        }
    }

    /// Takes a handle back that has no holder any more.
    pub(super) fn put_idle(&self, pooled: &PooledHandle) {
        pooled.state.release();
        self.queue.note_idle();
    }

    /// Takes a handle back that no request may get again, and leaves its room to the caller.
    pub(super) fn discard(&self, pooled: Arc<PooledHandle>) {
        self.note(HandleAction::Discard, &pooled.handle);
        self.queue.remove(&pooled);
        let mut table = self.table();
        table.vacate(&pooled, self.round());
        table.discarded.push(pooled);
    }

    pub(super) fn has_unused(&self) -> bool {
        !self.table().discarded.is_empty() || self.queue.idle_count() > 0
    }

    /// Adds a new handle. Its memory is as measured, else as last measured, else as known. Returns how many were
    /// created, too.
    pub(super) fn add(
        &'static self,
        handle: RawHandle,
        time: Duration,
        measured_bytes: Option<u64>,
    ) -> (Arc<PooledHandle>, u64) {
        let known_bytes = self.library.handle_bytes();
        let mut table = self.table();
        table.measured_bytes = measured_bytes.or(table.measured_bytes);
        let pooled = Arc::new(PooledHandle::new(self, handle, table.measured_bytes.unwrap_or(known_bytes)));
        self.queue.add(Arc::clone(&pooled));
        let counts = &mut table.counts;
        counts.created += 1;
        counts.create_time += time;
        counts.device_bytes += pooled.bytes;
        counts.peak_device_bytes = counts.peak_device_bytes.max(counts.device_bytes);
        (pooled, counts.created)
    }

    /// Removes every idle and discarded handle, to be destroyed. One that a thread just looks at stays, as discarded.
    pub(super) fn remove_unused(&self) -> Vec<RawHandle> {
        let idle = self.queue.remove_idle();
        let mut table = self.table();
        // Discarded ones have left their places before.
        idle.iter().for_each(|pooled| table.vacate(pooled, self.round()));
        let mut handles = Vec::new();
        for pooled in idle.into_iter().chain(std::mem::take(&mut table.discarded)) {
            match Arc::try_unwrap(pooled) {
                Ok(unused) => {
                    table.counts.destroyed += 1;
                    table.counts.hits += unused.hits();
                    table.counts.device_bytes -= unused.bytes;
                    handles.push(unused.handle);
                }
                Err(in_hand) => table.discarded.push(in_hand),
            }
        }
        handles
    }

    pub(super) fn has_created(&self) -> bool {
        self.table().counts.created > 0
    }

    /// Returns the holders of all handles that are held.
    pub(super) fn holders(&self) -> Vec<Holder> {
        self.queue.with_all(|all| all.iter().filter_map(|pooled| pooled.state.holder()).collect())
    }

    pub(super) fn stats(&self) -> HandleStats {
        let workspace_bytes = self.library.workspace_bytes(self.device);
        let table = self.table();
        let mut stats = HandleStats { discarded: table.discarded.len() as u64, workspace_bytes, ..table.counts };
        stats.hits += table.discarded.iter().map(|pooled| pooled.hits()).sum::<u64>();
        self.queue.with_all(|all| {
            for pooled in all {
                stats.hits += pooled.hits();
                match pooled.state.holder() {
                    Some(Holder { hold: HoldKind::Lease, .. }) => stats.leased += 1,
                    None if pooled.state.is_idle() => stats.idle += 1,
                    // Also those being made ready for a request.
                    _ => stats.held += 1,
                }
            }
        });
        stats
    }

    /// Sets where handles take device memory from: this `MemPool`, or the driver. Handles that take it from gpupool
    /// already need no further call.
    pub(super) fn set_memory(&self, pool: Option<&PoolToken>) -> Result<()> {
        if pool.is_none() && self.memory.get().is_none() {
            return Ok(());
        }
        if !self.library.takes_memory()? {
            let name = self.name();
            return Err(Error::invalid_value(format!("{name} cannot allocate its device memory from a MemPool")));
        }
        self.memory.get_or_init(|| LibraryMemory::new(self.device)).set(pool)
    }

    /// Returns the `MemPool` that handles take device memory from; none for plain memory of the driver.
    pub(super) fn memory(&self) -> Option<PoolToken> {
        self.memory.get().and_then(|memory| memory.pool())
    }

    /// Lets a handle that takes its memory elsewhere take it where the user wants it.
    #[inline]
    pub(super) fn give_missing_memory(&self, handle: &RawHandle) -> Result<()> {
        if handle.takes_our_memory() { Ok(()) } else { self.give_memory(handle) }
    }

    /// Sets again where a handle takes device memory from, as its owner may have set another source.
    #[inline]
    pub(super) fn give_memory(&self, handle: &RawHandle) -> Result<()> {
        self.memory.get().map_or(Ok(()), |memory| self.set_handler(handle, memory))
    }

    /// A handle that ever took memory from gpupool keeps doing so, since it must return what it has: without a
    /// `MemPool` it then gets the driver's memory through gpupool.
    #[cold]
    fn set_handler(&self, handle: &RawHandle, memory: &'static LibraryMemory) -> Result<()> {
        if memory.has_pool() || handle.takes_our_memory() {
            self.library.set_memory(handle, &memory.handler())?;
            handle.note_our_memory(true);
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Arc, DevicePool, Duration, PooledHandle, Result};
    use crate::library::Library;
    use crate::library::simulated::SimulatedLibrary;
    use std::sync::OnceLock;

    #[test]
    fn a_handle_that_its_request_has_in_hand_is_destroyed_by_a_later_call() -> Result<()> {
        // What lives as long as a process, as real pools do, and is no leak to Miri.
        static POOLS: [OnceLock<DevicePool>; 2] = [const { OnceLock::new() }; 2];
        let device = crate::device(0)?;
        let put_idle = |pool: &DevicePool, pooled: Arc<PooledHandle>| pool.put_idle(&pooled);
        for (pool, give_back) in POOLS.iter().zip([DevicePool::discard, put_idle]) {
            let pool = pool.get_or_init(|| DevicePool::new(&SimulatedLibrary, device, usize::MAX));
            assert!(pool.queue.make_room());
            let (pooled, _) = pool.add(SimulatedLibrary.create(device)?, Duration::ZERO, Some(100));
            let in_hand = Arc::clone(&pooled);
            give_back(pool, pooled);
            assert!(pool.remove_unused().is_empty());
            assert_eq!(pool.stats().device_bytes, 100);
            drop(in_hand);
            let handles = pool.remove_unused();
            assert_eq!(handles.len(), 1);
            handles.into_iter().try_for_each(|handle| SimulatedLibrary.destroy(handle))?;
            let stats = pool.stats();
            assert_eq!((stats.created, stats.destroyed, stats.discarded, stats.device_bytes), (1, 1, 0, 0));
        }
        Ok(())
    }
}

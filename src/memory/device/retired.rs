//! Free memory that the GPU may still use: unmapped and given back once its streams are done, so no call waits for that.
//! Segments of pinned memory are apart: the driver waits for running kernels before it releases one, whatever they use.
//! So a thread of gpupool's own releases them, or a call that needs them, and until then they count as reserved.

use std::sync::{Arc, Condvar, Mutex};
use std::{mem, thread};

use super::device_memory::DeviceMemory;
use super::pages::{Mapping, run_of};
use super::address_space::Run;
use super::supply::{PINNED_GONE, Supply};
use super::under_way::call_out;
use super::until::Until;
use crate::error::Result;
use crate::observe::delivery::deliver;
use crate::runtime::Stream;
use crate::sync::{AtomicUsize, CallbackKind, Ordering, lock, wait_for_driver};

/// What is left of memory that was taken out of a cache.
#[derive(Debug)]
pub(in crate::memory) enum Remains {
    /// The pages moved; `mapped` and `unmapped` extents are replaced there by others, which count in their place, and
    /// are released.
    Moved { moved: Vec<Mapping>, mapped: Vec<Mapping>, unmapped: Vec<Mapping> },
    /// The physical memory is released, also that of `unmapped` mappings.
    Released { mapped: Vec<Mapping>, unmapped: Vec<Mapping> },
    /// As released, but the pages stay those of the pool, which is asleep.
    Asleep { mapped: Vec<Mapping>, unmapped: Vec<Mapping> },
    /// Pages of the pool's reserve, which stay where they are.
    Reserve(Vec<Run>),
    /// A segment for its source, with the stream it was allocated for; none for pinned memory.
    Segment { address: u64, bytes: u64, stream: Option<Stream> },
}

impl Remains {
    pub(in crate::memory) const fn released(mapped: Vec<Mapping>) -> Self {
        Self::Released { mapped, unmapped: Vec::new() }
    }
}

#[derive(Debug)]
struct RetiredMemory {
    remains: Remains,
    until: Until,
    /// The pool's, which may be gone by then.
    supply: Arc<Supply>,
}

/// The lists of one device, or of one NUMA node of the host.
#[derive(Debug, Default)]
pub(super) struct Retired {
    len: AtomicUsize,
    entries: Mutex<Vec<RetiredMemory>>,
    pinned: Mutex<Pinned>,
    /// Notified when no segment of pinned memory is being released any more.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Pinned {
    waiting: Vec<RetiredMemory>,
    /// Those that a thread is just releasing.
    under_way: usize,
}

impl Retired {
    fn change<R>(&self, change: impl FnOnce(&mut Vec<RetiredMemory>) -> R) -> R {
        let mut entries = lock(&self.entries);
        let result = change(&mut entries);
        self.len.store(entries.len(), Ordering::Release);
        result
    }
}

impl DeviceMemory {
    /// Unmaps or gives back `remains`, which was `supply`'s, once `until` is done. No lock is held, since an observer
    /// is called before, except for pages of a reserve.
    ///
    /// # Safety
    /// The memory is in no cache and on no other list any more, and all work that uses it at these addresses is done
    /// when `until` is.
    pub(in crate::memory) unsafe fn retire(&self, remains: Remains, until: Until, supply: &Arc<Supply>) {
        // A reserve's pages may be retired with their cache's lock held.
        if !matches!(remains, Remains::Reserve(_)) {
            deliver();
        }
        let entry = RetiredMemory { remains, until, supply: Arc::clone(supply) };
        if matches!(entry.remains, Remains::Segment { stream: None, .. }) {
            lock(&self.retired.pinned).waiting.push(entry);
            return;
        }
        self.retired.change(|entries| entries.push(entry));
    }

    /// Ends what the GPU is done with, and returns the physical bytes given back; with `wait`, waits for the GPU.
    ///
    /// # Errors
    /// The first refusal of the driver or of a segment's source. What it refused is tried again later.
    pub(in crate::memory) fn end_retired(&self, wait: bool) -> Result<u64> {
        // Those would wait for kernels, whatever they use.
        let pinned = if wait { self.end_retired_pinned() } else { Ok(0) };
        let others = self.end_retired_others(wait);
        Ok(pinned? + others?)
    }

    /// Ends what the GPU is done with. What the driver refuses is tried again whenever memory is given back.
    pub(in crate::memory) fn try_end_retired(&self) {
        let _ = self.end_retired(false);
    }

    /// Returns whether memory waits for the GPU; what a thread is just ending is not counted.
    pub(in crate::memory) fn has_retired(&self) -> bool {
        self.retired.len.load(Ordering::Acquire) > 0
    }

    /// As [`DeviceMemory::end_retired`], waiting for the GPU, after other threads have finished their moves.
    pub(crate) fn end_retired_by_all(&self) -> Result<u64> {
        let _ = self.under_way.wait();
        self.end_retired(true)
    }

    fn end_retired_others(&self, wait: bool) -> Result<u64> {
        let count = self.retired.len.load(Ordering::Acquire);
        if count == 0 {
            return Ok(0);
        }
        let _moving = self.under_way.begin();
        let mut outcome = Ok(0);
        // The newest first, as in `end_all`. One at a time: a pool's own allocator may be called, and what it requests finds the
        // others in the list.
        for index in (0..count).rev() {
            let taken = self.retired.change(|entries| (index < entries.len()).then(|| entries.remove(index)));
            let (left, ended) = self.end_all(taken.into_iter().collect(), wait);
            self.retired.change(|entries| {
                let place = index.min(entries.len());
                entries.splice(place..place, left);
            });
            outcome = outcome.and_then(|released| Ok(released + ended?));
        }
        outcome
    }

    /// Releases segments of pinned memory, waiting for running kernels and for other threads that do the same. Returns
    /// the bytes.
    ///
    /// # Errors
    /// The first refusal of the driver. What it refused is tried again later.
    fn end_retired_pinned(&self) -> Result<u64> {
        let retired = &self.retired;
        let segments = {
            let mut pinned = lock(&retired.pinned);
            let segments = mem::take(&mut pinned.waiting);
            pinned.under_way += segments.len();
            segments
        };
        let taken = segments.len();
        let (mut refused, outcome) = self.end_all(segments, true);
        let mut pinned = lock(&retired.pinned);
        pinned.waiting.append(&mut refused);
        pinned.under_way -= taken;
        if pinned.under_way == 0 {
            retired.done.notify_all();
        }
        while pinned.under_way > 0 {
            // Pinned memory is freed without a callback.
            pinned = wait_for_driver(&retired.done, &retired.pinned, pinned);
        }
        outcome
    }

    /// As [`DeviceMemory::end_retired_pinned`], on a thread of its own, so that the caller waits for no kernel. Returns
    /// the bytes released already: some if the system has no thread to give.
    ///
    /// # Errors
    /// As [`DeviceMemory::end_retired_pinned`], in that case.
    pub(in crate::memory) fn begin_ending_pinned(&'static self) -> Result<u64> {
        if lock(&self.retired.pinned).waiting.is_empty() {
            return Ok(0);
        }
        let thread = thread::Builder::new().name("gpupool-unpin".to_owned());
        // What the driver refuses is tried again whenever memory is given back.
        match thread.spawn(|| drop(self.end_retired_pinned())) {
            Ok(_) => Ok(0),
            Err(_) => self.end_retired_pinned(),
        }
    }

    /// Ends the entries that the GPU is done with. Returns the others, with those refused, and the physical bytes given
    /// back, or the first refusal.
    fn end_all(&self, entries: Vec<RetiredMemory>, wait: bool) -> (Vec<RetiredMemory>, Result<u64>) {
        let (mut left, mut released, mut outcome) = (Vec::new(), 0, Ok(()));
        // The newest first: once its event is done, older ones are, and released memory leaves no older mapping behind.
        for mut entry in entries.into_iter().rev() {
            let ended = match entry.until.is_done(&self.events, wait) {
                Ok(true) => self.end(&mut entry.remains, &entry.supply, &mut released).map(|()| true),
                waits => waits,
            };
            // A segment without bytes counts as freed, though its source refused.
            if !matches!(ended, Ok(true)) && !matches!(entry.remains, Remains::Segment { bytes: 0, .. }) {
                left.push(entry);
            }
            outcome = outcome.and(ended.map(drop));
        }
        left.reverse();
        (left, outcome.map(|()| released))
    }

    /// Ends as much as the driver allows, and adds the physical bytes given back; the rest stays in `remains`.
    fn end(&self, remains: &mut Remains, supply: &Supply, released: &mut u64) -> Result<()> {
        let frees_pages = !matches!(remains, Remains::Asleep { .. });
        match remains {
            Remains::Moved { moved, mapped, unmapped } => {
                while !moved.is_empty() {
                    self.unmap_run(moved, true)?;
                }
                // SAFETY: by the promise of `retire` nothing else has these extents, nor uses them.
                unsafe { self.end_extents(mapped, unmapped, true, |_| {}) }
            }
            Remains::Released { mapped, unmapped } | Remains::Asleep { mapped, unmapped } => {
                let count = |bytes| self.uncount(bytes, supply, released);
                // SAFETY: by the promise of `retire` nothing else has these extents, nor uses them.
                unsafe { self.end_extents(mapped, unmapped, frees_pages, count) }
            }
            Remains::Reserve(runs) => {
                let runs = mem::take(runs);
                let mapped = supply.reserve().map(|reserve| reserve.put_back(runs)).unwrap_or_default();
                *remains = Remains::released(mapped);
                self.end(remains, supply, released)
            }
            Remains::Segment { address, bytes, stream } => {
                let source = &supply.source;
                self.range.count_driver_call();
                // SAFETY: by the promise of `retire` the segment is of this pool's source, and no work uses it.
                let free = || unsafe { source.free(*address, *bytes, stream.as_ref()) };
                let outcome =
                    if self.is_of_host() { PINNED_GONE.time(free) } else { call_out(CallbackKind::Allocator, free) };
                if outcome.is_ok() || !source.frees_again() {
                    self.uncount(mem::take(bytes), supply, released);
                }
                outcome
            }
        }
    }

    /// Releases mapped and unmapped extents and counts the bytes of each; with `frees_pages` makes their pages
    /// available. What the driver refuses stays in the lists.
    ///
    /// # Safety
    /// Nothing but these lists has the extents, and no work uses them.
    pub(in crate::memory) unsafe fn end_extents(
        &self,
        mapped: &mut Vec<Mapping>,
        unmapped: &mut Vec<Mapping>,
        frees_pages: bool,
        mut count: impl FnMut(u64),
    ) -> Result<()> {
        while !(mapped.is_empty() && unmapped.is_empty()) {
            while let Some(mapping) = unmapped.last() {
                // SAFETY: nothing but the list has the extent, as the caller promises, and it leaves the list below.
                let release = || unsafe { self.range.release(mapping.extent) };
                if self.is_of_host() { PINNED_GONE.time(release) } else { release() }?;
                count(mapping.bytes());
                unmapped.pop();
            }
            unmapped.extend(self.unmap_run(mapped, frees_pages)?);
        }
        Ok(())
    }

    pub(in crate::memory) fn uncount(&self, bytes: u64, supply: &Supply, released: &mut u64) {
        self.pieces.go(bytes);
        let budgets = [&self.budget, &supply.budget].into_iter().chain(self.process_budget());
        budgets.for_each(|budget| budget.release(bytes));
        *released += bytes;
    }

    /// Unmaps the last mappings of the list that are in a row, and removes them from it; with `frees_pages` makes their
    /// pages available.
    fn unmap_run(&self, mappings: &mut Vec<Mapping>, frees_pages: bool) -> Result<Vec<Mapping>> {
        let mut from = mappings.len().saturating_sub(1);
        while from > 0 && mappings[from - 1].end() == mappings[from].start() {
            from -= 1;
        }
        // SAFETY: `until` was done, and by the promise of `retire` no other work uses these mappings.
        unsafe { self.range.unmap_row(&mappings[from..]) }?;
        let row = mappings.split_off(from);
        if frees_pages {
            self.put_back_pages(run_of(&row));
        }
        Ok(row)
    }
}

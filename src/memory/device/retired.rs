//! Free memory that the GPU may still use: unmapped and given back once its streams are done, so no call waits for that.
//! Segments of pinned memory are apart: the driver waits for running kernels before it releases one, whatever they use.
//! So a thread of gpupool's own releases them, or a call that needs them, and until then they count as reserved.

use std::sync::{Arc, Condvar, Mutex};
use std::{mem, thread};

use super::address_space::Run;
use super::budget::PINNED_GONE;
use super::device_memory::DeviceMemory;
use super::pages::{Mapping, run_of};
use super::supply::Supply;
use super::under_way::call_out;
use super::until::{Patience, Until};
use crate::error::Result;
use crate::observe::delivery::deliver;
use crate::runtime::Stream;
use crate::sync::{CallbackKind, lock, wait_for_driver};

/// What is left of memory that was taken out of a cache.
#[derive(Debug)]
pub(in crate::memory) enum Remains {
    Extents(EndingExtents),
    /// Pages of the pool's reserve, which stay where they are.
    Reserve(Vec<Run>),
    /// A segment for its source, with the stream it was allocated for; none for pinned memory.
    Segment {
        address: u64,
        bytes: u64,
        stream: Option<Stream>,
    },
}

/// Extents that are released, once they are unmapped.
#[derive(Debug)]
pub(in crate::memory) struct EndingExtents {
    /// The places of others, which have moved and stay: only these places are unmapped.
    pub(in crate::memory) moved: Vec<Mapping>,
    pub(in crate::memory) mapped: Vec<Mapping>,
    pub(in crate::memory) unmapped: Vec<Mapping>,
    pub(in crate::memory) end: ExtentEnd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum ExtentEnd {
    /// Their memory goes, and their addresses serve others.
    Released,
    /// As released, but others replace them, and count in their place.
    Replaced,
    /// As released, but the addresses stay those of the pool, which is asleep.
    Asleep,
}

impl Remains {
    pub(in crate::memory) const fn released(mapped: Vec<Mapping>) -> Self {
        Self::Extents(EndingExtents::new(ExtentEnd::Released, mapped, Vec::new()))
    }
}

impl EndingExtents {
    pub(in crate::memory) const fn new(end: ExtentEnd, mapped: Vec<Mapping>, unmapped: Vec<Mapping>) -> Self {
        Self { moved: Vec::new(), mapped, unmapped, end }
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
        } else {
            lock(&self.retired.entries).push(entry);
        }
    }

    /// Ends what the GPU is done with, and returns the physical bytes given back.
    ///
    /// # Errors
    /// The first refusal of the driver or of a segment's source. What it refused is tried again later.
    pub(in crate::memory) fn end_retired(&self, patience: Patience) -> Result<u64> {
        // Those would wait for kernels, whatever they use.
        let pinned = if patience == Patience::Wait { self.end_retired_pinned() } else { Ok(0) };
        let others = self.end_retired_others(patience);
        Ok(pinned? + others?)
    }

    /// Ends what the GPU is done with. What the driver refuses is tried again whenever memory is given back.
    pub(in crate::memory) fn try_end_retired(&self) {
        let _ = self.end_retired(Patience::Ask);
    }

    /// Returns whether memory waits for the GPU; what a thread is just ending is not counted.
    pub(in crate::memory) fn has_retired(&self) -> bool {
        !lock(&self.retired.entries).is_empty()
    }

    /// As [`DeviceMemory::end_retired`], waiting for the GPU, after other threads have finished their moves.
    pub(crate) fn end_retired_by_all(&self) -> Result<u64> {
        let _ = self.under_way.wait();
        self.end_retired(Patience::Wait)
    }

    fn end_retired_others(&self, patience: Patience) -> Result<u64> {
        let entries = &self.retired.entries;
        let count = lock(entries).len();
        if count == 0 {
            return Ok(0);
        }
        let _moving = self.under_way.begin();
        let mut outcome = Ok(0);
        // The newest first: once its event is done, older ones are, and released memory leaves no older mapping behind. One at a
        // time: a pool's own allocator may be called, and what it requests finds the others in the list.
        for index in (0..count).rev() {
            let taken = {
                let mut entries = lock(entries);
                (index < entries.len()).then(|| entries.remove(index))
            };
            let Some(taken) = taken else { continue };
            let (left, ended) = self.end_entry(taken, patience);
            if let Some(left) = left {
                let mut entries = lock(entries);
                let place = index.min(entries.len());
                entries.insert(place, left);
            }
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
        let (taken, mut outcome) = (segments.len(), Ok(0));
        let mut refused = Vec::new();
        for segment in segments.into_iter().rev() {
            let (left, ended) = self.end_entry(segment, Patience::Wait);
            refused.extend(left);
            outcome = outcome.and_then(|released| Ok(released + ended?));
        }
        let mut pinned = lock(&retired.pinned);
        pinned.waiting.extend(refused.into_iter().rev());
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

    /// Ends an entry if the GPU is done with it. Returns what is left of it, and the physical bytes given back, or the refusal.
    fn end_entry(&self, mut entry: RetiredMemory, patience: Patience) -> (Option<RetiredMemory>, Result<u64>) {
        let ended = entry.until.is_done(&self.events, patience).and_then(|is_done| {
            let end = || self.end(&mut entry.remains, &entry.supply);
            is_done.then(end).transpose()
        });
        // A segment without bytes counts as freed, though its source refused.
        let is_left = !matches!((&ended, &entry.remains), (Ok(Some(_)), _) | (_, Remains::Segment { bytes: 0, .. }));
        (is_left.then_some(entry), ended.map(Option::unwrap_or_default))
    }

    /// Ends as much as the driver allows, and returns the physical bytes given back; the rest stays in `remains`.
    fn end(&self, remains: &mut Remains, supply: &Supply) -> Result<u64> {
        match remains {
            // SAFETY: by the promise of `retire` nothing else has these extents, nor uses them.
            Remains::Extents(extents) => unsafe { self.end_extents(extents, supply) },
            Remains::Reserve(runs) => {
                let runs = mem::take(runs);
                let mapped = supply.reserve().map(|reserve| reserve.put_back(runs)).unwrap_or_default();
                *remains = Remains::released(mapped);
                self.end(remains, supply)
            }
            Remains::Segment { address, bytes, stream } => {
                let (source, freed) = (&supply.source, *bytes);
                self.range.count_driver_call();
                // SAFETY: by the promise of `retire` the segment is of this pool's source, and no work uses it.
                let free = || unsafe { source.free(*address, freed, stream.as_ref()) };
                let outcome =
                    if self.is_of_host() { PINNED_GONE.time(free) } else { call_out(CallbackKind::Allocator, free) };
                if outcome.is_ok() || !source.frees_again() {
                    self.uncount(mem::take(bytes), supply);
                }
                outcome.map(|()| freed)
            }
        }
    }

    /// Unmaps and releases extents, and returns the bytes that counted as `supply`'s. What the driver refuses stays in the lists.
    ///
    /// # Safety
    /// Nothing but these lists has the extents, and no work uses them there.
    pub(in crate::memory) unsafe fn end_extents(&self, extents: &mut EndingExtents, supply: &Supply) -> Result<u64> {
        let EndingExtents { moved, mapped, unmapped, end } = extents;
        while !moved.is_empty() {
            self.unmap_run(moved, *end)?;
        }
        let mut released = 0;
        while !(mapped.is_empty() && unmapped.is_empty()) {
            while let Some(mapping) = unmapped.last() {
                // SAFETY: nothing but the list has the extent, as the caller promises, and it leaves the list below.
                let release = || unsafe { self.range.release(mapping.extent) };
                if self.is_of_host() { PINNED_GONE.time(release) } else { release() }?;
                if *end != ExtentEnd::Replaced {
                    self.uncount(mapping.bytes(), supply);
                    released += mapping.bytes();
                }
                unmapped.pop();
            }
            unmapped.extend(self.unmap_run(mapped, *end)?);
        }
        Ok(released)
    }

    /// Counts bytes as given back to the driver or the pool's source.
    pub(in crate::memory) fn uncount(&self, bytes: u64, supply: &Supply) {
        self.pieces.go(bytes);
        let budgets = [&self.budget, &supply.budget].into_iter().chain(self.process_budget());
        budgets.for_each(|budget| budget.release(bytes));
    }

    /// Returns the bytes that have been given back so far.
    pub(in crate::memory) fn given_back(&self) -> u64 {
        self.pieces.bytes().went
    }

    /// Unmaps the last mappings of the list that are in a row, and removes them from it.
    fn unmap_run(&self, mappings: &mut Vec<Mapping>, end: ExtentEnd) -> Result<Vec<Mapping>> {
        let mut rows = mappings.chunk_by(|one, next| one.end() == next.start());
        let from = mappings.len() - rows.next_back().map_or(0, <[_]>::len);
        // SAFETY: `until` was done, and by the promise of `retire` no other work uses these mappings.
        unsafe { self.range.unmap(&self.range.placed(&mappings[from..])) }?;
        let row = mappings.split_off(from);
        if end != ExtentEnd::Asleep {
            self.put_back_pages(run_of(&row));
        }
        Ok(row)
    }
}

//! Memory that is free but that the GPU may still use: unmapped, and given back, when its streams are done.
//!
//! So neither moving pages nor giving them back ever waits.

use std::sync::{Arc, Mutex};

use super::device_memory::DeviceMemory;
use super::pages::Mapping;
use super::retired_segments::RetiredSegment;
use super::run::Run;
use super::supply::{PINNED_GONE, Supply};
use super::under_way::call_out;
use super::until::Until;
use crate::error::Result;
use crate::observe::delivery::deliver;
use crate::runtime::Stream;
use crate::sync::{AtomicUsize, Ordering, lock};

/// What is left of memory that was taken out of a cache.
#[derive(Debug)]
pub(in crate::memory) enum Remains {
    /// The pages stand elsewhere now; but for some extents, mapped or not, others stand there, which count in their
    /// place. So these go.
    Moved { moved: Vec<Mapping>, mapped: Vec<Mapping>, unmapped: Vec<Mapping> },
    /// The physical memory goes too, as that of mappings which are unmapped already.
    Released { mapped: Vec<Mapping>, unmapped: Vec<Mapping> },
    /// As released, but the pages stay those of the pool, which is asleep.
    Asleep { mapped: Vec<Mapping>, unmapped: Vec<Mapping> },
    /// Pages of the pool's reserve, which stay where they are.
    Reserve(Vec<Run>),
    /// A segment, to go back to its source, which gave it for this stream; pinned memory for none.
    Segment { address: u64, bytes: u64, stream: Option<Stream> },
}

#[derive(Debug)]
struct Entry {
    remains: Remains,
    until: Until,
    /// The pool's, which may be gone by then.
    supply: Arc<Supply>,
}

/// The list of one device.
#[derive(Debug, Default)]
pub(super) struct Retired {
    len: AtomicUsize,
    entries: Mutex<Vec<Entry>>,
}

impl DeviceMemory {
    /// Unmaps or gives back what remains of memory that was `supply`'s, once `until` is done. An observer is told before, so
    /// no lock is held, but for pages of a reserve.
    ///
    /// # Safety
    /// The memory is in no cache and on no other list any more, and all work that uses it at these addresses is done
    /// when `until` is.
    pub(in crate::memory) unsafe fn retire(&self, remains: Remains, until: Until, supply: &Arc<Supply>) {
        // What stays where it is may be retired with its cache's lock held.
        if !matches!(remains, Remains::Reserve(_)) {
            deliver();
        }
        // What is free of pinned memory waits for nothing.
        if let Remains::Segment { address, bytes, stream: None } = remains {
            self.retire_segment(RetiredSegment { address, bytes, supply: Arc::clone(supply) });
            return;
        }
        let mut entries = lock(&self.retired.entries);
        entries.push(Entry { remains, until, supply: Arc::clone(supply) });
        self.retired.len.store(entries.len(), Ordering::Release);
    }

    /// Ends what the GPU is done with, and returns the physical bytes that went back; with `wait`, waits for the GPU.
    ///
    /// # Errors
    /// The first refusal of the driver or of a segment's source. What it refused is tried again later.
    pub(in crate::memory) fn end_retired(&self, wait: bool) -> Result<u64> {
        // Those would wait for kernels, whatever they use.
        let segments = if wait { self.end_retired_segments() } else { Ok(0) };
        let pages = self.end_retired_pages(wait);
        Ok(segments? + pages?)
    }

    /// The same, waiting for the GPU, once other threads have ended what they had in hand, or given it back to the list.
    ///
    /// # Errors
    /// As [`DeviceMemory::end_retired`].
    pub(crate) fn end_retired_by_all(&self) -> Result<u64> {
        let _ = self.under_way.wait();
        self.end_retired(true)
    }

    fn end_retired_pages(&self, wait: bool) -> Result<u64> {
        if self.retired.len.load(Ordering::Acquire) == 0 {
            return Ok(0);
        }
        let _moving = self.under_way.begin();
        let entries = {
            let mut entries = lock(&self.retired.entries);
            self.retired.len.store(0, Ordering::Release);
            std::mem::take(&mut *entries)
        };
        let mut outcome = Ok(());
        let mut released = 0;
        let mut kept = Vec::new();
        // The newest first: where one is done that was recorded later, so are the older ones, and memory that goes back
        // leaves no older mapping behind.
        for mut entry in entries.into_iter().rev() {
            match entry.until.is_done(&self.events, wait) {
                Ok(true) => {
                    if let Err(error) = self.end(&mut entry.remains, &entry.supply, &mut released) {
                        outcome = outcome.and(Err(error));
                    }
                    if entry.remains.is_left() {
                        kept.push(entry);
                    }
                }
                Ok(false) => kept.push(entry),
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    kept.push(entry);
                }
            }
        }
        if !kept.is_empty() {
            let mut entries = lock(&self.retired.entries);
            entries.splice(0..0, kept.into_iter().rev());
            self.retired.len.store(entries.len(), Ordering::Release);
        }
        outcome.map(|()| released)
    }

    /// Ends as much as the driver allows, and adds the physical bytes that went back; what is left stays in `remains`.
    fn end(&self, remains: &mut Remains, supply: &Supply, released: &mut u64) -> Result<()> {
        match remains {
            Remains::Moved { moved, mapped, unmapped } => {
                self.end_moved(moved)?;
                self.end_extents(mapped, unmapped, true, |_| {})?;
            }
            Remains::Released { mapped, unmapped } => {
                self.end_extents(mapped, unmapped, true, |bytes| self.uncount(bytes, supply, released))?;
            }
            Remains::Asleep { mapped, unmapped } => {
                self.end_extents(mapped, unmapped, false, |bytes| self.uncount(bytes, supply, released))?;
            }
            Remains::Reserve(runs) => {
                let runs = std::mem::take(runs);
                let mapped = supply.reserve().map(|reserve| reserve.put_back(runs)).unwrap_or_default();
                *remains = Remains::Released { mapped, unmapped: Vec::new() };
                return self.end(remains, supply, released);
            }
            Remains::Segment { address, bytes, stream } => {
                let source = &supply.source;
                self.range.count_driver_call();
                // SAFETY: by the promise of `retire` the segment is of this pool's source, and no work uses it.
                let outcome = call_out(|| unsafe { source.free(*address, *bytes, stream.as_ref()) });
                if outcome.is_ok() || !source.frees_again() {
                    self.uncount(std::mem::take(bytes), supply, released);
                }
                outcome?;
            }
        }
        Ok(())
    }

    /// Gives back extents of a pool that is asleep and keeps their pages, mapped ones and such as are unmapped already. What the
    /// driver refuses stays in the lists.
    ///
    /// # Errors
    /// `ErrorKind::Library`, the driver's refusal.
    ///
    /// # Safety
    /// Nothing but these lists has the extents, and no work uses them.
    pub(in crate::memory) unsafe fn give_back_asleep(
        &self,
        mapped: &mut Vec<Mapping>,
        unmapped: &mut Vec<Mapping>,
        supply: &Supply,
    ) -> Result<()> {
        self.end_extents(mapped, unmapped, false, |bytes| self.uncount(bytes, supply, &mut 0))
    }

    /// Unmaps extents that stand elsewhere, too.
    fn end_moved(&self, mappings: &mut Vec<Mapping>) -> Result<()> {
        while !mappings.is_empty() {
            self.unmap_run(mappings, true)?;
        }
        Ok(())
    }

    /// Gives extents back that are mapped, and such as are unmapped already, and counts the bytes of each; with `frees_pages`
    /// others may have their pages.
    fn end_extents(
        &self,
        mapped: &mut Vec<Mapping>,
        unmapped: &mut Vec<Mapping>,
        frees_pages: bool,
        mut count: impl FnMut(u64),
    ) -> Result<()> {
        while !(mapped.is_empty() && unmapped.is_empty()) {
            while let Some(mapping) = unmapped.last() {
                // SAFETY: nothing but the entry of these has the extent, by the promise of `retire`, and it leaves the entry
                // below.
                let release = || unsafe { self.range.release(mapping.extent) };
                if self.is_of_host() { PINNED_GONE.time(release) } else { release() }?;
                count(mapping.bytes());
                unmapped.pop();
            }
            unmapped.extend(self.unmap_run(mapped, frees_pages)?);
        }
        Ok(())
    }

    /// Counts physical memory that has gone.
    pub(in crate::memory) fn uncount(&self, bytes: u64, supply: &Supply, released: &mut u64) {
        self.pieces.go(bytes);
        self.budget.release(bytes);
        if let Some(process) = self.process_budget() {
            process.release(bytes);
        }
        supply.budget.release(bytes);
        *released += bytes;
    }

    /// Unmaps the last mappings of the list that stand in a row, and takes them out of it; with `frees_pages` others may have
    /// their pages.
    fn unmap_run(&self, mappings: &mut Vec<Mapping>, frees_pages: bool) -> Result<Vec<Mapping>> {
        let mut from = mappings.len().saturating_sub(1);
        while from > 0 && mappings[from - 1].end() == mappings[from].start() {
            from -= 1;
        }
        // SAFETY: `until` was done, and by the promise of `retire` no other work uses these mappings.
        unsafe { self.range.unmap_row(&mappings[from..]) }?;
        let row = mappings.split_off(from);
        if frees_pages && let Some(first) = row.first() {
            self.put_back_pages(Run { first: first.first, pages: row.iter().map(|mapping| mapping.pages).sum() });
        }
        Ok(row)
    }
}

impl Remains {
    fn is_left(&self) -> bool {
        match self {
            Self::Reserve(runs) => !runs.is_empty(),
            Self::Moved { moved, mapped, unmapped } => !(moved.is_empty() && mapped.is_empty() && unmapped.is_empty()),
            Self::Released { mapped, unmapped } | Self::Asleep { mapped, unmapped } => {
                !(mapped.is_empty() && unmapped.is_empty())
            }
            Self::Segment { bytes, .. } => *bytes > 0,
        }
    }
}

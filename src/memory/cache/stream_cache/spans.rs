//! Free memory that enters and leaves a cache: pages, which move, and segments, which stay. Each event is recorded and
//! observed: an arrival before any thread can have the memory, a departure once none can.

use super::{NotAdded, ServingCache, StreamCache};
use crate::memory::cache::event::{MemoryAction, To, is_recorded};
use crate::memory::cache::heap::{Heap, Moved, Portion};
use crate::memory::device::{Mapping, Reserve, Run};
use crate::observe::delivery;
use crate::process;
use crate::sync::OwnerGuard;

impl ServingCache {
    /// Adds free memory, of which the `moved` was moved here, and allocates at once, before another thread takes the
    /// pages. A lender only adds it.
    ///
    /// # Errors
    /// [`NotAdded`] if the cache has ended or sleeps, or there are too many blocks.
    pub(in crate::memory) fn add_and_allocate(
        &self,
        start: u64,
        bytes: u64,
        moved: Moved,
        request: u64,
    ) -> Result<Option<u64>, NotAdded> {
        let cache = self.cache;
        let mut heap = self.add_observed(start, bytes)?;
        // Pinned memory always moves, since making more costs far more.
        if moved != Moved::default() && !cache.memory.is_of_host() {
            heap.count_moved(self.pool(), moved);
        }
        if cache.is_lender() {
            return Ok(Some(start));
        }
        let offset = heap.allocate_grown(&cache.memory.pages, request);
        // Most often the request takes all of it.
        heap.withdraw_if_no_pages();
        if let Some(offset) = offset.filter(|_| is_recorded()) {
            cache.record_alloc(offset, request);
        }
        Ok(offset)
    }

    /// Adds free memory to the heap.
    ///
    /// # Errors
    /// [`NotAdded`] if the cache has ended or sleeps, or there are too many blocks.
    pub(in crate::memory) fn add(&self, start: u64, bytes: u64) -> Result<(), NotAdded> {
        self.add_observed(start, bytes).map(drop)
    }

    /// Adds memory that is mapped at a range's addresses as live blocks of `each` bytes.
    ///
    /// # Errors
    /// [`NotAdded`] if the cache has ended or sleeps, or there are too many blocks. The cache has none of it then.
    pub(in crate::memory) fn add_live(&self, start: u64, bytes: u64, each: u64) -> Result<(), NotAdded> {
        let cache = self.cache;
        let mut heap = self.add_observed(start, bytes)?;
        let places: Vec<_> = (0..bytes / each).map(|index| start + index * each).collect();
        let live = cache.allocate_each(&mut heap, &places, each);
        heap.withdraw_if_no_pages();
        if live.len() == places.len() {
            return Ok(());
        }
        // The pool was closed, or numbers have run out.
        for offset in live {
            let _ = heap.free(&cache.memory.pages, offset);
        }
        heap.join_freed();
        drop(cache.take_mappings(&mut heap, Portion::At(&places)));
        Err(NotAdded)
    }

    /// Locks the heap and adds free memory. The observer is called before any thread can have it.
    fn add_observed(&self, start: u64, bytes: u64) -> Result<OwnerGuard<'static, Heap>, NotAdded> {
        let cache = self.cache;
        cache.observe_segment(cache.coming(start), start, bytes);
        let added = self.lock_awake().ok_or(NotAdded).and_then(|mut heap| {
            cache.add_span(To::Recording, &mut heap, start, bytes)?;
            Ok(heap)
        });
        if added.is_err() {
            cache.observe_segment(cache.going(start), start, bytes);
        }
        added
    }
}

impl StreamCache {
    fn add_span(&self, to: To, heap: &mut Heap, start: u64, bytes: u64) -> Result<(), NotAdded> {
        if !heap.add_span(start, bytes) {
            return Err(NotAdded);
        }
        self.memory.pages.set_cache(start, start + bytes, Some(self.page_mark()));
        if is_recorded() {
            self.record_segment(to, self.coming(start), start, bytes);
        }
        Ok(())
    }

    /// Returns the action that memory at the offset arrives by.
    fn coming(&self, start: u64) -> MemoryAction {
        if self.is_movable(start) { MemoryAction::SegmentMap } else { MemoryAction::SegmentAlloc }
    }

    /// Returns the action that memory at the offset leaves by.
    fn going(&self, start: u64) -> MemoryAction {
        if self.is_movable(start) { MemoryAction::SegmentUnmap } else { MemoryAction::SegmentFree }
    }

    /// Returns whether memory at the offset is pages, which move; the rest are segments, which stay.
    fn is_movable(&self, start: u64) -> bool {
        start < self.memory.range.bytes && !self.has_segments()
    }

    /// Returns whether each mapping of the cache is a segment for one block.
    fn has_segments(&self) -> bool {
        self.look_at_service(|service| service.pool.no_split()) == Some(true)
    }

    /// Passes the arrival or departure of memory to the observer, if there is one. No lock is held.
    fn observe_segment(&self, action: MemoryAction, start: u64, bytes: u64) {
        if process::state().is_observed() {
            self.record_segment(To::Observer, action, start, bytes);
            delivery::deliver();
        }
    }

    /// Takes wholly free mappings out of the heap.
    pub(in crate::memory) fn take_mappings(&self, heap: &mut Heap, portion: Portion<'_>) -> Vec<Mapping> {
        let taken = heap.take_mappings(&self.memory.pages, portion);
        if is_recorded() {
            // Mappings in a row are one event; segments are one each.
            let has_segments = self.has_segments();
            for row in taken.chunk_by(|mapping, next| !has_segments && mapping.end() == next.start()) {
                let bytes = row.iter().map(|mapping| mapping.bytes()).sum();
                self.record_segment(To::Both, self.going(row[0].start()), row[0].start(), bytes);
            }
        }
        if !taken.is_empty() {
            heap.withdraw_if_no_pages();
        }
        taken
    }

    pub(in crate::memory) fn take_reserve(&self, heap: &mut Heap, reserve: &Reserve) -> Vec<Run> {
        let taken = heap.take_pages(&self.memory.pages, reserve.run.start()..reserve.run.end());
        if is_recorded() {
            for run in &taken {
                self.record_segment(To::Both, MemoryAction::SegmentUnmap, run.start(), run.bytes());
            }
        }
        taken
    }

    /// Adds pages of the pool's reserve to the heap. Returns those that could not be added.
    #[must_use]
    pub(in crate::memory) fn add_reserve(&self, heap: &mut Heap, runs: Vec<Run>) -> Vec<Run> {
        runs.into_iter().filter(|run| self.add_span(To::Both, heap, run.start(), run.bytes()).is_err()).collect()
    }

    pub(in crate::memory) fn take_free_spans(&self, heap: &mut Heap) -> Vec<(u64, u64)> {
        let taken = heap.take_free_spans(&self.memory.pages, self.memory.range.bytes);
        if is_recorded() {
            for &(start, bytes) in &taken {
                self.record_segment(To::Both, MemoryAction::SegmentFree, start, bytes);
            }
        }
        taken
    }
}

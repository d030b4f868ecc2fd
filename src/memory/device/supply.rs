//! Where a pool's memory comes from, and how much it has and may have. Several threads touch the pages of a pinned
//! segment before the driver registers it: an H100 takes 114 ms a GiB this way and 217 ms in extents
//! (`benches/results/h100/pinned.txt`). But a segment cannot be moved, and the driver releases it only after running
//! kernels, unlike extents. So segments serve large needs, and go only when asked to, by a thread of gpupool's own
//! where the caller does not need the memory.

use std::mem;
use std::sync::{Arc, Mutex, OnceLock};

use rustc_hash::FxHashMap;

use super::address_range::{with_device, with_limits};
use super::address_space::{Run, RunSet};
use super::budget::Budget;
use super::pages::{Mapping, run_of};
use super::segments::SegmentSource;
use super::under_way::call_out;
use crate::error::{Error, Result};
use crate::ids::NumaNode;
use crate::runtime::Stream;
use crate::sync::{CallbackKind, lock};

#[derive(Clone, Debug, Default)]
pub(crate) enum Source {
    /// Pages of the device's address range, moved where they are needed.
    #[default]
    Pages,
    /// Segments, which stay where they are.
    Segments(Arc<dyn SegmentSource>),
    /// Pinned memory of the host on this node: segments, and pages for smaller needs if the node has them.
    Pinned { node: NumaNode, has_pages: bool },
}

impl Source {
    pub(in crate::memory) const fn is_pages(&self) -> bool {
        matches!(self, Self::Pages | Self::Pinned { has_pages: true, .. })
    }

    pub(in crate::memory) const fn has_segments(&self) -> bool {
        !matches!(self, Self::Pages)
    }

    /// Allocates a segment, to be used first on the stream; pinned memory has none.
    pub(in crate::memory) fn allocate(&self, bytes: u64, stream: Option<&Stream>) -> Result<u64> {
        match (self, stream) {
            (Self::Segments(source), Some(stream)) => source.allocate(bytes, stream),
            (&Self::Pinned { node, .. }, _) => {
                let made = with_device(node, |runtime| runtime.host_allocate(node, bytes));
                made.map_err(|error| with_limits(error, node.into()))
            }
            _ => Err(Error::internal(NO_SEGMENTS)),
        }
    }

    /// # Safety
    /// [`Source::allocate`] gave it, so long and for that stream, and its owner gives it up.
    pub(in crate::memory) unsafe fn free(&self, address: u64, bytes: u64, stream: Option<&Stream>) -> Result<()> {
        match (self, stream) {
            // SAFETY: as the caller promises.
            (Self::Segments(source), Some(stream)) => unsafe { source.free(address, bytes, stream) },
            (&Self::Pinned { node, .. }, _) => {
                // SAFETY: the memory came from `host_allocate`, and the caller gives it up.
                with_device(node, |runtime| unsafe { runtime.host_free(node, address, bytes) })
            }
            _ => Err(Error::internal(NO_SEGMENTS)),
        }
    }

    pub(super) fn frees_again(&self) -> bool {
        if let Self::Segments(source) = self { source.frees_again() } else { true }
    }
}

const NO_SEGMENTS: &str = "a segment was asked for where there are none";

/// A pool's source and budget: what memory needs on its way back to the driver, when the pool may be gone.
#[derive(Debug)]
pub(in crate::memory) struct Supply {
    pub(in crate::memory) source: Source,
    pub(in crate::memory) budget: Budget,
    pub(in crate::memory) reserve: OnceLock<Reserve>,
    pub(in crate::memory) ready: Ready,
}

impl Supply {
    pub(in crate::memory) fn new(source: Source, limit: Option<u64>) -> Self {
        let budget = Budget::new();
        budget.set_limit(limit);
        Self { source, budget, reserve: OnceLock::new(), ready: Ready::default() }
    }

    pub(in crate::memory) fn reserve(&self) -> Option<&Reserve> {
        self.reserve.get()
    }
}

impl Drop for Supply {
    /// The end of a pool's own source is the program's code, and often comes with the last memory on its way back.
    fn drop(&mut self) {
        let source = mem::take(&mut self.source);
        call_out(CallbackKind::Allocator, || drop(source));
    }
}

/// Extents of one size.
#[derive(Debug, Default)]
struct OfSize {
    made: Vec<Mapping>,
    /// How many all ranges together want to be kept.
    wanted: usize,
}

/// Extents made ahead of need, for pages of memory ranges: a commit then only maps them. Until then they are mapped at
/// addresses that no cache has, and count as the pool's reserved memory. They are here by their pages of 2 MiB.
#[derive(Debug, Default)]
pub(in crate::memory) struct Ready(Mutex<FxHashMap<u32, OfSize>>);

impl Ready {
    pub(in crate::memory) fn put(&self, made: Mapping) {
        lock(&self.0).entry(made.run.pages).or_default().made.push(made);
    }

    /// Takes at most so many extents of exactly so many pages.
    pub(in crate::memory) fn take(&self, pages: u32, most: u32) -> Vec<Mapping> {
        let mut sizes = lock(&self.0);
        let Some(OfSize { made, .. }) = sizes.get_mut(&pages) else { return Vec::new() };
        made.split_off(made.len().saturating_sub(most as usize))
    }

    pub(in crate::memory) fn take_all(&self) -> Vec<Mapping> {
        lock(&self.0).values_mut().flat_map(|of| of.made.drain(..)).collect()
    }

    /// Changes how many extents of so many pages a range wants to be kept.
    pub(in crate::memory) fn want(&self, pages: u32, before: u32, now: u32) {
        let mut sizes = lock(&self.0);
        let of = sizes.entry(pages).or_default();
        of.wanted = of.wanted.saturating_sub(before as usize) + now as usize;
    }

    /// Returns whether more extents of so many pages are wanted than there are.
    pub(in crate::memory) fn lacks(&self, pages: u32) -> bool {
        lock(&self.0).get(&pages).is_some_and(|of| of.made.len() < of.wanted)
    }

    /// Returns the bytes of all.
    pub(in crate::memory) fn bytes(&self) -> u64 {
        lock(&self.0).values().flat_map(|of| &of.made).map(|made| made.bytes()).sum()
    }
}

/// A pool's reserve: physical memory that it keeps from birth to end, at addresses in one piece. Its extents are mapped
/// once. The pool's caches take pages of it and return them without a driver call; what is here is free, and no work uses
/// it. After the pool's end each extent goes once all of it is here.
#[derive(Debug)]
pub(in crate::memory) struct Reserve {
    pub(in crate::memory) run: Run,
    state: Mutex<ReserveState>,
}

#[derive(Debug)]
struct ReserveState {
    free: RunSet,
    /// The extents that have not gone.
    extents: Vec<Mapping>,
    has_ended: bool,
}

impl ReserveState {
    /// Removes the extents that are wholly free, if the pool has ended.
    fn take_free_extents(&mut self) -> Vec<Mapping> {
        if !self.has_ended {
            return Vec::new();
        }
        let free = &mut self.free;
        self.extents.extract_if(.., |extent| free.take(extent.run)).collect()
    }
}

impl Reserve {
    /// Makes a reserve of extents that are mapped in a row and have no other owner.
    pub(in crate::memory) fn new(extents: Vec<Mapping>) -> Self {
        let run = run_of(&extents);
        Self { run, state: Mutex::new(ReserveState { free: RunSet::of(run), extents, has_ended: false }) }
    }

    /// Takes the smallest run of so many free pages. The caller's `own` pages count as free, too; those not used stay
    /// there.
    pub(in crate::memory) fn take(&self, own: &mut Vec<Run>, pages: u32) -> Option<Run> {
        let mut state = lock(&self.state);
        own.iter().for_each(|&run| state.free.insert(run));
        let taken = state.free.runs_from(pages).next().map(|run| Run { pages, ..run });
        taken.map(|taken| state.free.take(taken));
        *own = own.iter().flat_map(|&run| state.free.parts(run)).collect();
        own.iter().for_each(|&run| _ = state.free.take(run));
        taken
    }

    /// Takes back pages that no work uses, and returns extents to release if the pool has ended.
    #[must_use]
    pub(in crate::memory) fn put_back(&self, runs: Vec<Run>) -> Vec<Mapping> {
        let mut state = lock(&self.state);
        runs.into_iter().for_each(|run| state.free.insert(run));
        state.take_free_extents()
    }

    /// Ends the reserve with its pool, and returns extents to release.
    #[must_use]
    pub(in crate::memory) fn end(&self) -> Vec<Mapping> {
        let mut state = lock(&self.state);
        state.has_ended = true;
        state.take_free_extents()
    }

    /// Removes all extents, whose memory is to go while the pool is asleep.
    pub(in crate::memory) fn take_extents(&self) -> Vec<Mapping> {
        std::mem::take(&mut lock(&self.state).extents)
    }

    /// Sets the extents that are there now. Returns those to release if the pool has ended.
    #[must_use]
    pub(in crate::memory) fn set_extents(&self, extents: Vec<Mapping>) -> Vec<Mapping> {
        let mut state = lock(&self.state);
        state.extents = extents;
        state.take_free_extents()
    }

    pub(in crate::memory) fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    /// Takes all free pages, which have no extents, since their pool is asleep.
    pub(in crate::memory) fn take_free(&self) -> Vec<Run> {
        std::mem::take(&mut lock(&self.state).free).runs().collect()
    }

    pub(in crate::memory) fn free(&self) -> Vec<Run> {
        lock(&self.state).free.runs().collect()
    }

    pub(in crate::memory) fn extents(&self) -> Vec<Mapping> {
        lock(&self.state).extents.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Extent;

    const fn run(first: u32, pages: u32) -> Run {
        Run { first, pages }
    }

    fn reserve() -> Reserve {
        let extent =
            |number: u32| Mapping { run: run(100 + 4 * number, 4), extent: Extent::from_number(number.into()) };
        Reserve::new((0..4).map(extent).collect())
    }

    #[test]
    fn what_was_taken_and_put_back_is_in_one_piece_again() {
        let reserve = reserve();
        let taken: Vec<_> =
            [3, 5, 8].into_iter().map(|pages| reserve.take(&mut vec![], pages).map(|run| run.first)).collect();
        assert_eq!(taken, [Some(100), Some(103), Some(108)]);
        assert_eq!(reserve.take(&mut vec![], 1), None);
        for run in [run(103, 5), run(100, 3), run(108, 8)] {
            assert!(reserve.put_back(vec![run]).is_empty());
        }
        assert_eq!(reserve.take(&mut vec![], 16), Some(run(100, 16)));
        assert_eq!(reserve.take(&mut vec![run(100, 16)], 17), None);
    }

    #[test]
    fn pages_of_the_asker_join_what_is_free_and_what_is_left_of_them_stays_its() {
        let reserve = reserve();
        assert_eq!(reserve.take(&mut vec![], 10), Some(run(100, 10)));
        // Free: 110 to 116, and the caller's 100 to 102 and 104 to 110.
        let mut own = vec![run(100, 2), run(104, 6)];
        assert_eq!(reserve.take(&mut own, 12), Some(run(104, 12)));
        assert!(own == [run(100, 2)] && reserve.free().is_empty());
        let mut own = vec![run(100, 3)];
        assert_eq!(reserve.take(&mut own, 2), Some(run(100, 2)));
        assert!(own == [run(102, 1)] && reserve.free().is_empty());
        let mut own = vec![run(102, 1)];
        assert_eq!(reserve.take(&mut own, 2), None);
        assert!(own == [run(102, 1)] && reserve.free().is_empty());
    }

    #[test]
    fn after_the_end_each_extent_goes_once_all_of_it_is_free() {
        let reserve = reserve();
        let firsts = |extents: Vec<Mapping>| extents.into_iter().map(|extent| extent.run.first).collect::<Vec<_>>();
        assert_eq!(reserve.take(&mut vec![], 6), Some(run(100, 6)));
        assert_eq!(firsts(reserve.end()), [108, 112]);
        assert!(reserve.put_back(vec![run(100, 3)]).is_empty());
        assert_eq!(firsts(reserve.put_back(vec![run(103, 2)])), [100]);
        assert_eq!(firsts(reserve.put_back(vec![run(105, 1)])), [104]);
        assert!(reserve.extents().is_empty() && reserve.free().is_empty());
        assert!(reserve.end().is_empty());
    }
}

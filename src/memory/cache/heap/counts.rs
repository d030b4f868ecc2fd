//! What a heap has handed out and taken back: all blocks, small ones and large ones, and the bytes of slabs. A freed
//! block that waits for streams still counts as handed out, but no longer as held. Peaks are kept as blocks go out.
//! Those of held blocks are counted apart only while a block waits: otherwise they are the same.

use crate::memory::device::Flow;

/// Of all blocks; of small ones, which are slots of slabs; of large ones, which are cut from pages.
pub(in crate::memory) const ALL: usize = 0;
pub(in crate::memory) const SMALL: usize = 1;
pub(in crate::memory) const LARGE: usize = 2;

/// A number of blocks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::memory) struct Amount {
    pub(in crate::memory) bytes: u64,
    /// The bytes that callers asked for.
    pub(in crate::memory) requested: u64,
    pub(in crate::memory) blocks: u64,
}

impl Amount {
    #[inline]
    const fn one(bytes: u64, requested: u64) -> Self {
        Self { bytes, requested, blocks: 1 }
    }

    /// Applies `of` to each number of both.
    #[inline]
    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            bytes: of(self.bytes, other.bytes),
            requested: of(self.requested, other.requested),
            blocks: of(self.blocks, other.blocks),
        }
    }

    #[inline]
    pub(in crate::memory) fn plus(self, other: Self) -> Self {
        self.each(other, |one, other| one + other)
    }

    #[inline]
    pub(in crate::memory) fn minus(self, other: Self) -> Self {
        self.each(other, |one, other| one - other)
    }

    /// Returns the larger of each number.
    #[inline]
    pub(in crate::memory) fn max(self, other: Self) -> Self {
        self.each(other, u64::max)
    }
}

pub(in crate::memory) type Amounts = [Amount; 3];

fn each(one: Amounts, other: Amounts, with: impl Fn(Amount, Amount) -> Amount) -> Amounts {
    [with(one[ALL], other[ALL]), with(one[SMALL], other[SMALL]), with(one[LARGE], other[LARGE])]
}

pub(in crate::memory) fn most(one: Amounts, other: Amounts) -> Amounts {
    each(one, other, Amount::max)
}

/// What heaps hold and have done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::memory) struct Counts {
    /// Blocks that are handed out.
    pub(in crate::memory) now: Amounts,
    /// Handed-out blocks that were freed and wait for streams.
    pub(in crate::memory) waiting: Amounts,
    /// Blocks that were handed out so far.
    pub(in crate::memory) ever: Amounts,
    /// The most that were handed out at once.
    pub(in crate::memory) peak: Amounts,
    /// The most that callers held at once.
    pub(in crate::memory) held_peak: Amounts,
    pub(in crate::memory) slabs: Flow,
}

impl Counts {
    /// Bytes of blocks that are handed out.
    #[cfg(test)]
    pub(in crate::memory) const fn live(&self) -> u64 {
        self.now[ALL].bytes
    }

    pub(in crate::memory) const fn allocations(&self) -> u64 {
        self.ever[ALL].blocks
    }

    pub(in crate::memory) const fn frees(&self) -> u64 {
        self.ever[ALL].blocks - self.now[ALL].blocks
    }

    /// Returns the blocks that came back so far.
    pub(in crate::memory) fn back(&self) -> Amounts {
        each(self.ever, self.now, Amount::minus)
    }

    pub(in crate::memory) fn held(&self) -> Amounts {
        each(self.now, self.waiting, Amount::minus)
    }

    /// Adds another heap's counts, as if both peaked at the same time.
    pub(in crate::memory) fn add(&mut self, other: Self) {
        self.now = each(self.now, other.now, Amount::plus);
        self.waiting = each(self.waiting, other.waiting, Amount::plus);
        self.ever = each(self.ever, other.ever, Amount::plus);
        self.peak = each(self.peak, other.peak, Amount::plus);
        self.held_peak = each(self.held_peak, other.held_peak, Amount::plus);
        self.slabs = self.slabs.plus(other.slabs);
    }

    /// Lowers the peaks of bytes to `bytes`, but not below what is live.
    pub(in crate::memory) fn bound_peaks(&mut self, bytes: u64) {
        let bound = |peaks: &mut Amounts, now: Amounts| {
            for (peak, now) in peaks.iter_mut().zip(now) {
                peak.bytes = peak.bytes.min(bytes).max(now.bytes);
                peak.requested = peak.requested.min(bytes).max(now.requested);
            }
        };
        let held = self.held();
        bound(&mut self.peak, self.now);
        bound(&mut self.held_peak, held);
    }

    /// Resets the peaks of counts with nothing live.
    pub(in crate::memory) fn forget_peaks(&mut self) {
        (self.peak, self.held_peak) = (Amounts::default(), Amounts::default());
        self.slabs.reset_peak();
    }
}

/// Blocks of one kind.
#[derive(Clone, Copy, Default, Debug)]
struct Running {
    now: Amount,
    ever: Amount,
    /// The most since the peaks began.
    peak: Amount,
}

/// The counts of a running heap, and what was published of them.
#[derive(Default, Debug)]
pub(super) struct RunningCounts {
    /// Small blocks, and large ones.
    kinds: [Running; 2],
    /// The most of both since the peaks began.
    peak: Amount,
    /// Whether blocks wait for streams.
    has_waiting: bool,
    /// The published upper bound of live bytes; `u64::MAX` where nothing is published.
    published: u64,
    /// The allocations when it was published.
    published_at: u64,
    waiting: [Amount; 2],
    /// The peaks before the present ones began.
    past_peak: Amounts,
    /// The most that was held before the present peaks began, and since then if blocks wait.
    held_peak: Amounts,
    slabs: Flow,
}

fn all(kinds: [Amount; 2]) -> Amounts {
    [kinds[0].plus(kinds[1]), kinds[0], kinds[1]]
}

impl RunningCounts {
    /// Makes counts that are not published.
    pub(super) fn new() -> Self {
        Self { published: u64::MAX, ..Self::default() }
    }

    fn now(&self) -> Amounts {
        all(self.kinds.map(|kind| kind.now))
    }

    fn present_peak(&self) -> Amounts {
        [self.peak, self.kinds[0].peak, self.kinds[1].peak]
    }

    pub(super) fn get(&self) -> Counts {
        let peak = most(self.past_peak, self.present_peak());
        let held_peak = if self.has_waiting { self.held_peak } else { most(self.held_peak, self.present_peak()) };
        Counts {
            now: self.now(),
            waiting: all(self.waiting),
            ever: all(self.kinds.map(|kind| kind.ever)),
            peak,
            held_peak,
            slabs: self.slabs,
        }
    }

    #[inline]
    pub(super) const fn live(&self) -> u64 {
        self.kinds[0].now.bytes + self.kinds[1].now.bytes
    }

    /// Returns the bytes of what no request of another size can have: large blocks, and slabs, whether full or not.
    pub(super) const fn occupied(&self) -> u64 {
        self.slabs.now() + self.kinds[LARGE - SMALL].now.bytes
    }

    pub(super) const fn allocations(&self) -> u64 {
        self.kinds[0].ever.blocks + self.kinds[1].ever.blocks
    }

    /// Returns the bytes of all blocks handed out so far.
    pub(super) const fn handed_out(&self) -> u64 {
        self.kinds[0].ever.bytes + self.kinds[1].ever.bytes
    }

    /// Counts a block that is handed out, and returns whether more is live than was published.
    #[inline]
    #[must_use]
    pub(super) fn allocate(&mut self, kind: usize, bytes: u64, requested: u64) -> bool {
        let one = Amount::one(bytes, requested);
        let running = &mut self.kinds[kind - SMALL];
        running.now = running.now.plus(one);
        running.ever = running.ever.plus(one);
        running.peak = running.peak.max(running.now);
        let now = self.kinds[0].now.plus(self.kinds[1].now);
        self.peak.requested = self.peak.requested.max(now.requested);
        self.peak.blocks = self.peak.blocks.max(now.blocks);
        if self.has_waiting {
            self.raise_held();
        }
        // The published bound is no less than this peak, which began with it.
        now.bytes > self.peak.bytes && {
            self.peak.bytes = now.bytes;
            now.bytes > self.published
        }
    }

    /// Counts a block that came back.
    #[inline]
    pub(super) fn free(&mut self, kind: usize, bytes: u64, requested: u64) {
        let running = &mut self.kinds[kind - SMALL];
        running.now = running.now.minus(Amount::one(bytes, requested));
    }

    #[cold]
    fn raise_held(&mut self) {
        self.held_peak = most(self.held_peak, each(self.now(), all(self.waiting), Amount::minus));
    }

    pub(super) const fn add_slab(&mut self, bytes: u64) {
        self.slabs.find(self.slabs.now() + bytes);
    }

    pub(super) const fn remove_slabs(&mut self, bytes: u64) {
        self.slabs.find(self.slabs.now() - bytes);
    }

    /// Counts a freed block that waits.
    pub(super) fn begin_waiting(&mut self, kind: usize, bytes: u64, requested: u64) {
        if !self.has_waiting {
            self.held_peak = most(self.held_peak, self.present_peak());
            self.has_waiting = true;
        }
        let waiting = &mut self.waiting[kind - SMALL];
        *waiting = waiting.plus(Amount::one(bytes, requested));
    }

    /// Counts the end of a block's wait, after [`RunningCounts::free`].
    pub(super) fn end_waiting(&mut self, kind: usize, bytes: u64, requested: u64) {
        let waiting = &mut self.waiting[kind - SMALL];
        *waiting = waiting.minus(Amount::one(bytes, requested));
        if self.waiting == <[Amount; 2]>::default() {
            self.begin_peaks();
            self.has_waiting = false;
        }
    }

    /// Begins new present peaks and keeps the past ones.
    fn begin_peaks(&mut self) {
        self.past_peak = most(self.past_peak, self.present_peak());
        if !self.has_waiting {
            self.held_peak = most(self.held_peak, self.present_peak());
        }
        self.set_peaks();
    }

    /// Sets the present peaks to what is live.
    fn set_peaks(&mut self) {
        let [all, small, large] = self.now();
        self.peak = all;
        (self.kinds[0].peak, self.kinds[1].peak) = (small, large);
    }

    /// Returns how many allocations came after the last publication.
    pub(super) const fn allocations_since_published(&self) -> u64 {
        self.allocations() - self.published_at
    }

    /// Notes that `live`, no less than what is live, is published as the bound. Returns the bound before.
    pub(super) fn publish(&mut self, live: u64) -> u64 {
        self.begin_peaks();
        self.published_at = self.allocations();
        std::mem::replace(&mut self.published, live)
    }

    pub(super) fn reset_peak(&mut self) {
        self.past_peak = Amounts::default();
        self.held_peak = each(self.now(), all(self.waiting), Amount::minus);
        self.slabs.reset_peak();
        self.set_peaks();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn kind_of(bytes: u64) -> usize {
        if bytes <= MIB { SMALL } else { LARGE }
    }

    fn take(counts: &mut RunningCounts, bytes: u64) {
        let _ = counts.allocate(kind_of(bytes), bytes, bytes - 1);
    }

    fn give(counts: &mut RunningCounts, bytes: u64) {
        counts.free(kind_of(bytes), bytes, bytes - 1);
    }

    #[test]
    fn small_and_large_blocks_have_peaks_of_their_own() {
        let mut counts = RunningCounts::new();
        take(&mut counts, MIB);
        take(&mut counts, 2 * MIB);
        give(&mut counts, MIB);
        take(&mut counts, 3 * MIB);
        let counts = counts.get();
        let amounts = |bytes, blocks| Amount { bytes, requested: bytes - blocks, blocks };
        assert_eq!(counts.now, [amounts(5 * MIB, 2), amounts(0, 0), amounts(5 * MIB, 2)]);
        assert_eq!(counts.ever, [amounts(6 * MIB, 3), amounts(MIB, 1), amounts(5 * MIB, 2)]);
        assert_eq!(counts.peak, [amounts(5 * MIB, 2), amounts(MIB, 1), amounts(5 * MIB, 2)]);
        assert_eq!(counts.held_peak, counts.peak);
        assert_eq!(counts.frees(), 1);
    }

    #[test]
    fn what_waits_is_live_and_held_no_more() {
        let mut counts = RunningCounts::new();
        take(&mut counts, 4 * MIB);
        counts.begin_waiting(LARGE, 4 * MIB, 4 * MIB - 1);
        take(&mut counts, 5 * MIB);
        assert_eq!((counts.get().live(), counts.get().held()[ALL].bytes), (9 * MIB, 5 * MIB));
        give(&mut counts, 4 * MIB);
        counts.end_waiting(LARGE, 4 * MIB, 4 * MIB - 1);
        take(&mut counts, MIB);
        let counts = counts.get();
        assert_eq!((counts.peak[ALL].bytes, counts.held_peak[ALL].bytes), (9 * MIB, 6 * MIB));
        assert_eq!((counts.peak[LARGE].blocks, counts.held_peak[LARGE].blocks), (2, 1));
        assert_eq!(counts.waiting, Amounts::default());
    }

    #[test]
    fn a_peak_outlives_what_is_published_and_ends_where_it_is_reset() {
        let mut counts = RunningCounts::new();
        take(&mut counts, 4 * MIB);
        give(&mut counts, 4 * MIB);
        let _ = counts.publish(0);
        take(&mut counts, MIB);
        assert_eq!((counts.get().peak[ALL].bytes, counts.get().held_peak[ALL].bytes), (4 * MIB, 4 * MIB));
        counts.reset_peak();
        assert_eq!((counts.get().peak[ALL].bytes, counts.get().held_peak[ALL].bytes), (MIB, MIB));
    }
}

//! What a heap has handed out and taken back.

/// What a heap holds and has done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::memory) struct Counts {
    /// Bytes of blocks that callers hold, as cut.
    pub(in crate::memory) live: u64,
    /// The most they ever were.
    pub(in crate::memory) peak: u64,
    /// Bytes that callers asked for, of the same blocks.
    pub(in crate::memory) requested: u64,
    /// Blocks handed out so far.
    pub(in crate::memory) allocations: u64,
    /// Blocks that came back.
    pub(in crate::memory) frees: u64,
}

impl Counts {
    /// Takes over what a heap that is gone has counted. Nothing is live in it.
    pub(in crate::memory) fn add(&mut self, gone: Self) {
        self.allocations += gone.allocations;
        self.frees += gone.frees;
        self.peak = self.peak.saturating_add(gone.peak);
    }
}

/// The counts of a heap at work, and what was told of them.
#[derive(Debug)]
pub(super) struct RunningCounts {
    counts: Counts,
    /// The most that was live before it was last told how much is.
    past_peak: u64,
    /// What was told to be live at most: no less than what is, or `u64::MAX` where none is told.
    told: u64,
    /// The allocations when it was told.
    told_at: u64,
}

impl RunningCounts {
    /// Makes counts of which none are told.
    pub(super) fn new() -> Self {
        Self { counts: Counts::default(), past_peak: 0, told: u64::MAX, told_at: 0 }
    }

    /// Returns what was counted.
    pub(super) fn get(&self) -> Counts {
        Counts { peak: self.counts.peak.max(self.past_peak), ..self.counts }
    }

    #[inline]
    pub(super) const fn live(&self) -> u64 {
        self.counts.live
    }

    pub(super) const fn allocations(&self) -> u64 {
        self.counts.allocations
    }

    /// Counts a block handed out, and returns whether more is live than was told.
    #[inline]
    #[must_use]
    pub(super) fn allocate(&mut self, bytes: u64, requested: u64) -> bool {
        let counts = &mut self.counts;
        counts.live += bytes;
        counts.requested += requested;
        counts.allocations += 1;
        // What was told is no less than this peak, which begins where it was told.
        counts.live > counts.peak && {
            counts.peak = counts.live;
            counts.live > self.told
        }
    }

    /// Counts a block that came back.
    #[inline]
    pub(super) fn free(&mut self, bytes: u64, requested: u64) {
        let counts = &mut self.counts;
        counts.live -= bytes;
        counts.requested -= requested;
        counts.frees += 1;
    }

    /// Returns what was told to be live at most.
    pub(super) const fn told(&self) -> u64 {
        self.told
    }

    /// Returns how many allocations there were since it was told.
    pub(super) const fn allocations_since_told(&self) -> u64 {
        self.counts.allocations - self.told_at
    }

    /// Notes that it is told that so much is live at most, and returns what was told before. No less than what is live.
    pub(super) fn tell(&mut self, live: u64) -> u64 {
        self.past_peak = self.past_peak.max(self.counts.peak);
        self.counts.peak = self.counts.live;
        self.told_at = self.counts.allocations;
        std::mem::replace(&mut self.told, live)
    }

    pub(super) fn reset_peak(&mut self) {
        self.past_peak = 0;
        self.counts.peak = self.counts.live;
    }
}

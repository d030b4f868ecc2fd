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
        self.peak = self.peak.max(gone.peak);
    }

    #[inline]
    pub(super) fn allocate(&mut self, bytes: u64, requested: u64) {
        self.live += bytes;
        self.requested += requested;
        self.allocations += 1;
        if self.live > self.peak {
            self.peak = self.live;
        }
    }

    #[inline]
    pub(super) fn free(&mut self, bytes: u64, requested: u64) {
        self.live -= bytes;
        self.requested -= requested;
        self.frees += 1;
    }
}

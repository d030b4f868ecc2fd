//! Counts the pieces of physical memory that the driver or a pool's source gives. A piece of one page counts as small,
//! as PyTorch's segments for small blocks do; here, any blocks may be in it, since pages go where they are needed.

use crate::memory::tuning::PAGE;
use crate::sync::{AtomicU64, Ordering};

/// What came, what went, and the most that there was at once.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::memory) struct Flow {
    pub(in crate::memory) came: u64,
    pub(in crate::memory) went: u64,
    pub(in crate::memory) peak: u64,
}

impl Flow {
    /// Sets the present amount, for what is not counted as it comes and goes.
    pub(in crate::memory) const fn find(&mut self, now: u64) {
        let before = self.now();
        if now > before {
            self.came += now - before;
        } else {
            self.went += before - now;
        }
        if now > self.peak {
            self.peak = now;
        }
    }

    pub(in crate::memory) const fn reset_peak(&mut self) {
        self.peak = self.now();
    }

    /// Returns the sum, as if both peaked at the same time.
    pub(in crate::memory) const fn plus(self, other: Self) -> Self {
        Self { came: self.came + other.came, went: self.went + other.went, peak: self.peak + other.peak }
    }

    /// Returns this without `part`: what leaves the part joins the rest.
    pub(in crate::memory) const fn without(self, part: Self) -> Self {
        Self { came: self.came + part.went, went: self.went + part.came, peak: self.peak }
    }

    pub(in crate::memory) const fn now(self) -> u64 {
        self.came.saturating_sub(self.went)
    }
}

#[derive(Debug, Default)]
struct Counter {
    came: AtomicU64,
    went: AtomicU64,
    peak: AtomicU64,
}

impl Counter {
    fn come(&self, many: u64) {
        let came = self.came.fetch_add(many, Ordering::Relaxed) + many;
        self.peak.fetch_max(came.saturating_sub(self.went.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    fn go(&self, many: u64) {
        self.went.fetch_add(many, Ordering::Relaxed);
    }

    fn get(&self) -> Flow {
        // What went is read first, since it came before.
        let went = self.went.load(Ordering::Relaxed);
        let came = self.came.load(Ordering::Relaxed);
        Flow { came, went, peak: self.peak.load(Ordering::Relaxed).max(came.saturating_sub(went)) }
    }

    fn reset_peak(&self) {
        self.peak.store(self.get().now(), Ordering::Relaxed);
    }
}

/// The pieces and their bytes: all, those of one page, larger ones.
#[derive(Debug, Default)]
pub(in crate::memory) struct PieceCounters([[Counter; 2]; 3]);

impl PieceCounters {
    fn count(&self, bytes: u64, count: fn(&Counter, u64)) {
        for kind in [0, if bytes <= PAGE { 1 } else { 2 }] {
            let [of_pieces, of_bytes] = &self.0[kind];
            count(of_pieces, 1);
            count(of_bytes, bytes);
        }
    }

    pub(in crate::memory) fn come(&self, bytes: u64) {
        self.count(bytes, Counter::come);
    }

    pub(in crate::memory) fn go(&self, bytes: u64) {
        self.count(bytes, Counter::go);
    }

    pub(in crate::memory) fn get(&self) -> [[Flow; 2]; 3] {
        self.0.each_ref().map(|kind| kind.each_ref().map(Counter::get))
    }

    pub(in crate::memory) fn reset_peaks(&self) {
        self.0.iter().flatten().for_each(Counter::reset_peak);
    }
}

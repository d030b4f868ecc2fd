//! Ids of pools: pairs of two process-wide counters, as PyTorch's `MempoolId_t`.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use crate::process;
use crate::sync::{Ordering, lock};

/// The id of a pool, unique in the process: `(0, n)` for pools made by users, `(n, 0)` for those made for graph
/// capture, `(0, 0)` for none, which is the device's default pool. An id is never used twice.
#[repr(C)] // gpupool_pool_id
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolId(pub u64, pub u64);

static USER: AtomicU64 = AtomicU64::new(1);
static CAPTURE: AtomicU64 = AtomicU64::new(1);
/// The ids without a pool yet: users' ones, and those for graph capture. Most of a program's ids may stay so.
static UNUSED: Mutex<[NumberSet; 2]> = Mutex::new([NumberSet(Vec::new()), NumberSet(Vec::new())]);

/// A set of numbers, a bit each.
#[derive(Debug)]
struct NumberSet(Vec<u64>);

impl NumberSet {
    /// Returns the word with the number's bit, and the bit.
    const fn place(number: u64) -> (usize, u64) {
        ((number / 64) as usize, 1 << (number % 64))
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.0.get(word).is_some_and(|bits| bits & bit != 0)
    }

    fn set(&mut self, number: u64, has: bool) {
        let (word, bit) = Self::place(number);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        if let Some(bits) = self.0.get_mut(word) {
            *bits = if has { *bits | bit } else { *bits & !bit };
        }
    }
}

impl PoolId {
    /// No pool: the device's default one.
    pub const NONE: Self = Self(0, 0);

    pub(in crate::memory) const fn is_of_graph(self) -> bool {
        self.0 != 0
    }

    pub(in crate::memory) fn is_known(self) -> bool {
        match self {
            Self(0, user) => user > 0 && user < USER.load(Ordering::Relaxed),
            Self(graph, 0) => graph < CAPTURE.load(Ordering::Relaxed),
            _ => false,
        }
    }

    /// Returns whether it was handed out and has no pool yet.
    pub(in crate::memory) fn is_unused(self) -> bool {
        // A made-up number of any size is not known.
        self.is_known() && lock(&UNUSED)[usize::from(self.is_of_graph())].has(self.number())
    }

    /// Returns the number that distinguishes it from others of its kind.
    const fn number(self) -> u64 {
        self.0 | self.1
    }

    /// Notes that the id's pool was made.
    pub(in crate::memory) fn use_up(self) {
        lock(&UNUSED)[usize::from(self.is_of_graph())].set(self.number(), false);
    }

    /// Returns the next id, for a pool made by a user or for graph capture.
    pub(crate) fn next(is_user_created: bool) -> Self {
        if is_user_created {
            Self(0, USER.fetch_add(1, Ordering::Relaxed))
        } else {
            Self(CAPTURE.fetch_add(1, Ordering::Relaxed), 0)
        }
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

/// Returns a new id, for a pool that is created at its first use: by a user (`(0, n)`) or for graph capture (`(n, 0)`).
pub fn graph_pool_handle(user_created: bool) -> PoolId {
    let id = PoolId::next(user_created);
    // In a forked child the lock may be held for ever, and no call takes the id there.
    if !process::is_forked() {
        lock(&UNUSED)[usize::from(id.is_of_graph())].set(id.number(), true);
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_unused_until_its_pool_is_made_and_takes_a_bit() {
        let ids: Vec<_> = (0..1000).map(|index| graph_pool_handle(index % 2 == 0)).collect();
        assert!(ids.iter().all(|id| id.is_unused()));
        ids.iter().step_by(3).for_each(|id| id.use_up());
        for (index, id) in ids.iter().enumerate() {
            assert_eq!(id.is_unused(), index % 3 != 0, "{id}");
        }
        assert!(!PoolId(0, u64::MAX).is_unused() && !PoolId(u64::MAX, 0).is_unused() && !PoolId::NONE.is_unused());
        let words: usize = lock(&UNUSED).iter().map(|numbers| numbers.0.len()).sum();
        assert!(words < 1000, "{words}");
    }
}

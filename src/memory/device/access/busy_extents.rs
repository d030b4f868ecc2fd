//! The extents that calls of the driver are working on: a call that maps, unmaps or releases an extent is made once no
//! other works on it.
//!
//! A page that moves stays mapped at its old place until work there is done, and is unmapped there by whichever thread
//! looks next, perhaps while another thread moves the page on. NVIDIA's driver 580.159 does not bear both at once: no
//! mapping of that extent succeeds any more, `cuMemMap` fails with `CUDA_ERROR_UNKNOWN` (999)
//! (`benches/results/h100-extents`).

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex};

use crate::runtime::Extent;
use crate::sync::{lock, wait};

/// Those of the process: one that was imported may be mapped for several devices.
pub(in crate::memory) static BUSY_EXTENTS: BusyExtents = BusyExtents::new();

/// The numbers of the extents that are being worked on.
#[derive(Debug)]
pub(in crate::memory) struct BusyExtents {
    numbers: Mutex<BTreeSet<u64>>,
    /// Notified at the end of each [`Turn`].
    freed: Condvar,
}

/// Some extents for a call of the driver, as long as this lives.
#[derive(Debug)]
pub(in crate::memory) struct Turn<'a> {
    all: &'a BusyExtents,
    numbers: Vec<u64>,
}

impl BusyExtents {
    const fn new() -> Self {
        Self { numbers: Mutex::new(BTreeSet::new()), freed: Condvar::new() }
    }

    /// Waits until no call works on any of these extents, and has them. Who has a turn takes no second one.
    pub(in crate::memory) fn take(&self, extents: impl IntoIterator<Item = Extent>) -> Turn<'_> {
        let wanted: Vec<_> = extents.into_iter().map(Extent::number).collect();
        let mut numbers = lock(&self.numbers);
        while wanted.iter().any(|number| numbers.contains(number)) {
            numbers = wait(&self.freed, &self.numbers, numbers);
        }
        numbers.extend(&wanted);
        Turn { all: self, numbers: wanted }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut busy = lock(&self.all.numbers);
        for number in &self.numbers {
            busy.remove(number);
        }
        drop(busy);
        self.all.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_for_the_one_that_has_an_extent_and_not_for_others() {
        let extents = BusyExtents::new();
        let of = |numbers: &[u64]| numbers.iter().copied().map(Extent::from_number).collect::<Vec<_>>();
        let first = extents.take(of(&[1, 2]));
        drop(extents.take(of(&[3])));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| extents.take(of(&[2, 3])).numbers.len());
            assert_eq!(*lock(&extents.numbers), BTreeSet::from([1, 2]));
            drop(first);
            assert_eq!(second.join().ok(), Some(2));
        });
        assert!(lock(&extents.numbers).is_empty());
    }
}

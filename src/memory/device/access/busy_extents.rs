//! The extents that driver calls work on: a call that maps, unmaps or releases an extent waits until no other works on
//! it. A moved page stays mapped at its old place until the work there is done; then any thread may unmap it there,
//! perhaps while another moves the page on. After both at once no mapping of that extent succeeds with NVIDIA's driver
//! 580.159: `cuMemMap` fails with `CUDA_ERROR_UNKNOWN` (999) (`benches/results/h100-extents`).

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex};

use crate::runtime::Extent;
use crate::sync::{lock, wait_for_driver};

/// The numbers of the extents being worked on, for the whole process, since an imported one may be mapped for several
/// devices.
static BUSY: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// Notified at the end of each [`ExtentTurn`].
static FREED: Condvar = Condvar::new();

/// Exclusive use of some extents for a driver call.
#[derive(Debug)]
pub(in crate::memory::device) struct ExtentTurn(Vec<u64>);

impl ExtentTurn {
    /// Waits until no call works on these extents, and claims them. A thread that has a turn takes no second one.
    pub(in crate::memory::device) fn take(extents: impl IntoIterator<Item = Extent>) -> Self {
        let wanted: Vec<_> = extents.into_iter().map(Extent::number).collect();
        let mut busy = lock(&BUSY);
        while wanted.iter().any(|number| busy.contains(number)) {
            busy = wait_for_driver(&FREED, &BUSY, busy);
        }
        busy.extend(&wanted);
        Self(wanted)
    }
}

impl Drop for ExtentTurn {
    fn drop(&mut self) {
        let mut busy = lock(&BUSY);
        self.0.iter().for_each(|number| _ = busy.remove(number));
        drop(busy);
        FREED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_for_the_one_that_has_an_extent_and_not_for_others() {
        // No driver gives such numbers, so they are no other test's.
        let of =
            |numbers: &[u64]| numbers.iter().map(|number| Extent::from_number(u64::MAX - number)).collect::<Vec<_>>();
        let first = ExtentTurn::take(of(&[1, 2]));
        drop(ExtentTurn::take(of(&[3])));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| ExtentTurn::take(of(&[2, 3])).0.len());
            assert!(lock(&BUSY).is_superset(&BTreeSet::from([u64::MAX - 1, u64::MAX - 2])));
            assert!(!lock(&BUSY).contains(&(u64::MAX - 3)));
            drop(first);
            assert_eq!(second.join().ok(), Some(2));
        });
        assert!(lock(&BUSY).range(u64::MAX - 3..).next().is_none());
    }
}

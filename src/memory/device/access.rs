//! Access to a device's memory: the extents that driver calls work on, all that is mapped for the device, and its peers,
//! other devices that may access it.
//!
//! A call that maps, unmaps or releases an extent waits until no other works on it. A moved page stays mapped at its old
//! place until the work there is done; then any thread may unmap it there, perhaps while another moves the page on. After
//! both at once no mapping of that extent succeeds with NVIDIA's driver 580.159: `cuMemMap` fails with
//! `CUDA_ERROR_UNKNOWN` (999) (`benches/results/h100/extents.txt`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex};

use crate::error::Result;
use crate::ids::Device;
use crate::memory::tuning::A_FEW;
use crate::runtime::{self, Extent};
use crate::sync::{lock, wait_for_driver};

/// The numbers of the extents being worked on, for the whole process, since an imported one may be mapped for several
/// devices.
static BUSY: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// Notified at the end of each [`ExtentTurn`].
static FREED: Condvar = Condvar::new();

/// Exclusive use of some extents for a driver call.
#[derive(Debug)]
pub(super) struct ExtentTurn(Vec<u64>);

impl ExtentTurn {
    /// Waits until no call works on these extents, and claims them. A thread that has a turn takes no second one.
    pub(super) fn take(extents: impl IntoIterator<Item = Extent>) -> Self {
        let wanted: Vec<_> = extents.into_iter().map(Extent::number).collect();
        let mut busy = lock(&BUSY);
        while wanted.iter().any(|number| busy.contains(number)) {
            busy = wait_for_driver(&FREED, &BUSY, busy);
        }
        busy.extend(&wanted);
        Self(wanted)
    }

    /// Waits until no call works on the extents of mappings, and claims them.
    pub(super) fn of(row: &[Placed]) -> Self {
        Self::take(row.iter().map(|placed| placed.extent))
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

/// Extent memory, and the addresses that it is mapped at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct Placed {
    pub(in crate::memory) address: u64,
    pub(in crate::memory) bytes: u64,
    pub(in crate::memory) extent: Extent,
    /// The other device that the memory was attached from, if any.
    pub(in crate::memory) source: Option<Device>,
}

impl Placed {
    pub(in crate::memory) const fn end(&self) -> u64 {
        self.address + self.bytes
    }

    /// Returns whether the other begins where this ends, and the same devices reach both.
    fn goes_on_in(&self, other: &Self) -> bool {
        self.end() == other.address && self.source == other.source
    }
}

/// As [`Placed`], in less room: a device has tens of thousands, and `tests/memory/bookkeeping.rs` counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CompactPlaced {
    extent: Extent,
    units: u32,
    /// The ordinal of the other device that has the memory, or [`OWN`].
    source: u32,
}

/// Every mapping is a multiple of a system page.
const UNIT: u64 = 0x1000;
/// In place of another device's ordinal.
const OWN: u32 = u32::MAX;

impl CompactPlaced {
    fn of(placed: &Placed) -> Self {
        let source = placed.source.map_or(OWN, |source| source.ordinal() as u32);
        Self { extent: placed.extent, units: (placed.bytes / UNIT) as u32, source }
    }

    fn at(self, address: u64) -> Placed {
        let source = (self.source != OWN).then_some(Device::from_ordinal(self.source));
        Placed { address, bytes: u64::from(self.units) * UNIT, extent: self.extent, source }
    }
}

/// All that is mapped for a device: in a cache, a reserve or an attachment, or on its way between them. So a device is
/// granted access to all of it without a look at caches, which change meanwhile.
#[derive(Default, Debug)]
pub(super) struct Mapped(Mutex<BTreeMap<u64, CompactPlaced>>);

impl Mapped {
    pub(super) fn add(&self, placed: &Placed) {
        lock(&self.0).insert(placed.address, CompactPlaced::of(placed));
    }

    pub(super) fn remove(&self, address: u64, bytes: u64) {
        let mut all = lock(&self.0);
        while let Some((&first, _)) = all.range(address..address + bytes).next() {
            all.remove(&first);
        }
    }

    /// Returns all mappings, in rows that one call can open.
    pub(super) fn rows(&self) -> Vec<Vec<Placed>> {
        in_rows(lock(&self.0).iter().map(|(&address, entry)| entry.at(address)))
    }

    /// Returns the mappings of a row that still exist, in rows.
    pub(super) fn still(&self, row: &[Placed]) -> Vec<Vec<Placed>> {
        let all = lock(&self.0);
        in_rows(row.iter().copied().filter(|placed| all.get(&placed.address) == Some(&CompactPlaced::of(placed))))
    }
}

fn in_rows(placed: impl Iterator<Item = Placed>) -> Vec<Vec<Placed>> {
    let all: Vec<_> = placed.collect();
    all.chunk_by(Placed::goes_on_in).flat_map(|row| row.chunks(2 * A_FEW)).map(<[_]>::to_vec).collect()
}

/// The peers of a device. One thread grants each its access. Others that want the same wait, so that they return only once
/// there is access; if it fails, one of them tries.
#[derive(Debug, Default)]
pub(in crate::memory) struct Peers {
    /// Of each, whether a thread is just granting it access.
    all: Mutex<BTreeMap<Device, bool>>,
    /// Notified when a thread has granted access, or failed to.
    changed: Condvar,
}

impl Peers {
    /// Grants a device access by `open`, which opens all mappings to it, unless it has access, or gets it from another
    /// thread meanwhile.
    ///
    /// # Errors
    /// What `open` returns. The device is no peer then.
    pub(super) fn let_in(&self, device: Device, open: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut all = lock(&self.all);
        while let Some(&is_entering) = all.get(&device) {
            if !is_entering {
                return Ok(());
            }
            all = wait_for_driver(&self.changed, &self.all, all);
        }
        all.insert(device, true);
        drop(all);
        let opened = open();
        let mut all = lock(&self.all);
        if opened.is_ok() {
            all.insert(device, false)
        } else {
            all.remove(&device)
        };
        drop(all);
        self.changed.notify_all();
        opened
    }

    /// Returns the peers, and those that are just becoming ones.
    pub(in crate::memory) fn devices(&self) -> Vec<Device> {
        lock(&self.all).keys().copied().collect()
    }

    pub(in crate::memory) fn has(&self, device: Device) -> bool {
        lock(&self.all).contains_key(&device)
    }
}

/// Returns whether a device can access another's memory. The driver is asked once.
pub(in crate::memory) fn reaches(device: Device, source: Device) -> Result<bool> {
    static REACHED: Mutex<BTreeSet<(Device, Device)>> = Mutex::new(BTreeSet::new());
    if device == source || lock(&REACHED).contains(&(device, source)) {
        return Ok(true);
    }
    let is_reached = runtime::get()?.can_access_peer(device, source)?;
    if is_reached {
        lock(&REACHED).insert((device, source));
    }
    Ok(is_reached)
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

    fn placed(address: u64, bytes: u64, source: u32) -> Placed {
        let (address, bytes) = (address * UNIT, bytes * UNIT);
        Placed {
            address,
            bytes,
            extent: Extent::from_number(address),
            source: (source > 0).then_some(Device::from_ordinal(source)),
        }
    }

    fn addresses(rows: &[Vec<Placed>]) -> Vec<Vec<u64>> {
        rows.iter().map(|row| row.iter().map(|placed| placed.address / UNIT).collect()).collect()
    }

    #[test]
    fn rows_go_on_without_a_gap_and_are_of_one_device() {
        let mapped = Mapped::default();
        for placed in [placed(10, 2, 0), placed(20, 5, 0), placed(12, 3, 0), placed(25, 5, 1)] {
            mapped.add(&placed);
        }
        assert_eq!(addresses(&mapped.rows()), [vec![10, 12], vec![20], vec![25]]);
        (0..=2 * A_FEW as u64).for_each(|number| mapped.add(&placed(100 + number, 1, 0)));
        assert_eq!(mapped.rows().iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1, 2 * A_FEW, 1]);
    }

    #[test]
    fn what_was_unmapped_since_is_left_out_and_parts_a_row() {
        let mapped = Mapped::default();
        (0..5).for_each(|number| mapped.add(&placed(number, 1, 0)));
        let rows = mapped.rows();
        mapped.remove(UNIT, UNIT);
        // Another mapping is there now.
        mapped.remove(4 * UNIT, UNIT);
        mapped.add(&placed(4, 9, 0));
        assert_eq!(addresses(&mapped.still(&rows[0])), [vec![0], vec![2, 3]]);
        mapped.remove(0, 4 * UNIT);
        assert!(mapped.still(&rows[0]).is_empty());
    }
}

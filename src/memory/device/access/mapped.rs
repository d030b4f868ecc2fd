//! All that is mapped for a device: in a cache, a reserve or an attachment, or on its way between them. So a device is
//! granted access to all of it without a look at caches, which change meanwhile.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::ids::Device;
use crate::memory::tuning::A_FEW;
use crate::runtime::Extent;
use crate::sync::lock;

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
    pub(super) fn goes_on_in(&self, other: &Self) -> bool {
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

#[derive(Default, Debug)]
pub(in crate::memory::device) struct Mapped(Mutex<BTreeMap<u64, CompactPlaced>>);

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

impl Mapped {
    pub(in crate::memory::device) fn add(&self, placed: &Placed) {
        lock(&self.0).insert(placed.address, CompactPlaced::of(placed));
    }

    pub(in crate::memory::device) fn remove(&self, address: u64, bytes: u64) {
        let mut all = lock(&self.0);
        while let Some((&first, _)) = all.range(address..address + bytes).next() {
            all.remove(&first);
        }
    }

    /// Returns all mappings, in rows that one call can open.
    pub(in crate::memory::device) fn rows(&self) -> Vec<Vec<Placed>> {
        let all: Vec<_> = lock(&self.0).iter().map(|(&address, entry)| entry.at(address)).collect();
        all.chunk_by(Placed::goes_on_in).flat_map(|row| row.chunks(2 * A_FEW)).map(<[_]>::to_vec).collect()
    }

    /// Returns the mappings of a row that still exist, in rows.
    pub(in crate::memory::device) fn still(&self, row: &[Placed]) -> Vec<Vec<Placed>> {
        let all = lock(&self.0);
        let is_still = |placed: &Placed| all.get(&placed.address) == Some(&CompactPlaced::of(placed));
        let still: Vec<_> = row.iter().copied().filter(is_still).collect();
        drop(all);
        still.chunk_by(Placed::goes_on_in).map(<[_]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Sizes of small blocks: every multiple of 512 bytes to 4 KiB, then eight steps a doubling. So a small block wastes at
//! most an eighth; larger ones are only rounded to 512 bytes.

use crate::memory::tuning::{ALIGNMENT, SMALL_MAX, SMALL_STEPS};

pub(in crate::memory) const CLASSES: usize =
    (SMALL_STEPS + SMALL_STEPS * (SMALL_MAX / (SMALL_STEPS * ALIGNMENT)).ilog2() as u64) as usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct SizeClass(u8);

/// The class of each multiple of 512 bytes.
const CLASS_OF: [u8; (SMALL_MAX / ALIGNMENT) as usize + 1] = {
    let mut classes = [0; (SMALL_MAX / ALIGNMENT) as usize + 1];
    let mut units = 1;
    let mut class = 0;
    while units < classes.len() {
        if units as u64 * ALIGNMENT > size_of(class) {
            class += 1;
        }
        classes[units] = class;
        units += 1;
    }
    classes
};

#[derive(Clone, Copy)]
struct Class {
    bytes: u32,
    slots: u32,
    /// 2^20 over its size in units of 512 bytes, rounded up, to divide by a multiplication.
    reciprocal: u32,
}

const TABLE: [Class; CLASSES] = {
    let mut table = [Class { bytes: 0, slots: 0, reciprocal: 0 }; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let bytes = size_of(class as u8) as u32;
        let slots = slab_bytes(bytes) as u32 / bytes;
        table[class] = Class { bytes, slots, reciprocal: (1_u32 << 20).div_ceil(bytes / ALIGNMENT as u32) };
        class += 1;
    }
    table
};

const fn size_of(class: u8) -> u64 {
    let class = class as u64;
    if class < SMALL_STEPS {
        return (class + 1) * ALIGNMENT;
    }
    // The largest of those, times 2^doubling times (9/8 to 16/8).
    let (doubling, step) = (class / SMALL_STEPS - 1, class % SMALL_STEPS);
    (ALIGNMENT << doubling) * (SMALL_STEPS + step + 1)
}

/// Returns the bytes of a slab for such blocks: a power of two of at least 64 KiB, with 16 slots or more.
const fn slab_bytes(block: u32) -> u64 {
    let wanted = (block as u64 * 16).next_power_of_two();
    if wanted < SMALL_MAX { SMALL_MAX } else { wanted }
}

impl SizeClass {
    /// Returns the class for a small block of this size, 1 to [`SMALL_MAX`] bytes.
    #[inline]
    pub(in crate::memory) fn of(bytes: u64) -> Self {
        Self(CLASS_OF[bytes.div_ceil(ALIGNMENT) as usize])
    }

    #[inline]
    pub(in crate::memory) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(in crate::memory) const fn from_index(index: usize) -> Self {
        Self(index as u8)
    }

    #[inline]
    pub(in crate::memory) const fn bytes(self) -> u32 {
        TABLE[self.0 as usize].bytes
    }

    pub(in crate::memory) const fn slab_bytes(self) -> u64 {
        slab_bytes(self.bytes())
    }

    #[inline]
    pub(in crate::memory) const fn slots(self) -> usize {
        TABLE[self.0 as usize].slots as usize
    }

    /// Returns the slot that starts so many bytes after its slab, if one does.
    #[inline]
    pub(in crate::memory) const fn slot_at(self, within: u64) -> Option<usize> {
        // Exact: a slab has at most 2^11 units, and a block 2^7.
        let units = within / ALIGNMENT;
        let slot = (units * TABLE[self.0 as usize].reciprocal as u64) >> 20;
        if slot * self.bytes() as u64 == within && slot < self.slots() as u64 { Some(slot as usize) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tuning::SLOTS_MAX;

    #[test]
    fn classes_hold_what_they_are_for_and_waste_little() {
        for bytes in (1..=SMALL_MAX).step_by(101) {
            let class = SizeClass::of(bytes);
            let taken = u64::from(class.bytes());
            assert!(taken >= bytes && taken.is_multiple_of(ALIGNMENT), "{bytes} in {taken}");
            assert!(taken - bytes < ALIGNMENT.max(taken / 8), "{bytes} in {taken}");
        }
        assert_eq!(SizeClass::of(1).index(), 0);
        assert_eq!(SizeClass::of(SMALL_MAX).index(), CLASSES - 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "100,000 divisions, and nothing unsafe")]
    fn a_slot_is_found_where_it_starts_and_nowhere_else() {
        for class in (0..CLASSES).map(SizeClass::from_index) {
            assert!((16..=SLOTS_MAX).contains(&class.slots()), "{class:?}");
            let taken = u64::from(class.bytes());
            for within in (0..class.slab_bytes() + ALIGNMENT).step_by(256) {
                let (slot, rest) = (within / taken, within % taken);
                let expected = (rest == 0 && slot < class.slots() as u64).then_some(slot as usize);
                assert_eq!(class.slot_at(within), expected, "{within} in {class:?}");
            }
        }
    }
}

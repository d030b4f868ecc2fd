//! Sizes of small blocks: every multiple of 512 bytes to 4 KiB, then eight steps to each doubling.
//!
//! So a small block wastes at most an eighth of its size; larger ones are not rounded beyond 512 bytes.

/// What every block's address and size are a multiple of, in bytes.
pub(in crate::memory) const ALIGNMENT: u64 = 512;
/// The largest small block, in bytes.
pub(super) const SMALL_MAX: u64 = 64 << 10;
/// How many sizes there are.
pub(super) const CLASSES: usize = 40;
/// Slots that a slab has at most.
pub(super) const SLOTS_MAX: usize = 128;

/// A size of small blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SizeClass(u8);

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

const SIZES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        sizes[class] = size_of(class as u8) as u32;
        class += 1;
    }
    sizes
};

const fn size_of(class: u8) -> u64 {
    let class = class as u64;
    if class < 8 {
        return (class + 1) * ALIGNMENT;
    }
    // 4 KiB times 2^doubling times (9/8 to 16/8).
    let (doubling, step) = ((class - 8) / 8, (class - 8) % 8);
    (4096 << doubling) / 8 * (step + 9)
}

impl SizeClass {
    /// The class for a small block of this size, 1 to [`SMALL_MAX`] bytes.
    #[inline]
    pub(super) fn of(bytes: u64) -> Self {
        Self(CLASS_OF[bytes.div_ceil(ALIGNMENT) as usize])
    }

    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) const fn from_index(index: usize) -> Self {
        Self(index as u8)
    }

    /// What a block of this class takes, in bytes.
    #[inline]
    pub(super) const fn bytes(self) -> u32 {
        SIZES[self.0 as usize]
    }

    /// What a slab of this class takes, in bytes: a power of two of at least 64 KiB, with 16 slots or more.
    pub(super) const fn slab_bytes(self) -> u64 {
        let wanted = (self.bytes() as u64 * 16).next_power_of_two();
        if wanted < SMALL_MAX { SMALL_MAX } else { wanted }
    }

    /// How many blocks fit into a slab.
    pub(super) const fn slots(self) -> usize {
        (self.slab_bytes() / self.bytes() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_are_for_and_waste_little() {
        for bytes in 1..=SMALL_MAX {
            let class = SizeClass::of(bytes);
            let taken = u64::from(class.bytes());
            assert!(taken >= bytes && taken.is_multiple_of(ALIGNMENT), "{bytes} in {taken}");
            assert!(taken - bytes < ALIGNMENT.max(taken / 8), "{bytes} in {taken}");
            assert!((16..=SLOTS_MAX).contains(&class.slots()), "{class:?}");
        }
        assert_eq!(SizeClass::of(SMALL_MAX).index(), CLASSES - 1);
    }
}

//! Small blocks: their sizes, and the slabs that they are slots of.
//!
//! A size is a multiple of 512 bytes to 4 KiB, then one of eight steps a doubling. So a small block wastes at most an
//! eighth; larger ones are only rounded to 512 bytes. One bit for each slot marks it as taken, written with the heap locked
//! and read by any thread.

use crate::memory::tuning::{ALIGNMENT, SLOTS_MAX, SMALL_MAX, SMALL_STEPS};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Table, lock};

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

const WORDS: usize = SLOTS_MAX / u64::BITS as usize;
const SLABS_MAX: usize = if cfg!(loom) { 2 } else { 0x40_0000 };
/// Slabs are allocated 2^this at a time; one by one in a model, which does so for each order of threads, and under
/// Miri, which is slow.
const CHUNK_BITS: u32 = if cfg!(any(loom, miri)) { 0 } else { 0b110 };

/// A bit for each slot of a slab. The heap is locked while they change.
#[derive(Debug, Default)]
struct SlotBits([AtomicU64; WORDS]);

impl SlotBits {
    #[inline]
    fn has(&self, slot: usize, ordering: Ordering) -> bool {
        self.0[slot / 64].load(ordering) >> (slot % 64) & 1 == 1
    }

    #[inline]
    fn add(&self, slot: usize, ordering: Ordering) {
        let word = &self.0[slot / 64];
        word.store(word.load(Ordering::Relaxed) | 1 << (slot % 64), ordering);
    }

    #[inline]
    fn remove(&self, slot: usize) {
        let word = &self.0[slot / 64];
        word.store(word.load(Ordering::Relaxed) & !(1 << (slot % 64)), Ordering::Relaxed);
    }

    #[inline]
    fn words(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|word| word.load(Ordering::Relaxed))
    }

    fn set_words(&self, bits: impl Fn(usize) -> u64) {
        self.0.iter().enumerate().for_each(|(word, set)| set.store(bits(word), Ordering::Relaxed));
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
pub(in crate::memory) struct Slab {
    start: AtomicU64,
    class: AtomicU32,
    /// The number of its block in its cache.
    block: AtomicU32,
    number: AtomicU32,
    /// Slots that a caller holds, or that wait for streams.
    live: SlotBits,
    slots: SlotBits,
    /// Freed slots that wait for streams.
    waiting: SlotBits,
    /// Whether it is in its class's list.
    is_listed: AtomicBool,
    /// The number of the cache that borrowed it, plus one; 0 for a slab of its page's own cache.
    borrower: AtomicU32,
    requested: [[AtomicU32; 32]; SLOTS_MAX / 32],
}

/// Returns the bits of the slots from 64 * `word` on, of a slab with `slots`.
const fn mask(word: usize, slots: usize) -> u64 {
    let left = slots.saturating_sub(word * 64);
    if left >= 64 { u64::MAX } else { (1 << left) - 1 }
}

impl Slab {
    pub(in crate::memory) fn reset(&self, start: u64, class: SizeClass, block: u32) {
        self.start.store(start, Ordering::Relaxed);
        self.class.store(class.index() as u32, Ordering::Relaxed);
        self.block.store(block, Ordering::Relaxed);
        self.is_listed.store(false, Ordering::Relaxed);
        self.borrower.store(0, Ordering::Relaxed);
        self.live.set_words(|_| 0);
        self.waiting.set_words(|_| 0);
        self.slots.set_words(|word| mask(word, class.slots()));
    }

    #[inline]
    pub(in crate::memory) fn class(&self) -> SizeClass {
        SizeClass::from_index(self.class.load(Ordering::Relaxed) as usize)
    }

    pub(in crate::memory) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    pub(in crate::memory) fn block(&self) -> u32 {
        self.block.load(Ordering::Relaxed)
    }

    pub(in crate::memory) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Relaxed)
    }

    pub(in crate::memory) fn set_listed(&self, is_listed: bool) {
        self.is_listed.store(is_listed, Ordering::Relaxed);
    }

    pub(in crate::memory) fn borrower(&self) -> Option<u32> {
        // Acquire: pairs with the release in `set_borrower`, so that the slab is seen as the cache has made it.
        self.borrower.load(Ordering::Acquire).checked_sub(1)
    }

    pub(in crate::memory) fn set_borrower(&self, cache: u32) {
        self.borrower.store(cache + 1, Ordering::Release);
    }

    pub(in crate::memory) fn start(&self) -> u64 {
        self.start.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::memory) fn offset_of(&self, slot: usize) -> u64 {
        self.start.load(Ordering::Relaxed) + slot as u64 * u64::from(self.class().bytes())
    }

    #[inline]
    pub(in crate::memory) fn slot_at(&self, offset: u64) -> Option<usize> {
        self.class().slot_at(offset.wrapping_sub(self.start.load(Ordering::Relaxed)))
    }

    /// Takes a free slot. The heap is locked.
    #[inline]
    pub(in crate::memory) fn take(&self, requested: u32) -> Option<usize> {
        for (word, (taken, slots)) in self.live.words().zip(self.slots.words()).enumerate() {
            let free = !taken & slots;
            if free != 0 {
                let slot = word * 64 + free.trailing_zeros() as usize;
                self.take_at(slot, requested);
                return Some(slot);
            }
        }
        None
    }

    /// Takes this free slot. The heap is locked.
    #[inline]
    pub(in crate::memory) fn take_at(&self, slot: usize, requested: u32) {
        self.requested[slot / 32][slot % 32].store(requested, Ordering::Relaxed);
        // Release: a thread that is handed the address sees the slot as live.
        self.live.add(slot, Ordering::Release);
    }

    #[inline]
    pub(in crate::memory) fn is_live(&self, slot: usize) -> bool {
        self.live.has(slot, Ordering::Acquire) && !self.waiting.has(slot, Ordering::Relaxed)
    }

    /// Returns whether the slot can be taken. The heap is locked.
    pub(in crate::memory) fn is_free(&self, slot: usize) -> bool {
        !self.live.has(slot, Ordering::Relaxed)
    }

    /// Frees a slot and returns its requested bytes. The heap is locked.
    #[inline]
    pub(in crate::memory) fn put_back(&self, slot: usize) -> u32 {
        self.live.remove(slot);
        self.requested(slot)
    }

    /// Returns the requested bytes of a slot that a caller holds, or held last.
    #[inline]
    pub(in crate::memory) fn requested(&self, slot: usize) -> u32 {
        self.requested[slot / 32][slot % 32].load(Ordering::Relaxed)
    }

    /// Returns the bytes of slots that are not in use.
    pub(in crate::memory) fn unused_bytes(&self) -> u64 {
        let live: u32 = self.live.words().map(u64::count_ones).sum();
        self.class().slab_bytes() - u64::from(live) * u64::from(self.class().bytes())
    }

    /// Makes a live slot wait for streams. The heap is locked.
    pub(in crate::memory) fn begin_waiting(&self, slot: usize) {
        self.waiting.add(slot, Ordering::Relaxed);
    }

    /// Ends a slot's wait. The heap is locked.
    pub(in crate::memory) fn end_waiting(&self, slot: usize) {
        self.waiting.remove(slot);
    }

    #[inline]
    pub(in crate::memory) fn is_empty(&self) -> bool {
        self.live.words().all(|live| live == 0)
    }

    #[inline]
    pub(in crate::memory) fn is_full(&self) -> bool {
        self.live.words().eq(self.slots.words())
    }

    /// Returns the live slots: offset, bytes, requested bytes, and whether it only waits for streams.
    pub(in crate::memory) fn live_slots(&self) -> impl Iterator<Item = (u64, u64, u64, bool)> {
        let bytes = u64::from(self.class().bytes());
        (0..self.class().slots()).filter(|&slot| !self.is_free(slot)).map(move |slot| {
            let is_waiting = self.waiting.has(slot, Ordering::Relaxed);
            (self.offset_of(slot), bytes, self.requested(slot).into(), is_waiting)
        })
    }
}

#[derive(Debug)]
pub(in crate::memory) struct Slabs {
    table: Table<Slab, CHUNK_BITS>,
    numbers: Mutex<SlabNumbers>,
}

#[derive(Debug, Default)]
struct SlabNumbers {
    next: u32,
    returned: Vec<u32>,
}

impl Slabs {
    pub(in crate::memory) fn new() -> Self {
        Self { table: Table::new(SLABS_MAX), numbers: Mutex::default() }
    }

    #[inline]
    pub(in crate::memory) fn get(&self, number: u32) -> Option<&Slab> {
        self.table.get(number as usize)
    }

    pub(in crate::memory) fn acquire(&self) -> Option<&Slab> {
        let mut numbers = lock(&self.numbers);
        let number = numbers.returned.pop().unwrap_or(numbers.next);
        let slab = self.table.get_or_make(number as usize)?;
        if number == numbers.next {
            slab.number.store(number, Ordering::Relaxed);
            numbers.next += 1;
        }
        Some(slab)
    }

    pub(in crate::memory) fn release(&self, slab: &Slab) {
        lock(&self.numbers).returned.push(slab.number());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Slabs: blocks cut into slots of one small size. One bit for each slot marks it as taken, written with the heap
//! locked and read by any thread.

use super::size_class::SizeClass;
use crate::memory::tuning::SLOTS_MAX;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Table, lock};
use std::array;

const WORDS: usize = SLOTS_MAX / u64::BITS as usize;
const SLABS_MAX: usize = if cfg!(loom) { 2 } else { 0x40_0000 };
/// Slabs are allocated 2^this at a time; one by one in a model, which does so for each order of threads, and under
/// Miri, which is slow.
const CHUNK_BITS: u32 = if cfg!(any(loom, miri)) { 0 } else { 0b110 };

#[derive(Debug)]
#[repr(align(64))]
pub(in crate::memory) struct Slab {
    start: AtomicU64,
    class: AtomicU32,
    /// The number of its block in its cache.
    block: AtomicU32,
    number: AtomicU32,
    /// Slots that a caller holds, or that wait for streams.
    live: [AtomicU64; WORDS],
    slots: [AtomicU64; WORDS],
    /// Freed slots that wait for streams.
    waiting: [AtomicU64; WORDS],
    /// Whether it is in its class's list.
    is_listed: AtomicBool,
    /// The number of the cache that borrowed it, plus one; 0 for a slab of its page's own cache.
    borrower: AtomicU32,
    requested: [AtomicU32; SLOTS_MAX],
}

impl Default for Slab {
    fn default() -> Self {
        Self {
            start: AtomicU64::new(0),
            class: AtomicU32::new(0),
            block: AtomicU32::new(0),
            number: AtomicU32::new(0),
            live: array::from_fn(|_| AtomicU64::new(0)),
            slots: array::from_fn(|_| AtomicU64::new(0)),
            waiting: array::from_fn(|_| AtomicU64::new(0)),
            is_listed: AtomicBool::new(false),
            borrower: AtomicU32::new(0),
            requested: array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

/// Returns the bits of the slots from 64 * `word` on, of a slab with `slots`.
#[inline]
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
        for bits in self.live.iter().chain(&self.waiting) {
            bits.store(0, Ordering::Relaxed);
        }
        for (word, bits) in self.slots.iter().enumerate() {
            bits.store(mask(word, class.slots()), Ordering::Relaxed);
        }
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
        for (word, live) in self.live.iter().enumerate() {
            let taken = live.load(Ordering::Relaxed);
            let free = !taken & self.slots[word].load(Ordering::Relaxed);
            if free != 0 {
                let bit = free.trailing_zeros() as usize;
                // Release: a thread that is handed the address sees the slot as live.
                live.store(taken | 1 << bit, Ordering::Release);
                self.requested[word * 64 + bit].store(requested, Ordering::Relaxed);
                return Some(word * 64 + bit);
            }
        }
        None
    }

    /// Takes this free slot. The heap is locked.
    pub(in crate::memory) fn take_at(&self, slot: usize, requested: u32) {
        let live = &self.live[slot / 64];
        self.requested[slot].store(requested, Ordering::Relaxed);
        // Release: as in `take`.
        live.store(live.load(Ordering::Relaxed) | 1 << (slot % 64), Ordering::Release);
    }

    #[inline]
    pub(in crate::memory) fn is_live(&self, slot: usize) -> bool {
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        self.live[word].load(Ordering::Acquire) & bit != 0 && self.waiting[word].load(Ordering::Relaxed) & bit == 0
    }

    /// Returns whether the slot can be taken. The heap is locked.
    pub(in crate::memory) fn is_free(&self, slot: usize) -> bool {
        self.live[slot / 64].load(Ordering::Relaxed) >> (slot % 64) & 1 == 0
    }

    /// Frees a slot and returns its requested bytes. The heap is locked.
    #[inline]
    pub(in crate::memory) fn put_back(&self, slot: usize) -> u32 {
        let live = &self.live[slot / 64];
        live.store(live.load(Ordering::Relaxed) & !(1 << (slot % 64)), Ordering::Relaxed);
        self.requested[slot].load(Ordering::Relaxed)
    }

    /// Returns the requested bytes of a slot that a caller holds, or held last.
    pub(in crate::memory) fn requested(&self, slot: usize) -> u32 {
        self.requested[slot].load(Ordering::Relaxed)
    }

    /// Returns the bytes of slots that are not in use.
    pub(in crate::memory) fn unused_bytes(&self) -> u64 {
        let live: u32 = self.live.iter().map(|live| live.load(Ordering::Relaxed).count_ones()).sum();
        self.class().slab_bytes() - u64::from(live) * u64::from(self.class().bytes())
    }

    /// Makes a live slot wait for streams. The heap is locked.
    pub(in crate::memory) fn begin_waiting(&self, slot: usize) {
        let waiting = &self.waiting[slot / 64];
        waiting.store(waiting.load(Ordering::Relaxed) | 1 << (slot % 64), Ordering::Relaxed);
    }

    /// Ends a slot's wait. The heap is locked.
    pub(in crate::memory) fn end_waiting(&self, slot: usize) {
        let waiting = &self.waiting[slot / 64];
        waiting.store(waiting.load(Ordering::Relaxed) & !(1 << (slot % 64)), Ordering::Relaxed);
    }

    #[inline]
    pub(in crate::memory) fn is_empty(&self) -> bool {
        self.live.iter().all(|live| live.load(Ordering::Relaxed) == 0)
    }

    #[inline]
    pub(in crate::memory) fn is_full(&self) -> bool {
        self.live.iter().zip(&self.slots).all(|(live, all)| live.load(Ordering::Relaxed) == all.load(Ordering::Relaxed))
    }

    /// Returns the live slots: offset, bytes, requested bytes, and whether it only waits for streams.
    pub(in crate::memory) fn live_slots(&self) -> impl Iterator<Item = (u64, u64, u64, bool)> {
        let bytes = u64::from(self.class().bytes());
        let is_set =
            |words: &[AtomicU64], slot: usize| words[slot / 64].load(Ordering::Relaxed) >> (slot % 64) & 1 == 1;
        (0..self.class().slots()).filter(move |&slot| is_set(&self.live, slot)).map(move |slot| {
            let requested = u64::from(self.requested[slot].load(Ordering::Relaxed));
            (self.offset_of(slot), bytes, requested, is_set(&self.waiting, slot))
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

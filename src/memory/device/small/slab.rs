//! Slabs: blocks cut into slots of one small size.
//!
//! Which slots are taken is one bit each. Only the owner of the cache writes `live`; other threads free a slot by a bit
//! of their own, which the owner collects, so neither waits for the other.

use super::size_class::SizeClass;
use crate::memory::tuning::SLOTS_MAX;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Table, lock};
use std::array;

const WORDS: usize = SLOTS_MAX / u64::BITS as usize;
/// How many slabs a device can have.
const SLABS_MAX: usize = if cfg!(loom) { 2 } else { 0x40_0000 };
/// Slabs are made 2^this at a time; one by one in a model, which makes them anew for each order of its threads, and under
/// Miri, which is slow.
const CHUNK_BITS: u32 = if cfg!(any(loom, miri)) { 0 } else { 0b110 };

/// One slab, in cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(in crate::memory) struct Slab {
    /// Offset in the device's memory, in bytes.
    start: AtomicU64,
    class: AtomicU32,
    /// The block that is cut, in its cache.
    block: AtomicU32,
    /// Its own number.
    number: AtomicU32,
    /// Slots that a caller holds, those freed but not collected among them.
    live: [AtomicU64; WORDS],
    /// The slots it has.
    slots: [AtomicU64; WORDS],
    /// Slots freed by other threads.
    freed: [AtomicU64; WORDS],
    /// Slots freed that wait for streams.
    waiting: [AtomicU64; WORDS],
    /// Whether it stands in its class's list.
    is_listed: AtomicBool,
    /// The number of the cache that has borrowed it, plus one; 0 for a slab of its page's own cache.
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
            freed: array::from_fn(|_| AtomicU64::new(0)),
            waiting: array::from_fn(|_| AtomicU64::new(0)),
            is_listed: AtomicBool::new(false),
            borrower: AtomicU32::new(0),
            requested: array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

/// Returns the bits for the slots from 64 * `word` on that a slab of `slots` has.
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
        for bits in self.live.iter().chain(&self.freed).chain(&self.waiting) {
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

    /// Returns the number of the cache that has borrowed it, if one has.
    pub(in crate::memory) fn borrower(&self) -> Option<u32> {
        // Acquire: pairs with the release in `set_borrower`, so that the slab is seen as the cache has made it.
        self.borrower.load(Ordering::Acquire).checked_sub(1)
    }

    pub(in crate::memory) fn set_borrower(&self, cache: u32) {
        self.borrower.store(cache + 1, Ordering::Release);
    }

    /// Returns where it starts, in bytes.
    pub(in crate::memory) fn start(&self) -> u64 {
        self.start.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::memory) fn offset_of(&self, slot: usize) -> u64 {
        self.start.load(Ordering::Relaxed) + slot as u64 * u64::from(self.class().bytes())
    }

    /// Returns the slot that starts at the offset, if one does.
    #[inline]
    pub(in crate::memory) fn slot_at(&self, offset: u64) -> Option<usize> {
        self.class().slot_at(offset.wrapping_sub(self.start.load(Ordering::Relaxed)))
    }

    /// Takes a free slot; for the owner.
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

    /// Takes this slot, which is free; for the owner.
    pub(in crate::memory) fn take_at(&self, slot: usize, requested: u32) {
        let live = &self.live[slot / 64];
        self.requested[slot].store(requested, Ordering::Relaxed);
        // Release: as in `take`.
        live.store(live.load(Ordering::Relaxed) | 1 << (slot % 64), Ordering::Release);
    }

    /// Returns whether a caller holds the slot.
    #[inline]
    pub(in crate::memory) fn is_live(&self, slot: usize) -> bool {
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        self.live[word].load(Ordering::Acquire) & bit != 0
            && (self.freed[word].load(Ordering::Relaxed) | self.waiting[word].load(Ordering::Relaxed)) & bit == 0
    }

    /// Returns whether the slot can be taken; for the owner.
    pub(in crate::memory) fn is_free(&self, slot: usize) -> bool {
        self.live[slot / 64].load(Ordering::Relaxed) >> (slot % 64) & 1 == 0
    }

    /// Makes a slot free again and returns the bytes that were asked for; for the owner.
    #[inline]
    pub(in crate::memory) fn put_back(&self, slot: usize) -> u32 {
        let live = &self.live[slot / 64];
        live.store(live.load(Ordering::Relaxed) & !(1 << (slot % 64)), Ordering::Relaxed);
        self.requested[slot].load(Ordering::Relaxed)
    }

    /// Returns the bytes that were asked for, of a slot that a caller holds, or held last.
    pub(in crate::memory) fn requested(&self, slot: usize) -> u32 {
        self.requested[slot].load(Ordering::Relaxed)
    }

    /// Returns the bytes that no slot in use takes.
    pub(in crate::memory) fn unused_bytes(&self) -> u64 {
        let live: u32 = self.live.iter().map(|live| live.load(Ordering::Relaxed).count_ones()).sum();
        self.class().slab_bytes() - u64::from(live) * u64::from(self.class().bytes())
    }

    /// Frees a live slot from any thread: none if it was not live, else whether it is the first of its word that waits
    /// to be collected. The thread that frees that one tells the owner, once for all that are freed until the owner comes.
    pub(in crate::memory) fn mark_freed(&self, slot: usize) -> Option<bool> {
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        if !self.is_live(slot) {
            return None;
        }
        let before = self.freed[word].fetch_or(bit, Ordering::AcqRel);
        // Of two threads that free the same slot, one sees the other's bit.
        (before & bit == 0).then_some(before == 0)
    }

    /// Marks a live slot as freed and waiting for streams: whether it was live.
    pub(in crate::memory) fn mark_waiting(&self, slot: usize) -> bool {
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        self.is_live(slot) && self.waiting[word].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    pub(in crate::memory) fn end_waiting(&self, slot: usize) {
        self.waiting[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::AcqRel);
    }

    /// Returns the slots of a word, that of this slot, that other threads have freed; for the owner, once each time it
    /// is told. No other word, so that each telling is collected once and none comes when the slab is gone.
    pub(in crate::memory) fn collect(&self, slot: usize) -> impl Iterator<Item = usize> + use<> {
        let word = slot / 64;
        // Only live ones: of a wrong second free, under way during the first, the bit may come after the slot was
        // put back.
        let mut bits = self.freed[word].swap(0, Ordering::AcqRel) & self.live[word].load(Ordering::Relaxed);
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(word * 64 + bit)
        })
    }

    #[inline]
    pub(in crate::memory) fn is_empty(&self) -> bool {
        self.live.iter().all(|live| live.load(Ordering::Relaxed) == 0)
    }

    #[inline]
    pub(in crate::memory) fn is_full(&self) -> bool {
        self.live.iter().zip(&self.slots).all(|(live, all)| live.load(Ordering::Relaxed) == all.load(Ordering::Relaxed))
    }

    /// Returns the slots that callers hold: offset, bytes, bytes asked for, whether it only waits for streams.
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

/// Every slab of a device, by number.
#[derive(Debug)]
pub(in crate::memory) struct Slabs {
    table: Table<Slab, CHUNK_BITS>,
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
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

    /// Returns a slab that is not in use.
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

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread::{self, JoinHandle};

    use super::super::{SizeClass, Slab};
    use crate::sync::SharedList;
    use crate::sync::{AtomicBool, Ordering};

    /// A slab and what is around it: threads that free, and an owner that looks only at what is in its inbox.
    #[derive(Default)]
    struct Cache {
        slab: Slab,
        inbox: SharedList<Vec<usize>>,
        /// What each holder of a slot does last, and the owner once it has it back: loom objects if one does not see
        /// the other's.
        memory: [UnsafeCell<u32>; 2],
    }

    impl Cache {
        /// Returns a cache whose first `taken` slots are held.
        fn new(taken: usize) -> Arc<Self> {
            let cache = Arc::new(Self::default());
            cache.slab.reset(0, SizeClass::of(512), 0);
            for slot in 0..taken {
                assert_eq!(cache.slab.take(512), Some(slot));
            }
            cache
        }

        fn touch(&self, slot: usize) {
            // SAFETY: only the holder of the slot comes here, or the owner for a slot that no caller holds.
            self.memory[slot].with_mut(|value| unsafe { *value += 1 });
        }

        /// Frees as another thread does: whether the slot was live.
        fn free(&self, slot: usize) -> bool {
            let freed = self.slab.mark_freed(slot);
            if freed == Some(true) {
                self.inbox.change(|inbox| inbox.push(slot));
            }
            freed.is_some()
        }

        fn freeing(this: &Arc<Self>, slot: usize) -> JoinHandle<bool> {
            let cache = Arc::clone(this);
            thread::spawn(move || cache.free(slot))
        }

        /// Returns what the owner has been told of, and collects; each call brings something.
        fn collect(&self) -> Vec<usize> {
            if self.inbox.is_empty() {
                return Vec::new();
            }
            let inbox = self.inbox.change(std::mem::take);
            let mut all = Vec::new();
            for slot in inbox {
                let slots: Vec<_> = self.slab.collect(slot).collect();
                assert!(!slots.is_empty(), "told of {slot} for nothing");
                for slot in slots {
                    self.slab.put_back(slot);
                    all.push(slot);
                }
            }
            all
        }
    }

    #[test]
    fn two_slots_freed_while_the_owner_collects_are_each_collected_once() {
        loom::model(|| {
            let cache = Cache::new(2);
            let threads = [0, 1].map(|slot| {
                let cache = Arc::clone(&cache);
                thread::spawn(move || {
                    cache.touch(slot);
                    assert!(cache.free(slot));
                })
            });
            let mut collected = cache.collect();
            // Before the threads are joined, so that the owner sees their work by the bits alone.
            for &slot in &collected {
                cache.touch(slot);
            }
            for thread in threads {
                thread.join().unwrap();
            }
            collected.extend(cache.collect());
            collected.sort_unstable();
            assert_eq!(collected, [0, 1]);
            assert!(cache.slab.is_empty());
        });
    }

    #[test]
    fn of_two_threads_that_free_one_slot_one_succeeds() {
        loom::model(|| {
            let cache = Cache::new(1);
            let threads = [Cache::freeing(&cache, 0), Cache::freeing(&cache, 0)];
            let succeeded = threads.map(|thread| thread.join().unwrap());
            assert_ne!(succeeded[0], succeeded[1]);
            assert_eq!(cache.collect(), [0]);
            assert!(cache.slab.is_empty());
        });
    }

    #[test]
    fn a_slot_taken_while_another_is_freed_is_a_different_one_and_stays_live() {
        loom::model(|| {
            let cache = Cache::new(1);
            let owner = {
                let cache = Arc::clone(&cache);
                thread::spawn(move || {
                    assert_eq!(cache.slab.take(512), Some(1));
                    assert!(cache.slab.is_live(1));
                })
            };
            // By the thread that loom lets go first: the other way round it would not try a `take` after the free.
            assert!(cache.free(0));
            owner.join().unwrap();
            assert_eq!(cache.collect(), [0]);
            assert!(!cache.slab.is_live(0) && cache.slab.is_live(1));
        });
    }

    #[test]
    fn the_next_holder_of_a_freed_slot_can_free_it() {
        loom::model(|| {
            let cache = Cache::new(2);
            let is_handed_over = Arc::new(AtomicBool::new(false));
            let second = {
                let (cache, is_handed_over) = (Arc::clone(&cache), Arc::clone(&is_handed_over));
                thread::spawn(move || {
                    let is_holder = is_handed_over.load(Ordering::Acquire);
                    if is_holder {
                        cache.touch(0);
                        assert!(cache.free(0));
                    }
                    is_holder
                })
            };
            let first = {
                let cache = Arc::clone(&cache);
                thread::spawn(move || {
                    cache.touch(0);
                    assert!(cache.free(0));
                })
            };
            let collected = cache.collect();
            if collected == [0] {
                assert_eq!(cache.slab.take(512), Some(0));
                cache.touch(0);
                is_handed_over.store(true, Ordering::Release);
            }
            first.join().unwrap();
            let is_freed_again = second.join().unwrap();
            let expected: &[usize] = if collected.is_empty() || is_freed_again { &[0] } else { &[] };
            assert_eq!(cache.collect(), expected);
        });
    }

    #[test]
    fn a_slot_freed_twice_while_the_owner_collects_is_put_back_once() {
        loom::model(|| {
            let cache = Cache::new(2);
            let threads = [Cache::freeing(&cache, 0), Cache::freeing(&cache, 0)];
            let mut put_back = Vec::new();
            for _ in 0..2 {
                for slot in cache.inbox.change(std::mem::take) {
                    for slot in cache.slab.collect(slot) {
                        cache.slab.put_back(slot);
                        put_back.push(slot);
                    }
                }
            }
            assert!(threads.map(|thread| thread.join().unwrap()).contains(&true));
            for slot in cache.inbox.change(std::mem::take) {
                put_back.extend(cache.slab.collect(slot));
            }
            assert_eq!(put_back, [0]);
            // Nothing is left behind that would keep the next free of the word from telling.
            assert_eq!(cache.slab.mark_freed(1), Some(true));
        });
    }
}

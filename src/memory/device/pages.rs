//! What is at each 2 MiB of a device's address range: its cache, the physical memory behind it, and its blocks. From an
//! address to its page and from the page to the block are two array loads, for any thread, without a lock. An address
//! without a block is always recognised.

use std::sync::OnceLock;

use super::address_space::Run;
use super::small::{Slab, Slabs};
use crate::memory::tuning::{ALIGNMENT, PAGE, SMALL_MAX};
use crate::runtime::Extent;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Table};

/// Marks the number of a cache that lends slabs of its pages. No cache has such a number, so a look-up of a block's
/// cache finds that out without a check of its own.
pub(in crate::memory) const LENT: u32 = 0x8000_0000;
const UNITS: usize = (PAGE / SMALL_MAX) as usize;
/// Pages are allocated 2^this at a time; one by one in a model, which does so for each order of threads, and under
/// Miri, which is slow.
const CHUNK_BITS: u32 = if cfg!(any(loom, miri)) { 0 } else { 0xa };

/// A page of the address range. Neighbours are often of different heaps, so each has a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(in crate::memory) struct Page {
    /// The number of its cache, plus one, with [`LENT`] if others borrow slabs of it; 0 if nothing is mapped.
    cache: AtomicU32,
    /// The first page of its mapping, and the mapping's pages; 0 pages if it cannot be moved.
    first: AtomicU32,
    pages: AtomicU32,
    /// The physical memory; if the page cannot be moved, address minus offset.
    place: AtomicU64,
    /// The first block that starts in it: its unit plus one in the upper half, then its value as in `units`.
    only: AtomicU64,
    /// The further blocks that start in it, if any.
    units: OnceLock<Box<[AtomicU32; UNITS]>>,
}

/// An extent and the pages that it is mapped at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct Mapping {
    pub(in crate::memory) run: Run,
    pub(in crate::memory) extent: Extent,
}

impl Mapping {
    pub(in crate::memory) const fn start(self) -> u64 {
        self.run.start()
    }

    pub(in crate::memory) const fn bytes(self) -> u64 {
        self.run.bytes()
    }

    pub(in crate::memory) const fn end(self) -> u64 {
        self.run.end()
    }
}

/// Returns the pages of mappings in a row, which may be none.
pub(in crate::memory) fn run_of(row: &[Mapping]) -> Run {
    Run {
        first: row.first().map_or(0, |mapping| mapping.run.first),
        pages: row.iter().map(|mapping| mapping.run.pages).sum(),
    }
}

/// What starts at an address.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) enum PageEntry<'a> {
    Nothing,
    /// The block with this number in its cache.
    Block(u32),
    /// The same, freed and waiting for streams.
    Freed(u32),
    /// A slot of a slab, which knows whether it is live.
    Slot(&'a Slab, usize),
}

/// Why no live block starts at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum Invalid {
    NotABlock,
    Freed,
}

impl PageEntry<'_> {
    /// Refuses all but a block or slot that a caller holds.
    #[inline]
    pub(in crate::memory) fn check_live(self) -> Result<(), Invalid> {
        match self {
            Self::Block(_) => Ok(()),
            Self::Slot(slab, slot) if slab.is_live(slot) => Ok(()),
            Self::Slot(..) | Self::Freed(_) => Err(Invalid::Freed),
            Self::Nothing => Err(Invalid::NotABlock),
        }
    }
}

const TAG: u32 = 0xc000_0000;
const BLOCK: u32 = 0x4000_0000;
const FREED: u32 = 0x8000_0000;
const SLAB: u32 = 0xc000_0000;
/// A block's number has as many bits as its place in the unit leaves.
const NUMBER: u32 = 0x7f_ffff;
/// How many blocks a cache can have; few in unit tests, which have them all.
pub(in crate::memory) const BLOCKS_MAX: u32 = if cfg!(test) { 0xfff } else { NUMBER };

/// Returns the place in its unit, which distinguishes an address inside a block from its start.
#[inline]
const fn place(offset: u64) -> u32 {
    ((offset % SMALL_MAX / ALIGNMENT) as u32) << 23
}

#[inline]
const fn unit_of(offset: u64) -> usize {
    (offset % PAGE / SMALL_MAX) as usize
}

impl Page {
    /// Returns `only` for a unit with this value.
    #[inline]
    const fn only(unit: usize, value: u32) -> u64 {
        (unit as u64 + 1) << 32 | value as u64
    }

    #[inline]
    fn value(&self, unit: usize) -> Option<u32> {
        let only = self.only.load(Ordering::Relaxed);
        if only >> 32 == unit as u64 + 1 {
            return Some(only as u32);
        }
        Some(self.units.get()?[unit].load(Ordering::Relaxed))
    }

    /// The heap of the page's cache must be locked.
    #[inline]
    fn set_value(&self, unit: usize, value: u32) {
        let only = self.only.load(Ordering::Relaxed);
        if only >> 32 == unit as u64 + 1 || (only == 0 && self.units.get().is_none()) {
            self.only.store(if value == 0 { 0 } else { Self::only(unit, value) }, Ordering::Relaxed);
        } else {
            self.units.get_or_init(Default::default)[unit].store(value, Ordering::Relaxed);
        }
    }
}

/// The pages and the slabs of one device.
#[derive(Debug)]
pub(in crate::memory) struct Pages {
    table: Table<Page, CHUNK_BITS>,
    pub(in crate::memory) slabs: Slabs,
}

impl Pages {
    pub(in crate::memory) fn new(bytes: u64) -> Self {
        Self { table: Table::new((bytes / PAGE) as usize), slabs: Slabs::new() }
    }

    #[inline]
    fn page(&self, offset: u64) -> Option<&Page> {
        self.table.get((offset / PAGE) as usize)
    }

    #[inline]
    pub(in crate::memory) fn cache(&self, offset: u64) -> Option<u32> {
        // Acquire: the cache is seen as it was when it took the page.
        self.page(offset)?.cache.load(Ordering::Acquire).checked_sub(1)
    }

    /// Returns whether the page is this cache's, and lends no slabs.
    #[inline]
    pub(in crate::memory) fn is_of(&self, offset: u64, cache: u32) -> bool {
        self.page(offset).is_some_and(|page| page.cache.load(Ordering::Acquire) == cache + 1)
    }

    /// Returns the number of the cache that borrowed the slab at the offset, if one did.
    pub(in crate::memory) fn borrower(&self, offset: u64) -> Option<u32> {
        self.slab(self.page(offset)?.value(unit_of(offset))?)?.borrower()
    }

    /// Returns the slab that a unit's value stands for.
    #[inline]
    fn slab(&self, value: u32) -> Option<&Slab> {
        if value & TAG == SLAB { self.slabs.get(value & !TAG) } else { None }
    }

    /// Address minus offset.
    pub(in crate::memory) fn delta(&self, offset: u64) -> u64 {
        self.page(offset).map_or(0, |page| page.place.load(Ordering::Relaxed))
    }

    /// Returns the pages between two offsets.
    fn between(&self, start: u64, end: u64) -> impl Iterator<Item = &Page> {
        (start / PAGE..end.div_ceil(PAGE)).map_while(|index| self.table.get_or_make(index as usize))
    }

    /// Notes a mapping that can be moved.
    pub(in crate::memory) fn set_mapping(&self, mapping: Mapping) {
        for page in self.between(mapping.start(), mapping.end()) {
            page.first.store(mapping.run.first, Ordering::Relaxed);
            page.pages.store(mapping.run.pages, Ordering::Relaxed);
            page.place.store(mapping.extent.number(), Ordering::Relaxed);
        }
    }

    /// Notes that nothing is mapped at pages that their cache keeps.
    pub(in crate::memory) fn clear_mapping(&self, start: u64, bytes: u64) {
        self.between(start, start + bytes).for_each(|page| page.pages.store(0, Ordering::Relaxed));
    }

    /// Notes memory that cannot be moved, at its own address.
    pub(in crate::memory) fn set_segment(&self, start: u64, bytes: u64, address: u64) {
        for page in self.between(start, start + bytes) {
            page.pages.store(0, Ordering::Relaxed);
            page.place.store(address.wrapping_sub(start), Ordering::Relaxed);
        }
    }

    /// Returns the mapping that this page is part of, if it can be moved.
    pub(in crate::memory) fn mapping(&self, offset: u64) -> Option<Mapping> {
        let page = self.page(offset)?;
        let (first, pages) = (page.first.load(Ordering::Relaxed), page.pages.load(Ordering::Relaxed));
        (pages > 0).then(|| Mapping {
            run: Run { first, pages },
            extent: Extent::from_number(page.place.load(Ordering::Relaxed)),
        })
    }

    /// Sets or clears the cache of pages.
    pub(in crate::memory) fn set_cache(&self, start: u64, end: u64, cache: Option<u32>) {
        let number = cache.map_or(0, |number| number + 1);
        self.between(start, end).for_each(|page| page.cache.store(number, Ordering::Release));
    }

    #[inline]
    pub(in crate::memory) fn entry(&self, offset: u64) -> PageEntry<'_> {
        let Some(value) = self.page(offset).and_then(|page| page.value(unit_of(offset))) else {
            return PageEntry::Nothing;
        };
        if value & TAG == SLAB {
            let slot = self.slab(value).and_then(|slab| Some(PageEntry::Slot(slab, slab.slot_at(offset)?)));
            return slot.unwrap_or(PageEntry::Nothing);
        }
        if value & !TAG & !NUMBER != place(offset) || !offset.is_multiple_of(ALIGNMENT) {
            return PageEntry::Nothing;
        }
        match value & TAG {
            BLOCK => PageEntry::Block(value & NUMBER),
            FREED => PageEntry::Freed(value & NUMBER),
            _ => PageEntry::Nothing,
        }
    }

    #[inline]
    fn set_unit(&self, offset: u64, value: u32) {
        if let Some(page) = self.page(offset) {
            page.set_value(unit_of(offset), value);
        }
    }

    #[inline]
    pub(in crate::memory) fn set_block(&self, offset: u64, number: u32) {
        self.set_unit(offset, BLOCK | place(offset) | number);
    }

    /// Notes that the block, or the slab, is there no more.
    #[inline]
    pub(in crate::memory) fn clear(&self, offset: u64) {
        self.set_unit(offset, 0);
    }

    /// Notes a block that waits for streams.
    pub(in crate::memory) fn set_freed(&self, offset: u64, number: u32) {
        self.set_unit(offset, FREED | place(offset) | number);
    }

    /// Sets or clears a slab in all the units that it covers.
    pub(in crate::memory) fn set_slab(&self, start: u64, bytes: u64, slab: Option<u32>) {
        for unit in 0..bytes / SMALL_MAX {
            self.set_unit(start + unit * SMALL_MAX, slab.map_or(0, |number| SLAB | number));
        }
    }
}

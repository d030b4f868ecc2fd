//! The memory of one device, or the pinned memory of one NUMA node of the host: its address range and pages, its
//! segments, and what the allocator keeps between requests. Made when first needed and never dropped, so that memory
//! can be freed at any time.

use std::sync::{Arc, Mutex};

use super::address_range::AddressRange;
use super::address_space::{AddressSpace, Run};
use super::budget::{Budget, LivePeak, PINNED, PieceCounters};
use super::elsewhere::Elsewhere;
use super::pages::Pages;
use super::retired::Retired;
use super::segments::{DriverSegments, Segments};
use super::supply::Source;
use super::under_way::MovesUnderWay;
use super::until::EventPool;
use crate::environment;
use crate::error::{Error, Result};
use crate::ids::{Device, MemoryLocation};
use crate::memory::tuning::PAGE;
use crate::runtime;
use crate::sync::{AtomicU64, lock};

/// Sets the pages of 2 MiB in an extent for a request of 16 MiB and more.
const EXTENT_VARIABLE: &str = "GPUPOOL_EXTENT_PAGES";

/// The memory of one device, or of one NUMA node of the host.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) location: MemoryLocation,
    pub(in crate::memory) range: AddressRange,
    pub(in crate::memory) total: u64,
    /// The pages of an extent, for requests of more than one: set by the user, or since the memory is the host's.
    pub(in crate::memory) set_extent_pages: Option<u32>,
    pub(in crate::memory) pages: Pages,
    pub(in crate::memory) space: Mutex<AddressSpace>,
    pub(in crate::memory) segments: Segments,
    pub(in crate::memory) events: EventPool,
    pub(super) retired: Retired,
    /// The physical bytes of all pools.
    pub(in crate::memory) budget: Budget,
    /// The live bytes of all pools.
    pub(in crate::memory) live: LivePeak,
    /// Memory that threads are moving.
    pub(in crate::memory) under_way: MovesUnderWay,
    /// Pages that were moved to where they were needed.
    pub(in crate::memory) moved_pages: AtomicU64,
    /// The pieces of physical memory of all pools.
    pub(in crate::memory) pieces: PieceCounters,
    /// Requests that were retried after memory was given back to the driver.
    pub(in crate::memory) retries: AtomicU64,
    /// Memory that several processes have mapped.
    pub(in crate::memory) elsewhere: Elsewhere,
    /// Bytes of other processes' blocks that are attached for the device, and in use.
    pub(in crate::memory) attached: AtomicU64,
    /// Bytes of buffers sent to other processes, and not yet attached there.
    pub(in crate::memory) sent: AtomicU64,
    pub(in crate::memory) failures: AtomicU64,
}

const EXTENT_PAGES_MOST: u64 = 0x200;

impl DeviceMemory {
    /// Reserves addresses for the memory, which takes none of it yet.
    pub(in crate::memory) fn reserve(location: MemoryLocation) -> Result<Self> {
        let total = runtime::get()?.total_memory(location)?;
        let extent_pages = environment::number(EXTENT_VARIABLE, 1..=EXTENT_PAGES_MOST, 0)?;
        // Programs pin buffers of any size and seldom: of the host's memory extents of one page leave the least unused.
        let set_extent_pages = match extent_pages {
            0 if matches!(location, MemoryLocation::Host(_)) => Some(1),
            0 => None,
            pages => Some(pages as u32),
        };
        Ok(Self::new(AddressRange::reserve(location, total)?, location, total, set_extent_pages))
    }

    fn new(range: AddressRange, location: MemoryLocation, total: u64, set_extent_pages: Option<u32>) -> Self {
        let pages = range.table_pages();
        Self {
            location,
            total,
            set_extent_pages,
            // The upper half is for segments.
            pages: Pages::new(u64::from(pages) * 2 * PAGE),
            space: Mutex::new(AddressSpace::new(0, (range.bytes / PAGE) as u32)),
            segments: Segments::new(pages, pages),
            events: EventPool::new(location),
            retired: Retired::default(),
            budget: Budget::new(),
            live: LivePeak::default(),
            under_way: MovesUnderWay::new(location),
            moved_pages: AtomicU64::new(0),
            pieces: PieceCounters::default(),
            retries: AtomicU64::new(0),
            elsewhere: Elsewhere::new(location),
            attached: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            range,
        }
    }

    /// Makes a minimal device without memory, for tests and for models, which make one for each order of threads.
    #[cfg(test)]
    pub(in crate::memory) fn for_model(location: MemoryLocation) -> Self {
        Self::new(AddressRange::new(location, 0, PAGE), location, PAGE, None)
    }

    /// Returns the device, for operations on device memory alone.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for pinned memory of the host.
    pub(in crate::memory) fn device(&self) -> Result<Device> {
        let location = self.location;
        location.device().ok_or_else(|| Error::invalid_value(format!("{location} has this memory: give a device's")))
    }

    #[inline]
    pub(in crate::memory) const fn is_of_host(&self) -> bool {
        self.location.device().is_none()
    }

    /// Returns the budget of the whole process, for pinned memory.
    pub(in crate::memory) fn process_budget(&self) -> Option<&'static Budget> {
        self.is_of_host().then_some(&PINNED)
    }

    /// Returns the source of a pool that has none of its own.
    pub(in crate::memory) fn default_source(&self) -> Source {
        let has_pages = self.range.bytes > 0;
        match self.location {
            MemoryLocation::Device(_) if has_pages => Source::Pages,
            MemoryLocation::Device(_) => Source::Segments(Arc::new(DriverSegments)),
            MemoryLocation::Host(node) => Source::Pinned { node, has_pages },
        }
    }

    #[inline]
    pub(in crate::memory) fn address(&self, offset: u64) -> u64 {
        if offset < self.range.bytes { self.range.base + offset } else { offset.wrapping_add(self.pages.delta(offset)) }
    }

    /// Makes addresses without mappings available again.
    pub(in crate::memory) fn put_back_pages(&self, run: Run) {
        lock(&self.space).put_back(run);
    }

    /// Returns whether the device's range or one of its segments overlaps these addresses.
    pub(in crate::memory) fn overlaps(&self, address: u64, bytes: u64) -> bool {
        let range = self.range.base..self.range.base + self.range.bytes;
        let end = address.saturating_add(bytes);
        (address < range.end && end > range.start) || self.segments.overlaps(address, bytes)
    }
}

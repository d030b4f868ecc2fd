//! A device's memory with the pools and caches that share it. It is made when first needed, and never dropped.

mod discard_list;
mod pools;
mod reports;
mod table;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

pub(in crate::memory) use self::discard_list::{DiscardList, Discardable, ToDiscard};
use self::pools::PoolList;
use self::reports::{NeighbourCounts, Reports};
use self::table::CacheTable;
use super::stream_cache::StreamCache;
use crate::error::{Error, Result};
use crate::ids::MemoryLocation;
use crate::memory::device::{DeviceMemory, LENT};
use crate::memory::pool::Pool;
use crate::sync::Ordering;

/// A device's memory, its pools and its caches.
#[derive(Debug)]
pub(crate) struct DeviceCaches {
    pub(crate) memory: DeviceMemory,
    default: OnceLock<Arc<Pool>>,
    pub(in crate::memory) pools: PoolList,
    pub(in crate::memory) table: CacheTable,
    pub(in crate::memory) reports: Reports,
    pub(in crate::memory) neighbours: NeighbourCounts,
    /// What may be taken when memory is short.
    pub(in crate::memory) discardable: DiscardList,
}

/// The caches of up to so many devices, or NUMA nodes of the host, by number.
struct Places<const MOST: usize> {
    all: [OnceLock<&'static DeviceCaches>; MOST],
    /// The highest number in use, plus one.
    end: AtomicUsize,
}

/// The most devices that a process has.
pub(in crate::memory) const MOST_DEVICES: usize = 0x100;

static DEVICES: Places<MOST_DEVICES> =
    Places { all: [const { OnceLock::new() }; MOST_DEVICES], end: AtomicUsize::new(0) };
static NODES: Places<0x40> = Places { all: [const { OnceLock::new() }; 0x40], end: AtomicUsize::new(0) };

impl<const MOST: usize> Places<MOST> {
    #[inline]
    fn known(&self, number: usize) -> Option<&'static DeviceCaches> {
        self.all.get(number)?.get().copied()
    }

    #[inline]
    fn used(&self) -> impl Iterator<Item = &'static DeviceCaches> {
        self.all.iter().take(self.end.load(Ordering::Acquire)).filter_map(|caches| caches.get().copied())
    }

    fn install(&self, number: usize, caches: &'static DeviceCaches, what: &str) -> Result<&'static DeviceCaches> {
        let place = self.all.get(number).ok_or_else(|| too_many(what, MOST))?;
        let installed = *place.get_or_init(|| caches);
        self.end.fetch_max(number + 1, Ordering::AcqRel);
        Ok(installed)
    }
}

#[cold]
fn too_many(what: &str, most: usize) -> Error {
    Error::unavailable(format!("a process can have {most} {what}, and there are as many"))
}

impl DeviceCaches {
    #[inline]
    pub(in crate::memory) fn known(location: impl Into<MemoryLocation>) -> Option<&'static Self> {
        match location.into() {
            MemoryLocation::Device(device) => DEVICES.known(device.ordinal()),
            MemoryLocation::Host(node) => NODES.known(node.index()),
        }
    }

    /// Returns the caches of every device whose memory was used, then those of the host's nodes.
    #[inline]
    pub(in crate::memory) fn all() -> impl Iterator<Item = &'static Self> {
        Self::of_devices().chain(Self::of_nodes())
    }

    /// Returns the caches of every device whose memory was used.
    #[inline]
    pub(in crate::memory) fn of_devices() -> impl Iterator<Item = &'static Self> {
        DEVICES.used()
    }

    /// Returns the caches of every NUMA node of the host whose pinned memory was used.
    #[inline]
    pub(in crate::memory) fn of_nodes() -> impl Iterator<Item = &'static Self> {
        NODES.used()
    }

    pub(in crate::memory) fn new(memory: DeviceMemory) -> &'static Self {
        Box::leak(Box::new(Self {
            memory,
            default: OnceLock::new(),
            pools: PoolList::default(),
            table: CacheTable::new(),
            reports: Reports::default(),
            neighbours: NeighbourCounts::default(),
            discardable: DiscardList::default(),
        }))
    }

    /// Installs this for its memory, unless that has caches already. Returns the installed ones.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` for a device beyond the 256th, or a node beyond the 64th.
    pub(in crate::memory) fn install(&'static self) -> Result<&'static Self> {
        match self.memory.location {
            MemoryLocation::Device(device) => DEVICES.install(device.ordinal(), self, "devices"),
            MemoryLocation::Host(node) => NODES.install(node.index(), self, "NUMA nodes of the host"),
        }
    }

    /// Adds the default pool, before any other.
    pub(in crate::memory) fn set_default_pool(&self, pool: Arc<Pool>) {
        self.pools.add(self.default.get_or_init(|| pool));
    }

    pub(in crate::memory) fn default_pool(&self) -> Result<&Arc<Pool>> {
        self.default.get().ok_or_else(|| Error::internal(format!("{} has no default pool", self.memory.location)))
    }

    #[inline]
    pub(in crate::memory) fn cache_at(&self, offset: u64) -> Option<&StreamCache> {
        let number = self.memory.pages.cache(offset)?;
        self.table.get(number).or_else(|| self.lent_cache_at(offset, number))
    }

    /// Returns the cache that borrowed the slab at the offset, or the lender, whose mark the page has.
    #[cold]
    fn lent_cache_at(&self, offset: u64, mark: u32) -> Option<&StreamCache> {
        self.table.get(self.memory.pages.borrower(offset).unwrap_or(mark & !LENT))
    }
}

//! Regions of other processes that are mapped here, and the extents that were imported for that. What the driver
//! refuses to unmap or release is tried again later. An extent is imported once for all mappings in use, so that
//! overlapping regions need no second descriptor.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use super::owner::OwnerProcess;
use super::tasks;
use crate::error::Result;
use crate::ids::{Device, MemoryLocation};
use crate::memory::device::{DeviceMemory, Placed, end_left, with_device};
use crate::runtime::{ExportedExtent, Extent};
use crate::sync::{AtomicUsize, Ordering, lock};

/// A region of a process, and the device that it is mapped for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RegionKey {
    /// The owner's name.
    pub(super) owner: [u8; 16],
    /// The region's number, from its owner.
    pub(super) region: u64,
    pub(super) location: MemoryLocation,
}

/// A region of another process that is mapped here. [`AttachedMapping::end`] unmaps it, not its drop.
#[derive(Debug)]
pub(super) struct AttachedMapping {
    pub(super) memory: &'static DeviceMemory,
    owner: Arc<OwnerProcess>,
    pub(super) region: RegionKey,
    /// The mapping's number in this process.
    pub(super) number: u64,
    pub(super) start: u64,
    pub(super) reserved: u64,
    /// The mapped extents and their sizes.
    pub(super) imported: Vec<(Arc<ImportedExtent>, u64)>,
    /// Whether the imported extents count it as in use.
    is_used: bool,
    /// Whether its owner knows it, since it has stayed.
    pub(super) is_known: bool,
    /// The blocks in it that are in use, and how often; none if it is idle.
    pub(super) blocks: BTreeMap<u64, u64>,
    /// Whether its owner has sent that its region has ended.
    pub(super) has_ended: bool,
}

impl AttachedMapping {
    /// Makes an empty mapping.
    pub(super) fn new(memory: &'static DeviceMemory, owner: &Arc<OwnerProcess>, region: RegionKey) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            memory,
            owner: Arc::clone(owner),
            region,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            start: 0,
            reserved: 0,
            imported: Vec::new(),
            is_used: false,
            is_known: false,
            blocks: BTreeMap::new(),
            has_ended: false,
        }
    }

    /// Maps the region's extents, of these sizes and on `source`, for its device and that device's peers.
    ///
    /// # Errors
    /// Those of the driver; the mapping is to be ended then.
    pub(super) fn map(&mut self, source: Device, extents: Vec<(Arc<ImportedExtent>, u64)>) -> Result<()> {
        let bytes = extents.iter().map(|(_, bytes)| bytes).sum();
        self.start = with_device(self.memory.location, |runtime| runtime.address_reserve(bytes))?;
        self.reserved = bytes;
        let row = row_of(self.start, &extents, Some(source).filter(|source| self.memory.location != *source));
        // SAFETY: the addresses were just reserved, and the extents are alive and as long as their owner says.
        let (count, outcome) = unsafe { self.memory.range.map(&row) };
        self.imported.extend(extents.into_iter().take(count));
        outcome
    }

    /// Sets whether the imported extents count it as in use. Unset before its last block is let go.
    pub(super) fn set_used(&mut self, is_used: bool) {
        if std::mem::replace(&mut self.is_used, is_used) == is_used {
            return;
        }
        for (imported, _) in &self.imported {
            if is_used {
                imported.used.fetch_add(1, Ordering::SeqCst);
            } else {
                imported.used.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Unmaps it, and sends that to its owner if that knows it. If the driver refuses, it is to be called again.
    pub(super) fn end(&mut self) -> Result<()> {
        if !self.imported.is_empty() {
            // SAFETY: the range was mapped here, and all work that uses it is done.
            unsafe { self.memory.range.unmap(&row_of(self.start, &self.imported, None)) }?;
            self.set_used(false);
            self.imported.clear();
        }
        if self.reserved > 0 {
            let (start, reserved) = (self.start, self.reserved);
            // SAFETY: the reservation is whole, and nothing is mapped there any more.
            with_device(self.memory.location, |runtime| unsafe { runtime.address_free(start, reserved) })?;
            self.reserved = 0;
        }
        if std::mem::take(&mut self.is_known)
            && let Some(channel) = self.owner.channel()
        {
            channel.send_unmapped(self.number);
        }
        Ok(())
    }

    /// Unmaps it, which nothing uses, at once or, if the driver refuses, later.
    pub(super) fn end_now_or_later(mut self) {
        tasks::now_or_later(move || self.end().map(|()| true));
    }
}

/// Returns extents of these sizes mapped in a row from an address on.
fn row_of(start: u64, extents: &[(Arc<ImportedExtent>, u64)], source: Option<Device>) -> Vec<Placed> {
    let mut address = start;
    let place = |(imported, bytes): &(Arc<ImportedExtent>, u64)| {
        let placed = Placed { address, bytes: *bytes, extent: imported.extent, source };
        address += bytes;
        placed
    };
    extents.iter().map(place).collect()
}

/// An extent of another process, released with the last mapping that needs it.
#[derive(Debug)]
pub(super) struct ImportedExtent {
    extent: Extent,
    location: MemoryLocation,
    key: ExtentKey,
    /// How many mappings in use have it. While there is one, this process holds a block there, and the owner's number
    /// is this extent's; after that the number may be reused.
    used: AtomicUsize,
}

/// The owner's name, and its number of the extent.
type ExtentKey = ([u8; 16], u64);

static IMPORTED: Mutex<BTreeMap<ExtentKey, Weak<ImportedExtent>>> = Mutex::new(BTreeMap::new());

impl ImportedExtent {
    /// Returns an extent that was imported before, of a block that this process holds.
    pub(super) fn known(owner: &OwnerProcess, number: Extent) -> Option<Arc<Self>> {
        let imported = lock(&IMPORTED).get(&(owner.name, number.number()))?.upgrade();
        imported.filter(|imported| imported.used.load(Ordering::SeqCst) > 0)
    }

    /// Imports an extent that was exported.
    pub(super) fn new(
        owner: &OwnerProcess,
        number: Extent,
        location: MemoryLocation,
        exported: ExportedExtent<'_>,
    ) -> Result<Arc<Self>> {
        let extent = with_device(location, |runtime| runtime.extent_import(exported))?;
        let key = (owner.name, number.number());
        let imported = Arc::new(Self { extent, location, key, used: AtomicUsize::new(0) });
        lock(&IMPORTED).insert(key, Arc::downgrade(&imported));
        Ok(imported)
    }
}

impl Drop for ImportedExtent {
    fn drop(&mut self) {
        let mut imported = lock(&IMPORTED);
        if imported.get(&self.key).is_some_and(|known| known.strong_count() == 0) {
            imported.remove(&self.key);
        }
        drop(imported);
        let (extent, location) = (self.extent, self.location);
        tasks::now_or_later(move || {
            // SAFETY: the extent's only owner gives it up, so no other call works on it.
            unsafe { end_left(extent) }?;
            // SAFETY: `extent_import` made the extent, and its only owner gives it up.
            with_device(location, |runtime| unsafe { runtime.extent_release(extent) }).map(|()| true)
        });
    }
}

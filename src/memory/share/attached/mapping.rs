//! A region of another process, mapped here.

use std::sync::Arc;

use super::books;
use super::imported::Imported;
use super::owner_process::Owner;
use crate::error::Result;
use crate::ids::Device;
use crate::memory::device::{DeviceMemory, Placed, with_device};
use crate::memory::share::secret::Secret;
use crate::memory::share::wire::{Ask, Request};

/// A region that is mapped. It has an end of its own, [`Mapping::end`]: dropped without, at the end of the process, nothing is
/// undone.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) memory: &'static DeviceMemory,
    /// The device that has it.
    pub(super) home: Device,
    pub(super) owner: Arc<Owner>,
    /// The region's number, as its owner says.
    pub(super) region: u64,
    /// The mapping's number in this process.
    pub(super) number: u64,
    /// The addresses that are reserved, and how many bytes of them are mapped.
    pub(super) start: u64,
    pub(super) reserved: u64,
    mapped: u64,
    imported: Vec<Arc<Imported>>,
    /// Whether the imported extents count it as in use.
    is_used: bool,
    /// Whether its owner was told that it stays.
    pub(super) is_told: bool,
}

impl Mapping {
    /// Maps a region's extents, which have these sizes and are another device's or its own, for a device and its peers.
    ///
    /// # Errors
    /// Those of the driver, with what it refused to undo, if there is anything, which is to be ended later.
    pub(super) fn map(
        memory: &'static DeviceMemory,
        home: Device,
        owner: &Arc<Owner>,
        region: u64,
        extents: Vec<(Arc<Imported>, u64)>,
    ) -> std::result::Result<Self, (crate::error::Error, Option<Box<Self>>)> {
        let mut mapping = Self { home, ..Self::nowhere(memory, owner, region) };
        let reserved = extents.iter().map(|(_, bytes)| bytes).sum();
        mapping.start =
            with_device(memory.device, |runtime| runtime.address_reserve(reserved)).map_err(|e| (e, None))?;
        mapping.reserved = reserved;
        match mapping.map_all(extents) {
            Ok(()) => Ok(mapping),
            Err(error) => {
                let is_undone = mapping.unmap().is_ok();
                Err((error, (!is_undone).then(|| Box::new(mapping))))
            }
        }
    }

    /// Makes one of nothing yet.
    pub(super) fn nowhere(memory: &'static DeviceMemory, owner: &Arc<Owner>, region: u64) -> Self {
        Self {
            memory,
            home: memory.device,
            owner: Arc::clone(owner),
            region,
            number: books::number(),
            start: 0,
            reserved: 0,
            mapped: 0,
            imported: Vec::new(),
            is_used: false,
            is_told: false,
        }
    }

    fn map_all(&mut self, extents: Vec<(Arc<Imported>, u64)>) -> Result<()> {
        let (home, mut address) = (self.home, self.start);
        let place = |(imported, bytes): &(Arc<Imported>, u64)| {
            let placed = Placed { address, bytes: *bytes, extent: imported.extent, home };
            address += bytes;
            placed
        };
        let row: Vec<_> = extents.iter().map(place).collect();
        // SAFETY: the addresses were just reserved, and the extents are alive and as long as their owner says.
        let (count, outcome) = unsafe { self.memory.range.map(&row) };
        self.mapped = row[..count].iter().map(|placed| placed.bytes).sum();
        self.imported.extend(extents.into_iter().take(count).map(|(imported, _)| imported));
        outcome
    }

    /// Returns how many extents are mapped.
    pub(super) const fn extents(&self) -> usize {
        self.imported.len()
    }

    /// Has the imported extents count it as in use, or no more: that before the last block in it is let go.
    pub(super) fn set_used(&mut self, is_used: bool) {
        if std::mem::replace(&mut self.is_used, is_used) != is_used {
            self.imported.iter().for_each(|imported| imported.count(is_used));
        }
    }

    /// Undoes what is mapped, as far as the driver allows.
    fn unmap(&mut self) -> Result<()> {
        if self.mapped > 0 {
            let (start, mapped) = (self.start, self.mapped);
            let extents = self.imported.iter().map(|imported| imported.extent);
            // SAFETY: the range was mapped here, and all work that uses it is done.
            unsafe { self.memory.range.unmap(start, mapped, extents) }?;
            self.mapped = 0;
        }
        self.set_used(false);
        self.imported.clear();
        if self.reserved > 0 {
            let (start, reserved) = (self.start, self.reserved);
            // SAFETY: the reservation is whole, and nothing is mapped there any more.
            with_device(self.memory.device, |runtime| unsafe { runtime.address_free(start, reserved) })?;
            self.reserved = 0;
        }
        Ok(())
    }

    /// Unmaps it, and tells its owner so where it was told that it stays. What the driver refuses is left for the next time.
    pub(super) fn end(&mut self) -> Result<()> {
        self.unmap()?;
        if std::mem::take(&mut self.is_told)
            && let Some(news) = self.owner.news()
        {
            news.say_in_time(unmapped(self.number));
        }
        Ok(())
    }
}

/// Returns what tells an owner that a mapping has ended.
pub(super) const fn unmapped(number: u64) -> Request {
    Request { ask: Ask::Unmapped, secret: Secret([0; 16]), block: 0, from: number, count: 0 }
}

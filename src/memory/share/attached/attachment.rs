//! Another process's memory, mapped here.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use super::owner_process::Owner;
use super::retired::{Use, retire};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::{DeviceMemory, Until, with_device};
use crate::memory::share::secret::Secret;
use crate::memory::share::wire::{Ask, Request};
use crate::process;
use crate::runtime::{ExportedExtent, Extent};
use crate::sync::lock;

/// An extent of another process, released with the last mapping that needs it.
#[derive(Debug)]
pub(in crate::memory::share) struct Imported {
    extent: Extent,
    device: Device,
    key: ExtentKey,
}

/// The owner's name, and the extent as the owner numbers it. It stays the extent's as long as this process holds a block of it,
/// so as long as there is one here.
type ExtentKey = ([u8; 16], Extent);

static IMPORTED: Mutex<Option<HashMap<ExtentKey, Weak<Imported>>>> = Mutex::new(None);

/// Returns an extent that is here already.
pub(in crate::memory::share) fn known(owner: &Owner, extent: Extent) -> Option<Arc<Imported>> {
    lock(&IMPORTED).as_ref()?.get(&(owner.name, extent))?.upgrade()
}

impl Imported {
    /// Takes an extent up that was exported.
    pub(in crate::memory::share) fn new(
        owner: &Owner,
        number: Extent,
        device: Device,
        exported: ExportedExtent<'_>,
    ) -> Result<Arc<Self>> {
        let extent = with_device(device, |runtime| runtime.extent_import(exported))?;
        let key = (owner.name, number);
        let imported = Arc::new(Self { extent, device, key });
        lock(&IMPORTED).get_or_insert_default().insert(key, Arc::downgrade(&imported));
        Ok(imported)
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        if let Some(imported) = lock(&IMPORTED).as_mut()
            && imported.get(&self.key).is_some_and(|known| known.strong_count() == 0)
        {
            imported.remove(&self.key);
        }
        if release(self.extent, self.device).is_err() && !process::is_forked() {
            lock(&UNRELEASED).push((self.extent, self.device));
        }
    }
}

/// Extents that the driver refused to release.
static UNRELEASED: Mutex<Vec<(Extent, Device)>> = Mutex::new(Vec::new());

fn release(extent: Extent, device: Device) -> Result<()> {
    // SAFETY: `extent_import` made the extent, and its only owner gives it up.
    with_device(device, |runtime| unsafe { runtime.extent_release(extent) })
}

/// Releases what the driver refused to before, and returns whether anything is left.
pub(super) fn release_again() -> bool {
    let mut extents = std::mem::take(&mut *lock(&UNRELEASED));
    extents.retain(|&(extent, device)| release(extent, device).is_err());
    let is_left = !extents.is_empty();
    lock(&UNRELEASED).append(&mut extents);
    is_left
}

/// Which block of which process, for which device.
type BlockKey = ([u8; 16], u64, Device);

/// The blocks that are attached.
static ATTACHED: Mutex<Option<HashMap<BlockKey, Weak<Attachment>>>> = Mutex::new(None);

/// Another process's block, mapped here. It has an end of its own, [`Attachment::end`]: dropped without, at the end of the
/// process, nothing is undone.
#[derive(Debug)]
pub(in crate::memory::share) struct Attachment {
    memory: &'static DeviceMemory,
    owner: Arc<Owner>,
    block: u64,
    secret: Secret,
    /// The addresses that are reserved, and how many bytes of them are mapped.
    start: u64,
    reserved: u64,
    mapped: u64,
    /// Where the block starts in them.
    lead: u64,
    pub(in crate::memory::share) bytes: u64,
    /// Whether it counts as attached, and holds the block.
    is_whole: bool,
    imported: Vec<Arc<Imported>>,
}

/// What is to be mapped.
#[derive(Debug)]
pub(in crate::memory::share) struct Found {
    pub(in crate::memory::share) owner: Arc<Owner>,
    pub(in crate::memory::share) block: u64,
    pub(in crate::memory::share) secret: Secret,
    pub(in crate::memory::share) lead: u64,
    pub(in crate::memory::share) bytes: u64,
    /// The extents with their sizes.
    pub(in crate::memory::share) extents: Vec<(Arc<Imported>, u64)>,
}

impl Attachment {
    /// Returns a block that is attached for this device already.
    pub(in crate::memory::share) fn known(owner: &Owner, block: u64, device: Device) -> Option<Arc<Self>> {
        lock(&ATTACHED).as_ref()?.get(&(owner.name, block, device))?.upgrade()
    }

    /// Maps a block for a device.
    ///
    /// # Errors
    /// Those of the driver; nothing is left of it then.
    pub(in crate::memory::share) fn map(memory: &'static DeviceMemory, found: Found) -> Result<Arc<Self>> {
        let reserved: u64 = found.extents.iter().map(|(_, bytes)| bytes).sum();
        if found.lead.checked_add(found.bytes).is_none_or(|end| end > reserved) {
            return Err(Error::internal("a shared block does not lie in its extents"));
        }
        let start = with_device(memory.device, |runtime| runtime.address_reserve(reserved))?;
        let Found { owner, block, secret, lead, bytes, extents } = found;
        let mut attachment = Self {
            memory,
            owner,
            block,
            secret,
            start,
            reserved,
            mapped: 0,
            lead,
            bytes,
            is_whole: false,
            imported: Vec::new(),
        };
        match attachment.map_all(extents) {
            Ok(()) => {
                let key = (attachment.owner.name, block, memory.device);
                attachment.memory.attached.fetch_add(bytes, Ordering::Relaxed);
                attachment.is_whole = true;
                let attachment = Arc::new(attachment);
                lock(&ATTACHED).get_or_insert_default().insert(key, Arc::downgrade(&attachment));
                Ok(attachment)
            }
            Err(error) => {
                // What the driver refuses to undo is undone later.
                if attachment.unmap().is_err() {
                    retire(Use::Mapped(Arc::new(attachment)), Until::at_once(), memory.device);
                }
                Err(error)
            }
        }
    }

    fn map_all(&mut self, extents: Vec<(Arc<Imported>, u64)>) -> Result<()> {
        let (device, start) = (self.memory.device, self.start);
        with_device(device, |runtime| {
            for (imported, bytes) in extents {
                // SAFETY: the addresses were just reserved, and the extent is alive and as long as its owner says.
                unsafe { runtime.memory_map(start + self.mapped, bytes, imported.extent) }?;
                self.mapped += bytes;
                self.imported.push(imported);
            }
            // SAFETY: the whole range was just mapped.
            unsafe { runtime.memory_set_access(start, self.mapped, &[device]) }
        })
    }

    pub(in crate::memory::share) const fn address(&self) -> u64 {
        self.start + self.lead
    }

    /// Undoes what is mapped, as far as the driver allows.
    fn unmap(&mut self) -> Result<()> {
        if self.mapped > 0 {
            let (start, mapped) = (self.start, self.mapped);
            // SAFETY: the range was mapped here, and all work that uses it is done.
            with_device(self.memory.device, |runtime| unsafe { runtime.memory_unmap(start, mapped) })?;
            self.mapped = 0;
        }
        self.imported.clear();
        if self.reserved > 0 {
            let (start, reserved) = (self.start, self.reserved);
            // SAFETY: the reservation is whole, and nothing is mapped there any more.
            with_device(self.memory.device, |runtime| unsafe { runtime.address_free(start, reserved) })?;
            self.reserved = 0;
        }
        Ok(())
    }

    /// Unmaps it, and tells the owner; returns itself where that is refused, to be ended again.
    pub(in crate::memory::share) fn end(mut self) -> std::result::Result<(), (Self, Error)> {
        if let Err(error) = self.unmap() {
            return Err((self, error));
        }
        if !self.is_whole {
            return Ok(());
        }
        let request = Request { ask: Ask::LetGo, secret: self.secret, block: self.block, from: 0, count: 0 };
        if !self.owner.tell(&request) {
            return Err((self, Error::unavailable("the process that shares the memory has no time to be told")));
        }
        self.memory.attached.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(attached) = lock(&ATTACHED).as_mut() {
            let key = (self.owner.name, self.block, self.memory.device);
            if attached.get(&key).is_some_and(|known| known.strong_count() == 0) {
                attached.remove(&key);
            }
        }
        Ok(())
    }
}

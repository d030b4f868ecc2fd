//! Extents of other processes, imported here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::owner_process::Owner;
use crate::error::Result;
use crate::ids::Device;
use crate::memory::device::with_device;
use crate::memory::share::bell::ring;
use crate::process;
use crate::runtime::{ExportedExtent, Extent};
use crate::sync::{AtomicUsize, Ordering, lock};

/// An extent of another process, released with the last mapping that needs it.
#[derive(Debug)]
pub(super) struct Imported {
    pub(super) extent: Extent,
    device: Device,
    key: ExtentKey,
    /// How many mappings have it that are in use. While there is one, this process holds a block in them, and the owner's number is
    /// this extent's; after that it may be another one's.
    used: AtomicUsize,
}

/// The owner's name, and the extent as the owner numbers it.
type ExtentKey = ([u8; 16], Extent);

static IMPORTED: Mutex<Option<HashMap<ExtentKey, Weak<Imported>>>> = Mutex::new(None);

/// Returns an extent that is here already, of a block of the owner's that this process holds.
pub(super) fn known(owner: &Owner, extent: Extent) -> Option<Arc<Imported>> {
    let imported = lock(&IMPORTED).as_ref()?.get(&(owner.name, extent))?.upgrade();
    imported.filter(|imported| imported.used.load(Ordering::SeqCst) > 0)
}

impl Imported {
    /// Takes an extent up that was exported.
    pub(super) fn new(
        owner: &Owner,
        number: Extent,
        device: Device,
        exported: ExportedExtent<'_>,
    ) -> Result<Arc<Self>> {
        let extent = with_device(device, |runtime| runtime.extent_import(exported))?;
        let key = (owner.name, number);
        let imported = Arc::new(Self { extent, device, key, used: AtomicUsize::new(0) });
        lock(&IMPORTED).get_or_insert_default().insert(key, Arc::downgrade(&imported));
        Ok(imported)
    }

    /// Notes that one mapping more that has it is in use, or one fewer.
    pub(super) fn count(&self, is_more: bool) {
        if is_more {
            self.used.fetch_add(1, Ordering::SeqCst)
        } else {
            self.used.fetch_sub(1, Ordering::SeqCst)
        };
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
            // Also where nothing is retired, it is tried again.
            ring();
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

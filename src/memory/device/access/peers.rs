//! The peers of a device: other devices that may access its memory. One thread grants each its access. Others that want
//! the same wait, so that they return only once there is access; if it fails, one of them tries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex};

use crate::error::Result;
use crate::ids::Device;
use crate::runtime::get;
use crate::sync::{lock, wait_for_driver};

#[derive(Debug, Default)]
pub(in crate::memory) struct Peers {
    /// Of each, whether a thread is just granting it access.
    all: Mutex<BTreeMap<Device, bool>>,
    /// Notified when a thread has granted access, or failed to.
    changed: Condvar,
}

impl Peers {
    pub(in crate::memory::device) fn of(devices: impl Iterator<Item = Device>) -> Self {
        Self { all: Mutex::new(devices.map(|device| (device, false)).collect()), changed: Condvar::new() }
    }

    /// Grants a device access by `open`, which opens all mappings to it, unless it has access, or gets it from another
    /// thread meanwhile.
    ///
    /// # Errors
    /// What `open` returns. The device is no peer then.
    pub(in crate::memory::device) fn let_in(&self, device: Device, open: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut all = lock(&self.all);
        while let Some(&is_entering) = all.get(&device) {
            if !is_entering {
                return Ok(());
            }
            all = wait_for_driver(&self.changed, &self.all, all);
        }
        all.insert(device, true);
        drop(all);
        let opened = open();
        let mut all = lock(&self.all);
        if opened.is_ok() {
            all.insert(device, false)
        } else {
            all.remove(&device)
        };
        drop(all);
        self.changed.notify_all();
        opened
    }

    /// Returns the peers, and those that are just becoming ones.
    pub(in crate::memory) fn devices(&self) -> Vec<Device> {
        lock(&self.all).keys().copied().collect()
    }

    pub(in crate::memory) fn has(&self, device: Device) -> bool {
        lock(&self.all).contains_key(&device)
    }
}

/// Returns whether a device can access another's memory. The driver is asked once.
pub(in crate::memory) fn reaches(device: Device, source: Device) -> Result<bool> {
    static REACHED: Mutex<BTreeSet<(Device, Device)>> = Mutex::new(BTreeSet::new());
    if device == source || lock(&REACHED).contains(&(device, source)) {
        return Ok(true);
    }
    let is_reached = get()?.can_access_peer(device, source)?;
    if is_reached {
        lock(&REACHED).insert((device, source));
    }
    Ok(is_reached)
}

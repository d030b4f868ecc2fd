//! The peers of a device: other devices that may read and write its memory.
//!
//! Each is let in by one thread. Others that would do the same wait for its end, so that they return no sooner than there is
//! access; where it fails, one of them tries itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex};

use crate::error::Result;
use crate::ids::Device;
use crate::runtime::get;
use crate::sync::{lock, wait};

/// The peers of one device.
#[derive(Debug, Default)]
pub(in crate::memory) struct Peers {
    /// Of each, whether a thread is just letting it in.
    all: Mutex<BTreeMap<Device, bool>>,
    /// Notified when a thread has let a device in, or could not.
    changed: Condvar,
}

impl Peers {
    /// Makes peers of these devices.
    pub(in crate::memory::device) fn of(devices: impl Iterator<Item = Device>) -> Self {
        Self { all: Mutex::new(devices.map(|device| (device, false)).collect()), changed: Condvar::new() }
    }

    /// Lets a device in by `open`, which gives it access to all that is mapped. Not if it was let in before, also if another
    /// thread was just doing that.
    ///
    /// # Errors
    /// What `open` returns. The device is no peer then.
    pub(in crate::memory::device) fn let_in(&self, device: Device, open: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut all = lock(&self.all);
        while let Some(&is_entering) = all.get(&device) {
            if !is_entering {
                return Ok(());
            }
            all = wait(&self.changed, &self.all, all);
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

    /// Returns the peers, also those that are just let in.
    pub(in crate::memory) fn devices(&self) -> Vec<Device> {
        lock(&self.all).keys().copied().collect()
    }

    /// Returns whether the device is a peer.
    pub(in crate::memory) fn has(&self, device: Device) -> bool {
        lock(&self.all).contains_key(&device)
    }
}

/// Returns whether a device can access the memory of another. The driver is asked once.
pub(in crate::memory) fn reaches(device: Device, home: Device) -> Result<bool> {
    static REACHED: Mutex<BTreeSet<(Device, Device)>> = Mutex::new(BTreeSet::new());
    if device == home || lock(&REACHED).contains(&(device, home)) {
        return Ok(true);
    }
    let is_reached = get()?.can_access_peer(device, home)?;
    if is_reached {
        lock(&REACHED).insert((device, home));
    }
    Ok(is_reached)
}

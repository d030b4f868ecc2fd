//! The peers of a device: other devices that may read and write its memory.
//!
//! Each is let in by one thread. Others that would do the same wait for its end, so that they return no sooner than there is
//! access; where it fails, one of them tries itself.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex};

use crate::error::Result;
use crate::ids::Device;
use crate::runtime::get;
use crate::sync::{lock, wait};

/// The peers of one device.
#[derive(Debug, Default)]
pub(in crate::memory::device) struct Peers {
    all: Mutex<Vec<Peer>>,
    /// Notified when a thread has let a device in, or could not.
    changed: Condvar,
}

#[derive(Debug)]
struct Peer {
    device: Device,
    /// Whether a thread is just letting it in.
    is_entering: bool,
}

/// A device that a thread is just letting in. Dropped before [`Entering::finish`] the device is no peer.
#[derive(Debug)]
pub(in crate::memory::device) struct Entering<'a> {
    peers: &'a Peers,
    device: Device,
    is_finished: bool,
}

impl Peers {
    /// Makes peers of these devices.
    pub(in crate::memory::device) fn of(devices: impl Iterator<Item = Device>) -> Self {
        let peers = devices.map(|device| Peer { device, is_entering: false });
        Self { all: Mutex::new(peers.collect()), changed: Condvar::new() }
    }

    /// Adds a peer, which this thread is to let in. None if it was let in before, also if another thread was just doing that.
    pub(in crate::memory::device) fn enter(&self, device: Device) -> Option<Entering<'_>> {
        let mut all = lock(&self.all);
        while let Some(peer) = all.iter().find(|peer| peer.device == device) {
            if !peer.is_entering {
                return None;
            }
            all = wait(&self.changed, &self.all, all);
        }
        all.push(Peer { device, is_entering: true });
        Some(Entering { peers: self, device, is_finished: false })
    }

    /// Returns the peers, also those that are just let in.
    pub(in crate::memory::device) fn devices(&self) -> Vec<Device> {
        lock(&self.all).iter().map(|peer| peer.device).collect()
    }

    /// Returns whether the device is a peer.
    pub(in crate::memory::device) fn has(&self, device: Device) -> bool {
        lock(&self.all).iter().any(|peer| peer.device == device)
    }
}

impl Entering<'_> {
    /// Notes that the device has access to all that is mapped.
    pub(in crate::memory::device) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        let mut all = lock(&self.peers.all);
        if self.is_finished {
            all.iter_mut().filter(|peer| peer.device == self.device).for_each(|peer| peer.is_entering = false);
        } else {
            all.retain(|peer| peer.device != self.device);
        }
        drop(all);
        self.peers.changed.notify_all();
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

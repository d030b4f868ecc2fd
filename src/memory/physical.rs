//! Physical memory and its mapping, through the runtime: each call bound to the device, safe in a stream capture, counted.

use std::sync::atomic::Ordering;

use super::device_memory::DeviceMemory;
use super::pages::{Mapping, PAGE};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::runtime::{self, BoundDevice, Extent, RelaxedCapture, Runtime};
use crate::sync::lock;

/// Runs a driver call with the device bound and no capture at risk.
fn with_device<R>(device: Device, call: impl FnOnce(&'static dyn Runtime) -> Result<R>) -> Result<R> {
    let runtime = runtime::get()?;
    let _bound = BoundDevice::new(runtime, device)?;
    let _relaxed = RelaxedCapture::new(runtime).map_err(|e| e.on(device))?;
    call(runtime).map_err(|e| e.on(device))
}

/// Reserves addresses: base and bytes, both 0 where the device has no virtual memory, or pages of another size than
/// ours. Where the driver has fewer addresses than `bytes`, half as many, as long as all of the device's memory fits in
/// them.
pub(super) fn reserve(device: Device, bytes: u64) -> Result<(u64, u64)> {
    with_device(device, |runtime| {
        if !runtime.supports_virtual_memory(device)? || !PAGE.is_multiple_of(runtime.page_bytes(device)?) {
            return Ok((0, 0));
        }
        let least = runtime.total_memory(device)?;
        let mut bytes = bytes;
        loop {
            match runtime.address_reserve(bytes) {
                Ok(base) => return Ok((base, bytes)),
                Err(error) if bytes / 2 < least => return Err(error),
                Err(_) => bytes = (bytes / 2).next_multiple_of(PAGE),
            }
        }
    })
}

/// Gives addresses back.
pub(super) fn unreserve(device: Device, base: u64, bytes: u64) {
    // SAFETY: the range came from `reserve` and nothing was mapped in it.
    let _ = with_device(device, |runtime| unsafe { runtime.address_free(base, bytes) });
}

impl DeviceMemory {
    fn driver<R>(&self, call: impl FnOnce(&'static dyn Runtime) -> Result<R>) -> Result<R> {
        self.driver_calls.fetch_add(1, Ordering::Relaxed);
        with_device(self.device, call)
    }

    /// New physical memory.
    pub(super) fn create(&self, pages: u32) -> Result<Extent> {
        self.driver(|runtime| runtime.extent_create(self.device, u64::from(pages) * PAGE))
    }

    /// Gives physical memory back; it goes when its last mapping does.
    pub(super) fn release(&self, physical: Extent) -> Result<()> {
        // SAFETY: the handle came from `create`, and its only owner gives it up.
        self.driver(|runtime| unsafe { runtime.extent_release(physical) })
    }

    /// Maps physical memory at an offset that the caller took from the address space.
    pub(super) fn map(&self, mapping: Mapping) -> Result<()> {
        let address = self.base() + mapping.start();
        // SAFETY: the pages are unused and inside the reserved range, and the handle is as long as they are.
        self.driver(|runtime| unsafe { runtime.memory_map(address, mapping.bytes(), mapping.physical) })
    }

    /// Lets the device and its peers read and write mapped memory.
    pub(super) fn set_access(&self, start: u64, bytes: u64) -> Result<()> {
        let mut devices = vec![self.device];
        devices.extend_from_slice(&lock(&self.peers));
        let address = self.base() + start;
        // SAFETY: the whole range is mapped.
        self.driver(|runtime| unsafe { runtime.memory_set_access(address, bytes, &devices) })
    }

    /// Unmaps a whole mapping.
    pub(super) fn unmap(&self, first: u32, pages: u32) -> Result<()> {
        let (start, bytes) = (u64::from(first) * PAGE, u64::from(pages) * PAGE);
        // SAFETY: the caller knows that no work uses the memory at these addresses any more.
        self.driver(|runtime| unsafe { runtime.memory_unmap(self.base() + start, bytes) })
    }

    /// Lets another device read and write this one's memory, what there is and what comes.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the two cannot reach each other; `ErrorKind::Library` if the driver refuses.
    pub(super) fn enable_peer(&self, peer: Device) -> Result<()> {
        if peer == self.device {
            return Ok(());
        }
        if !runtime::get()?.can_access_peer(peer, self.device)? {
            return Err(Error::invalid_value(format!(
                "{peer} cannot reach the memory of {}: the two are not connected by NVLink or peer-to-peer PCIe; copy \
                 through the host instead",
                self.device
            )));
        }
        {
            let mut peers = lock(&self.peers);
            if peers.contains(&peer) {
                return Ok(());
            }
            peers.push(peer);
        }
        let outcome = self.mapped_ranges().into_iter().try_for_each(|(start, bytes)| self.set_access(start, bytes));
        if outcome.is_err() {
            // So that asking again does it again.
            lock(&self.peers).retain(|other| *other != peer);
        }
        outcome
    }

    /// Whether another device was let in.
    pub(super) fn is_peer(&self, device: Device) -> bool {
        lock(&self.peers).contains(&device)
    }

    /// Every range that is mapped for a cache.
    fn mapped_ranges(&self) -> Vec<(u64, u64)> {
        self.serving().flat_map(|cache| cache.lock(0).spans_below(self.room())).collect()
    }
}

//! The devices of this process, and the host's NUMA nodes near them: by their numbers, what their platform reports about
//! them, and the UUIDs by which processes tell each other which device they mean, as each may number them differently.

use std::fmt::Display;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{BoundDevice, DeviceInfo, DeviceUuid, MemoryInfo, RelaxedCapture, get, no_such_device};
use crate::error::{Error, Result};
use crate::ids::{Device, MemoryLocation, NumaNode};

/// Returns the device with this ordinal.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; otherwise as [`get`].
pub fn device(ordinal: i64) -> Result<Device> {
    let count = get()?.device_count();
    match u32::try_from(ordinal) {
        Ok(ordinal) if ordinal < count => Ok(Device::from_ordinal(ordinal)),
        _ => Err(no_such_device(ordinal, count as usize)),
    }
}

/// Returns a device that a caller named, if it exists. Every public function that takes a device passes it through
/// here.
#[inline]
pub(crate) fn existing(device: Device) -> Result<Device> {
    self::device(device.ordinal() as i64)
}

/// Returns what the device's platform reports about it. It creates no context, and invalidates no capture.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses; `ErrorKind::InvalidValue` if there is no such device; otherwise as
/// [`get`].
pub fn device_info(device: Device) -> Result<DeviceInfo> {
    let device = existing(device)?;
    let runtime = get()?;
    let _relaxed = RelaxedCapture::new(runtime)?;
    runtime.device_info(device).map_err(|error| error.on(device))
}

/// Returns the free and total memory there; for a device in a context that this makes if there is none.
pub(crate) fn memory_info(location: impl Into<MemoryLocation>) -> Result<MemoryInfo> {
    let location = location.into();
    let info = match location {
        MemoryLocation::Device(device) => BoundDevice::on(device)?.runtime.memory_info(),
        MemoryLocation::Host(node) => get()?.host_memory_info(node),
    };
    info.map_err(|error| error.on(location))
}

/// The UUIDs of all devices, by which of the runtime's calls gives them. The driver is asked once for all of them, since
/// whoever looks for a device needs each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KnownUuids {
    /// [`Runtime::device_uuid`](crate::runtime::Runtime::device_uuid).
    Devices,
    /// [`Runtime::memory_uuid`](crate::runtime::Runtime::memory_uuid).
    Memory,
}

impl KnownUuids {
    fn all(self) -> Result<&'static [DeviceUuid]> {
        static KNOWN: [OnceLock<Vec<DeviceUuid>>; 2] = [const { OnceLock::new() }; 2];
        let known = &KNOWN[self as usize];
        if let Some(all) = known.get() {
            return Ok(all);
        }
        let runtime = get()?;
        let all = (0..runtime.device_count()).map(Device::from_ordinal).map(|device| match self {
            Self::Devices => runtime.device_uuid(device),
            Self::Memory => runtime.memory_uuid(device),
        });
        let all = all.collect::<Result<_>>()?;
        Ok(known.get_or_init(|| all))
    }

    /// Returns the UUID of a device that exists.
    pub(crate) fn of(self, device: Device) -> Result<DeviceUuid> {
        let all = self.all()?;
        all.get(device.ordinal()).copied().ok_or_else(|| no_such_device(device.ordinal() as i64, all.len()))
    }

    /// Returns the device with a UUID; none if this process does not see it.
    pub(crate) fn device_with(self, uuid: &DeviceUuid) -> Result<Option<Device>> {
        let known = (0..).map(Device::from_ordinal).zip(self.all()?).find(|(_, known)| *known == uuid);
        Ok(known.map(|(device, _)| device))
    }
}

/// As many nodes as Linux supports.
const NODES_MAX: usize = 1024;

/// Returns the NUMA node of the host with this number.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; else as [`get`].
pub(crate) fn host_node(number: i64) -> Result<NumaNode> {
    let runtime = get()?;
    match u32::try_from(number).map(NumaNode::from_number) {
        Ok(node) if node.index() < NODES_MAX && runtime.has_host_node(node) => Ok(node),
        _ => Err(no_host_node(number)),
    }
}

#[cold]
pub(crate) fn no_host_node(number: impl Display) -> Error {
    Error::invalid_value(format!(
        "the host has no NUMA node {number}: `lscpu` lists them; leave numa out for the one nearest to the device"
    ))
}

/// Returns the host's NUMA node nearest to a device. The driver is asked once for each.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is no such device; `ErrorKind::Library` if the driver refuses.
#[inline]
pub(crate) fn nearest_host_node(device: Device) -> Result<NumaNode> {
    match NEAREST.get(device.ordinal()).map_or(0, |known| known.load(Ordering::Relaxed)) {
        0 => find_nearest(device),
        known => Ok(NumaNode::from_number(known - 1)),
    }
}

/// The nearest node of each device, plus one; 0 if it was not queried yet.
static NEAREST: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// The node of a host that has one, plus one; 0 if there are more, or none was queried.
static ONLY: AtomicU32 = AtomicU32::new(0);

/// Returns the host's only NUMA node, if it is known to be that: then the current device does not matter.
#[inline]
pub(crate) fn only_host_node() -> Option<NumaNode> {
    ONLY.load(Ordering::Relaxed).checked_sub(1).map(NumaNode::from_number)
}

#[cold]
fn find_nearest(device: Device) -> Result<NumaNode> {
    let runtime = get()?;
    let device = existing(device)?;
    let node = runtime.nearest_host_node(device).map_err(|error| error.on(device))?;
    let node = if runtime.has_host_node(node) { node } else { NumaNode::FIRST };
    if let Some(place) = NEAREST.get(device.ordinal()) {
        place.store(node.number() + 1, Ordering::Relaxed);
    }
    let nodes = (0..NODES_MAX as u32).map(NumaNode::from_number).filter(|&node| runtime.has_host_node(node));
    if nodes.take(2).count() < 2 {
        ONLY.store(node.number() + 1, Ordering::Relaxed);
    }
    Ok(node)
}

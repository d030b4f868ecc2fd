//! What device a neighbour speaks of: processes may number devices differently, so all name them by what the driver calls
//! a UUID. Asked once, since each answer needs all of them.

use std::sync::OnceLock;

use crate::error::Result;
use crate::ids::Device;
use crate::runtime::{DeviceUuid, get};

fn all() -> Result<&'static [DeviceUuid]> {
    static ALL: OnceLock<Vec<DeviceUuid>> = OnceLock::new();
    if let Some(all) = ALL.get() {
        return Ok(all);
    }
    let runtime = get()?;
    let read = (0..runtime.device_count()).map(|ordinal| runtime.memory_uuid(Device::from_ordinal(ordinal)));
    let read = read.collect::<Result<_>>()?;
    Ok(ALL.get_or_init(|| read))
}

/// Returns the UUID of a device that exists.
pub(super) fn uuid_of(device: Device) -> Result<DeviceUuid> {
    let known = all()?.get(device.ordinal()).copied();
    known.map_or_else(|| get()?.memory_uuid(device), Ok)
}

/// Returns the device with a UUID; none if this process does not see it.
pub(super) fn device_with(uuid: &DeviceUuid) -> Option<Device> {
    let known = (0..).map(Device::from_ordinal).zip(all().ok()?).find(|(_, known)| *known == uuid);
    known.map(|(device, _)| device)
}

//! What the driver says of devices and never changes: their UUIDs, asked once, for they are wanted with each block that
//! travels; and which reach the memory of which.

use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::reaches;
use crate::runtime::{DeviceUuid, get};

/// Returns the UUIDs of this process's devices, in order.
fn uuids() -> Result<&'static [DeviceUuid]> {
    static UUIDS: OnceLock<Vec<DeviceUuid>> = OnceLock::new();
    if let Some(uuids) = UUIDS.get() {
        return Ok(uuids);
    }
    let runtime = get()?;
    let all = (0..runtime.device_count()).map(|ordinal| runtime.device_uuid(Device::from_ordinal(ordinal)));
    let all = all.collect::<Result<_>>()?;
    Ok(UUIDS.get_or_init(|| all))
}

/// Returns a device's UUID.
pub(super) fn uuid_of(device: Device) -> Result<DeviceUuid> {
    let known = uuids()?.get(device.ordinal()).copied();
    known.map_or_else(|| get()?.device_uuid(device), Ok)
}

/// Returns this process's device with a UUID.
pub(super) fn device_with(uuid: &DeviceUuid) -> Result<Device> {
    let ordinal = uuids()?.iter().position(|known| known == uuid);
    ordinal.and_then(|ordinal| u32::try_from(ordinal).ok()).map(Device::from_ordinal).ok_or_else(|| unseen(uuid))
}

#[cold]
fn unseen(uuid: &DeviceUuid) -> Error {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    Error::invalid_value(format!(
        "the shared buffer is on the device with the UUID {digits}, which this process does not see: make it visible here \
         (CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES)"
    ))
}

/// Refuses a device that cannot reach the memory of the one where it is.
pub(super) fn check_reach(on: Device, owned_by: Device) -> Result<()> {
    if !reaches(on, owned_by)? {
        return Err(Error::invalid_value(format!(
            "{on} cannot reach the memory of {owned_by}, where the shared buffer is: the two are not connected by NVLink or \
             peer-to-peer PCIe; attach it on {owned_by} and copy through the host"
        )));
    }
    Ok(())
}

//! The UUIDs of all devices, by which processes tell each other which device they mean, as each may number devices
//! differently. The driver is asked once for all of them, since whoever looks for a device needs each.

use std::sync::OnceLock;

use super::DeviceUuid;
use crate::error::Result;
use crate::ids::Device;
use crate::runtime::get;

/// Which of the runtime's calls gives the UUIDs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KnownUuids {
    /// [`Runtime::device_uuid`](crate::runtime::Runtime::device_uuid).
    Devices,
    /// [`Runtime::memory_uuid`](crate::runtime::Runtime::memory_uuid).
    Memory,
}

impl KnownUuids {
    fn ask(self, device: Device) -> Result<DeviceUuid> {
        let runtime = get()?;
        match self {
            Self::Devices => runtime.device_uuid(device),
            Self::Memory => runtime.memory_uuid(device),
        }
    }

    fn all(self) -> Result<&'static [DeviceUuid]> {
        static KNOWN: [OnceLock<Vec<DeviceUuid>>; 2] = [const { OnceLock::new() }; 2];
        let known = &KNOWN[self as usize];
        if let Some(all) = known.get() {
            return Ok(all);
        }
        let all = (0..get()?.device_count()).map(|ordinal| self.ask(Device::from_ordinal(ordinal)));
        let all = all.collect::<Result<_>>()?;
        Ok(known.get_or_init(|| all))
    }

    /// Returns the UUID of a device that exists.
    pub(crate) fn of(self, device: Device) -> Result<DeviceUuid> {
        let known = self.all()?.get(device.ordinal()).copied();
        known.map_or_else(|| self.ask(device), Ok)
    }

    /// Returns the device with a UUID; none if this process does not see it.
    pub(crate) fn device_with(self, uuid: &DeviceUuid) -> Result<Option<Device>> {
        let known = (0..).map(Device::from_ordinal).zip(self.all()?).find(|(_, known)| *known == uuid);
        Ok(known.map(|(device, _)| device))
    }
}

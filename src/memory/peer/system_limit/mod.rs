//! Limits that the system sets for a device's memory, beside what the device has: of CUDA's Multi-Process Service for this
//! process (`mps.rs`), and of Linux (`cgroup.rs`) and NVIDIA's driver (`driver.rs`) for the processes of a control group. They
//! are read without rights, and count as the device's size: where nothing says which device is meant, or the system has
//! none, there is no limit.

mod cgroup;
mod driver;
mod mps;

use std::sync::OnceLock;

use self::cgroup::OwnGroup;
use super::division::reserved_on;
use crate::error::Result;
use crate::ids::Device;
use crate::runtime::{Kind, device_info, get};

/// A limit of a device's memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SystemLimit {
    pub(super) bytes: u64,
    pub(super) left: u64,
    /// Whether it is for this process alone, so that it does not help that others give back.
    pub(super) is_own: bool,
}

/// How drivers and the system name a device.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct DeviceNames {
    /// As `nvidia-smi -L` writes it.
    uuid: Option<String>,
    /// As `domain:bus:device.function`.
    pci: Option<String>,
}

/// Returns the names of a device; asked once. None of them if the driver refuses.
fn names_of(device: Device) -> DeviceNames {
    static ALL: OnceLock<Vec<DeviceNames>> = OnceLock::new();
    let read = || -> Result<Vec<DeviceNames>> {
        let all = (0..get()?.device_count()).map(Device::from_ordinal).map(|device| {
            let info = device_info(device)?;
            Ok(DeviceNames { uuid: info.uuid, pci: info.pci_bus_id })
        });
        all.collect()
    };
    // No lock is held while the driver is asked.
    let all = match ALL.get() {
        Some(all) => all,
        None => match read() {
            Ok(read) => ALL.get_or_init(|| read),
            Err(_) => return DeviceNames::default(),
        },
    };
    all.get(device.ordinal()).cloned().unwrap_or_default()
}

/// Returns the limits of a device's memory that the system has for this process.
pub(super) fn system_limits(device: Device) -> Vec<SystemLimit> {
    // AMD has no such service.
    let of_mps = get().is_ok_and(|runtime| runtime.kind() != Kind::Hip);
    let of_mps = of_mps.then(|| mps::limit(device, || names_of(device))).flatten().map(|bytes| SystemLimit {
        bytes,
        left: bytes.saturating_sub(reserved_on(device)),
        is_own: true,
    });
    let group = OwnGroup::find();
    let of_system = group.as_ref().and_then(|group| group.limit(|| names_of(device)));
    let of_driver = group.as_ref().and_then(|group| driver::limit(device, group));
    of_mps.into_iter().chain(of_system).chain(of_driver).collect()
}

/// Returns the smallest limit; none if the system has none.
pub(super) fn system_limit(device: Device) -> Option<u64> {
    system_limits(device).iter().map(|limit| limit.bytes).min()
}

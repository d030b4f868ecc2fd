//! The limit that the driver itself has for a control group, as NVIDIA's from R615 on, where the kernel has no `dmem` or the
//! limit was set by NVML. The process's own group is asked about: for one without a limit the driver answers with that of
//! the nearest group above it. Where the driver's limits nest, they are the kernel's, which `cgroup.rs` reads at each level.

use super::SystemLimit;
use super::cgroup::OwnGroup;
use crate::ids::Device;
use crate::runtime::{GroupLimit, get};

/// Returns the driver's limit of a device's memory for a group.
pub(super) fn limit(device: Device, group: &OwnGroup) -> Option<SystemLimit> {
    let GroupLimit { bytes, used } = get().ok()?.group_limit(device, &group.folder())?;
    Some(SystemLimit { bytes, left: bytes.saturating_sub(used), is_own: false })
}

//! Peers: other devices that may read and write a device's memory.

use super::devices::device_caches;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::reaches;

/// Lets `peer` read and write the memory of `device`, what there is and what comes, whatever other threads do with it meanwhile.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the two cannot reach each other; `ErrorKind::Library` if the driver refuses: then it is no
/// peer, and may be asked for again.
pub(crate) fn enable_peer(device: Device, peer: Device) -> Result<()> {
    let caches = device_caches(device)?;
    if peer == device {
        return Ok(());
    }
    if !reaches(peer, device)? {
        return Err(Error::invalid_value(format!(
            "{peer} cannot reach the memory of {device}: the two are not connected by NVLink or peer-to-peer PCIe; copy \
             through the host instead"
        )));
    }
    caches.memory.range.let_in(peer)
}

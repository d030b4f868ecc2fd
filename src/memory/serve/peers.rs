//! Peers: other devices that may access a device's memory.

use super::devices::device_caches;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::reaches;

/// Grants `peer` access to all present and later memory of `device`, whatever other threads do with it meanwhile.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the two cannot reach each other; `ErrorKind::Library` if the driver refuses: no
/// peer then, and the call may be repeated.
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

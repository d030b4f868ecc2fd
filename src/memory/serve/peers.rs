//! Peers: other devices that may access a device's memory.

use super::devices::device_caches;
use super::make_room::make_room;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::{UNKNOWN, reaches};
use crate::memory::pool::Pool;
use crate::memory::tuning::A_FEW;
use crate::sync::ThisThread;

/// Grants `peer` access to all present and later memory of `device`, whatever other threads do with it meanwhile. Pages
/// that the driver opens to no other device any more go back to it, if they are free.
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
    for _ in 0..A_FEW {
        match caches.memory.range.let_in(peer) {
            Err(refused) if refused.is_status(UNKNOWN) => {
                make_room(caches, ThisThread::get(), |pool: &Pool| !pool.no_split());
            }
            outcome => return outcome,
        }
    }
    caches.memory.range.let_in(peer).map_err(|refused| {
        if !refused.is_status(UNKNOWN) {
            return refused;
        }
        refused.advised(format!(
            "It opens some pages in use, which have moved, to no other device any more: free blocks of {device} and call \
             again, or enable access before there are any"
        ))
    })
}

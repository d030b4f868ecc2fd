//! Copies between a simulated device and the host: done when their stream comes to them, with real bytes.

use std::ptr;

use super::refused;
use super::virtual_memory::space;
use crate::error::{Result, StatusKind};
use crate::ids::Device;

/// A copy that is to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) bytes: u64,
    /// Which of both is the device's.
    pub(super) mapped: u64,
}

impl Copy {
    /// Copies, unless the device has no memory there: a GPU reports that as an error of the work.
    pub(super) fn run(self, device: Device) -> Result<()> {
        let Self { to, from, bytes, mapped } = self;
        // Under the lock, so that nothing is unmapped meanwhile.
        let space = space();
        if !space.is_accessible_range(mapped, bytes, device) {
            let status = ("HOST_ERROR_ILLEGAL_ADDRESS", 700);
            return Err(refused("a copy", status, StatusKind::Other).on(device));
        }
        let (to, from) =
            (ptr::with_exposed_provenance_mut::<u8>(to as usize), ptr::with_exposed_provenance(from as usize));
        // SAFETY: the device's range is mapped, as was just seen, and by the promise of who submitted the copy the host's is
        // alive until it is done.
        unsafe { ptr::copy_nonoverlapping(from, to, bytes as usize) };
        Ok(())
    }
}

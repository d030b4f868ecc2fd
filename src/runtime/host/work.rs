//! Work that simulated streams do with real bytes when its turn comes: copies between a device and the host, and fills.

use std::ptr;

use super::refusal::refused;
use super::virtual_memory::space;
use crate::error::{Result, StatusKind};
use crate::ids::Device;

#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Copies bytes from one address to another, of which `mapped` is the device's.
    Copy { to: u64, from: u64, bytes: u64, mapped: u64 },
    /// Sets bytes of a device.
    Fill { address: u64, byte: u8, bytes: u64 },
}

impl Work {
    /// Returns where its device memory begins.
    pub(super) const fn mapped(self) -> u64 {
        match self {
            Self::Copy { mapped, .. } => mapped,
            Self::Fill { address, .. } => address,
        }
    }

    pub(super) const fn bytes(self) -> u64 {
        let (Self::Copy { bytes, .. } | Self::Fill { bytes, .. }) = self;
        bytes
    }

    /// Runs it, unless the device has no memory there: a GPU reports that as an error of the work. Under Miri there are
    /// no bytes to change.
    pub(super) fn run(self, device: Device) -> Result<()> {
        let bytes = self.bytes();
        // Under the lock, so that nothing is unmapped meanwhile.
        let space = space();
        if !space.is_accessible(self.mapped(), bytes, device) {
            let status = ("HOST_ERROR_ILLEGAL_ADDRESS", 700);
            return Err(refused("a copy or a fill", status, StatusKind::Other).on(device));
        }
        if cfg!(miri) {
            return Ok(());
        }
        let pointer = |address: u64| ptr::with_exposed_provenance_mut::<u8>(address as usize);
        match self {
            // SAFETY: the device's range is mapped, as was just seen, and the caller that submitted the copy promises that the
            // host's is there until it is done; `copy` allows them to overlap.
            Self::Copy { to, from, .. } => unsafe { ptr::copy(pointer(from), pointer(to), bytes as usize) },
            // SAFETY: the range is mapped, as was just seen.
            Self::Fill { address, byte, .. } => unsafe { pointer(address).write_bytes(byte, bytes as usize) },
        }
        Ok(())
    }
}
